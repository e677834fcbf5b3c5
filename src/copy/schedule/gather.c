/* Rounds by colouring, over the world: every rank sends rank 0 its numbers of batches per receiver,
 * and rank 0 sends every rank the rounds of its own batches. */
#include "copy/schedule/rounds.h"

#include <inttypes.h>

#include "world/control.h"

/* ---- to rank 0 ---- */

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

/* ---- from rank 0 ---- */

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
        if (by_rank[rank].failed)
            return BANYAN_ERR_NO_MEMORY;
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
        if (!array_push(&lists->runs[direction], run))
            return BANYAN_ERR_NO_MEMORY;
    }
    return BANYAN_OK;
}

/* ---- both exchanges ---- */

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
    banyan_status told =
        exchange_runs(world, status == BANYAN_OK ? by_rank : NULL, &runs, &run_count);
    if (told != BANYAN_OK)
        return status != BANYAN_OK ? status : told;
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
