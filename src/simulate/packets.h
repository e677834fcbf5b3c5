/* Whose packets are where: a chunk of scratch can be read when all who write packets to it have. */
#ifndef SIMULATE_PACKETS_H
#define SIMULATE_PACKETS_H

#include "core/map.h"
#include "plan/geometry.h"

/* An operation that writes packets to a chunk, and how far it is. */
typedef struct packet_writer {
    const plan_op *op;
    const plan_thread_block *block;
    uint64_t done, iterations; /* of its loop */
    uint64_t arrived_ps;
    uint32_t step;
    size_t next; /* writer of the chunk; 0: none */
} packet_writer;

typedef struct packets {
    const banyan_plan *plan;
    map chunks;                   /* rank and scratch chunk to its first writer */
    ARRAY(packet_writer) writers; /* the first is nobody */
    arena memory;
} packets;

/* UNSUPPORTED: more chunks are written than are kept. */
banyan_status packets_make(const banyan_plan *plan, const plan_geometry *geometry, packets *made);
void packets_free(packets *old);

/* The ranks that an operation writes packets to are told of one by one. */
typedef void (*packets_reached)(void *context, int rank);

/* The packets of the writer's iteration `done` arrive: those to one of its destinations, or to
 * all. */
#define PACKETS_ALL UINT32_MAX
void packets_arrive(packets *all, int rank, const packet_writer *writer, uint32_t destination,
                    packets_reached reached, void *context);

/* Have all packets been sent that iteration `iteration` of `iterations` reads? The last to arrive,
 * then. */
bool packets_sent(const packets *all, int rank, const plan_op *op, uint64_t iteration,
                  uint64_t iterations, uint64_t *arrived_ps, uint32_t *step);

#endif
