/* Signals: 64-bit counters in symmetric memory, one of each number at every rank. */
#ifndef TRANSPORT_SIGNALS_H
#define TRANSPORT_SIGNALS_H

#include <banyan/transport.h>

#include "transport/tables.h"

typedef struct signal_set signal_set;

banyan_status signals_create(transport_world *of, signal_set **set); /* local */
void signals_destroy(signal_set *set);                               /* NULL is ignored */

/* As banyan_transport_signals_alloc and _free. */
banyan_status signals_alloc(signal_set *set, uint32_t count, uint32_t *first);
void signals_free(signal_set *set, uint32_t first, uint32_t count);

/* True if the signal is allocated. */
bool signal_is_live(const signal_set *set, uint32_t signal);

/* Add to the counter of a rank whose memory is mapped, given by its index on the node, and wake the
 * rank. */
void signals_add(signal_set *set, int local, uint32_t signal, uint64_t add);
/* Return the counter of any rank, for a table. */
banyan_remote signals_remote(const signal_set *set, int rank, uint32_t signal);

/* The value of this rank's counter, and waits for it. */
uint64_t signals_read(const signal_set *set, uint32_t signal);
banyan_status signals_wait(signal_set *set, uint32_t signal, uint64_t value, int peer,
                           const char *what);

#endif
