#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/containers.h"
#include "core/error.h"
#include "reshard/layout/box.h"

uint64_t banyan_box_elems(const banyan_box *box)
{
    uint64_t elems = 1;
    for (int d = 0; d < box->ndim; d++)
        elems *= (uint64_t)box->extent[d];
    return elems;
}

bool banyan_box_equal(const banyan_box *a, const banyan_box *b)
{
    if (a->ndim != b->ndim)
        return false;
    for (int d = 0; d < a->ndim; d++) {
        if (a->start[d] != b->start[d] || a->extent[d] != b->extent[d])
            return false;
    }
    return true;
}

bool banyan_box_intersect(const banyan_box *a, const banyan_box *b, banyan_box *out)
{
    if (a->ndim != b->ndim)
        return false;
    banyan_box both = {.ndim = a->ndim};
    for (int d = 0; d < a->ndim; d++) {
        int64_t a_end = a->start[d] + a->extent[d], b_end = b->start[d] + b->extent[d];
        int64_t start = a->start[d] > b->start[d] ? a->start[d] : b->start[d];
        int64_t end = a_end < b_end ? a_end : b_end;
        if (start >= end)
            return false;
        both.start[d] = start;
        both.extent[d] = end - start;
    }
    *out = both;
    return true;
}

/* Emit one slab below and one above the cut in each dimension; the next dimension cuts the rest. */
int banyan_box_subtract(const banyan_box *a, const banyan_box *b,
                        banyan_box out[2 * BANYAN_MAX_DIMS])
{
    banyan_box cut;
    if (!banyan_box_intersect(a, b, &cut)) {
        out[0] = *a;
        return banyan_box_elems(a) > 0;
    }
    int count = 0;
    banyan_box rest = *a;
    for (int d = 0; d < a->ndim; d++) {
        int64_t below = cut.start[d] - rest.start[d];
        int64_t above = rest.start[d] + rest.extent[d] - (cut.start[d] + cut.extent[d]);
        if (below > 0) {
            out[count] = rest;
            out[count++].extent[d] = below;
        }
        if (above > 0) {
            out[count] = rest;
            out[count].start[d] = cut.start[d] + cut.extent[d];
            out[count++].extent[d] = above;
        }
        rest.start[d] = cut.start[d];
        rest.extent[d] = cut.extent[d];
    }
    return count;
}

const char *banyan_box_format(const banyan_box *box, char *text, size_t bytes)
{
    size_t used = 0;
    for (int d = 0; d < box->ndim && used < bytes; d++) {
        int written = snprintf(text + used, bytes - used, "%s%lld:%lld", d == 0 ? "[" : ", ",
                               (long long)box->start[d],
                               (long long)((uint64_t)box->start[d] + (uint64_t)box->extent[d]));
        used += (size_t)written;
    }
    if (used < bytes)
        snprintf(text + used, bytes - used, box->ndim == 0 ? "[]" : "]");
    return text;
}

bool box_fits(const banyan_box *box, int ndim, const int64_t *shape)
{
    if (box->ndim != ndim)
        return false;
    for (int d = 0; d < ndim; d++) {
        if (box->start[d] < 0 || box->extent[d] < 0 || box->start[d] > shape[d] ||
            box->extent[d] > shape[d] - box->start[d])
            return false;
    }
    return true;
}

banyan_box box_whole(int ndim, const int64_t *shape)
{
    banyan_box box = {.ndim = ndim};
    for (int d = 0; d < ndim; d++)
        box.extent[d] = shape[d];
    return box;
}

void chunk_range(int64_t size, int64_t parts, int64_t index, int64_t *start, int64_t *extent)
{
    int64_t chunk = size / parts + (size % parts != 0);
    int64_t from = chunk > 0 && index > size / chunk ? size : index * chunk;
    *start = from < size ? from : size;
    *extent = size - *start < chunk ? size - *start : chunk;
}

const char *shape_format(int ndim, const int64_t *shape, char *text, size_t bytes)
{
    size_t used = 0;
    for (int d = 0; d < ndim && used < bytes; d++) {
        int written =
            snprintf(text + used, bytes - used, "%s%lld", d == 0 ? "[" : ", ", (long long)shape[d]);
        used += (size_t)written;
    }
    if (used < bytes)
        snprintf(text + used, bytes - used, ndim == 0 ? "[]" : "]");
    return text;
}

