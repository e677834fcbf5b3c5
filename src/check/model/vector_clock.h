/* What somebody knows of how far the others are: a vector clock, kept sparse. (Vector clocks are
 * Fidge's and Mattern's; to keep one time a chain and drop what a later one implies is what race
 * detectors do since FastTrack, Flanagan and Freund 2009.)
 *
 * Who has heard of a rank's run r knows that all thread blocks of its earlier runs have ended, for
 * its caller waited for them: so only those of the newest run are listed. */
#ifndef CHECK_MODEL_VECTOR_CLOCK_H
#define CHECK_MODEL_VECTOR_CLOCK_H

#include "check/replay/chains.h"

/* Whatever the chain did up to `order` is over; what it wrote up to `seen` can be seen, too. */
typedef struct vector_clock_entry {
    uint32_t chain, order, seen;
} vector_clock_entry;

/* Does not change once it is made, and is shared: `users` counts. NULL is knowing nothing. */
typedef struct vector_clock {
    uint32_t users, count;
    vector_clock_entry entries[]; /* ascending by chain */
} vector_clock;

/* What all of it takes, and what it may take. */
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

/* `*into` becomes all that either knows. False, with the error set, when memory ran out. */
bool vector_clock_add(vector_clock_store *store, vector_clock **into, const vector_clock *more);
/* And this of one chain. */
bool vector_clock_add_one(vector_clock_store *store, vector_clock **into, vector_clock_entry one);

/* The same, but that nothing can be seen of what `rank`'s thread blocks wrote in this run. NULL
 * when memory ran out. */
vector_clock *vector_clock_relax(vector_clock_store *store, const vector_clock *known, int rank);

/* Is the chain known to have done what it did at `time`; can that be seen, too? */
bool vector_clock_orders(const vector_clock *known, const chain_list *all, uint32_t chain,
                         uint32_t time, bool seen);

#endif
