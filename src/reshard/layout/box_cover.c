/* Find the holes that many boxes leave in one.
 *
 * A region inside some box is covered, and a region that no box meets is a hole. Any other region
 * is split along the dimension with the most planes on which boxes begin or end, at the middle one.
 * If the boxes do not overlap, the sum of their elements tells which half has a hole; if they do,
 * both halves are searched. */
#include <stdlib.h>

#include "core/containers/array.h"
#include "reshard/layout/box.h"

struct search {
    const banyan_box *boxes;
    size_t *order;   /* stack: a region's boxes lie behind those of its enclosing regions */
    size_t capacity; /* of the stack */
    int64_t *planes; /* two per box */
    bool disjoint, failed;
    ARRAY(banyan_box) holes;
    size_t most; /* upper limit of holes */
};

/* Count the elements of the region that its boxes hold. */
static uint64_t covered_elems(const struct search *search, const banyan_box *region,
                              const size_t *order, size_t count)
{
    uint64_t elems = 0;
    banyan_box common;
    for (size_t i = 0; i < count; i++)
        if (banyan_box_intersect(region, &search->boxes[order[i]], &common))
            elems += banyan_box_elems(&common);
    return elems;
}

/* Push the boxes of `from` that meet the region on the stack behind `top`. False when it is full
 * and cannot grow. */
static bool push_meeting(struct search *search, const banyan_box *region, size_t from, size_t count,
                         size_t top, size_t *kept)
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
    return (a > b) - (a < b);
}

/* List the planes along `dim` on which boxes begin or end inside the region. */
static size_t list_planes(const struct search *search, const banyan_box *region,
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

/* False when no plane splits the region: then a box that meets it contains it. */
static bool box_cover_split(const struct search *search, const banyan_box *region,
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
static void search_region(struct search *search, const banyan_box *region, size_t first,
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
        if (!push_meeting(search, &half[h], first, count, top, &kept))
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
    struct search search = {
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
        if (push_meeting(&search, whole, 0, count, 0, &kept))
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
