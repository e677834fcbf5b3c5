/* Track packet writers: a chunk of scratch is readable once every writer has written its packets.
 */
#ifndef PLAN_PACKET_WRITERS_H
#define PLAN_PACKET_WRITERS_H

#include "plan/stepper.h"

/* An operation that writes packets to a chunk, and its progress. */
typedef struct packet_writer {
    const plan_op *op;
    const plan_thread_block *block;
    uint64_t done, iterations; /* of its loop */
    plan_event at;             /* the arrival of its last packets */
    size_t next;               /* next writer of the chunk; 0: none */
} packet_writer;

typedef struct packet_writers {
    const banyan_plan *plan;
    hash_map chunks;           /* rank and scratch chunk to the chunk's first writer */
    ARRAY(packet_writer) list; /* entry 0 is unused */
    arena memory;
    uint64_t most;
    uint64_t looks; /* visits of a chunk or a writer */
    bool too_many;  /* more than `most` writers, each counted for every chunk: the list is
                       incomplete */
} packet_writers;

banyan_status packet_writers_make(const banyan_plan *plan, const plan_geometry *geometry,
                                  uint64_t most, packet_writers *made);
void packet_writers_free(packet_writers *old);

/* The packets of one iteration, to one of the operation's destinations or to all. They arrive at
 * `at`, and `away` later on ranks other than the writer's. */
typedef struct packets_written {
    int rank;
    const plan_thread_block *block;
    const plan_op *op;
    uint64_t iteration;
    uint32_t destination; /* PACKETS_ALL, or its index */
    plan_event at;
    uint64_t away;
} packets_written;
#define PACKETS_ALL UINT32_MAX

/* Called with each receiving rank; may be NULL. */
typedef void (*packets_reached)(void *context, int rank);
void packet_writers_wrote(packet_writers *all, const packets_written *news, packets_reached reached,
                          void *context);

/* True if all packets that iteration `iteration` of `iterations` reads have arrived. Then
 * `*latest` is raised to the arrival of the last one, if that was later. */
bool packet_writers_have(packet_writers *all, int rank, const plan_op *op, uint64_t iteration,
                         uint64_t iterations, plan_event *latest);

#endif
