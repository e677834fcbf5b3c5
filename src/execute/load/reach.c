#include "execute/load/reach.h"

#include <stdlib.h>

#include "execute/specialize/step.h"

static void load_reach_note(reach *reaches, const plan_cursor *at, uint32_t i)
{
    const plan_operand *operand = plan_operand_at(at->op, i);
    bool written = i >= at->op->source_count;
    const int *ranks;
    int room;
    int count = plan_operand_ranks(at->plan, at->rank, at->block, at->op, operand, &ranks, &room);
    plan_where where = plan_operand_where(at->plan, at->rank, at->block, at->op, operand);
    for (int r = 0; r < count; r++) {
        reach *of = &reaches[step_base(ranks[r], where.buffer)];
        of->used = true;
        of->read |= !written;
        of->written |= written;
        of->peers |= ranks[r] != at->rank;
    }
}

reach *reach_find(const banyan_plan *plan)
{
    size_t bytes = (size_t)plan->rank_count * PLAN_BUFFERS * sizeof(reach);
    reach *reaches = calloc(1, bytes);
    if (!reaches) {
        error_no_memory(bytes, "the reach of a plan's buffers");
        return NULL;
    }
    for (plan_cursor at = {.plan = plan}; plan_cursor_next(&at);) {
        for (uint32_t i = 0; i < plan_operand_count(at.op); i++)
            load_reach_note(reaches, &at, i);
    }
    return reaches;
}
