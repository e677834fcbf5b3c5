/* Layouts element by element, for comparing builders with naive models. */
#ifndef TESTS_RESHARD_ELEMENTS_H
#define TESTS_RESHARD_ELEMENTS_H

#include "support/test.h"

#include "reshard/layout/layout.h"

#define ELEMENT_PADDING (-1)
#define ELEMENT_UNSAID (-2)

static inline int64_t shape_elems(int ndim, const int64_t *shape)
{
    int64_t elems = 1;
    for (int d = 0; d < ndim; d++)
        elems *= shape[d];
    return elems;
}

/* The row-major index of a point. */
static inline int64_t element_index(int ndim, const int64_t *shape, const int64_t *point)
{
    int64_t index = 0;
    for (int d = 0; d < ndim; d++)
        index = index * shape[d] + point[d];
    return index;
}

/* Next point of a box, row-major; false after the last. */
static inline bool element_step(const banyan_box *box, int64_t *point)
{
    for (int d = box->ndim - 1; d >= 0; d--) {
        if (++point[d] < box->start[d] + box->extent[d])
            return true;
        point[d] = box->start[d];
    }
    return false;
}

/* Visit a box's elements: `point` starts at its first. */
#define FOR_EACH_ELEMENT(box, point)                                                               \
    if (memcpy((point), (box)->start, sizeof(box)->start), banyan_box_elems(box) > 0)              \
        for (bool more_ = true; more_; more_ = element_step((box), (point)))

/* For each element of a local tensor: its piece, and the element's row-major index in that piece's
 * global tensor, or ELEMENT_PADDING, or ELEMENT_UNSAID. The caller frees both arrays. An element
 * of two pieces fails the test. */
static inline int64_t *layout_elements(const banyan_layout *layout, size_t tensor,
                                       const banyan_piece ***pieces)
{
    const banyan_local_tensor *local = banyan_layout_tensor(layout, tensor);
    int64_t elems = shape_elems(local->ndim, local->shape), point[BANYAN_MAX_DIMS];
    int64_t *held = malloc(((size_t)elems + 1) * sizeof *held);
    const banyan_piece **by = calloc((size_t)elems + 1, sizeof *by);
    for (int64_t i = 0; i < elems; i++)
        held[i] = ELEMENT_UNSAID;
    for (size_t p = 0; p < banyan_layout_piece_count(layout); p++) {
        const banyan_piece *piece = banyan_layout_piece(layout, p);
        if (piece->tensor != (int)tensor)
            continue;
        FOR_EACH_ELEMENT(&piece->box, point)
        {
            int64_t place[BANYAN_MAX_DIMS];
            memcpy(place, piece->local_start, sizeof place);
            for (int d = 0; d < piece->ndim; d++)
                if (piece->dim_map[d] != BANYAN_NO_DIM)
                    place[piece->dim_map[d]] += point[d] - piece->box.start[d];
            int64_t at = element_index(local->ndim, local->shape, place);
            CHECK(held[at] == ELEMENT_UNSAID, "element %lld of %s twice", (long long)at,
                  local->name);
            held[at] = element_index(piece->ndim, piece->shape, point);
            by[at] = piece;
        }
    }
    for (size_t p = 0; p < banyan_layout_padding_count(layout); p++) {
        int padded;
        const banyan_box *box = banyan_layout_padding(layout, p, &padded);
        if (padded != (int)tensor)
            continue;
        FOR_EACH_ELEMENT(box, point)
        {
            int64_t at = element_index(local->ndim, local->shape, point);
            CHECK(held[at] == ELEMENT_UNSAID, "padding %lld of %s is held", (long long)at,
                  local->name);
            held[at] = ELEMENT_PADDING;
        }
    }
    *pieces = by;
    return held;
}

/* The layout's tensor with this name; -1 if there is none. */
static inline int layout_find_tensor(const banyan_layout *layout, const char *name)
{
    for (size_t i = 0; i < banyan_layout_tensor_count(layout); i++) {
        if (strcmp(banyan_layout_tensor(layout, i)->name, name) == 0)
            return (int)i;
    }
    return -1;
}

static inline bool same_piece(const banyan_piece *a, const banyan_piece *b)
{
    return banyan_box_equal(&a->box, &b->box) && strcmp(a->name, b->name) == 0;
}

/* The layout's piece with this box of this tensor; NULL if there is none. */
static inline const banyan_piece *find_same_piece(const banyan_layout *layout,
                                                  const banyan_piece *piece)
{
    for (size_t i = 0; layout && i < banyan_layout_piece_count(layout); i++) {
        if (same_piece(banyan_layout_piece(layout, i), piece))
            return banyan_layout_piece(layout, i);
    }
    return NULL;
}

/* Replica sets name ranks that hold this box and have this set; with `all`, they name all such
 * ranks. layouts[i] (or NULL) is rank i's. Returns the number of pieces with a set. */
static inline size_t check_replica_sets(banyan_layout *const *layouts, int ranks, bool all)
{
    size_t given = 0;
    for (int rank = 0; rank < ranks; rank++) {
        for (size_t p = 0; layouts[rank] && p < banyan_layout_piece_count(layouts[rank]); p++) {
            const banyan_piece *piece = banyan_layout_piece(layouts[rank], p);
            int64_t size = banyan_rank_set_size(&piece->replicas), found = 0;
            given += size > 0;
            CHECK(size > 0 || !all, "%s at rank %d", piece->name, rank);
            CHECK(size == 0 || banyan_rank_set_find(&piece->replicas, rank) >= 0, "%s at rank %d",
                  piece->name, rank);
            for (int other = 0; size > 0 && other < ranks; other++) {
                const banyan_piece *same = find_same_piece(layouts[other], piece);
                bool named = banyan_rank_set_find(&piece->replicas, other) >= 0;
                found += named;
                CHECK(named ? same != NULL : !(all && same), "%s of rank %d: rank %d", piece->name,
                      rank, other);
                CHECK(!named ||
                          memcmp(&same->replicas, &piece->replicas, sizeof piece->replicas) == 0,
                      "%s: ranks %d and %d", piece->name, rank, other);
            }
            CHECK(found == size, "%s of rank %d: %lld of a set of %lld", piece->name, rank,
                  (long long)found, (long long)size);
        }
    }
    return given;
}

#endif
