#include "check/model/chains.h"

uint64_t chain_packet_parts(const plan_op *ops, uint32_t count)
{
    uint64_t parts = 0;
    for (uint32_t i = 0; i < count; i++) {
        parts += plan_op_writes_packets(ops[i].kind) ? plan_op_part_count(&ops[i]) : 0;
        parts += chain_packet_parts(ops[i].ops, ops[i].op_count);
    }
    return parts;
}

static void chains_add_rank(const banyan_plan *plan, int r, chain_list *made)
{
    const plan_rank *rank = &plan->ranks[r];
    uint32_t caller = made->count;
    made->callers[r] = caller;
    made->list[made->count++] = (chain_owner){r, CHAIN_CALLER, 0, caller};
    for (uint32_t b = 0; b < rank->block_count; b++)
        made->list[made->count++] = (chain_owner){r, CHAIN_BLOCK, b, caller};
    for (uint32_t c = 0; c < rank->channel_count[PLAN_PORT]; c++)
        made->list[made->count++] = (chain_owner){r, CHAIN_PORT, c, caller};
    for (uint32_t b = 0; b < rank->block_count; b++) {
        uint64_t parts = chain_packet_parts(rank->blocks[b].ops, rank->blocks[b].op_count);
        made->parts[r][b] = made->count;
        for (uint64_t i = 0; i < parts; i++)
            made->list[made->count++] = (chain_owner){r, CHAIN_PART, b, caller};
    }
}

static size_t chains_of(const plan_rank *rank)
{
    size_t count = 1 + (size_t)rank->block_count + rank->channel_count[PLAN_PORT];
    for (uint32_t b = 0; b < rank->block_count; b++)
        count += chain_packet_parts(rank->blocks[b].ops, rank->blocks[b].op_count);
    return count;
}

static bool take_lists(const banyan_plan *plan, arena *memory, size_t count, chain_list *made)
{
    size_t ranks = (size_t)plan->rank_count;
    made->list = arena_take(memory, count * sizeof *made->list);
    made->callers = arena_take(memory, ranks * sizeof *made->callers);
    made->parts = arena_take(memory, ranks * sizeof *made->parts);
    bool taken = made->list && made->callers && made->parts;
    for (size_t r = 0; r < ranks && taken; r++) {
        made->parts[r] =
            arena_take(memory, (plan->ranks[r].block_count + 1) * sizeof *made->parts[r]);
        taken = made->parts[r];
    }
    return taken;
}

banyan_status chains_make(const banyan_plan *plan, arena *memory, chain_list *made)
{
    size_t count = 0;
    for (int r = 0; r < plan->rank_count; r++)
        count += chains_of(&plan->ranks[r]);
    if (count > UINT32_MAX)
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "plan %s has %zu thread blocks and port channels, too many to be checked",
                         plan->name, count);
    *made = (chain_list){0};
    if (!take_lists(plan, memory, count, made))
        return BANYAN_ERR_NO_MEMORY;
    for (int r = 0; r < plan->rank_count; r++)
        chains_add_rank(plan, r, made);
    return BANYAN_OK;
}
