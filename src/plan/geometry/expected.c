#include "plan/plan.h"

/* Return the reduction of the collective, which is that of its operations. */
static banyan_reduce_op plan_reduction(const banyan_plan *plan)
{
    for (plan_cursor at = {.plan = plan}; plan_cursor_next(&at);) {
        if (plan_op_reduces(at.op->kind))
            return at.op->reduce_op;
    }
    return BANYAN_SUM;
}

static size_t from_one(plan_contribution *room, int rank, uint64_t chunk)
{
    room[0] = (plan_contribution){rank, chunk};
    return 1;
}

static size_t from_all(plan_contribution *room, int ranks, uint64_t chunk)
{
    for (int r = 0; r < ranks; r++)
        room[r] = (plan_contribution){r, chunk};
    return (size_t)ranks;
}

/* Return the contributions of a built-in collective; 0 when it specifies nothing. */
static size_t expected_contributions(const banyan_plan *plan, int rank, uint64_t chunk,
                                     plan_contribution *room)
{
    int ranks = plan->rank_count;
    uint64_t inputs = plan->ranks[rank].chunks[PLAN_INPUT];
    uint64_t outputs = plan->ranks[rank].chunks[PLAN_OUTPUT];
    uint64_t block = outputs / (uint64_t)ranks;
    switch (plan->collective) {
    case BANYAN_ALLREDUCE:
        return from_all(room, ranks, chunk);
    case BANYAN_ALLGATHER:
        return from_one(room, (int)(chunk / inputs), chunk % inputs);
    case BANYAN_REDUCESCATTER:
        return from_all(room, ranks, (uint64_t)rank * outputs + chunk);
    case BANYAN_ALLTOALL:
        return from_one(room, (int)(chunk / block), (uint64_t)rank * block + chunk % block);
    case BANYAN_SENDRECV:
        return from_one(room, (rank - plan->shift + ranks) % ranks, chunk);
    case BANYAN_BROADCAST:
        return from_one(room, plan->root, chunk);
    case BANYAN_REDUCE:
        return rank == plan->root ? from_all(room, ranks, chunk) : 0;
    case BANYAN_CUSTOM:
        break;
    }
    return 0;
}

bool plan_expected_of(const banyan_plan *plan, int rank, uint64_t chunk, plan_contribution *room,
                      plan_expected *expected, banyan_reduce_op *op)
{
    if (plan->collective == BANYAN_CUSTOM) {
        if (!plan->expected || !plan->expected[rank] || plan->expected[rank][chunk].count == 0)
            return false;
        *expected = plan->expected[rank][chunk];
        *op = plan->expected_op;
        return true;
    }
    size_t count = expected_contributions(plan, rank, chunk, room);
    if (count == 0)
        return false;
    *expected = (plan_expected){room, count};
    *op = count > 1 ? plan_reduction(plan) : BANYAN_SUM;
    return true;
}
