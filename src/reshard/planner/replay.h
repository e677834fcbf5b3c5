/* What an owner of directory entries does for others, once more in one go. In an imagined world
 * its steps lie scattered between those of all other ranks, with cold caches and a look at the
 * clock for each; a real owner has a round's messages together. */
#ifndef RESHARD_PLANNER_REPLAY_H
#define RESHARD_PLANNER_REPLAY_H

#include <banyan/reshard.h>

#include "core/containers/array.h"
#include "reshard/planner/rank.h"
#include "world/control.h"

typedef ARRAY(control_message) plan_messages;

typedef struct plan_replay {
    plan_messages puts, questions[PLANNER_ROUNDS];
    uint64_t bytes; /* of memory that is kept here */
} plan_replay;

/* Keep a copy of a message that the owner was sent: `to` is one of the lists of `replay`. */
bool plan_replay_keep(plan_replay *replay, plan_messages *to, int from, const void *data,
                      size_t bytes);
void plan_replay_free(plan_replay *replay);

/* Absorb and answer what was kept, at a part of the directory of its own. Adds to the cost's
 * seconds and to its bytes those of the messages of the round that has most; sets those of the
 * owner. */
banyan_status plan_replay_run(const plan_replay *replay, int rank, int world_size,
                              banyan_reshard_plan_cost *cost);

/* Processor time of this thread. */
double plan_processor_s(void);

#endif
