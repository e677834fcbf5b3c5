/* The pipeline's schedule of all ranks, made in one process, to inspect it without a world. Every
 * stage runs the code of real ranks. */
#ifndef COPY_SCHEDULE_WORLD_H
#define COPY_SCHEDULE_WORLD_H

#include "copy/schedule/check.h"
#include "copy/schedule/rounds.h"

/* Bytes that a rank sends to `peer`. Tasks between two ranks come in the order of their ids. */
typedef struct pipeline_world_task {
    int peer;
    uint64_t id;
    pipeline_task task;
    uint32_t stage, turn; /* of a reshard's transfer; not used here */
} pipeline_world_task;

/* A rank's flows, by partner. Incoming flows share the batches of their senders. */
typedef struct pipeline_member {
    pipeline_task *tasks;
    pipeline_flow *sends, *recvs;
    size_t send_count, recv_count;
} pipeline_member;

typedef struct pipeline_world {
    int ranks;
    uint64_t slot_bytes;
    pipeline_member *members;
    struct pipeline_world_runs *runs; /* of coloured rounds; NULL: rotation */
} pipeline_world;

banyan_status pipeline_world_create(int ranks, uint64_t slot_bytes, pipeline_world *made);
void pipeline_world_free(pipeline_world *old);

void pipeline_world_sort(pipeline_world_task *tasks, size_t count);

/* Pack everything that the rank sends, sorted: once for each rank. INVALID, NO_MEMORY. */
banyan_status pipeline_world_send(pipeline_world *world, int rank, const pipeline_world_task *tasks,
                                  size_t count);
/* After all ranks' sends: set up the receives of each rank. Rounds are those of rotation. */
banyan_status pipeline_world_link(pipeline_world *world);
/* Then, once: use as few rounds as possible, by colouring. */
banyan_status pipeline_world_colour(pipeline_world *world);

/* Append a rank's rounds, and its executor's steps, to an empty list. */
banyan_status pipeline_world_rounds(const pipeline_world *world, int rank, pipeline_rounds *rounds);
banyan_status pipeline_world_steps(const pipeline_world *world, int rank, pipeline_steps *steps);

#endif
