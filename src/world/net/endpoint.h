/* A rank's end of the control plane of a whole job: its listeners, one thread, and its connections,
 * which are made on first use. A rank writes on the connections that it made and reads from those
 * that others made; only acknowledgements and news of a loss go both ways. All worlds that come
 * from one banyan_world_open share it. */
#ifndef WORLD_NET_ENDPOINT_H
#define WORLD_NET_ENDPOINT_H

#include "core/containers.h"
#include "world/bootstrap/member.h"
#include "world/context.h"
#include "world/net/reactor.h"

enum peer_state {
    PEER_HERE,
    PEER_LEFT, /* it closed its world, and so did all others */
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
    int node;   /* index, by lowest rank */
    int parent; /* the rank to which it keeps a connection; -1: none */
    struct link *out, *in;
    bool came;         /* it has connected to this rank */
    bool said_goodbye; /* on either connection, after a collective close */
    bool wanted;       /* it is in the endpoint's list `wanted` */
    uint64_t retry_ns, gives_up_ns;
    ARRAY(struct pending) pending;
    size_t unacknowledged;       /* exchange messages to it, of all worlds */
    struct event_source process; /* its pidfd, once connected on this node */
};

/* A rank to be recorded as lost once its sent data has been read. */
struct loss {
    int rank;
    banyan_status status;
    char *how;
};

/* A rank whose connection has ended, and which is lost if no other cause is reported in time. */
struct suspected_loss {
    int rank;
    uint64_t until_ns;
    char *how;
};

