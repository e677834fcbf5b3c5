/* Plan every rank of an imagined world, for callers that inspect the transfers. */
#ifndef RESHARD_PLANNER_SAMPLE_H
#define RESHARD_PLANNER_SAMPLE_H

#include <banyan/reshard.h>

#include "copy/schedule/world.h"
#include "core/containers.h"
#include "reshard/planner/rank.h"
#include "world/control.h"

/* Take over a rank's transfers. */
typedef banyan_status (*planner_take_fn)(void *context, int rank, planner_result *result);

/* Plan all ranks to the end, one after another. Errors as banyan_reshard_plan_sample's. */
banyan_status planner_imagine(const banyan_reshard_sample_world *world,
                              const banyan_reshard_options *options, planner_take_fn take,
                              void *context);

/* Replay of a directory owner's work for other ranks, in one go. In an imagined world the owner's
 * steps lie scattered between those of all other ranks, with cold caches and a clock reading for
 * each; a real owner has all messages of a round together. */

typedef ARRAY(control_message) planner_messages;

typedef struct planner_replay {
    planner_messages puts, questions[PLANNER_ROUNDS];
    uint64_t bytes; /* memory kept here */
} planner_replay;

/* Keep a copy of a message that the owner received; `to` is one of the lists of `replay`. */
bool planner_replay_keep(planner_replay *replay, planner_messages *to, int from, const void *data,
                         size_t bytes);
void planner_replay_free(planner_replay *replay);

/* Absorb and answer the kept messages with a separate part of the directory. Adds the time to the
 * cost's seconds, and the bytes of the round with the most messages to its bytes; sets the owner's
 * fields. */
banyan_status planner_replay_run(const planner_replay *replay, int rank, int world_size,
                                 banyan_reshard_plan_cost *cost);

/* Return the processor time of this thread. */
double planner_processor_s(void);

/* A rank's transfers as the copy service sees them: bytes per peer, in order. */

/* List the tasks of every send to another rank, sorted; to be freed. NO_MEMORY. */
banyan_status planner_tasks_sent(const planner_result *transfers, pipeline_world_task **tasks,
                                 size_t *count);

#endif
