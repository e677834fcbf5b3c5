#include "execute/load/lock_step.h"

#include "plan/stepper.h"

/* Perform the operation of this position in all thread blocks. They are of one kind. */
static bool lock_step_go(plan_stepper *all, uint32_t at)
{
    plan_event latest = {0};
    for (uint32_t b = 0; b < all->block_count; b++) {
        plan_position *by = &all->blocks[b];
        const plan_op *op = &by->block->ops[at];
        if (op->kind == PLAN_PIPELINE || op->kind == PLAN_BARRIER || op->kind == PLAN_SEM_ACQUIRE ||
            plan_op_reads_packets(op->kind))
            return false;
        *by = (plan_position){.rank = by->rank, .block = by->block, .at = at};
        if (!plan_stepper_take(all, by, &latest))
            return false;
        for (uint32_t k = 0; k < plan_op_gives(op); k++) {
            uint32_t to = plan_stepper_given(all, by, op, k);
            if (to != PLAN_NONE)
                all->counters[to].given++;
        }
    }
    return true;
}

banyan_status plan_runs_in_lock_step(const banyan_plan *plan, bool *in_step)
{
    plan_stepper all;
    banyan_status status = plan_stepper_make(plan, NULL, &all);
    if (status == BANYAN_OK) {
        uint32_t count = plan->ranks[0].blocks[0].op_count, at = 0;
        while (at < count && lock_step_go(&all, at))
            at++;
        *in_step = at == count;
    }
    plan_stepper_free(&all);
    return status;
}
