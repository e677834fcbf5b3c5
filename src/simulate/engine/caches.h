/* Which chunks go from one processor's cache to another's, where processors share a memory: what is
 * written by one and touched by another. In runs that follow each other all else stays where it
 * is. */
#ifndef SIMULATE_ENGINE_CACHES_H
#define SIMULATE_ENGINE_CACHES_H

#include "core/containers/map.h"
#include "plan/geometry/geometry.h"

/* Who uses a chunk: a rank, or one of these. */
#define CACHES_NOBODY (-1)
#define CACHES_SEVERAL (-2)

typedef struct chunk_users {
    int writers, users; /* users: who read it or write it */
} chunk_users;

typedef struct caches {
    const banyan_plan *plan;
    map chunks; /* to the place in the list */
    ARRAY(chunk_users) users;
    map touched;            /* by which rank */
    uint64_t *working_sets; /* bytes that each rank touches in a run */
    uint64_t *rings;        /* those of them in scratch that is gone round in */
    arena memory;
} caches;

/* UNSUPPORTED: more chunks are used than are kept. */
banyan_status caches_make(const banyan_plan *plan, const plan_geometry *geometry, caches *made);
void caches_free(caches *old);

/* Does what lies in the buffer stay in caches however long the message is, since loops come to the
 * same places again and again? */
bool caches_go_round(const plan_geometry *geometry, plan_buffer buffer);

/* Of the operand's chunks, the share that others write or, if it is written, touch. */
double caches_share_of_others(const caches *all, int rank, const plan_thread_block *block,
                              const plan_op *op, const plan_operand *operand, bool packets,
                              bool written);

#endif
