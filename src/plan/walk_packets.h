/* Who waits for whose packets: a chunk of scratch is there when all who write packets to it have.
 */
#ifndef PLAN_WALK_PACKETS_H
#define PLAN_WALK_PACKETS_H

#include "core/map.h"
#include "plan/geometry.h"

/* An operation that writes packets to a chunk, and how far it is. */
typedef struct packet_writer {
    const plan_op *op;
    uint64_t done, iterations; /* of its loop */
    uint64_t depth;
    size_t next; /* writer of the chunk; 0: none */
} packet_writer;

typedef struct walk_packets {
    const banyan_plan *plan;
    map chunks;                   /* rank and scratch chunk to its first writer */
    ARRAY(packet_writer) writers; /* the first is nobody */
    arena memory;
    uint64_t steps; /* looks at a chunk or a writer */
    bool too_many;  /* writers to know of: nothing is known */
} walk_packets;

banyan_status walk_packets_make(walk_packets *packets, const banyan_plan *plan,
                                const plan_geometry *geometry);
void walk_packets_free(walk_packets *packets);

void walk_packets_write(walk_packets *packets, int rank, const plan_thread_block *block,
                        const plan_op *op, uint64_t iteration, uint64_t depth);

/* Have all packets come that iteration `iteration` of `iterations` reads? Then `depth` is at least
 * as deep as where they came from. */
bool walk_packets_read(walk_packets *packets, int rank, const plan_op *op, uint64_t iteration,
                       uint64_t iterations, uint64_t *depth);

#endif