struct endpoint {
    struct reactor reactor; /* its lock guards everything below, except data of the thread alone */
    pthread_t thread;
    bool has_thread, forked;
    const struct peer *draining;            /* whose last messages are being read; NULL: none */
    ARRAY(struct loss) losses;              /* reported meanwhile */
    ARRAY(struct suspected_loss) suspected; /* ended connections */
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

/* Origins from which TCP connections are accepted. */
enum endpoint_tcp { ENDPOINT_NO_TCP, ENDPOINT_TCP_LOOPBACK, ENDPOINT_TCP_ANYWHERE };

/* Listen. Fills in the member's entry, except the node's names. */
banyan_status endpoint_open(int rank, int size, enum endpoint_tcp tcp, struct member *self,
                            struct endpoint **endpoint);

/* Take over the table, start the thread, and, once all ranks have started theirs, open the
 * permanent connections. `rank_0_hosts`: the rendezvous was at rank 0. */
banyan_status endpoint_introduce(struct endpoint *endpoint, struct member_table *table,
                                 const unsigned char job_key[WIRE_KEY_BYTES], bool rank_0_hosts);
banyan_status endpoint_start(struct endpoint *endpoint);
void endpoint_connect(struct endpoint *endpoint);

/* After a failure to open the world: wait until the ranks that connect to this one first have done
 * so and have received the cause. After a failure of this rank itself, also wait until this rank is
 * connected. At most half a second. */
void endpoint_wait_for_peers(struct endpoint *endpoint, const struct context *context);

/* Send goodbye (OK after a collective close, otherwise the reason), end the thread, free
 * everything. */
void endpoint_close(struct endpoint *endpoint, banyan_status status, const char *reason);

/* An exchange message to the rank was delivered. With the lock held. */
void endpoint_acknowledge(struct endpoint *endpoint, struct context *context, int rank);

/* Send a frame to a rank of the job, or deliver it if that is this rank. Data is copied if
 * necessary, `fd` (-1: none) is duplicated. With the lock held. */
banyan_status endpoint_send(struct endpoint *endpoint, int rank, const struct wire_frame *frame,
                            const void *data, int fd);

/* Wait, at most 200 ms, until the kernel has all sent data: it then arrives even if this process
 * ends. */
void endpoint_flush(struct endpoint *endpoint);

/* Request a connection to a rank. With the lock held. */
void endpoint_want(struct endpoint *endpoint, int rank);

/* Return the context of an id; NULL when there is none. With the lock held. */
struct context *endpoint_find_context(const struct endpoint *endpoint, uint64_t id);
/* Return the context of an id; create it if there is none. NULL when out of memory. */
struct context *endpoint_context(struct endpoint *endpoint, uint64_t id);
/* Destroy a context. */
void endpoint_forget_context(struct endpoint *endpoint, struct context *context);

/* Write "rank 3 (pid 123 on node x)" into `text`, and return it. */
#define ENDPOINT_RANK_TEXT_BYTES 256
const char *endpoint_rank_text(const struct endpoint *endpoint, const struct context *context,
                               int job_rank, char text[ENDPOINT_RANK_TEXT_BYTES]);

/* Deliver a message from a rank of the job. Takes ownership of data and descriptor, even on
 * failure. With the lock held. */
banyan_status endpoint_deliver(struct endpoint *endpoint, int source,
                               const struct wire_frame *frame, void *data, int fd);

/* Write the frames that waited for the peer's connection, or free them. With the lock held. */
void endpoint_send_pending(struct endpoint *endpoint, struct peer *peer);
void endpoint_drop_pending(struct peer *peer);

/* The thread, and its handlers of the reactor's events. */
extern const struct reactor_ops endpoint_ops;
void *endpoint_run(void *endpoint);

/* liveness.c: called by the endpoint's thread, without the lock, unless noted otherwise. */

/* Record that a rank is lost, end its worlds with `status`, and inform all connected ranks. `how`
 * follows its name: "died". */
void liveness_lose(struct endpoint *endpoint, int rank, banyan_status status, const char *how);

/* The connection to a rank has ended without a goodbye. Its process may live: it could not write,
 * or left because of another rank. Wait a moment for that news before the rank is lost. */
void liveness_doubt(struct endpoint *endpoint, int rank, const char *how);
/* Lose the ranks of which no news has come. Lower `*wait_ns` to the time until the next is due. */
void liveness_settle_doubts(struct endpoint *endpoint, uint64_t *wait_ns);

/* End a world, and those split from it, for all its ranks: at a rank's request (ABORTED), or
 * because it failed with another status. Any thread, with the lock held. */
void liveness_abort(struct endpoint *endpoint, struct context *context, int rank,
                    banyan_status status, const char *reason);

/* This rank leaves a world, split from another, in which its wait failed: inform its members, even
 * if the world has ended here. With the lock held. */
void liveness_give_up(struct endpoint *endpoint, const struct context *context, int rank,
                      banyan_status status, const char *reason);

/* This rank's control plane has failed: end its worlds for all their ranks, including the rank at
 * the other end of `link` (NULL: none), which is about to be closed. With the lock held. */
void liveness_fail(struct endpoint *endpoint, struct link *link, banyan_status status,
                   const char *reason);

/* Inform a newly connected rank of the losses so far: it may not know them yet. */
void liveness_send_losses(struct endpoint *endpoint, struct link *link);

/* Handle frames of these kinds. */
banyan_status liveness_take_lost(struct endpoint *endpoint, const struct link *link,
                                 const struct wire_frame *frame, const char *how);
banyan_status liveness_take_abort(struct endpoint *endpoint, const struct link *link,
                                  const struct wire_frame *frame, const char *reason);
void liveness_take_goodbye(struct endpoint *endpoint, const struct link *link,
                           const struct wire_frame *frame, const char *reason);

/* A peer has closed its world together with all others, and all its messages have arrived. With the
 * lock held. */
void liveness_leave(struct endpoint *endpoint, struct peer *peer);

/* Watch the process at the other end of a new connection: a child of it may keep its sockets open.
 */
void liveness_watch(struct endpoint *endpoint, const struct link *link);
void liveness_process_ended(struct endpoint *endpoint, struct event_source *source);

/* Request the permanent connection, to this rank's parent in a tree of all ranks: losses spread
 * along its edges. If the parent is lost, the nearest present ancestor takes its place. Any thread,
 * with the lock held. */
void liveness_connect(struct endpoint *endpoint);
/* True if that connection is ready; otherwise `missing` is the rank at its other end. */
bool liveness_is_connected(const struct endpoint *endpoint, int *missing);

/* A world is opened; it may have ended already, with its parent or a member. With the lock held. */
void liveness_join(struct endpoint *endpoint, struct context *context);

/* Find the late rank. A waiting rank asks the rank that it waits for which rank that one waits for,
 * and so on, up to a rank that is not waiting in that call. Each rank forwards an answer to the
 * ranks that asked it. So a question costs each rank one message to a neighbour, however many ranks
 * wait. A rank that is asked in one world and waits in another world of the same job is followed
 * there.
 *
 * A rank has at most two waits in a world: one of its host and one of its device. Questions about a
 * device's wait go to the asked rank's device, and to its host if that waits itself.
 *
 * A gate is a collective without contents at which a call begins. When a rank's deadline passes
 * there, its question also asks the late rank to give up the gate for all. Only the late rank can
 * do so safely: no rank leaves a gate before all have entered, so none has left it or can still
 * leave it. The news spreads along the edges of a barrier. The number of the gate is then used up.
 * Ranks that still have time, ranks that call again, and the late rank use the next number.
 *
 * Call all of these functions with the endpoint's lock held. */

/* Record that this rank waits for a rank of the job; `number` as in struct waiting. */
void late_begin(struct context *context, uint64_t number, int job_rank);
void late_end(struct waiting *waiting);

/* Return the wait with this number. */
static inline struct waiting *late_wait(struct context *context, uint64_t number)
{
    return number == DEVICE_NUMBER ? &context->on_device : &context->waiting;
}

/* Ask the awaited rank. At a gate: `gives_up` when this rank's deadline has passed. */
void late_ask(struct endpoint *endpoint, const struct context *context, struct waiting *waiting,
              bool gives_up);

/* Return the rank of the job to name: the late rank or, while that is unknown, the awaited rank. */
int late_rank(const struct endpoint *endpoint, const struct waiting *waiting);

/* Return that rank's state, for messages: "has not come". */
const char *late_how(const struct waiting *waiting);

/* Handle a frame of kind ASK, ANSWER or GIVE_UP. */
banyan_status late_take(struct endpoint *endpoint, const struct link *link,
                        const struct wire_frame *frame, const void *payload);

#endif
