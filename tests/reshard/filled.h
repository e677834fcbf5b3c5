/* Local tensors filled from their pieces' names and global indices, and checks of them. */
#ifndef TESTS_RESHARD_FILLED_H
#define TESTS_RESHARD_FILLED_H

#include "support/test.h"

#define FILLED_POISON 0xa5

/* The element, in the set, of global index `index` of a piece: an independent implementation of
 * banyan/layout.h's rule. */
static inline unsigned char *filled_at(const banyan_tensors *set, const banyan_piece *piece,
                                       const int64_t *index)
{
    const DLTensor *tensor = banyan_tensors_get(set, (size_t)piece->tensor);
    int64_t offset = 0;
    for (int k = 0; k < tensor->ndim; k++)
        offset += piece->local_start[k] * tensor->strides[k];
    for (int d = 0; d < piece->ndim; d++)
        if (piece->dim_map[d] != BANYAN_NO_DIM)
            offset += (index[d] - piece->box.start[d]) * tensor->strides[piece->dim_map[d]];
    return (unsigned char *)tensor->data + tensor->byte_offset +
           offset * (int64_t)banyan_dtype_bytes(tensor->dtype);
}

typedef void (*filled_visit)(const banyan_piece *piece, const int64_t *index, uint64_t flat,
                             unsigned char *element, size_t elem_bytes, void *context);

static inline void filled_each(const banyan_layout *layout, const banyan_tensors *set,
                               filled_visit visit, void *context)
{
    for (size_t p = 0; p < banyan_layout_piece_count(layout); p++) {
        const banyan_piece *piece = banyan_layout_piece(layout, p);
        uint64_t elems = banyan_box_elems(&piece->box);
        size_t elem_bytes =
            banyan_dtype_bytes(banyan_tensors_get(set, (size_t)piece->tensor)->dtype);
        for (uint64_t i = 0; i < elems; i++) {
            int64_t index[BANYAN_MAX_DIMS];
            uint64_t rest = i, flat = 0;
            for (int d = piece->ndim - 1; d >= 0; d--) {
                index[d] = piece->box.start[d] + (int64_t)(rest % (uint64_t)piece->box.extent[d]);
                rest /= (uint64_t)piece->box.extent[d];
            }
            for (int d = 0; d < piece->ndim; d++)
                flat = flat * (uint64_t)piece->shape[d] + (uint64_t)index[d];
            visit(piece, index, flat, filled_at(set, piece, index), elem_bytes, context);
        }
    }
}

/* The value of an element in a pass. */
static inline void filled_value(const char *name, int pass, uint64_t flat, size_t elem_bytes,
                                unsigned char *value)
{
    char salted[512];
    snprintf(salted, sizeof salted, "%s@%d", name, pass);
    pattern_element(salted, flat, elem_bytes, value);
}

static inline void filled_write(const banyan_piece *piece, const int64_t *index, uint64_t flat,
                                unsigned char *element, size_t elem_bytes, void *context)
{
    (void)index;
    filled_value(piece->name, *(const int *)context, flat, elem_bytes, element);
}

/* The number-th element of a tensor in row-major order, whatever its strides. */
static inline unsigned char *filled_nth(const DLTensor *tensor, uint64_t number)
{
    int64_t offset = 0;
    for (int d = tensor->ndim - 1; d >= 0; d--) {
        offset += (int64_t)(number % (uint64_t)tensor->shape[d]) * tensor->strides[d];
        number /= (uint64_t)tensor->shape[d];
    }
    return (unsigned char *)tensor->data + tensor->byte_offset +
           offset * (int64_t)banyan_dtype_bytes(tensor->dtype);
}

static inline uint64_t filled_elems(const DLTensor *tensor)
{
    uint64_t elems = 1;
    for (int d = 0; d < tensor->ndim; d++)
        elems *= (uint64_t)tensor->shape[d];
    return elems;
}

