/* What the passes share: going through lists of operations and rewriting them. */
#ifndef PROGRAM_OPS_H
#define PROGRAM_OPS_H

#include "plan/plan.h"

/* Whose operations they are, in the plan being made from `before`: `plan` has the same ranks,
 * channels and buffers, and memory for the thread block at hand. */
typedef struct ops_place {
    const banyan_plan *before;
    banyan_plan *plan;
    int rank;
    plan_thread_block *block;
} ops_place;

/* Change a list where it is, or make another of the place's memory. */
typedef banyan_status (*ops_rewrite)(const ops_place *place, plan_op **ops, uint32_t *count);

/* A copy of the plan with every list rewritten by each of these in turn, a loop's body before the
 * list that it is in. It goes through them thread block by thread block, so that what a rewrite
 * leaves behind for the next is never there for more than one. */
banyan_status ops_rewrite_all(const banyan_plan *plan, const ops_rewrite *rewrites, size_t count,
                              banyan_plan **made);

/* An ops_rewrite: a nop on each side where an operation's `sync` has one. */
banyan_status ops_place_sync(const ops_place *place, plan_op **ops, uint32_t *count);

bool ops_operand_equal(const plan_operand *a, const plan_operand *b);
bool ops_share_equal(const plan_op *a, const plan_op *b);
/* Chunks in common, of operands that are of one buffer. */
static inline bool ops_operand_overlap(const plan_operand *a, const plan_operand *b)
{
    return a->index < b->index + b->size && b->index < a->index + a->size;
}

#endif
