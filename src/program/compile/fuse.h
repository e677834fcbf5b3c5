/* Join an operation with the next one. */
#ifndef PROGRAM_COMPILE_FUSE_H
#define PROGRAM_COMPILE_FUSE_H

#include "program/compile/pass.h"

/* Spare capacity of the lists of the operation being extended, so that long runs are joined in
 * linear time. Zeroed for a new operation. */
typedef struct fuse_room {
    uint32_t sources, destinations, channels, semaphores;
} fuse_room;

typedef struct fuse {
    const ops_place *place;
    fuse_room room;
} fuse;

/* Each function tries some rules, and sets `*joined` if `current` now does the work of both.
 * Errors: NO_MEMORY. */

/* Synchronization. A request of one operation that the other fulfils is dropped even when they stay
 * separate. */
banyan_status fuse_sync(fuse *with, plan_op *current, plan_op *next, bool *joined);
/* Runs of gets and puts. */
banyan_status fuse_moves(fuse *with, plan_op *current, const plan_op *next, bool *joined);
/* Reductions, and operations that copy or send their results. */
banyan_status fuse_reduce(fuse *with, plan_op *current, const plan_op *next, bool *joined);
/* Reductions that continue from the result of the previous one. */
banyan_status fuse_chain(fuse *with, plan_op *current, const plan_op *next, bool *joined);
/* Load from a group, reduce, and store to the group. */
banyan_status fuse_switch(fuse *with, plan_op *current, const plan_op *next, bool *joined);

/* Append to the current operation's lists. */
banyan_status fuse_add_sources(fuse *with, plan_op *current, const plan_operand *more,
                               uint32_t count);
banyan_status fuse_add_destinations(fuse *with, plan_op *current, const plan_operand *more,
                                    uint32_t count);
banyan_status fuse_add_channels(fuse *with, plan_op *current, const plan_op *next);
banyan_status fuse_add_semaphores(fuse *with, plan_op *current, const plan_op *next);

#endif
