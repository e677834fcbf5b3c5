#include "copy/schedule/rounds.h"

#include <inttypes.h>

/* A batch in one direction, and its round. */
typedef struct round_turn {
    uint64_t number;
    size_t flow, batch;
} round_turn;

typedef ARRAY(round_turn) round_turns;

static int by_number(const void *left, const void *right)
{
    const round_turn *a = left, *b = right;
    return a->number < b->number ? -1 : a->number > b->number;
}

static void turns_sort(round_turns *turns)
{
    if (turns->count > 0)
        qsort(turns->data, turns->count, sizeof *turns->data, by_number);
}

/* Merge both directions into one list. */
static banyan_status merge_turns(const round_turns *sends, const round_turns *recvs,
                                 pipeline_rounds *rounds)
{
    pipeline_rounds merged = {0};
    if (!array_reserve(&merged, sends->count + recvs->count))
        return BANYAN_ERR_NO_MEMORY;
    for (size_t s = 0, r = 0; s < sends->count || r < recvs->count;) {
        const round_turn *send = s < sends->count ? &sends->data[s] : NULL;
        const round_turn *recv = r < recvs->count ? &recvs->data[r] : NULL;
        uint64_t number =
            !recv || (send && send->number < recv->number) ? send->number : recv->number;
        pipeline_round round = {number, PIPELINE_NO_FLOW, 0, PIPELINE_NO_FLOW, 0};
        if (send && send->number == number) {
            round.send_flow = send->flow;
            round.send_batch = send->batch;
            s++;
        }
        if (recv && recv->number == number) {
            round.recv_flow = recv->flow;
            round.recv_batch = recv->batch;
            r++;
        }
        merged.data[merged.count++] = round;
    }
    *rounds = merged;
    return BANYAN_OK;
}

/* ---- rotation ---- */

/* Return the round of the batch-th batch that travels `shift` ranks up. No pair has as many as
 * 2^31. */
static uint64_t rotated_round(int shift, size_t batch)
{
    return (uint64_t)shift << 32 | batch;
}

static banyan_status rotate_flow(const pipeline_flow *flow, size_t index, int shift,
                                 round_turns *turns)
{
    size_t count = flow->batches.list.count;
    if (count > INT32_MAX)
        return error_set(BANYAN_ERR_INVALID, "pipeline: %zu batches with rank %d, more than %d",
                         count, flow->peer, INT32_MAX);
    if (!array_reserve(turns, count))
        return BANYAN_ERR_NO_MEMORY;
    for (size_t i = 0; i < count; i++)
        turns->data[turns->count++] = (round_turn){rotated_round(shift, i), index, i};
    return BANYAN_OK;
}

banyan_status pipeline_rounds_rotate(int rank, int world_size, const pipeline_flow *sends,
                                     size_t send_count, const pipeline_flow *recvs,
                                     size_t recv_count, pipeline_rounds *rounds)
{
    round_turns send_turns = {0}, recv_turns = {0};
    banyan_status status = BANYAN_OK;
    for (size_t i = 0; i < send_count && status == BANYAN_OK; i++)
        status = rotate_flow(&sends[i], i, (sends[i].peer - rank + world_size) % world_size,
                             &send_turns);
    for (size_t i = 0; i < recv_count && status == BANYAN_OK; i++)
        status = rotate_flow(&recvs[i], i, (rank - recvs[i].peer + world_size) % world_size,
                             &recv_turns);
    turns_sort(&send_turns);
    turns_sort(&recv_turns);
    if (status == BANYAN_OK)
        status = merge_turns(&send_turns, &recv_turns, rounds);
    array_free(&send_turns);
    array_free(&recv_turns);
    return status;
}

/* ---- given rounds ---- */

static const pipeline_flow *find_flow(const pipeline_flow *flows, size_t count, int peer)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (flows[middle].peer < peer)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && flows[low].peer == peer ? &flows[low] : NULL;
}

