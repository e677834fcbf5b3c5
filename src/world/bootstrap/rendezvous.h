/* The rendezvous of a job: one process collects every rank's entry, and sends all ranks the table
 * when all have joined. The process need not be a rank. Most ranks join through others, which pass
 * their entries on: see tree.h. */
#ifndef WORLD_BOOTSTRAP_RENDEZVOUS_H
#define WORLD_BOOTSTRAP_RENDEZVOUS_H

#include <banyan/world.h>

#include "core/status.h"
#include "world/bootstrap/joining.h"
#include "world/bootstrap/member.h"
#include "world/net/address.h"
#include "world/net/reactor.h"
#include "world/net/wire.h"

#define IDENTITY_SECRET_BYTES 16

/* This process's place in its job, and the way to the other processes. */
struct identity {
    int rank, world_size;
    int local_rank, local_size; /* -1 when unknown */

    /* With a unique id, the members below are unused: the id contains all that the rendezvous
     * needs. */
    bool has_unique_id;
    banyan_unique_id unique_id;

    /* Equal on every rank of the job, and different for every job; empty when unknown. Ranks that
     * all share a node (local_size equals world_size) use a rendezvous name derived from it. */
    char job[256];
    bool has_secret;
    unsigned char secret[IDENTITY_SECRET_BYTES];
    /* Address at which rank 0 listens for other nodes. Empty and 0 if unknown. */
    char address[256];
    int port;
};

/* Discover the identity from the options, else the environment, else PMIx, else as the only rank.
 * With PMIx, rank 0's unique id is broadcast, so the call is collective over the job. `options` may
 * be NULL. INVALID when two sources contradict each other, or when they do not suffice for a
 * rendezvous. */
banyan_status identity_discover(const banyan_world_options *options, struct identity *identity);

/* Get the place from a unique id. `node` is this process's. FORMAT when it is not an id. */
banyan_status rendezvous_place_of_id(const banyan_unique_id *id, const char *node,
                                     struct rendezvous_place *place);

/* Get an address at which other machines reach this one, with a port; loopback when it has no
 * other. False when it has none. */
bool rendezvous_own_address(int port, struct address *address);

/* Get the place for a job whose rank 0 is the rendezvous. */
banyan_status rendezvous_place_of_job(const struct identity *identity,
                                      struct rendezvous_place *place);

/* True if a process of this user waits on this node for ranks of the job with another secret, or
 * without one. `who` receives "pid 12 of user 1000". */
bool rendezvous_has_other_secret(const struct rendezvous_place *place,
                                 char who[ADDRESS_TEXT_BYTES]);

/* Make a place for a new job: a random key, and the id that describes the place. `*tcp_fd` listens
 * for ranks of other nodes; -1 without TCP. */
banyan_status rendezvous_place_new(const char *node, struct rendezvous_place *place,
                                   banyan_unique_id *id, int *tcp_fd);

/* Let ranks of other nodes try an address of this machine first. Loopback is of no use to them, and
 * changes nothing. */
void rendezvous_id_prefer(banyan_unique_id *id, const struct address *address);

/* Serve from a new thread, which ends when all ranks have the table. Takes ownership of `tcp_fd`
 * (-1: none), even on failure. `world_size` 0: the first rank to join sets it. A detached
 * rendezvous frees itself, and `*rendezvous` is not set. */
struct rendezvous;
banyan_status rendezvous_start(const struct rendezvous_place *place, int tcp_fd, int world_size,
                               bool detached, struct rendezvous **rendezvous);
/* End the thread, whether or not all ranks have the table. `why` is the failure of this process's
 * rank; NULL when no failure concerns the others. The other ranks get it; those that have yet to
 * join, for at most a second. False when no rank was informed: all ranks were ready before, or the
 * rendezvous is NULL. */
bool rendezvous_stop(struct rendezvous *rendezvous, const error_kept *why);

