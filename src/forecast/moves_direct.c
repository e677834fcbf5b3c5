#include "forecast/traffic.h"

/* Each pair of ranks has its own lane: all begin at once. */
static banyan_status moves_direct_add_rank(const traffic_rank *of, int rank, move_list *moves)
{
    banyan_move next = {.rank = rank,
                        .peer = rank,
                        .by = BANYAN_BY_BLOCKS,
                        .what = "copy",
                        .bytes = of->local_bytes,
                        .after = {BANYAN_NO_MOVE, BANYAN_NO_MOVE}};
    if (next.bytes > 0 && !array_push(moves, next))
        return BANYAN_ERR_NO_MEMORY;
    for (size_t i = 0; i < of->task_count;) {
        next.lane += next.bytes > 0;
        next.peer = of->tasks[i].peer;
        next.bytes = 0;
        for (; i < of->task_count && of->tasks[i].peer == next.peer; i++)
            next.bytes += traffic_task_bytes(&of->tasks[i]);
        if (!array_push(moves, next))
            return BANYAN_ERR_NO_MEMORY;
    }
    return BANYAN_OK;
}

banyan_status moves_direct(const banyan_traffic *traffic, move_list *moves)
{
    for (int r = 0; r < traffic->info.ranks; r++)
        RETURN_IF_FAILED(moves_direct_add_rank(&traffic->ranks[r], r, moves));
    return BANYAN_OK;
}
