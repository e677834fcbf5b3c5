/* Signals between the ranks of a node: counters in symmetric memory, and one wake-up per rank. */
#ifndef TRANSPORT_SIGNALS_H
#define TRANSPORT_SIGNALS_H

#include <banyan/transport.h>

typedef struct signals signals;

/* Collective. */
banyan_status signals_open(banyan_world *world, signals **opened);
void signals_close(signals *set);

/* Collective: see the transport's table. New counters are zero at every rank when it returns. */
banyan_status signals_alloc(signals *set, uint32_t count, uint32_t *first);
void signals_free(signals *set, uint32_t first, uint32_t count);

/* In all of these calls, `peer` is on this node and `signal` is allocated. */
void signals_add(signals *set, int peer, uint32_t signal, uint64_t add);
uint64_t signals_read(signals *set, uint32_t signal);
banyan_status signals_wait(signals *set, uint32_t signal, uint64_t value, int peer,
                           const char *what);

uint64_t signals_epoch(signals *set);
banyan_status signals_idle(signals *set, uint64_t seen);

#endif
