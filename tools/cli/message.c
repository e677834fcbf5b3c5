#include "cli/message.h"

#include "core/status.h"

/* Compute the bytes of the longest buffer of any rank. */
static banyan_status longest_of(const banyan_plan *plan, int ranks, uint64_t message_bytes,
                                uint64_t *longest)
{
    uint64_t most = 0;
    for (int rank = 0; rank < ranks; rank++) {
        uint64_t input, output;
        RETURN_IF_FAILED(banyan_plan_sizes(plan, rank, message_bytes, &input, &output));
        most = input > most ? input : most;
        most = output > most ? output : most;
    }
    *longest = most;
    return BANYAN_OK;
}

/* The format counts the output of an all-gather. */
static bool is_in_bounds(const banyan_plan_info *info, const message *of)
{
    uint64_t counted = info->collective == BANYAN_ALLGATHER ? of->bytes : of->message_bytes;
    return counted >= info->min_message_bytes && counted <= info->max_message_bytes;
}

banyan_status message_fit(const banyan_plan *plan, size_t elem_bytes, uint64_t wanted,
                          message *fitting)
{
    banyan_plan_info info = banyan_plan_describe(plan);
    uint64_t least = info.message_parts * elem_bytes, longest;
    RETURN_IF_FAILED(longest_of(plan, info.ranks, least, &longest));
    uint64_t unit = longest > 0 ? longest : least;
    uint64_t units = unit == 0 ? 0 : wanted > unit ? wanted / unit : 1;
    *fitting = (message){.message_bytes = units * least, .bytes = units * longest};
    fitting->in_bounds = is_in_bounds(&info, fitting);
    return BANYAN_OK;
}

banyan_status message_fit_range(const banyan_plan *plan, size_t elem_bytes, uint64_t low,
                                uint64_t high, int factor, message fitting[MESSAGES_MOST],
                                size_t *count)
{
    size_t made = 0;
    bool last = false;
    for (uint64_t wanted = low; !last && made < MESSAGES_MOST; wanted *= (uint64_t)factor) {
        RETURN_IF_FAILED(message_fit(plan, elem_bytes, wanted, &fitting[made]));
        bool again = made > 0 && fitting[made].message_bytes == fitting[made - 1].message_bytes;
        made += again ? 0 : 1;
        last = wanted > high / (uint64_t)factor;
    }
    *count = made;
    return BANYAN_OK;
}

double message_bus_factor(const banyan_plan_info *info)
{
    double ranks = info->ranks;
    switch (info->collective) {
    case BANYAN_ALLREDUCE:
        return 2 * (ranks - 1) / ranks;
    case BANYAN_ALLGATHER:
    case BANYAN_REDUCESCATTER:
    case BANYAN_ALLTOALL:
        return (ranks - 1) / ranks;
    default:
        return 1;
    }
}
