/* A rank's side of the rendezvous: from its request to join until all ranks are ready. */
#ifndef WORLD_BOOTSTRAP_JOIN_H
#define WORLD_BOOTSTRAP_JOIN_H

#include "world/bootstrap/rendezvous.h"
#include "world/net/reactor.h"

struct joiner {
    struct reactor reactor;
    bool is_open;
    struct join_request request;
    const error_kept *failure; /* to report; NULL: this rank joins */
    struct member_table *table;
    const struct address *via; /* the address that answered */
    struct link *link;         /* carries the request */
    char host[192];            /* the rank that is the rendezvous, once known */
    uint64_t ends_ns;
    bool has_table, may_go, gone;
    bool is_ready;   /* and this rank has reported it */
    bool has_reason; /* the other side has sent a reason */
    bool refused;    /* the other side refused, or is not the right one */
    bool has_failed; /* failed for a local reason */
    bool heard;      /* the handshake was complete, so the other side was the right one */
    /* the other side closed the connection before it could identify this rank */
    bool unheard;
    banyan_status status; /* why the link ended; the message is in last_error */
};

/* Send this rank's entry and wait for the table. Close `joiner` afterwards, even after a failure.
 */
banyan_status joiner_join(struct joiner *joiner, const struct rendezvous_place *place,
                          const struct join_request *request, struct member_table *table);
/* Report that this rank accepts connections, and wait until all ranks do. */
banyan_status joiner_await_all(struct joiner *joiner);
void joiner_close(struct joiner *joiner);

/* Report to the rendezvous that a rank cannot open the world; the rendezvous informs the other
 * ranks. Tries for a second, and opens everything it needs itself. False when the rendezvous does
 * not answer. */
bool join_report(const struct rendezvous_place *place, const struct join_request *request,
                 const error_kept *why);

#endif
