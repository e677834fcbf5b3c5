/* A rank's end of the control plane of a whole job: its listeners, one thread, and connections to
 * those it talks to, made when they are first needed. A rank writes on the connections that it made
 * and reads from those that others made; only acknowledgements and news of a loss go either way.
 * All worlds that come from one banyan_world_open share it. */
#ifndef WORLD_NET_ENDPOINT_H
#define WORLD_NET_ENDPOINT_H

#include "core/containers/array.h"
#include "world/bootstrap/member.h"
#include "world/context.h"
#include "world/net/reactor.h"

enum peer_state {
    PEER_HERE,
    PEER_LEFT, /* it closed its world, and so did everybody */
    PEER_LOST
};

/* A frame that waits for its connection. */
struct pending {
    struct wire_frame frame;
    void *data;
    int fd;
};

struct peer {
    enum peer_state state;
    banyan_status lost_status; /* once lost */
    char *lost_how;
    int node; /* index, by lowest rank */
    struct link *out, *in;
    bool came;         /* it has connected to this rank */
    bool said_goodbye; /* on one of the two, after a collective close */
    bool wanted;       /* it is in the endpoint's list of that name */
    uint64_t retry_ns, gives_up_ns;
    ARRAY(struct pending) pending;
    size_t unacknowledged;       /* exchange messages to it, of all worlds */
    struct event_source process; /* its pidfd, once there is a connection on this node */
};

/* A rank that is to be lost once what it sent has been read. */
struct loss {
    int rank;
    banyan_status status;
    char *how;
};

struct endpoint {
    struct reactor reactor; /* its lock guards all that follows, but what the thread alone uses */
    pthread_t thread;
    bool has_thread, forked;
    const struct peer *heard_last; /* whose last words are being read; NULL: nobody's */
    ARRAY(struct loss) losses;     /* heard of meanwhile */
    atomic_bool stop;
    unsigned char key[WIRE_KEY_BYTES];
    char name[32]; /* "rank 3" */
    int rank, size;
    ARRAY(int) wanted;      /* ranks to connect to */
    ARRAY(int) lost;        /* ranks */
    pthread_cond_t changed; /* a connection is ready */
    struct member *members;
    struct peer *peers;
    ARRAY(struct context *) contexts;
};

/* From where ranks of other nodes may come. */
enum endpoint_tcp { ENDPOINT_NO_TCP, ENDPOINT_TCP_LOOPBACK, ENDPOINT_TCP_ANYWHERE };

/* Listen. Of the member's entry all but the node's names is filled in. */
banyan_status endpoint_open(int rank, int size, enum endpoint_tcp tcp, struct member *self,
                            struct endpoint **endpoint);

/* Take over the table; start the thread; and, once all ranks have started theirs, the connections
 * that always stand. `rank_0_hosts`: the ranks have met there. */
banyan_status endpoint_introduce(struct endpoint *endpoint, struct member_table *table,
                                 const unsigned char job_key[WIRE_KEY_BYTES], bool rank_0_hosts);
banyan_status endpoint_start(struct endpoint *endpoint);
void endpoint_connect(struct endpoint *endpoint);

/* Opening the world has failed. Wait until the ranks that connect to this one first have done so,
 * and have the cause; after a failure of this rank's own, until it is connected too. Takes half a
 * second at most. */
void endpoint_await_peers(struct endpoint *endpoint, const struct context *context);

/* Say goodbye (with OK after a collective close, else why this rank leaves), end the thread, free
 * everything. */
void endpoint_close(struct endpoint *endpoint, banyan_status status, const char *reason);

/* An exchange message to the rank was delivered. With the lock held. */
void endpoint_acknowledge(struct endpoint *endpoint, struct context *context, int rank);

/* Send a frame to a rank of the job, or deliver it when that is this rank. The data is copied if
 * need be, `fd` (-1: none) duplicated. With the lock held. */
banyan_status endpoint_send(struct endpoint *endpoint, int rank, const struct wire_frame *frame,
                            const void *data, int fd);

/* Wait, 200 ms at most, until all that was sent is with the kernel: it then arrives even if this
 * process ends. */
