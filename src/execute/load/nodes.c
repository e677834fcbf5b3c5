#include "execute/load/nodes.h"

#include <inttypes.h>

#include "core/error.h"

static bool is_apart(const banyan_executor *executor, int rank, int other)
{
    return banyan_world_node_of(executor->world, rank) !=
           banyan_world_node_of(executor->world, other);
}

static banyan_status nodes_refuse(const banyan_plan *plan, const char *channel, uint32_t number,
                                  int rank, int other)
{
    return error_set(BANYAN_ERR_UNSUPPORTED,
                     "plan %s: %s channel %" PRIu32
                     " of rank %d joins it with rank %d, which is on "
                     "another node; memory and switch channels join ranks of one node, and port "
                     "channels join any ranks",
                     plan->name, channel, number, rank, other);
}

static banyan_status check_mapped(const banyan_executor *executor, const banyan_plan *plan, int r)
{
    const plan_rank *rank = &plan->ranks[r];
    for (uint32_t i = 0; i < rank->channel_count[PLAN_MEMORY]; i++) {
        if (is_apart(executor, r, rank->peers[PLAN_MEMORY][i]))
            return nodes_refuse(plan, "memory", i, r, rank->peers[PLAN_MEMORY][i]);
    }
    for (uint32_t i = 0; i < rank->channel_count[PLAN_SWITCH]; i++) {
        const plan_switch *group = &rank->switches[i];
        for (int k = 0; k < group->rank_count; k++) {
            if (is_apart(executor, r, group->ranks[k]))
                return nodes_refuse(plan, "switch", i, r, group->ranks[k]);
        }
    }
    return BANYAN_OK;
}

/* Kernels write packets themselves, into memory that they reach. */
static banyan_status nodes_check_packets(const banyan_executor *executor, const banyan_plan *plan)
{
    for (plan_cursor at = {.plan = plan}; plan_cursor_next(&at);) {
        if (at.op->kind != PLAN_PUT_PACKET && at.op->kind != PLAN_READ_PUT_PACKET)
            continue;
        for (uint32_t i = at.op->source_count; i < plan_operand_count(at.op); i++) {
            const int *ranks;
            int room;
            int count = plan_operand_ranks(at.plan, at.rank, at.block, at.op,
                                           plan_operand_at(at.op, i), &ranks, &room);
            for (int r = 0; r < count; r++) {
                if (is_apart(executor, at.rank, ranks[r]))
                    return error_set(BANYAN_ERR_UNSUPPORTED,
                                     "plan %s: rank %d puts packets to rank %d, which is on "
                                     "another node; between nodes GPUs put data and signals",
                                     plan->name, at.rank, ranks[r]);
            }
        }
    }
    return BANYAN_OK;
}

banyan_status nodes_check(const banyan_executor *executor, const banyan_plan *plan)
{
    for (int r = 0; r < plan->rank_count; r++)
        RETURN_IF_FAILED(check_mapped(executor, plan, r));
    if (!executor_is_host(executor))
        RETURN_IF_FAILED(nodes_check_packets(executor, plan));
    const plan_rank *own = &plan->ranks[executor->rank];
    for (uint32_t i = 0; i < own->channel_count[PLAN_PORT]; i++) {
        if (!banyan_transport_capabilities(executor->transport, own->peers[PLAN_PORT][i]))
            return error_set(BANYAN_ERR_UNSUPPORTED, "plan %s: port channel %" PRIu32 ": %s",
                             plan->name, i, banyan_last_error());
    }
    return BANYAN_OK;
}
