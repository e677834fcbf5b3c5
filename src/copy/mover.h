/* Moving strided boxes on a device: the table that a module brings for the direct backend.
 *
 * The host plans (direct_plan.h): which rank moves what, to and from addresses that are all mapped
 * in this process. A mover turns one rank's part into work for its device, which then runs in the
 * caller's stream with nothing asked of the host, and can be captured in a graph. Partners meet
 * through counters in symmetric memory of the devices. Everything here is local. */
#ifndef COPY_MOVER_H
#define COPY_MOVER_H

#include <banyan/world.h>

#include "copy/direct_moves.h"

/* What this rank moves to or from a partner, or (peer: itself) at home. Counters are 64-bit, one
 * cache line each, and grow by one a run; `their…` lie at the partner, `my…` here. NULL at home. */
typedef struct mover_lane {
    int peer;
    const direct_moves *moves;
    uint64_t *my_entered, *their_entered;   /* the rank has come to this run in its stream */
    uint64_t *my_finished, *their_finished; /* all it had to move for this partner is there */
} mover_lane;

typedef struct mover_report {
    bool late;
    int peer;       /* that was waited for */
    bool finishing; /* to finish, not to enter */
    uint64_t waited_ns;
} mover_report;

typedef struct copy_mover_ops {
    size_t size;      /* of this struct */
    const char *name; /* "cuda" */

    banyan_status (*open)(banyan_world *world, int device, uint64_t timeout_ns, void **mover);
    void (*close)(void *mover);

    /* What lanes point to must stay until release. */
    banyan_status (*prepare)(void *mover, const mover_lane *lanes, size_t count, void **work);
    void (*release)(void *work);

    /* Queue a run in the caller's stream. The report of an earlier one is told first. */
    banyan_status (*run)(void *work, void *stream);
    /* How the runs went that have ended so far. Does not wait. */
    void (*check)(void *work, mover_report *report);
} copy_mover_ops;

#endif