void endpoint_flush(struct endpoint *endpoint);

/* Have a connection to a rank. With the lock held. */
void endpoint_want(struct endpoint *endpoint, int rank);

/* The context of an id; NULL when there is none. With the lock held. */
struct context *endpoint_find_context(const struct endpoint *endpoint, uint64_t id);
/* The same, made when there is none. NULL when memory ran out. */
struct context *endpoint_context(struct endpoint *endpoint, uint64_t id);
/* Destroy it. */
void endpoint_forget_context(struct endpoint *endpoint, struct context *context);

/* "rank 3 (pid 123 on node x)". Returns `text`. */
#define ENDPOINT_RANK_TEXT_BYTES 256
const char *endpoint_rank_text(const struct endpoint *endpoint, const struct context *context,
                               int job_rank, char text[ENDPOINT_RANK_TEXT_BYTES]);

/* ---- between endpoint.c and endpoint_loop.c ---- */

/* A message from a rank of the job has come. Takes data and descriptor, also on failure. With the
 * lock held. */
banyan_status endpoint_deliver(struct endpoint *endpoint, int source,
                               const struct wire_frame *frame, void *data, int fd);

/* The frames that waited for the peer's connection: write, or free them. With the lock held. */
void endpoint_send_pending(struct endpoint *endpoint, struct peer *peer);
void endpoint_drop_pending(struct peer *peer);

/* What the thread does when its reactor reports something, and the thread itself. */
extern const struct reactor_ops endpoint_ops;
void *endpoint_run(void *endpoint);

/* ---- liveness.c: called by the endpoint's thread, without the lock, where not said otherwise ----
 */

/* Note that a rank is lost, end the worlds it is in with `status`, and tell everybody. `how`
 * follows its name: "died". */
void liveness_lose(struct endpoint *endpoint, int rank, banyan_status status, const char *how);

/* End a world, and those split from it, for all its ranks: by rank's wish (ABORTED), or since it
 * has failed with another status. Any thread, with the lock held. */
void liveness_abort(struct endpoint *endpoint, struct context *context, int rank,
                    banyan_status status, const char *reason);

/* This rank leaves a world, split from another, in which it has waited in vain: its members hear of
 * it, also if the world has ended here. With the lock held. */
void liveness_give_up(struct endpoint *endpoint, const struct context *context, int rank,
                      banyan_status status, const char *reason);

/* The control plane of this rank has failed it: end its worlds for all their ranks, also for the
 * one at the other end of `link` (NULL: none), which is about to be closed. With the lock held. */
void liveness_fail(struct endpoint *endpoint, struct link *link, banyan_status status,
                   const char *reason);

/* A connection stands: its other end may not have heard yet who is lost. */
void liveness_tell_losses(struct endpoint *endpoint, struct link *link);

/* Frames of these kinds. */
banyan_status liveness_take_lost(struct endpoint *endpoint, const struct link *link,
                                 const struct wire_frame *frame, const char *how);
banyan_status liveness_take_abort(struct endpoint *endpoint, const struct link *link,
                                  const struct wire_frame *frame, const char *reason);
void liveness_take_goodbye(struct endpoint *endpoint, const struct link *link,
                           const struct wire_frame *frame, const char *reason);

/* A peer has closed its world together with all others, and nothing that it sent is still to come.
 * With the lock held. */
void liveness_leave(struct endpoint *endpoint, struct peer *peer);

/* A connection stands: watch the process at its other end, whose sockets a child may keep open. */
void liveness_watch(struct endpoint *endpoint, const struct link *link);
void liveness_process_ended(struct endpoint *endpoint, struct event_source *source);

/* Want connections to those who must always be connected: the lowest rank that is there, which
 * hears of every loss, and the lowest of this node, which sees its processes. Any thread, with the
 * lock held. */
void liveness_connect(struct endpoint *endpoint);
/* Otherwise `missing` is one that is not. */
bool liveness_is_connected(const struct endpoint *endpoint, int *missing);

/* A world is opened: it may have ended already, with its parent or a member. With the lock held. */
void liveness_join(struct endpoint *endpoint, struct context *context);

#endif
