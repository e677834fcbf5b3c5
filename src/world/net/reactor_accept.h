/* The part of the loop that lets newcomers in, and keeps strangers few. */
#ifndef WORLD_NET_REACTOR_ACCEPT_H
#define WORLD_NET_REACTOR_ACCEPT_H

#include "world/net/reactor.h"

#define REACTOR_CHECK_NS (250 * NS_PER_MS)

/* Its hello has the key's tag, and its proof is still to come. */
static inline bool reactor_is_proving(const struct link *link)
{
    return !link->among && !link->connects && link->stage == LINK_PROOF;
}

/* Takes the descriptor. `among`: it has been accepted, else it connects. NULL with errno. With the
 * lock held since the descriptor was made, so that no fork comes in between. */
struct link *reactor_add(struct reactor *reactor, int fd, bool connected, bool sealed, int from,
                         int to, struct newcomers *among);

/* Accept what has come at a listener, up to a bound. */
void reactor_accept(struct reactor *reactor, struct reactor_listener *listener);

/* It paused because no descriptor was left. */
void reactor_resume_accepting(struct reactor *reactor);

#endif
