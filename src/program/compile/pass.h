/* The compiler's passes, in execution order. All but the last are ops_rewrites: they rewrite one
 * list of a thread block at a time. Errors: NO_MEMORY. */
#ifndef PROGRAM_COMPILE_PASS_H
#define PROGRAM_COMPILE_PASS_H

#include <banyan/program.h>

#include "program/ops.h"

/* Not a pass. INVALID when a rank signals another, on one type of channel, a different number of
 * times than the other waits for it. */
banyan_status pairing_check(const banyan_plan *plan);

/* Join operations that MSCCL++'s language leaves separate. On port channels: put + signal becomes
 * put with signal, and that + flush becomes put with signal and flush. Reductions that continue
 * from the result of the previous one are joined. */
banyan_status pass_more(const ops_place *place, plan_op **ops, uint32_t *count);

/* Join neighbours when one operation can do the work of both, and drop requests for synchronization
 * that a neighbour fulfils. Where loads from a group are stored to it, `before` must be the plan
 * that this pass receives. */
banyan_status pass_fuse(const ops_place *place, plan_op **ops, uint32_t *count);

/* Turn requests for synchronization (plan_op.sync) into nops. */
banyan_status pass_sync(const ops_place *place, plan_op **ops, uint32_t *count);

/* Add a nop before every operation that depends on data of an earlier operation of its thread
 * block. */
banyan_status pass_dependencies(const ops_place *place, plan_op **ops, uint32_t *count);

/* Remove nops that separate nothing. */
banyan_status pass_idle(const ops_place *place, plan_op **ops, uint32_t *count);

/* Replicate every thread block, channel, semaphore, barrier and chunk `instances` times. The input
 * is unchanged; destroy `*made`. Also INVALID, when the result would be too large to number. */
banyan_status pass_instances(const banyan_plan *plan, int instances, banyan_replication policy,
                             banyan_plan **made);

#endif
