/* The compiler's passes, in execution order. All but the last are ops_rewrites: they rewrite one
 * list of a thread block at a time. Errors: NO_MEMORY. */
#ifndef PROGRAM_COMPILE_PASS_H
#define PROGRAM_COMPILE_PASS_H

#include <banyan/program.h>

#include "plan/plan.h"

/* The thread block of a list, in the plan that is made from `before`. `plan` has the same ranks,
 * channels and buffers, and memory for the current thread block. */
typedef struct ops_place {
    const banyan_plan *before;
    banyan_plan *plan;
    int rank;
    plan_thread_block *block;
} ops_place;

/* Change a list in place, or replace it by one in the place's memory. */
typedef banyan_status (*ops_rewrite)(const ops_place *place, plan_op **ops, uint32_t *count);

/* Copy the plan and apply all rewrites to every list, in order; to a loop's body before the list
 * that contains it. The copy proceeds thread block by thread block, so the intermediate lists of
 * only one block exist at a time. */
banyan_status ops_rewrite_all(const banyan_plan *plan, const ops_rewrite *rewrites, size_t count,
                              banyan_plan **made);

bool ops_operand_equal(const plan_operand *a, const plan_operand *b);
bool ops_share_equal(const plan_op *a, const plan_op *b);

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
