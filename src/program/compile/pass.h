/* The compiler's passes, in the order in which they run. All but the last are ops_rewrites, of a
 * thread block's list at a time. Errors: NO_MEMORY. */
#ifndef PROGRAM_COMPILE_PASS_H
#define PROGRAM_COMPILE_PASS_H

#include <banyan/program.h>

#include "program/ops.h"

/* Not a pass: INVALID when a rank signals another, on one type of channel, another number of times
 * than the other waits for it. */
banyan_status pairing_check(const banyan_plan *plan);

/* Join what MSCCL++'s language leaves apart: on port channels put + signal → put with signal, +
 * flush → put with signal and flush; reductions that go on from where the last one left its result.
 */
banyan_status pass_more(const ops_place *place, plan_op **ops, uint32_t *count);

/* Join neighbours where one operation does the work of both, and drop requests for synchronisation
 * that a neighbour fulfils. Where loads from a group are stored to it, `before` must be the plan as
 * this pass finds it. */
banyan_status pass_fuse(const ops_place *place, plan_op **ops, uint32_t *count);

/* Requests for synchronisation (plan_op.sync) become nops. */
banyan_status pass_sync(const ops_place *place, plan_op **ops, uint32_t *count);

/* A nop before every operation that depends on data of an earlier one of its thread block. */
banyan_status pass_dependencies(const ops_place *place, plan_op **ops, uint32_t *count);

/* Without nops that keep nothing apart. */
banyan_status pass_idle(const ops_place *place, plan_op **ops, uint32_t *count);

/* Every thread block, channel, semaphore, barrier and chunk `instances` times. What it is given
 * stays as it is; `*made` is to be destroyed. Also INVALID, when there would be more than can be
 * counted. */
banyan_status pass_instances(const banyan_plan *plan, int instances, banyan_replication policy,
                             banyan_plan **made);

#endif