bool shape_equal(int ndim, const int64_t *shape, int other_ndim, const int64_t *other)
{
    return ndim == other_ndim && memcmp(shape, other, (size_t)ndim * sizeof *shape) == 0;
}

bool shape_bytes(int ndim, const int64_t *shape, size_t elem_bytes, uint64_t *bytes)
{
    uint64_t product = elem_bytes, nonzero = elem_bytes;
    for (int d = 0; d < ndim; d++) {
        if (shape[d] < 0)
            return false;
        product *= (uint64_t)shape[d];
        if (shape[d] > 0 &&
            (__builtin_mul_overflow(nonzero, (uint64_t)shape[d], &nonzero) || nonzero > INT64_MAX))
            return false;
    }
    *bytes = product;
    return true;
}

/* Find two boxes of many that overlap.
 *
 * Sorted along one dimension, the boxes fall into groups separated by planes. Each group is split
 * along the next dimension, cyclically, until it is a single box or no dimension splits it. Only
 * then are boxes compared, each with those that are still open when the sweep reaches it. */

/* Groups up to this size are compared pair by pair. */
#define SMALL_GROUP 4
/* Boxes that separate one by one would recurse as deep as there are boxes. */
#define MAX_DEPTH 64

struct overlap_search {
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
    return COMPARE(a, b);
}

static void sort_along(struct overlap_search *search, size_t *order, size_t count, int dim)
{
    struct sort_key key = {search->boxes, dim};
    for (size_t i = 1; i < count; i++) {
        if (by_start(&order[i - 1], &order[i], &key) > 0) {
            qsort_r(order, count, sizeof *order, by_start, &key);
            return;
        }
    }
}

static bool box_overlap(struct overlap_search *search, size_t a, size_t b)
{
    banyan_box both;
    if (!banyan_box_intersect(&search->boxes[a], &search->boxes[b], &both))
        return false;
    search->found = true;
    search->a = a < b ? a : b;
    search->b = a < b ? b : a;
    return true;
}

static int64_t end_along(const struct overlap_search *search, size_t box, int dim)
{
    return search->boxes[box].start[dim] + search->boxes[box].extent[dim];
}

static void box_overlap_sweep(struct overlap_search *search, size_t *order, size_t count, int dim)
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
static void search_group(struct overlap_search *search, size_t *order, size_t count, int dim,
                         int unsplit, int depth)
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
    size_t *indices = alloc_zeroed(count, 2 * sizeof *indices, "a search for overlaps");
    RETURN_IF_NO_MEMORY(indices);
    for (size_t i = 0; i < count; i++)
        indices[i] = i;
    struct overlap_search search = {.boxes = boxes, .open = indices + count, .ndim = boxes[0].ndim};
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

/* Find the holes that many boxes leave in one.
 *
 * A region inside some box is covered, and a region that intersects no box is a hole. Any other
 * region is split along the dimension with the most planes on which boxes begin or end, at the
 * middle one. If the boxes do not overlap, the sum of their elements decides which half has a hole;
 * if they do, both halves are searched. */

struct hole_search {
    const banyan_box *boxes;
    size_t *order;   /* stack: a region's boxes lie behind those of its enclosing regions */
    size_t capacity; /* of the stack */
    int64_t *planes; /* two per box */
    bool disjoint, failed;
    ARRAY(banyan_box) holes;
    size_t most; /* upper limit of holes */
};

/* Count the elements of the region that its boxes hold. */
static uint64_t covered_elems(const struct hole_search *search, const banyan_box *region,
                              const size_t *order, size_t count)
{
    uint64_t elems = 0;
    banyan_box common;
    for (size_t i = 0; i < count; i++)
        if (banyan_box_intersect(region, &search->boxes[order[i]], &common))
            elems += banyan_box_elems(&common);
    return elems;
}

/* Push the boxes of `from` that intersect the region on the stack behind `top`. False when it is
 * full and cannot grow. */
static bool push_overlapping(struct hole_search *search, const banyan_box *region, size_t from,
                             size_t count, size_t top, size_t *kept)
{
    if (top + count > search->capacity) {
        size_t capacity = 2 * (top + count);
        size_t *grown = realloc(search->order, capacity * sizeof *grown);
        if (!grown) {
            search->failed = true;
            return false;
        }
        search->order = grown;
        search->capacity = capacity;
    }
    banyan_box common;
    *kept = 0;
    for (size_t i = 0; i < count; i++)
        if (banyan_box_intersect(region, &search->boxes[search->order[from + i]], &common))
            search->order[top + (*kept)++] = search->order[from + i];
    return true;
}