/* The job cannot start: inform all ranks but rank 0 that connect within `ns`. */
void rendezvous_refuse(const struct rendezvous_place *place, int tcp_fd, int world_size,
                       const error_kept *why, uint64_t ns);

/* A condition beside the rendezvous under which a rank stops opening its world. `check` sets the
 * message of the status that it returns; it is called at least every 100 ms, without a lock. */
struct join_guard {
    banyan_status (*check)(void *context);
    void *context;
};

/* A rank that joins through this one. */
struct relayed {
    struct link *link;
    struct join_request request;
    uint64_t gives_up_ns;
    bool is_sent, is_ready, is_ready_sent;
};

/* The ranks that join through this one. Their entries are sent on together: at once when this
 * rank's whole subtree has joined, otherwise at growing intervals. */
struct relay {
    int most; /* children; 0: none */
    bool leads;
    int port;                 /* of its TCP listener; 0: none */
    struct relayed **of;      /* by rank */
    int count, ready, inside; /* `inside`: those of its subtree */
    int unsent, ready_unsent;
    struct tree_children children;
    uint64_t flush_ns, window_ns;
    error_kept failed; /* this rank cannot pass on */
};

/* A rank's side of the rendezvous: from its request to join until all ranks are ready. */
struct joiner {
    struct reactor reactor;
    bool is_open;
    const struct rendezvous_place *place;
    struct relay relay;
    bool to_relay;   /* `link` leads to another rank, not to the rendezvous */
    int through;     /* that rank; -1: none, or unknown */
    bool absent;     /* nobody listens there */
    bool astray;     /* the way ended: this rank has to find another one */
    bool redirected; /* to `next`; no address: to the rendezvous itself */
    bool to_root;
    struct address next;
    bool lost_relay; /* all have joined, and the rank through which this one joined has ended */
    uint64_t patient_until_ns;
    struct join_request request;
    const error_kept *failure;      /* to report; NULL: this rank joins */
    const struct join_guard *guard; /* NULL: none */
    struct member_table *table;
    const struct address *via; /* the address at which it asks the rendezvous */
    struct link *link;         /* carries the request */
    char host[192];            /* the rank that is the rendezvous, once known */
    uint64_t ends_ns;
    bool has_table, may_go, gone;
    bool is_prepared;   /* this rank accepts connections */
    bool is_ready;      /* and has reported it */
    bool has_reason;    /* the other side has sent a reason */
    bool refused;       /* the other side refused, or is not the right one */
    bool has_doubt;     /* it refused, and yet all ranks may be ready: ask the rendezvous */
    bool has_failed;    /* failed for a local reason */
    bool is_identified; /* the handshake was complete, so the other side was the right one */
    /* the other side closed the connection before it could identify this rank */
    bool closed_early;
    banyan_status status; /* why the link ended; the message is in last_error */
};

/* Send this rank's entry and wait for the table. Close `joiner` afterwards, even after a failure.
 */
banyan_status joiner_join(struct joiner *joiner, const struct rendezvous_place *place,
                          const struct join_request *request, struct member_table *table);
/* Report that this rank accepts connections, and wait until all ranks do. */
banyan_status joiner_wait_for_all(struct joiner *joiner);
/* True if the rendezvous has sent the reason why the world is not opened, or has ended since it
 * sent the table. */
bool joiner_is_turned_away(struct joiner *joiner);
/* This rank cannot open the world: inform the ranks that join through it, unless they may join
 * elsewhere. `informed`: the rendezvous knows. */
void joiner_turn_away(struct joiner *joiner, bool informed, const error_kept *why);
void joiner_close(struct joiner *joiner);

/* Report to the rendezvous that a rank cannot open the world; the rendezvous informs the other
 * ranks. Opens everything it needs itself. Tries for a second, in which a rendezvous may start. One
 * that `was_there`, since it has sent the table, has ended if it does not listen any more. False
 * when the rendezvous does not answer, or when all ranks were ready: they open the world. */
bool join_report(const struct rendezvous_place *place, const struct join_request *request,
                 bool was_there, const error_kept *why);

#endif