/* List one turn per round of the runs; the batch within its flow is not known yet. */
static banyan_status unroll_runs(int rank, const char *direction, const pipeline_flow *flows,
                                 size_t flow_count, const pipeline_run *runs, size_t run_count,
                                 round_turns *turns)
{
    size_t batches = 0;
    for (size_t i = 0; i < flow_count; i++)
        batches += flows[i].batches.list.count;
    if (!array_reserve(turns, batches))
        return BANYAN_ERR_NO_MEMORY;
    for (size_t i = 0; i < run_count; i++) {
        const pipeline_flow *flow = find_flow(flows, flow_count, runs[i].peer);
        if (!flow || runs[i].count > batches - turns->count ||
            runs[i].first > UINT64_MAX - runs[i].count)
            return error_set(BANYAN_ERR_MISMATCH,
                             "pipeline: rank %d: %" PRIu64 " rounds from %" PRIu64
                             " on for batches %s rank %d, but there are %zu in all, %zu with it",
                             rank, runs[i].count, runs[i].first, direction, runs[i].peer, batches,
                             flow ? flow->batches.list.count : 0);
        for (uint64_t k = 0; k < runs[i].count; k++)
            turns->data[turns->count++] =
                (round_turn){runs[i].first + k, (size_t)(flow - flows), 0};
    }
    return BANYAN_OK;
}

/* Assign a flow's batches to its rounds in ascending order, as the other end does. */
static banyan_status number_batches(int rank, const char *direction, const pipeline_flow *flows,
                                    size_t flow_count, round_turns *turns)
{
    size_t *next = calloc(flow_count + 1, sizeof *next);
    banyan_status status = BANYAN_OK;
    if (!next)
        return error_no_memory((flow_count + 1) * sizeof *next, "the rounds of batches");
    for (size_t i = 0; i < turns->count && status == BANYAN_OK; i++) {
        round_turn *turn = &turns->data[i];
        turn->batch = next[turn->flow]++;
        if (i > 0 && turn[-1].number == turn->number)
            status = error_set(BANYAN_ERR_MISMATCH,
                               "pipeline: rank %d: round %" PRIu64 " has two batches %s ranks %d "
                               "and %d",
                               rank, turn->number, direction, flows[turn[-1].flow].peer,
                               flows[turn->flow].peer);
    }
    for (size_t i = 0; i < flow_count && status == BANYAN_OK; i++) {
        if (next[i] != flows[i].batches.list.count)
            status = error_set(BANYAN_ERR_MISMATCH,
                               "pipeline: rank %d: %zu rounds for %zu batches %s rank %d", rank,
                               next[i], flows[i].batches.list.count, direction, flows[i].peer);
    }
    free(next);
    return status;
}

static banyan_status follow_runs(int rank, const char *direction, const pipeline_flow *flows,
                                 size_t flow_count, const pipeline_run *runs, size_t run_count,
                                 round_turns *turns)
{
    RETURN_IF_FAILED(unroll_runs(rank, direction, flows, flow_count, runs, run_count, turns));
    turns_sort(turns);
    return number_batches(rank, direction, flows, flow_count, turns);
}

banyan_status pipeline_rounds_follow(int rank, const pipeline_flow *sends, size_t send_count,
                                     const pipeline_run *send_runs, size_t send_run_count,
                                     const pipeline_flow *recvs, size_t recv_count,
                                     const pipeline_run *recv_runs, size_t recv_run_count,
                                     pipeline_rounds *rounds)
{
    round_turns send_turns = {0}, recv_turns = {0};
    banyan_status status =
        follow_runs(rank, "to", sends, send_count, send_runs, send_run_count, &send_turns);
    if (status == BANYAN_OK)
        status =
            follow_runs(rank, "from", recvs, recv_count, recv_runs, recv_run_count, &recv_turns);
    if (status == BANYAN_OK)
        status = merge_turns(&send_turns, &recv_turns, rounds);
    array_free(&send_turns);
    array_free(&recv_turns);
    return status;
}
