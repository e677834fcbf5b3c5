/* Whose packets are where: a chunk of scratch can be read when all who write packets to it have. */
#ifndef PLAN_CHECK_PACKET_WRITERS_H
#define PLAN_CHECK_PACKET_WRITERS_H

#include "core/containers/map.h"
#include "plan/geometry/geometry.h"

/* An operation that writes packets to a chunk, and how far it is. */
typedef struct packet_writer {
    const plan_op *op;
    const plan_thread_block *block;
    uint64_t done, iterations; /* of its loop */
    uint64_t when;             /* they came there, as whoever keeps it counts */
    uint32_t step;             /* and what they came from */
    size_t next;               /* writer of the chunk; 0: none */
} packet_writer;

typedef struct packet_writers {
    const banyan_plan *plan;
    map chunks;                /* rank and scratch chunk to its first writer */
    ARRAY(packet_writer) list; /* the first is nobody */
    arena memory;
    uint64_t most;
    uint64_t looks; /* at a chunk or a writer */
    bool
        too_many; /* more than `most` to know of, each counted for every chunk: not all are known */
} packet_writers;

banyan_status packet_writers_make(const banyan_plan *plan, const plan_geometry *geometry,
                                  uint64_t most, packet_writers *made);
void packet_writers_free(packet_writers *old);

/* The packets of an iteration, to one of the operation's destinations or to all: there at `when`,
 * and `away` later where it is not the writer's own rank. */
typedef struct packets_written {
    int rank;
    const plan_thread_block *block;
    const plan_op *op;
    uint64_t iteration;
    uint32_t destination; /* PACKETS_ALL, or its index */
    uint64_t when, away;
    uint32_t step;
} packets_written;
#define PACKETS_ALL UINT32_MAX

/* `reached`, if it is not NULL, is told of each rank that they are for. */
typedef void (*packets_reached)(void *context, int rank);
void packet_writers_wrote(packet_writers *all, const packets_written *news, packets_reached reached,
                          void *context);

/* Have all packets come that iteration `iteration` of `iterations` reads? Then `*when` is at least
 * as late as the last of them, and `*step` what that came from if it is later. */
bool packet_writers_have(packet_writers *all, int rank, const plan_op *op, uint64_t iteration,
                         uint64_t iterations, uint64_t *when, uint32_t *step);

#endif
