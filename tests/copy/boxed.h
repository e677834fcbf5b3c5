/* Tensors for tests of copies: any strides, in memory that shows every write. */
#ifndef TESTS_COPY_BOXED_H
#define TESTS_COPY_BOXED_H

#include "support/test.h"

typedef struct boxed {
    DLTensor tensor;
    int64_t shape[BANYAN_MAX_DIMS], strides[BANYAN_MAX_DIMS];
    unsigned char *memory;
    size_t memory_bytes, elem_bytes;
    int64_t first; /* element 0, in bytes from the memory's start */
    bool owns_memory;
} boxed;

#define BOXED_POISON 0xa5

static const size_t boxed_elem_sizes[] = {1, 2, 4, 8, 16, 3, 12};

static inline size_t boxed_elem_size(random_state *random)
{
    return boxed_elem_sizes[random_between(random, 0, 6)];
}

static inline uint64_t boxed_elements(const boxed *box)
{
    uint64_t count = 1;
    for (int i = 0; i < box->tensor.ndim; i++)
        count *= (uint64_t)box->shape[i];
    return count;
}

/* Find an element in the simplest way, for comparison with the library's fast one. */
static inline unsigned char *boxed_element(const boxed *box, uint64_t index)
{
    int64_t offset = 0;
    for (int i = box->tensor.ndim - 1; i >= 0; i--) {
        offset += (int64_t)(index % (uint64_t)box->shape[i]) * box->strides[i];
        index /= (uint64_t)box->shape[i];
    }
    return box->memory + box->first + offset * (int64_t)box->elem_bytes;
}

/* Lay the dimensions out in random order, some backwards, some with gaps; for a source, some with
 * stride 0. */
static inline void boxed_choose_strides(random_state *random, boxed *box, bool repeats)
{
    int order[BANYAN_MAX_DIMS], ndim = box->tensor.ndim;
    for (int i = 0; i < ndim; i++) {
        int at = (int)random_between(random, 0, i);
        order[i] = order[at];
        order[at] = i;
    }
    if (random_between(random, 0, 2) == 0)
        for (int i = 0; i < ndim; i++)
            order[i] = ndim - 1 - i;
    int64_t stride = random_between(random, 0, 3) ? 1 : random_between(random, 1, 3);
    int64_t low = 0, high = 0;
    for (int i = 0; i < ndim; i++) {
        int d = order[i];
        int64_t extent = box->shape[d] > 0 ? box->shape[d] : 1;
        box->strides[d] = random_between(random, 0, 5) == 0 ? -stride : stride;
        if (repeats && random_between(random, 0, 7) == 0)
            box->strides[d] = 0;
        int64_t reach = (extent - 1) * box->strides[d];
        low += reach < 0 ? reach : 0;
        high += reach > 0 ? reach : 0;
        if (box->strides[d] != 0)
            stride *= extent;
        if (random_between(random, 0, 3) == 0)
            stride += random_between(random, 1, 3);
    }
    int64_t before = random_between(random, 0, 40);
    box->first = before - low * (int64_t)box->elem_bytes;
    box->memory_bytes = (size_t)(high - low + 1) * box->elem_bytes + (size_t)before + 40;
}

/* Choose shape and strides; boxed_place provides the memory. */
static inline boxed boxed_make(random_state *random, size_t elem_bytes, int ndim,
                               const int64_t *shape, bool repeats)
{
    boxed box = {.elem_bytes = elem_bytes};
    box.tensor.device = (DLDevice){kDLCPU, 0};
    box.tensor.dtype = (DLDataType){kDLUInt, 8, (uint16_t)elem_bytes};
    box.tensor.ndim = ndim;
    if (ndim > 0)
        memcpy(box.shape, shape, (size_t)ndim * sizeof *shape);
    boxed_choose_strides(random, &box, repeats);
    return box;
}

/* `memory` NULL: allocate its own. */
static inline void boxed_place(boxed *box, void *memory)
{
    box->owns_memory = !memory;
    box->memory = memory ? memory : malloc(box->memory_bytes);
    box->tensor.byte_offset = (uint64_t)(box->first % 40);
    box->tensor.data = box->memory + box->first - (int64_t)box->tensor.byte_offset;
}

static inline void boxed_free(boxed *box)
{
    if (box->owns_memory)
        free(box->memory);
}

/* Set the pointers into the struct once it has its final place. */
static inline const DLTensor *boxed_tensor(boxed *box)
{
    box->tensor.shape = box->shape;
    box->tensor.strides = box->strides;
    return &box->tensor;
}

static inline void boxed_poison(boxed *box)
{
    memset(box->memory, BOXED_POISON, box->memory_bytes);
}

static inline bool boxed_is_poisoned(const boxed *box)
{
    for (size_t i = 0; i < box->memory_bytes; i++)
        if (box->memory[i] != BOXED_POISON)
            return false;
    return true;
}

static inline void boxed_random_shape(random_state *random, int *ndim, int64_t *shape, int64_t most)
{
    *ndim = (int)random_between(random, 0, BANYAN_MAX_DIMS);
    int64_t left = most;
    for (int i = 0; i < *ndim; i++) {
        int64_t extent = random_between(random, 1, 12);
        if (random_between(random, 0, 2) == 0)
            extent = random_between(random, 1, 150);
        shape[i] = extent <= left ? extent : 1;
        left /= shape[i];
    }
    if (*ndim > 0 && random_between(random, 0, 30) == 0)
        shape[random_between(random, 0, *ndim - 1)] = 0;
}

/* Another shape with the same number of elements: a new distribution of the prime factors. */
static inline void boxed_reshape(random_state *random, uint64_t count, int *ndim, int64_t *shape)
{
    *ndim = (int)random_between(random, 1, BANYAN_MAX_DIMS);
    for (int i = 0; i < *ndim; i++)
        shape[i] = 1;
    if (count == 0)
        shape[0] = 0;
    for (uint64_t factor = 2; count > 1; factor += count % factor != 0)
        if (count % factor == 0) {
            shape[random_between(random, 0, *ndim - 1)] *= (int64_t)factor;
            count /= factor;
        }
}

#endif
