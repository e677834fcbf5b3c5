/* The pipeline's fourth stage: the order of a rank's batches.
 *
 * Every batch gets a round, a number that both of its ends know; in a round a rank sends at most
 * one batch and receives at most one. A rank's iterations are its rounds, ascending. So all lists
 * follow one order of all batches, and the first batch in it that has not moved is next at both of
 * its ends: with any counts, no rank waits forever. */
#ifndef COPY_SCHEDULE_ROUNDS_H
#define COPY_SCHEDULE_ROUNDS_H

#include "copy/schedule/colour.h"
#include "copy/schedule/exchange.h"

#define PIPELINE_NO_FLOW SIZE_MAX

/* One rank's part of one round: batches of its flows, PIPELINE_NO_FLOW where there is none. */
typedef struct pipeline_round {
    uint64_t number;
    size_t send_flow, send_batch;
    size_t recv_flow, recv_batch;
} pipeline_round;

typedef ARRAY(pipeline_round) pipeline_rounds;

/* Batches of the flow with `peer` in one direction take part in rounds [first, first + count). */
typedef struct pipeline_run {
    int peer;
    uint64_t first, count;
} pipeline_run;

/* Rotate: rank i's batches to i + 1, then those to i + 2, and so on, each rank at its own pace.
 * Needs no data of other ranks. The flows need their peers and batches only. NO_MEMORY. */
banyan_status pipeline_rounds_rotate(int rank, int world_size, const pipeline_flow *sends,
                                     size_t send_count, const pipeline_flow *recvs,
                                     size_t recv_count, pipeline_rounds *rounds);

/* Take rounds from given runs. MISMATCH, naming `rank`, unless they give every batch of these flows
 * its round and none twice. Flows are sorted by peer. */
banyan_status pipeline_rounds_follow(int rank, const pipeline_flow *sends, size_t send_count,
                                     const pipeline_run *send_runs, size_t send_run_count,
                                     const pipeline_flow *recvs, size_t recv_count,
                                     const pipeline_run *recv_runs, size_t recv_run_count,
                                     pipeline_rounds *rounds);

/* Use as few rounds as the busiest rank has batches in one direction. Rank 0 gathers how many
 * batches each pair of ranks has, colours them (colour.h), and sends every rank its own rounds.
 * Collective; agree on the status afterwards. */
banyan_status pipeline_rounds_colour(banyan_world *world, const pipeline_flow *sends,
                                     size_t send_count, const pipeline_flow *recvs,
                                     size_t recv_count, pipeline_rounds *rounds);

#endif
