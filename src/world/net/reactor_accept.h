/* The part of the loop that accepts connections and bounds the number of strangers. */
#ifndef WORLD_NET_REACTOR_ACCEPT_H
#define WORLD_NET_REACTOR_ACCEPT_H

#include "world/net/reactor.h"

#define REACTOR_CHECK_NS (250 * NS_PER_MS)

/* True for a link whose hello has the key's tag and whose proof is missing. */
static inline bool reactor_is_proving(const struct link *link)
{
    return !link->among && !link->connects && link->stage == LINK_PROOF;
}

/* Add a link. Takes ownership of the descriptor. `among`: it was accepted; NULL: it connects. NULL
 * with errno set on failure. Hold the lock since the descriptor was created, so that no fork
 * happens in between. */
struct link *reactor_add(struct reactor *reactor, int fd, bool connected, bool sealed, int from,
                         int to, struct newcomers *among);

/* Accept waiting connections at a listener, up to a bound. */
void reactor_accept(struct reactor *reactor, struct reactor_listener *listener);

/* Resume after a pause for lack of descriptors. */
void reactor_resume_accepting(struct reactor *reactor);

#endif