static int compare_planes(const void *left, const void *right)
{
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return COMPARE(a, b);
}

/* List the planes along `dim` on which boxes begin or end inside the region. */
static size_t list_planes(const struct hole_search *search, const banyan_box *region,
                          const size_t *order, size_t count, int dim)
{
    int64_t low = region->start[dim], high = low + region->extent[dim];
    size_t planes = 0;
    for (size_t i = 0; i < count; i++) {
        const banyan_box *box = &search->boxes[order[i]];
        int64_t ends[2] = {box->start[dim], box->start[dim] + box->extent[dim]};
        for (int e = 0; e < 2; e++)
            if (ends[e] > low && ends[e] < high)
                search->planes[planes++] = ends[e];
    }
    return planes;
}

/* False when no plane splits the region: then a box that intersects it contains it. */
static bool box_cover_split(const struct hole_search *search, const banyan_box *region,
                            const size_t *order, size_t count, banyan_box half[2])
{
    int best = -1;
    size_t most = 0;
    for (int d = 0; d < region->ndim; d++) {
        size_t planes = list_planes(search, region, order, count, d);
        if (planes > most) {
            most = planes;
            best = d;
        }
    }
    if (best < 0)
        return false;
    list_planes(search, region, order, count, best);
    qsort(search->planes, most, sizeof search->planes[0], compare_planes);
    int64_t plane = search->planes[most / 2];
    half[0] = half[1] = *region;
    half[0].extent[best] = plane - region->start[best];
    half[1].start[best] = plane;
    half[1].extent[best] -= half[0].extent[best];
    return true;
}

static bool box_cover_contains(const banyan_box *box, const banyan_box *region)
{
    banyan_box common;
    return banyan_box_intersect(box, region, &common) && banyan_box_equal(&common, region);
}

/* The region's boxes are the `count` ones of the stack from `first` on. */
static void search_region(struct hole_search *search, const banyan_box *region, size_t first,
                          size_t count)
{
    if (count == 0) {
        search->failed = !array_push(&search->holes, *region);
        return;
    }
    for (size_t i = 0; i < count; i++)
        if (box_cover_contains(&search->boxes[search->order[first + i]], region))
            return;
    banyan_box half[2];
    if (!box_cover_split(search, region, search->order + first, count, half))
        return;
    for (int h = 0; h < 2 && search->holes.count < search->most && !search->failed; h++) {
        size_t top = first + count, kept;
        if (!push_overlapping(search, &half[h], first, count, top, &kept))
            return;
        if (search->disjoint && covered_elems(search, &half[h], search->order + top, kept) ==
                                    banyan_box_elems(&half[h]))
            continue;
        search_region(search, &half[h], top, kept);
    }
}

banyan_status boxes_find_holes(const banyan_box *whole, const banyan_box *boxes, size_t count,
                               size_t most, banyan_box **holes, size_t *found)
{
    struct hole_search search = {
        .boxes = boxes,
        .order = calloc(2 * count + 1, sizeof *search.order),
        .capacity = 2 * count + 1,
        .planes = calloc(2 * count + 1, sizeof *search.planes),
        .most = most,
    };
    size_t a, b, kept;
    bool overlap;
    banyan_status status = BANYAN_ERR_NO_MEMORY;
    if (search.order && search.planes)
        status = boxes_find_overlap(boxes, count, &overlap, &a, &b);
    if (status == BANYAN_OK && banyan_box_elems(whole) > 0) {
        search.disjoint = !overlap;
        for (size_t i = 0; i < count; i++)
            search.order[i] = i;
        if (push_overlapping(&search, whole, 0, count, 0, &kept))
            search_region(&search, whole, 0, kept);
    }
    free(search.order);
    free(search.planes);
    if (search.failed || status != BANYAN_OK) {
        array_free(&search.holes);
        return error_no_memory((2 * count + 1) * sizeof(size_t), "a search for uncovered elements");
    }
    *holes = search.holes.data;
    *found = search.holes.count;
    return BANYAN_OK;
}

banyan_status boxes_find_hole(const banyan_box *whole, const banyan_box *boxes, size_t count,
                              bool *found, banyan_box *hole)
{
    banyan_box *holes;
    size_t number;
    RETURN_IF_FAILED(boxes_find_holes(whole, boxes, count, 1, &holes, &number));
    *found = number > 0;
    if (*found)
        *hole = holes[0];
    free(holes);
    return BANYAN_OK;
}
