/* A sparse vector clock: the known progress of each chain. (Vector clocks are Fidge's and
 * Mattern's. As in FastTrack, Flanagan and Freund 2009, a clock has one time per chain, without the
 * times that a later one implies.)
 *
 * A clock that includes a rank's run r implies that all thread blocks of its earlier runs have
 * ended, since the rank's caller waited for them. So only thread blocks of the newest run are
 * listed. */
#ifndef CHECK_MODEL_VECTOR_CLOCK_H
#define CHECK_MODEL_VECTOR_CLOCK_H

#include "check/model/chains.h"

/* Everything that the chain did up to `order` is over; its writes up to `seen` are visible, too. */
typedef struct vector_clock_entry {
    uint32_t chain, order, seen;
} vector_clock_entry;

/* Immutable and shared: `users` counts references. NULL is the empty clock. */
typedef struct vector_clock {
    uint32_t users, count;
    vector_clock_entry entries[]; /* ascending by chain */
} vector_clock;

/* Memory in use, and its limit. */
typedef struct vector_clock_store {
    const chain_list *chains;
    uint64_t bytes;
} vector_clock_store;

static inline vector_clock *vector_clock_keep(vector_clock *known)
{
    if (known)
        known->users++;
    return known;
}
void vector_clock_drop(vector_clock_store *store, vector_clock *known);

/* Set `*into` to the maximum of both clocks. False, with the error set, when memory ran out. */
bool vector_clock_add(vector_clock_store *store, vector_clock **into, const vector_clock *more);
/* Add one chain's time. */
bool vector_clock_add_one(vector_clock_store *store, vector_clock **into, vector_clock_entry one);

/* Return a copy in which the writes of `rank`'s thread blocks in this run are not visible. NULL
 * when memory ran out. */
vector_clock *vector_clock_relax(vector_clock_store *store, const vector_clock *known, int rank);

/* True if the clock includes the chain's actions up to `time`; the second also requires that they
 * are visible. */
bool vector_clock_orders(const vector_clock *known, const chain_list *all, uint32_t chain,
                         uint32_t time, bool seen);

#endif
