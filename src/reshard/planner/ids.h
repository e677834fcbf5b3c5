/* Task ids: derived alone on both ends. */
#ifndef RESHARD_PLANNER_IDS_H
#define RESHARD_PLANNER_IDS_H

#include <banyan/reshard.h>

/* A transfer with what tells it from others between the same two ranks. */
typedef struct plan_move {
    banyan_transfer transfer;
    banyan_box destination; /* the destination piece that it is a part of */
    uint32_t ordinal;
} plan_move;

/* From names, boxes and ranks alone: ranks added at the end change no id. */
uint64_t plan_id_of(const plan_move *move);

/* Sort moves by the two ranks and the id, and make ids that collide between two ranks differ, in a
 * way that both ends go alike. Never BANYAN_TASK_ID_NONE. */
void plan_ids_settle(plan_move *moves, size_t count);

#endif
