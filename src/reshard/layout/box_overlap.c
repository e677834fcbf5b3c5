/* Find two boxes of many that overlap.
 *
 * Sorted along one dimension, the boxes fall into groups separated by planes. Each group is split
 * along the next dimension, cyclically, until it is a single box or no dimension splits it. Only
 * then are boxes compared, each with those that are still open when the sweep reaches it. */
#include <stdlib.h>

#include "core/error.h"
#include "reshard/layout/box.h"

/* Groups up to this size are compared pair by pair. */
#define SMALL_GROUP 4
/* Boxes that separate one by one would recurse as deep as there are boxes. */
#define MAX_DEPTH 64

struct search {
    const banyan_box *boxes;
    size_t *open; /* entered and not yet left by the sweep */
    int ndim;
    bool found;
    size_t a, b;
};

struct sort_key {
    const banyan_box *boxes;
    int dim;
};

static int by_start(const void *left, const void *right, void *context)
{
    const struct sort_key *key = context;
    int64_t a = key->boxes[*(const size_t *)left].start[key->dim];
    int64_t b = key->boxes[*(const size_t *)right].start[key->dim];
    return (a > b) - (a < b);
}

static void sort_along(struct search *search, size_t *order, size_t count, int dim)
{
    struct sort_key key = {search->boxes, dim};
    for (size_t i = 1; i < count; i++) {
        if (by_start(&order[i - 1], &order[i], &key) > 0) {
            qsort_r(order, count, sizeof *order, by_start, &key);
            return;
        }
    }
}

static bool box_overlap(struct search *search, size_t a, size_t b)
{
    banyan_box both;
    if (!banyan_box_intersect(&search->boxes[a], &search->boxes[b], &both))
        return false;
    search->found = true;
    search->a = a < b ? a : b;
    search->b = a < b ? b : a;
    return true;
}

static int64_t end_along(const struct search *search, size_t box, int dim)
{
    return search->boxes[box].start[dim] + search->boxes[box].extent[dim];
}

static void box_overlap_sweep(struct search *search, size_t *order, size_t count, int dim)
{
    sort_along(search, order, count, dim);
    size_t open = 0;
    for (size_t i = 0; i < count; i++) {
        size_t kept = 0;
        for (size_t k = 0; k < open; k++) {
            if (end_along(search, search->open[k], dim) <= search->boxes[order[i]].start[dim])
                continue;
            if (box_overlap(search, search->open[k], order[i]))
                return;
            search->open[kept++] = search->open[k];
        }
        open = kept;
        search->open[open++] = order[i];
    }
}

/* The last `unsplit` dimensions before `dim` did not split this group. */
static void search_group(struct search *search, size_t *order, size_t count, int dim, int unsplit,
                         int depth)
{
    if (search->found || count < 2)
        return;
    if (count <= SMALL_GROUP || unsplit == search->ndim || depth == MAX_DEPTH) {
        box_overlap_sweep(search, order, count, dim);
        return;
    }
    sort_along(search, order, count, dim);
    int next = (dim + 1) % search->ndim;
    size_t first = 0;
    int64_t reach = end_along(search, order[0], dim);
    for (size_t i = 1; i <= count; i++) {
        if (i < count && search->boxes[order[i]].start[dim] < reach) {
            int64_t end = end_along(search, order[i], dim);
            reach = end > reach ? end : reach;
            continue;
        }
        bool whole = first == 0 && i == count;
        search_group(search, order + first, i - first, next, whole ? unsplit + 1 : 1, depth + 1);
        first = i;
        if (i < count)
            reach = end_along(search, order[i], dim);
    }
}

banyan_status boxes_find_overlap(const banyan_box *boxes, size_t count, bool *found, size_t *a,
                                 size_t *b)
{
    *found = false;
    if (count < 2)
        return BANYAN_OK;
    size_t *indices = calloc(count, 2 * sizeof *indices);
    if (!indices)
        return error_no_memory(count * 2 * sizeof *indices, "a search for overlaps");
    for (size_t i = 0; i < count; i++)
        indices[i] = i;
    struct search search = {.boxes = boxes, .open = indices + count, .ndim = boxes[0].ndim};
    if (search.ndim == 0)
        box_overlap(&search, 0, 1);
    else
        search_group(&search, indices, count, 0, 0, 0);
    if (search.found) {
        *found = true;
        *a = search.a;
        *b = search.b;
    }
    free(indices);
    return BANYAN_OK;
}
