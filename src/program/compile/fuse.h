/* Joining an operation with the one after it. */
#ifndef PROGRAM_COMPILE_FUSE_H
#define PROGRAM_COMPILE_FUSE_H

#include "program/ops.h"

/* Room behind the lists of the operation that is being added to, so that long runs of operations
 * are joined in linear time. Zeroed for a new one. */
typedef struct fuse_room {
    uint32_t sources, destinations, channels, semaphores;
} fuse_room;

typedef struct fuse {
    const ops_place *place;
    fuse_room room;
} fuse;

/* Each tries some rules: `*joined` when `current` does the work of both now. Errors: NO_MEMORY. */

/* Synchronisation; what one of the two asks for and the other fulfils is dropped even when they
 * stay apart. */
banyan_status fuse_sync(fuse *with, plan_op *current, plan_op *next, bool *joined);
/* Runs of gets and puts. */
banyan_status fuse_moves(fuse *with, plan_op *current, const plan_op *next, bool *joined);
/* Reductions, and what is done with their results. */
banyan_status fuse_reduce(fuse *with, plan_op *current, const plan_op *next, bool *joined);
/* Reductions that go on from where the last one left its result. */
banyan_status fuse_chain(fuse *with, plan_op *current, const plan_op *next, bool *joined);
/* Load from a group, reduced, and store to it. */
banyan_status fuse_switch(fuse *with, plan_op *current, const plan_op *next, bool *joined);

/* Append to the current operation's lists. */
banyan_status fuse_add_sources(fuse *with, plan_op *current, const plan_operand *more,
                               uint32_t count);
banyan_status fuse_add_destinations(fuse *with, plan_op *current, const plan_operand *more,
                                    uint32_t count);
banyan_status fuse_add_channels(fuse *with, plan_op *current, const plan_op *next);
banyan_status fuse_add_semaphores(fuse *with, plan_op *current, const plan_op *next);

#endif
