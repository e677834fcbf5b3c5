/* Replay of a directory owner's work for other ranks, in one go. In an imagined world the owner's
 * steps lie scattered between those of all other ranks, with cold caches and a clock reading for
 * each; a real owner has all messages of a round together. */
#ifndef RESHARD_PLANNER_REPLAY_H
#define RESHARD_PLANNER_REPLAY_H

#include <banyan/reshard.h>

#include "core/containers/array.h"
#include "reshard/planner/rank.h"
#include "world/control.h"

typedef ARRAY(control_message) plan_messages;

typedef struct plan_replay {
    plan_messages puts, questions[PLANNER_ROUNDS];
    uint64_t bytes; /* memory kept here */
} plan_replay;

/* Keep a copy of a message that the owner received; `to` is one of the lists of `replay`. */
bool plan_replay_keep(plan_replay *replay, plan_messages *to, int from, const void *data,
                      size_t bytes);
void plan_replay_free(plan_replay *replay);

/* Absorb and answer the kept messages with a separate part of the directory. Adds the time to the
 * cost's seconds, and the bytes of the round with the most messages to its bytes; sets the owner's
 * fields. */
banyan_status plan_replay_run(const plan_replay *replay, int rank, int world_size,
                              banyan_reshard_plan_cost *cost);

/* Return the processor time of this thread. */
double plan_processor_s(void);

#endif
