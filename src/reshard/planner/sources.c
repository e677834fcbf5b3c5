#include "reshard/planner/sources.h"

#include <string.h>

int planner_holders_at(const planner_holders *holders, int64_t index)
{
    for (size_t i = 0; i < holders->set_count; i++) {
        int64_t size = banyan_rank_set_size(&holders->sets[i]);
        if (index < size)
            return banyan_rank_set_at(&holders->sets[i], index);
        index -= size;
    }
    return -1;
}

int64_t planner_holders_find(const planner_holders *holders, int rank)
{
    int64_t before = 0;
    for (size_t i = 0; i < holders->set_count; i++) {
        int64_t index = banyan_rank_set_find(&holders->sets[i], rank);
        if (index >= 0)
            return before + index;
        before += banyan_rank_set_size(&holders->sets[i]);
    }
    return -1;
}

int planner_box_compare(const banyan_box *a, const banyan_box *b)
{
    RETURN_IF_UNEQUAL(a->ndim, b->ndim);
    for (int d = 0; d < a->ndim; d++)
        RETURN_IF_UNEQUAL(a->start[d], b->start[d]);
    for (int d = 0; d < a->ndim; d++)
        RETURN_IF_UNEQUAL(a->extent[d], b->extent[d]);
    return 0;
}

/* Node k of the tree has the children 2k and 2k + 1; a node of so many sources has none. */
#define LEAF_SOURCES 8
#define ROOT 1

size_t planner_bounds_count(size_t source_count)
{
    size_t nodes = 2;
    for (; source_count > LEAF_SOURCES; source_count -= source_count / 2)
        nodes *= 2;
    return nodes;
}

/* Grow `bound` until it contains the box. */
static void bound_add(banyan_box *bound, const banyan_box *box)
{
    for (int d = 0; d < box->ndim; d++) {
        int64_t end = bound->start[d] + bound->extent[d], box_end = box->start[d] + box->extent[d];
        if (box->start[d] < bound->start[d])
            bound->start[d] = box->start[d];
        bound->extent[d] = (box_end > end ? box_end : end) - bound->start[d];
    }
}

static void build_bounds(const planner_held *sources, size_t first, size_t last, banyan_box *bounds,
                         size_t node)
{
    bounds[node] = sources[first].box;
    if (last - first <= LEAF_SOURCES) {
        for (size_t i = first + 1; i < last; i++)
            bound_add(&bounds[node], &sources[i].box);
        return;
    }
    size_t middle = first + (last - first) / 2;
    build_bounds(sources, first, middle, bounds, 2 * node);
    build_bounds(sources, middle, last, bounds, 2 * node + 1);
    bounds[node] = bounds[2 * node];
    bound_add(&bounds[node], &bounds[2 * node + 1]);
}

void planner_bounds_of(const planner_held *sources, size_t source_count, banyan_box *bounds)
{
    if (source_count > 0)
        build_bounds(sources, 0, source_count, bounds, ROOT);
}

static bool find_intersecting(const planner_tensor *tensor, size_t node, size_t first, size_t last,
                              const banyan_box *box, size_t end, planner_indices *found)
{
    banyan_box common;
    if (first >= end || !banyan_box_intersect(&tensor->bounds[node], box, &common))
        return true;
    if (last - first > LEAF_SOURCES) {
        size_t middle = first + (last - first) / 2;
        return find_intersecting(tensor, 2 * node, first, middle, box, end, found) &&
               find_intersecting(tensor, 2 * node + 1, middle, last, box, end, found);
    }
    for (size_t i = first; i < last && i < end; i++)
        if (banyan_box_intersect(&tensor->sources[i].box, box, &common) && !array_push(found, i))
            return false;
    return true;
}

bool planner_sources_intersecting(const planner_tensor *tensor, const banyan_box *box, size_t end,
                                  planner_indices *found)
{
    found->count = 0;
    return tensor->source_count == 0 ||
           find_intersecting(tensor, ROOT, 0, tensor->source_count, box, end, found);
}

bool planner_boxes_subtract(planner_boxes *boxes, const banyan_box *cut)
{
    size_t count = boxes->count;
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        banyan_box box = boxes->data[i], common, rest[2 * BANYAN_MAX_DIMS];
        if (!banyan_box_intersect(&box, cut, &common)) {
            boxes->data[kept++] = box;
            continue;
        }
        int pieces = banyan_box_subtract(&box, cut, rest);
        for (int p = 0; p < pieces; p++)
            if (!array_push(boxes, rest[p]))
                return false;
    }
    size_t added = boxes->count - count;
    memmove(boxes->data + kept, boxes->data + count, added * sizeof boxes->data[0]);
    boxes->count = kept + added;
    return true;
}
