/* Chunks that move between processors' caches, where processors share a memory: one rank writes
 * them and another touches them. In consecutive runs everything else stays in its cache. */
#ifndef SIMULATE_ENGINE_CACHES_H
#define SIMULATE_ENGINE_CACHES_H

#include "core/containers.h"
#include "plan/geometry/geometry.h"

/* The user of a chunk: a rank, or one of these. */
#define CACHES_NOBODY (-1)
#define CACHES_SEVERAL (-2)

typedef struct chunk_users {
    int writers, users; /* users: readers and writers */
} chunk_users;

typedef struct caches {
    const banyan_plan *plan;
    hash_map chunks; /* to the index in the list */
    ARRAY(chunk_users) users;
    hash_map touched;       /* by rank */
    uint64_t *working_sets; /* bytes that each rank touches in a run */
    uint64_t *rings;        /* those in scratch that is used in rounds */
    arena memory;
} caches;

/* UNSUPPORTED: the plan uses more chunks than are kept. */
banyan_status caches_make(const banyan_plan *plan, const plan_geometry *geometry, caches *made);
void caches_free(caches *old);

/* True if the buffer's data stays in caches for any message size, since loops return to the same
 * places. */
bool caches_go_round(const plan_geometry *geometry, plan_buffer buffer);

/* Return the share of the operand's chunks that others write or, if the operand is written, touch.
 */
double caches_fraction_of_others(const caches *all, int rank, const plan_thread_block *block,
                                 const plan_op *op, const plan_operand *operand, bool packets,
                                 bool written);

#endif
