/* Random tensors, and changes of their elements. */
#ifndef TESTS_PUBLISH_DELTA_EXAMPLE_H
#define TESTS_PUBLISH_DELTA_EXAMPLE_H

#include "support/test.h"

#include "copy/strided/strided.h"

static inline uint64_t below(random_state *random, uint64_t end)
{
    return (uint64_t)random_between(random, 0, (int64_t)end - 1);
}

/* A tensor of some dimensions at random places of a buffer, and a dense copy of it. */
struct example {
    size_t elem_bytes;
    int ndim;
    int64_t shape[3], strides[3];
    uint64_t elems;
    size_t buffer_bytes;
    unsigned char *buffer;
    DLTensor tensor;
    strided_view view;
};

static inline void fill_random(random_state *random, unsigned char *to, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        to[i] = (unsigned char)random_next(random);
}

/* The tensor points into the example, which therefore is not returned. */
static inline void make_example(random_state *random, struct example *made)
{
    static const int sizes[] = {1, 2, 2, 4, 8, 16};
    *made = (struct example){.elem_bytes = (size_t)sizes[below(random, 6)]};
    int order[] = {0, 1, 2};
    made->ndim = 1 + (int)below(random, 3);
    made->elems = 1;
    for (int d = 0; d < made->ndim; d++) {
        made->shape[d] = 1 + (int64_t)below(random, made->ndim == 1 ? 20000 : 40);
        made->elems *= (uint64_t)made->shape[d];
        int other = (int)below(random, (uint64_t)d + 1);
        int swapped = order[d];
        order[d] = order[other];
        order[other] = swapped;
    }
    int64_t stride = 1;
    bool plain = below(random, 2);
    for (int i = made->ndim - 1; i >= 0; i--) {
        int d = plain ? i : order[i];
        made->strides[d] = stride;
        stride *= made->shape[d] + (int64_t)(plain ? 0 : below(random, 3));
    }
    made->buffer_bytes = (size_t)stride * made->elem_bytes;
    made->buffer = malloc(made->buffer_bytes);
    fill_random(random, made->buffer, made->buffer_bytes);
    made->tensor = (DLTensor){.data = made->buffer,
                              .device = {kDLCPU, 0},
                              .ndim = made->ndim,
                              .dtype = {kDLUInt, (uint8_t)(8 * made->elem_bytes), 1},
                              .shape = made->shape,
                              .strides = made->strides};
    if (made->elem_bytes == 16)
        made->tensor.dtype = (DLDataType){kDLComplex, 128, 1};
}

/* Change a share of the elements, in one of their bits each. */
static inline uint64_t change(random_state *random, struct example *example, uint64_t per_mille)
{
    uint64_t changed = 0;
    for (uint64_t i = 0; i < example->elems; i++) {
        if (below(random, 1000) >= per_mille)
            continue;
        uint64_t left = i;
        int64_t at = 0;
        for (int d = example->ndim - 1; d >= 0; d--) {
            at += (int64_t)(left % (uint64_t)example->shape[d]) * example->strides[d];
            left /= (uint64_t)example->shape[d];
        }
        example->buffer[(size_t)at * example->elem_bytes + below(random, example->elem_bytes)] ^=
            (unsigned char)(1u << below(random, 8));
        changed++;
    }
    return changed;
}

static inline void pack(const struct example *example, unsigned char *to)
{
    strided_pack(to, &example->view, 0, example->elems);
}

#endif