static inline void filled_poison(const banyan_tensors *set)
{
    for (size_t i = 0; i < banyan_tensors_count(set); i++) {
        const DLTensor *tensor = banyan_tensors_get(set, i);
        for (uint64_t e = 0; e < filled_elems(tensor); e++)
            memset(filled_nth(tensor, e), FILLED_POISON, banyan_dtype_bytes(tensor->dtype));
    }
}

/* Fill a source: poison, and in it the pieces' elements of this pass. */
static inline void filled_make(const banyan_layout *layout, const banyan_tensors *set, int pass)
{
    filled_poison(set);
    filled_each(layout, set, filled_write, &pass);
}

struct filled_expectation {
    int pass;
    bool from_fallback; /* pieces with a fallback were filled from it */
};

static inline void filled_compare(const banyan_piece *piece, const int64_t *index, uint64_t flat,
                                  unsigned char *element, size_t elem_bytes, void *context)
{
    (void)index;
    const struct filled_expectation *expected = context;
    const char *name =
        expected->from_fallback && piece->fallback_name ? piece->fallback_name : piece->name;
    unsigned char value[16];
    filled_value(name, expected->pass, flat, elem_bytes, value);
    CHECK(memcmp(element, value, elem_bytes) == 0, "element %llu of \"%s\" in pass %d",
          (unsigned long long)flat, piece->name, expected->pass);
}

static inline void filled_mark(const banyan_piece *piece, const int64_t *index, uint64_t flat,
                               unsigned char *element, size_t elem_bytes, void *context)
{
    (void)piece;
    (void)index;
    (void)flat;
    (void)context;
    memset(element, FILLED_POISON, elem_bytes);
}

static inline void filled_check_padding(const banyan_layout *layout, const banyan_tensors *set)
{
    for (size_t i = 0; i < banyan_layout_padding_count(layout); i++) {
        int number;
        const banyan_box *box = banyan_layout_padding(layout, i, &number);
        static const unsigned char zeros[16];
        const void *fill = banyan_layout_padding_fill(layout, i);
        const DLTensor *tensor = banyan_tensors_get(set, (size_t)number);
        banyan_piece as_piece = {.tensor = number, .ndim = box->ndim, .box = *box};
        size_t elem_bytes = banyan_dtype_bytes(tensor->dtype);
        for (int d = 0; d < box->ndim; d++) {
            as_piece.dim_map[d] = d;
            as_piece.local_start[d] = box->start[d];
        }
        for (uint64_t e = 0; e < banyan_box_elems(box); e++) {
            int64_t index[BANYAN_MAX_DIMS];
            uint64_t rest = e;
            for (int d = box->ndim - 1; d >= 0; d--) {
                index[d] = box->start[d] + (int64_t)(rest % (uint64_t)box->extent[d]);
                rest /= (uint64_t)box->extent[d];
            }
            unsigned char *element = filled_at(set, &as_piece, index);
            CHECK(memcmp(element, fill ? fill : zeros, elem_bytes) == 0, "padding of tensor %d",
                  number);
            memset(element, FILLED_POISON, elem_bytes);
        }
    }
}

/* Check a destination: every element of every piece is right (from its fallback, if it has one and
 * the source lacks the tensor), padding has its value, and everything else is poison. Then poison
 * it again. */
static inline void filled_check(const banyan_layout *layout, const banyan_tensors *set, int pass,
                                bool from_fallback)
{
    struct filled_expectation expected = {.pass = pass, .from_fallback = from_fallback};
    filled_each(layout, set, filled_compare, &expected);
    filled_each(layout, set, filled_mark, NULL);
    filled_check_padding(layout, set);
    for (size_t i = 0; i < banyan_tensors_count(set); i++) {
        const DLTensor *tensor = banyan_tensors_get(set, i);
        for (uint64_t e = 0; e < filled_elems(tensor); e++)
            for (size_t b = 0; b < banyan_dtype_bytes(tensor->dtype); b++)
                CHECK(filled_nth(tensor, e)[b] == FILLED_POISON, "element %llu of tensor %zu",
                      (unsigned long long)e, i);
    }
}

#endif
