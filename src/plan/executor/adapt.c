/* Plans that do on another executor what they do here. */
#include <stdio.h>

#include "core/error.h"
#include "plan/executor/mscclpp.h"
#include "plan/geometry/geometry.h"
#include "plan/op.h"

/* Move data in scratch behind the packets, as the executor lays them out. */
static void separate_data(banyan_plan *plan, uint64_t chunks)
{
    for (plan_cursor at = {.plan = plan}; plan_cursor_next(&at);) {
        for (uint32_t i = 0; i < plan_operand_count(at.op); i++) {
            const plan_operand *operand = plan_operand_at(at.op, i);
            if (plan_operand_where(plan, at.rank, at.block, at.op, operand).buffer ==
                    PLAN_SCRATCH &&
                !plan_operand_is_packets(at.op, i))
                ((plan_operand *)(uintptr_t)operand)->index += 2 * chunks;
        }
    }
    for (int r = 0; r < plan->rank_count; r++)
        plan->ranks[r].chunks[PLAN_SCRATCH] = 3 * chunks;
}

/* True if data in double scratch crosses a channel. */
static bool needs_gate(const banyan_plan *plan)
{
    for (plan_cursor at = {.plan = plan}; plan->double_scratch && plan_cursor_next(&at);) {
        for (uint32_t i = 0; i < plan_operand_count(at.op); i++) {
            if (mscclpp_is_in_first_half(&at, i))
                return true;
        }
    }
    return false;
}

static void set_scratch(banyan_plan *plan)
{
    uint64_t most = 0;
    for (int r = 0; r < plan->rank_count; r++) {
        if (plan->ranks[r].chunks[PLAN_SCRATCH] > most)
            most = plan->ranks[r].chunks[PLAN_SCRATCH];
    }
    for (int r = 0; r < plan->rank_count; r++)
        plan->ranks[r].chunks[PLAN_SCRATCH] = most;
    mscclpp_scratch use = mscclpp_scratch_of(plan);
    if (use.packets)
        plan->protocol = BANYAN_LL;
    if (use.packets && use.data && use.data_begin < 2 * use.packets_end && most <= UINT32_MAX)
        separate_data(plan, most);
    /* A ring of scratch wraps around at another place there: let scratch be as long as a message.
     */
    plan->reuse_resources = false;
    plan->reused_scratch_bytes = PLAN_REUSED_SCRATCH_BYTES;
}

static void set_alignment(banyan_plan *plan)
{
    uint64_t unit = MSCCLPP_VECTOR_BYTES * (mscclpp_halves_align(plan) ? 1 : 2), alignment = unit;
    while (alignment % plan->buffer_alignment != 0)
        alignment += unit;
    plan->buffer_alignment = alignment;
}

static banyan_status refuse_fault(void *context, const mscclpp_fault *fault)
{
    const banyan_plan *plan = context;
    char place[64];
    if (fault->rank < 0)
        snprintf(place, sizeof place, "it");
    else if (fault->block < 0)
        snprintf(place, sizeof place, "rank %d", fault->rank);
    else if (fault->op < 0)
        snprintf(place, sizeof place, "rank %d, thread block %d", fault->rank, fault->block);
    else if (fault->loop_op < 0)
        snprintf(place, sizeof place, "rank %d, thread block %d, operation %d", fault->rank,
                 fault->block, fault->op);
    else
        snprintf(place, sizeof place, "rank %d, thread block %d, operation %d.%d", fault->rank,
                 fault->block, fault->op, fault->loop_op);
    if (fault->op < 0)
        return error_set(BANYAN_ERR_UNSUPPORTED, "plan %s cannot run on MSCCL++'s executor: %s %s",
                         plan->name, place, fault->message);
    const plan_op *op = &plan->ranks[fault->rank].blocks[fault->block].ops[fault->op];
    return error_set(BANYAN_ERR_UNSUPPORTED, "plan %s cannot run on MSCCL++'s executor: %s (%s) %s",
                     plan->name, place,
                     plan_op_name(fault->loop_op < 0 ? op->kind : op->ops[fault->loop_op].kind),
                     fault->message);
}

static banyan_status adapt_to_mscclpp(banyan_plan *plan)
{
    plan->executor = BANYAN_EXECUTOR_MSCCLPP;
    set_scratch(plan);
    if (needs_gate(plan))
        RETURN_IF_FAILED(mscclpp_gate(plan));
    set_alignment(plan);
    RETURN_IF_FAILED(mscclpp_join(plan));
    RETURN_IF_FAILED(mscclpp_split(plan));
    RETURN_IF_FAILED(mscclpp_continue(plan));
    uint64_t longest = mscclpp_longest_message(plan);
    if (longest < plan->max_message_bytes)
        plan->max_message_bytes = longest;
    RETURN_IF_FAILED(mscclpp_review(plan, refuse_fault, plan));
    return plan_check_indices(plan, plan->name);
}

banyan_status banyan_plan_adapt(const banyan_plan *plan, banyan_plan_executor executor,
                                banyan_plan **adapted)
{
    banyan_plan *made;
    RETURN_IF_NULL(plan);
    RETURN_IF_NULL(adapted);
    if (executor != BANYAN_EXECUTOR_BANYAN && executor != BANYAN_EXECUTOR_MSCCLPP)
        return error_set(BANYAN_ERR_INVALID, "%d is no executor", (int)executor);
    RETURN_IF_FAILED(plan_clone(plan, &made));
    banyan_status status = BANYAN_OK;
    if (executor == BANYAN_EXECUTOR_MSCCLPP)
        status = adapt_to_mscclpp(made);
    else
        made->executor = executor;
    if (status != BANYAN_OK) {
        banyan_plan_destroy(made);
        return status;
    }
    *adapted = made;
    return BANYAN_OK;
}
