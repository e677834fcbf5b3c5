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
typedef struct knowledge_entry {
    uint32_t chain, order, seen;
} knowledge_entry;

/* Does not change once it is made, and is shared: `users` counts. NULL is knowing nothing. */
typedef struct knowledge {
    uint32_t users, count;
    knowledge_entry entries[]; /* ascending by chain */
} knowledge;

/* What all of it takes, and what it may take. */
typedef struct knowledge_store {
    const chain_list *chains;
    uint64_t bytes;
} knowledge_store;

static inline knowledge *knowledge_keep(knowledge *known)
{
    if (known)
        known->users++;
    return known;
}
void knowledge_drop(knowledge_store *store, knowledge *known);

/* `*into` becomes all that either knows. False, with the error set, when memory ran out. */
bool knowledge_add(knowledge_store *store, knowledge **into, const knowledge *more);
/* And this of one chain. */
bool knowledge_add_one(knowledge_store *store, knowledge **into, knowledge_entry one);

/* The same, but that nothing can be seen of what `rank`'s thread blocks wrote in this run. NULL
 * when memory ran out. */
knowledge *knowledge_relax(knowledge_store *store, const knowledge *known, int rank);

/* Is the chain known to have done what it did at `time`; can that be seen, too? */
bool knowledge_orders(const knowledge *known, const chain_list *all, uint32_t chain, uint32_t time,
                      bool seen);

#endif
