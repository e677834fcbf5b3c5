/* The rule by which a box crosses the network once to each node that needs it.
 *
 * A node's ranks take what the sources of their own node hold from there. The rest of a box is cut
 * into parts, as many for each rank of the node that needs the box. Each part comes over the
 * network to one of these ranks (stage 0), and goes from there to the others (stage 1). Where ranks
 * of one node need boxes that overlap, their intersections take the place of boxes.
 *
 * Sender, entering rank and the others derive the same parts: a part depends on a source box and on
 * the boxes of the node that contain it, and on boxes that intersect all of these. */
#ifndef RESHARD_PLANNER_ONCE_H
#define RESHARD_PLANNER_ONCE_H

#include "reshard/planner/groups.h"
#include "reshard/planner/rank.h"
#include "reshard/planner/share.h"

/* A box of the destination. Boxes of one kind are stored with equal bytes. */
typedef struct once_box {
    planner_held held;
    const planner_group *group;
    size_t kind; /* ONCE_ALONE: every holder fetches its own */
} once_box;

#define ONCE_ALONE SIZE_MAX

/* A tensor as input of the rule. */
typedef struct once_tensor {
    const planner_tensor *all; /* its sources */
    const planner_tensor
        *local; /* the sources that this rank's node holds, and by its ranks only */
    const size_t *local_numbers;         /* of these, among all */
    const planner_group *const *sources; /* groups of all sources */
    const once_box *boxes;               /* in an order that is identical at every rank */
    size_t box_count;
    int rank, node; /* this rank's */
    uint32_t turn;  /* of its first parts */
} once_tensor;

/* A transfer between this rank and another; `box` is the destination's, an index into boxes. In
 * stage 1 this rank may be both ends: then `share.source` is the box that holds the part. */
typedef struct once_share {
    planner_share share;
    size_t box;
} once_share;

typedef ARRAY(once_share) once_shares;

/* Memory for calls, used again. Zeroed is empty. */
typedef struct once_work {
    planner_shares shares;
    planner_boxes boxes, rest;
    planner_indices overlapping, others, members, sources;
    ARRAY(int) ranks;
} once_work;

void once_work_free(once_work *work);

/* Append everything that this rank sends to `box` as a holder of source `source`: `index` is its
 * place among the holders, `local_source` the source's number in `local` (SIZE_MAX: none). False
 * when out of memory. */
bool once_sent(const once_tensor *tensor, size_t source, int64_t index, size_t local_source,
               size_t box, once_work *work, once_shares *sent);

/* Append everything that this rank receives into `box`, to `received`, and what it passes on from
 * there within its node, to `passed`. `covered_elems` is the number of the box's elements that the
 * sources fill. False when out of memory. */
bool once_received(const once_tensor *tensor, size_t box, once_work *work, once_shares *received,
                   once_shares *passed, uint64_t *covered_elems);

/* Return the turn of a tensor's first parts, a fraction of 2^32. Numbers in its name, which are
 * those of layers and experts in most models, spread the tensors of any layers evenly over all
 * turns. */
uint32_t once_turn_of(const char *name);

/* Return the number of turns in which a run moves this rank's transfers best. All ranks take the
 * largest number. 0: the rank receives nothing in stage 1. */
uint64_t planner_turns_wanted(const planner_result *transfers, int rank);

/* Return the wave of a transfer in a run of so many turns: stage 1 is one wave behind. */
uint64_t planner_wave_of(uint32_t stage, uint32_t turn, uint64_t turns);

#endif
