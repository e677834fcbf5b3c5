/* A rank's side of the meeting: from its request to join until all ranks are ready. */
#ifndef WORLD_BOOTSTRAP_JOIN_H
#define WORLD_BOOTSTRAP_JOIN_H

#include "world/bootstrap/rendezvous.h"
#include "world/net/reactor.h"

struct joiner {
    struct reactor reactor;
    bool is_open;
    struct join_request request;
    const error_kept *failure; /* to report; NULL: it joins */
    struct member_table *table;
    const struct address *via; /* that answered */
    struct link *link;         /* that the request went out on */
    char host[192];            /* the rank that is the rendezvous, once known */
    uint64_t ends_ns;
    bool has_table, may_go, gone;
    bool is_ready;        /* and has said so */
    bool has_reason;      /* the other side has said why */
    bool refused;         /* it has, or it is not the right one */
    bool has_failed;      /* for a reason of this side's own */
    bool heard;           /* the connection stood, so that the other side was the right one */
    bool unheard;         /* hung up before the other side had seen who this is */
    banyan_status status; /* why it is gone; the message is in last_error */
};

/* Tell who and where this rank is, and wait for the table. Then `joiner` must be closed, also after
 * a failure. */
banyan_status joiner_join(struct joiner *joiner, const struct rendezvous_place *place,
                          const struct join_request *request, struct member_table *table);
/* This rank can be connected to: wait until all ranks can. */
banyan_status joiner_await_all(struct joiner *joiner);
void joiner_close(struct joiner *joiner);

/* A rank cannot open the world: tell the rendezvous, which tells the other ranks. Tries for a
 * second, and opens what it takes itself. False when the rendezvous does not answer. */
bool join_report(const struct rendezvous_place *place, const struct join_request *request,
                 const error_kept *why);

#endif
