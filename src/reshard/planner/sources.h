/* The boxes of one global tensor on both sides, and the search for sources that intersect a box. */
#ifndef RESHARD_PLANNER_SOURCES_H
#define RESHARD_PLANNER_SOURCES_H

#include <banyan/layout.h>

#include "core/containers.h"

/* The ranks that hold a box, in an order that is identical at every rank. */
typedef struct planner_holders {
    const banyan_rank_set *sets;
    size_t set_count;
    int64_t count; /* of ranks */
} planner_holders;

int planner_holders_at(const planner_holders *holders, int64_t index);
/* Return the rank's index, or -1 if it is not a holder. */
int64_t planner_holders_find(const planner_holders *holders, int rank);

/* One box of a global tensor on one side. */
typedef struct planner_held {
    banyan_box box;
    planner_holders holders;
    uint32_t ordinal;
} planner_held;

/* A tensor as input of the rule: distinct source boxes in ascending order of planner_box_compare.
 * They may overlap. To find what one source sends, a rank needs only the sources that intersect it.
 */
typedef struct planner_tensor {
    const char *name;
    int ndim;
    const int64_t *shape;
    size_t elem_bytes; /* of the source's type */
    uint64_t min_split_bytes;
    const planner_held *sources;
    const banyan_box *bounds; /* of the sources, from planner_bounds_of */
    size_t source_count;
} planner_tensor;

/* By start, then by extent. */
int planner_box_compare(const banyan_box *a, const banyan_box *b);
/* A tree of bounding boxes of neighbours among the sources, by which those that intersect a box are
 * found in logarithmic time: neighbours in the order of planner_box_compare lie close together. */
size_t planner_bounds_count(size_t source_count);
void planner_bounds_of(const planner_held *sources, size_t source_count, banyan_box *bounds);

typedef ARRAY(banyan_box) planner_boxes;
typedef ARRAY(size_t) planner_indices;

/* Take `cut` out of every box of the list. False when out of memory. */
bool planner_boxes_subtract(planner_boxes *boxes, const banyan_box *cut);

/* Find the sources before `end` that intersect the box, in ascending order. False when out of
 * memory. */
bool planner_sources_intersecting(const planner_tensor *tensor, const banyan_box *box, size_t end,
                                  planner_indices *found);

#endif
