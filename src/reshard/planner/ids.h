/* Task ids, which both ends of a transfer derive independently. */
#ifndef RESHARD_PLANNER_IDS_H
#define RESHARD_PLANNER_IDS_H

#include <banyan/reshard.h>

/* A transfer with everything that distinguishes it from others between the same two ranks. */
typedef struct plan_move {
    banyan_transfer transfer;
    banyan_box destination; /* part of this destination piece */
    uint32_t ordinal;
} plan_move;

/* Derive the id from names, boxes and ranks alone: adding ranks at the end changes no id. */
uint64_t plan_id_of(const plan_move *move);

/* Sort moves by the two ranks and the id, and make colliding ids between two ranks distinct. Both
 * ends resolve a collision identically. No id becomes BANYAN_TASK_ID_NONE. */
void plan_ids_settle(plan_move *moves, size_t count);

#endif
