/* The tables that a world has opened, and one wake-up for each rank: its transports share them. */
#ifndef TRANSPORT_TABLES_H
#define TRANSPORT_TABLES_H

#include <banyan/transport.h>

#include "memory/space.h"
#include "memory/staging/wake_up.h"

typedef struct transport_table {
    const banyan_transport_ops *ops;
    void *state;
    bool is_shared; /* by the transports of the world */
} transport_table;

typedef struct transport_world {
    banyan_world *world;
    memory_space *space;
    banyan_memory *wake_ups; /* one per rank; every addition to a counter of the rank rings it */
    banyan_transport_host host;
    ARRAY(transport_table) tables;
    uint32_t spins;
} transport_world;

/* Get the world's tables; created on first use. Collective until it has succeeded once. */
banyan_status transport_world_of(banyan_world *world, transport_world **of);

/* Open a table and get its state. Collective. `is_shared`: it stays open as long as the world, and
 * later calls return it again. Otherwise close it. */
banyan_status transport_world_open(transport_world *of, const banyan_transport_ops *ops,
                                   bool is_shared, transport_table *table);
void transport_world_close(transport_world *of, const transport_table *table);

/* Add to a counter in symmetric memory, after all earlier puts to its rank, and wake the rank.
 * Several threads may call it at once. Errors: as banyan_transport_signal. */
banyan_status transport_add(banyan_transport *transport, const banyan_remote *counter,
                            uint64_t add);

/* UNSUPPORTED, with the reason, if this rank cannot reach all others. `what` needs that. */
banyan_status transport_check_reach(banyan_transport *transport, const char *what);

/* The wake-up of a rank of this node, given by its index on the node. */
wake_up *transport_wake_up(const transport_world *of, int local);
/* Ring it. */
void transport_ring(const transport_world *of, int local);

/* Let puts of other ranks arrive elsewhere, where tables can do that. NULL: no longer. */
void transport_redirect(const transport_world *of, banyan_redirection *redirection);

/* Return the epoch: a number that changes when any counter of this rank changes. */
uint32_t transport_epoch(const transport_world *of);
/* Process what has arrived by tables that need it; return the number of events. */
size_t transport_progress(const transport_world *of);
/* The caller stops to call transport_progress, and may sleep: their own threads go on. */
void transport_rest(const transport_world *of);
/* Sleep until the epoch differs from `seen`, at most `nap_ns`. May return early. */
void transport_sleep(const transport_world *of, uint32_t seen, uint64_t nap_ns);

#endif
