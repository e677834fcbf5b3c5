#include "copy/schedule/rounds.h"

#include <inttypes.h>

#include "world/control.h"

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
    array_sort(turns, by_number);
}

/* Merge both directions into one list. */
static banyan_status merge_turns(const round_turns *sends, const round_turns *recvs,
                                 pipeline_rounds *rounds)
{
    pipeline_rounds merged = {0};
    RETURN_IF_NO_MEMORY(array_reserve(&merged, sends->count + recvs->count));
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

static banyan_status rotate_flow(const pipeline_flow *flow, size_t index, int shift,
                                 round_turns *turns)
{
    size_t count = flow->batches.list.count;
    if (count > INT32_MAX)
        return error_set(BANYAN_ERR_INVALID, "pipeline: %zu batches with rank %d, more than %d",
                         count, flow->peer, INT32_MAX);
    RETURN_IF_NO_MEMORY(array_reserve(turns, count));
    for (size_t i = 0; i < count; i++)
        turns->data[turns->count++] = (round_turn){(uint64_t)shift << 32 | i, index, i};
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

static const pipeline_flow *find_flow(const pipeline_flow *flows, size_t count, int peer)
{
    size_t low = BISECT(i, 0, count, flows[i].peer < peer);
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
    RETURN_IF_NO_MEMORY(array_reserve(turns, batches));
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

/* Rounds by colouring, over the world: every rank sends rank 0 its numbers of batches per receiver,
 * and rank 0 sends every rank the rounds of its own batches. */

static banyan_status write_counts(const pipeline_flow *sends, size_t count, bytes_writer *message)
{
    for (size_t i = 0; i < count; i++) {
        bytes_write_u32(message, (uint32_t)sends[i].peer);
        bytes_write_u64(message, sends[i].batches.list.count);
    }
    return message->failed ? BANYAN_ERR_NO_MEMORY : BANYAN_OK;
}

typedef ARRAY(colour_pair) colour_pairs;

static banyan_status read_counts(const control_message *messages, size_t count, colour_pairs *pairs)
{
    for (size_t i = 0; i < count; i++) {
        bytes_reader reader = bytes_reader_of(messages[i].data, messages[i].bytes);
        while (reader.left > 0) {
            uint32_t peer = bytes_read_u32(&reader);
            uint64_t batches = bytes_read_u64(&reader);
            if (reader.failed || peer > INT32_MAX)
                return error_set(BANYAN_ERR_FORMAT,
                                 "pipeline: rank 0: malformed counts of batches, %zu bytes, from "
                                 "rank %d",
                                 messages[i].bytes, messages[i].rank);
            if (!array_push(pairs, (colour_pair){messages[i].rank, (int)peer, batches}))
                return BANYAN_ERR_NO_MEMORY;
        }
    }
    return BANYAN_OK;
}

enum { RUN_SEND = 0, RUN_RECV = 1 };

static void schedule_gather_write_run(bytes_writer *message, uint32_t direction, int peer,
                                      const colour_run *run)
{
    bytes_write_u32(message, direction);
    bytes_write_u32(message, (uint32_t)peer);
    bytes_write_u64(message, run->first_round);
    bytes_write_u64(message, run->count);
}

/* Write for every rank with batches its own runs, as source and as destination. */
static banyan_status write_runs(const colour_pairs *pairs, const colouring *colours,
                                bytes_writer *by_rank, int world_size)
{
    for (size_t i = 0; i < colours->runs.count; i++) {
        const colour_run *run = &colours->runs.data[i];
        const colour_pair *pair = &pairs->data[run->pair];
        schedule_gather_write_run(&by_rank[pair->source], RUN_SEND, pair->dest, run);
        schedule_gather_write_run(&by_rank[pair->dest], RUN_RECV, pair->source, run);
    }
    for (int rank = 0; rank < world_size; rank++) {
        RETURN_IF_NO_MEMORY(!by_rank[rank].failed);
    }
    return BANYAN_OK;
}

typedef struct run_lists {
    ARRAY(pipeline_run) runs[2]; /* by direction */
} run_lists;

static banyan_status read_runs(int rank, const control_message *messages, size_t count,
                               run_lists *lists)
{
    if (count > 0 && (count != 1 || messages[0].rank != 0))
        return error_set(BANYAN_ERR_MISMATCH,
                         "pipeline: rank %d: %zu messages with rounds, the first from rank %d, "
                         "instead of one from rank 0",
                         rank, count, messages[0].rank);
    bytes_reader reader =
        count > 0 ? bytes_reader_of(messages[0].data, messages[0].bytes) : (bytes_reader){0};
    while (reader.left > 0) {
        uint32_t direction = bytes_read_u32(&reader), peer = bytes_read_u32(&reader);
        pipeline_run run = {.peer = (int)peer};
        run.first = bytes_read_u64(&reader);
        run.count = bytes_read_u64(&reader);
        if (reader.failed || direction > RUN_RECV || peer > INT32_MAX)
            return error_set(BANYAN_ERR_FORMAT,
                             "pipeline: rank %d: malformed rounds, %zu bytes, from rank 0", rank,
                             messages[0].bytes);
        RETURN_IF_NO_MEMORY(array_push(&lists->runs[direction], run));
    }
    return BANYAN_OK;
}

/* Colour the counts: rank 0's part between the two exchanges. */
static banyan_status colour_counts(const control_message *counts, size_t count, int world_size,
                                   bytes_writer *by_rank)
{
    colour_pairs pairs = {0};
    colouring colours = {0};
    banyan_status status = read_counts(counts, count, &pairs);
    if (status == BANYAN_OK)
        status = colour_rounds(pairs.data, pairs.count, world_size, &colours);
    if (status == BANYAN_OK)
        status = write_runs(&pairs, &colours, by_rank, world_size);
    colouring_free(&colours);
    array_free(&pairs);
    return status;
}

static banyan_status exchange_counts(banyan_world *world, const pipeline_flow *sends,
                                     size_t send_count, control_message **received,
                                     size_t *received_count)
{
    bytes_writer counts = {0};
    banyan_status status = write_counts(sends, send_count, &counts);
    control_message message = {0, counts.data, counts.count};
    size_t sent = status == BANYAN_OK && send_count > 0 ? 1 : 0;
    banyan_status exchanged =
        control_exchange(world, &message, sent, "counts of batches", received, received_count);
    bytes_writer_free(&counts);
    if (exchanged == BANYAN_OK && status != BANYAN_OK)
        control_messages_free(*received, *received_count);
    return exchanged != BANYAN_OK ? exchanged : status;
}

/* Receive this rank's rounds. `by_rank` holds rank 0's messages, and is NULL elsewhere. */
static banyan_status exchange_runs(banyan_world *world, const bytes_writer *by_rank,
                                   control_message **received, size_t *received_count)
{
    size_t ranks = by_rank ? (size_t)banyan_world_size(world) : 0, count = 0;
    control_message *messages = calloc(ranks + 1, sizeof *messages);
    banyan_status status =
        messages ? BANYAN_OK : error_no_memory(ranks * sizeof *messages, "the rounds of batches");
    for (size_t rank = 0; rank < ranks && messages; rank++) {
        if (by_rank[rank].count > 0)
            messages[count++] =
                (control_message){(int)rank, by_rank[rank].data, by_rank[rank].count};
    }
    banyan_status exchanged =
        control_exchange(world, messages, count, "rounds of batches", received, received_count);
    free(messages);
    if (exchanged == BANYAN_OK && status != BANYAN_OK)
        control_messages_free(*received, *received_count);
    return exchanged != BANYAN_OK ? exchanged : status;
}

/* Every rank takes part in both exchanges, even after an error. */
static banyan_status exchange_both(banyan_world *world, banyan_status mine,
                                   const pipeline_flow *sends, size_t send_count,
                                   bytes_writer *by_rank, run_lists *lists)
{
    control_message *counts, *runs;
    size_t count, run_count;
    banyan_status status = exchange_counts(world, sends, send_count, &counts, &count);
    if (status == BANYAN_OK) {
        status = mine;
        if (by_rank)
            status = colour_counts(counts, count, banyan_world_size(world), by_rank);
        control_messages_free(counts, count);
    }
    banyan_status sent =
        exchange_runs(world, status == BANYAN_OK ? by_rank : NULL, &runs, &run_count);
    if (sent != BANYAN_OK)
        return status != BANYAN_OK ? status : sent;
    if (status == BANYAN_OK)
        status = read_runs(banyan_world_rank(world), runs, run_count, lists);
    control_messages_free(runs, run_count);
    return status;
}

banyan_status pipeline_rounds_colour(banyan_world *world, const pipeline_flow *sends,
                                     size_t send_count, const pipeline_flow *recvs,
                                     size_t recv_count, pipeline_rounds *rounds)
{
    int rank = banyan_world_rank(world), writers = rank == 0 ? banyan_world_size(world) : 0;
    bytes_writer *by_rank = writers ? calloc((size_t)writers, sizeof *by_rank) : NULL;
    banyan_status status = BANYAN_OK;
    if (writers && !by_rank)
        status = error_no_memory((size_t)writers * sizeof *by_rank, "the rounds of batches");
    run_lists lists = {0};
    status = exchange_both(world, status, sends, send_count, by_rank, &lists);
    if (status == BANYAN_OK)
        status = pipeline_rounds_follow(
            rank, sends, send_count, lists.runs[RUN_SEND].data, lists.runs[RUN_SEND].count, recvs,
            recv_count, lists.runs[RUN_RECV].data, lists.runs[RUN_RECV].count, rounds);
    array_free(&lists.runs[RUN_SEND]);
    array_free(&lists.runs[RUN_RECV]);
    for (int i = 0; i < writers && by_rank; i++)
        bytes_writer_free(&by_rank[i]);
    free(by_rank);
    return status;
}
