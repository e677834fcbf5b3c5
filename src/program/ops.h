/* Shared by the passes: walking and rewriting lists of operations. */
#ifndef PROGRAM_OPS_H
#define PROGRAM_OPS_H

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

#endif
