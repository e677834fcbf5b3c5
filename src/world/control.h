/* The control plane inside Banyan: functions beyond the public API for the layers above world. */
#ifndef WORLD_CONTROL_H
#define WORLD_CONTROL_H

#include <stddef.h>

#include <banyan/world.h>

#include "core/error.h"
#include "core/module.h"

/* Messages between two ranks of a world, matched by tag, in order for equal tags. Sending buffers
 * and does not wait for the receiver. Receiving waits until the deadline (the world's timeout).
 * Free `*data`. `what` appears in errors: "rank 2 waited 60 s for rank 3 (allgather)". */
banyan_status control_send(banyan_world *world, int destination, uint64_t tag, const void *data,
                           size_t bytes);
banyan_status control_receive(banyan_world *world, int source, uint64_t tag, const char *what,
                              void **data, size_t *bytes);

typedef struct control_message {
    int rank; /* the other end */
    void *data;
    size_t bytes;
} control_message;

/* Send each message to its rank and receive all messages for this rank, without knowing their
 * senders or number in advance. Collective; costs a rank its own messages and one barrier. Messages
 * to oneself are allowed. Free `*received`, sorted by rank, and each data in it with
 * control_messages_free. */
banyan_status control_exchange(banyan_world *world, const control_message *messages, size_t count,
                               const char *what, control_message **received,
                               size_t *received_count);
void control_messages_free(control_message *messages, size_t count);

/* UNSUPPORTED if the world has several nodes: `what` ("plans run") needs one. The message names a
 * rank of each of two nodes, then `instead`. Local, with an equal result on all ranks. */
banyan_status control_require_one_node(const banyan_world *world, const char *what,
                                       const char *instead);
/* Write "rank 0 is on node a, rank 2 on node b" into `text`, with a rank of another node than rank
 * 0's, and return it. */
#define CONTROL_NODES_TEXT_BYTES 256
const char *control_nodes_text(const banyan_world *world, char text[CONTROL_NODES_TEXT_BYTES]);

/* Agree on whether all ranks have succeeded so far. Each passes its own status, with its message in
 * banyan_last_error(). All return BANYAN_OK, or the status of the lowest rank that failed, with its
 * message (prefixed "rank N: " on the others). A rank may exit on error; its peers get this error,
 * not PEER_LOST. A rank that passes TIMEOUT has waited for the others already: if they do not come
 * within a second, it ends the world. Collective. */
banyan_status control_agree(banyan_world *world, banyan_status mine);

/* As control_agree, on a step in another world: a TIMEOUT there does not mean that a rank of this
 * world is late, and the ranks wait for each other as usual. Collective. */
banyan_status control_agree_on_other_world(banyan_world *world, banyan_status mine);

/* Use this when all ranks find one failure in identical data. A rank may exit on error before
 * others have found the failure, and they must not see its end first: so return only when all have
 * found it. Returns `status` with this rank's message; BANYAN_OK at once. Collective after a
 * failure. */
banyan_status control_fail_together(banyan_world *world, banyan_status status);

/* Gather `bytes` from each rank, in rank order, if all ranks have succeeded so far; free `*all`.
 * `what` names the data in an out-of-memory error. If a rank has failed, or fails here, `*all` is
 * NULL and the result is that of control_agree. Collective. */
banyan_status control_gather(banyan_world *world, banyan_status status, const void *mine,
                             size_t bytes, const char *what, void **all);

/* Get the largest of all ranks' values. Collective. */
banyan_status control_max(banyan_world *world, uint64_t mine, uint64_t *max);
/* Replace each of `count` values, a number that all ranks pass, by the largest of all ranks' values
 * at its place. Collective. */
banyan_status control_max_each(banyan_world *world, uint64_t *values, size_t count);

/* Send a descriptor to, and receive one from, every rank of this node: fds[i] is local rank i's, to
 * be closed; -1 for this rank's own. If `mine` is -1, the others receive -1. Collective over the
 * world (ranks of other nodes do so among themselves). A rank that has no space for a descriptor
 * completes the exchange before it fails, and so does the rank that was to receive it: an agreement
 * must follow. After a failure all of `fds` is -1. */
banyan_status control_share_fd(banyan_world *world, int mine, int *fds);

/* Messages that may carry a descriptor (-1: none), between ranks of this node. All ranks take tags
 * in one order, as in collective calls. Receiving waits until the deadline; free `*data`, and close
 * `*fd`. */
uint64_t control_take_tag(banyan_world *world);
banyan_status control_send_fd(banyan_world *world, int destination, uint64_t tag, const void *data,
                              size_t bytes, int fd);
banyan_status control_receive_fd(banyan_world *world, int source, uint64_t tag, const char *what,
                                 void **data, size_t *bytes, int *fd);

/* Return a peer's process id as seen in this process, for ranks of this node; 0 for others. */
int control_pid(const banyan_world *world, int rank);

/* Return BANYAN_OK, or the error that ended the world; one atomic load while all is well. Loops
 * that wait in shared memory call it between sleeps, at least every 100 ms. */
banyan_status control_check(banyan_world *world);

/* Runs have no gate: a rank that comes to one later than the others' timeout finds the world ended.
 * If `status` is TIMEOUT and the world has ended, append how long before this run to its message.
 * Returns `status`. */
banyan_status control_fail_late_run(banyan_world *world, banyan_status status);

/* Find the cause of a failure that may follow from a loss which other ranks noticed first. Returns
 * the error that ends the world, if it ends within half a second: by then every rank knows of a
 * loss. Otherwise returns `status`, whose message stays. */
banyan_status control_first_cause(banyan_world *world, banyan_status status);

/* One wait, from its begin or its last progress on. It logs the awaited rank every BANYAN_WAIT_LOG
 * seconds, and ends at the timeout of the call in progress (control_timeout), else the world's. */
typedef module_wait control_wait;
control_wait control_wait_begin(banyan_world *world);
/* Restart the deadline after progress. */
void control_wait_restart(control_wait *wait);
/* Record that nothing has moved for this long, by the caller's own clock. */
void control_wait_is_idle_for(control_wait *wait, uint64_t idle_ns);

/* Call this between unsuccessful polls, at least every 100 ms; `*nap_ns` is the longest sleep. It
 * fails with the error that ended the world, or with TIMEOUT. The awaited rank is `rank` (-1: none
 * in particular). In messages, `text` continues "rank 2 waited 60.0 s", as in "for rank 3 to read".
 * It is used when control_wait_speaks is true, and may be NULL otherwise. */
banyan_status control_wait_on(control_wait *wait, int rank, const char *text, uint64_t *nap_ns);
bool control_wait_speaks(const control_wait *wait);
/* True if the wait is so long that peers may ask about it. Before that, `rank` may be -1. */
bool control_wait_is_long(const control_wait *wait);
void control_wait_end(control_wait *wait);

/* Write "rank 0", followed by "(rank 4 of the job)" if the numbers differ. */
#define CONTROL_RANK_BYTES 64
const char *control_own_name(const banyan_world *world, char name[CONTROL_RANK_BYTES]);

#define CONTROL_LATE_BYTES 320 /* "; rank 3 (rank 7 of the job, pid 12 on node x) has not come" */

/* Report that a device waits for a rank (MODULE_SOME_RANK: unknown), and for how long. The thread
 * that watches the device calls this at least every 100 ms, until it reports otherwise (`rank` -1).
 * The wait is logged like other waits, and peers that ask get it. The device ends its wait itself:
 * a failed wait stays until `wait` is used for something else. Peers get the first of several waits
 * of a world. `wait`: from control_wait_begin, when the device's object is opened; its deadline is
 * that object's. */
void control_device_waits(control_wait *wait, int rank, uint64_t waited_ns, const char *text);
/* As control_name_late, for a wait of the device. It asks, if necessary, and takes at most 100 ms.
 */
void control_device_late(banyan_world *world, int rank, char *text, size_t bytes);

/* End the world for all ranks with `status` and the message in banyan_last_error(), which names
 * this rank to them. For a local failure that keeps this rank from its part in what the others wait
 * for, or a failed wait that leaves it out of step. The first cause stays. Returns `status`;
 * BANYAN_OK ends nothing. Any thread. */
banyan_status control_fail(banyan_world *world, banyan_status status);

/* The bound that an object's option sets on the waits of the object's calls. */
typedef struct control_timeout {
    uint64_t ns;        /* 0: the world's */
    const char *option; /* its name, for messages; static */
} control_timeout;
/* From the `timeout_ns` of a caller's options, which may be NULL or of an older program. */
#define CONTROL_TIMEOUT(options, type)                                                             \
    ((control_timeout){options_read_u64((options), offsetof(type, timeout_ns)),                    \
                       "timeout_ns of " #type})
/* The bound of the call in progress: an object keeps it when it is created. Any thread. */
control_timeout control_timeout_now(const banyan_world *world);

/* The current call of this rank, for the messages of its waits: "rank 0 waited 60.0 s in
 * banyan_memory_alloc for rank 1". Put `CONTROL_CALL(world, __func__);` at the start of a
 * collective function; it holds until the function returns. The outermost of several counts, and so
 * does the outermost bound that CONTROL_CALL_WITHIN sets. `world` may be NULL. */
typedef struct control_call {
    banyan_world *world;
    bool names, bounds; /* it has set the world's call and bound */
} control_call;
control_call control_call_begin(banyan_world *world, const char *name, control_timeout timeout);
void control_call_end(const control_call *call);
#define CONTROL_CALL_WITHIN(world, name, timeout)                                                  \
    __attribute__((cleanup(control_call_end), unused)) const control_call control_call_of_this =   \
        control_call_begin((world), (name), (timeout))
#define CONTROL_CALL(world, name) CONTROL_CALL_WITHIN(world, name, (control_timeout){0})

/* The gate at which a collective call begins: wait until all ranks have entered, before anything
 * has moved and before this rank has changed anything. After TIMEOUT no rank has passed, the world
 * continues, and the call may be repeated. Does nothing inside another call, which has its own
 * gate. Put `CONTROL_ENTER(world);` at the start of such a function. */
banyan_status control_enter(banyan_world *world);
/* A gate that adds no cost where ranks begin with a value each: *max is the largest of all. */
banyan_status control_enter_max(banyan_world *world, uint64_t mine, uint64_t *max);
#define CONTROL_ENTER_WITHIN(world, timeout)                                                       \
    CONTROL_CALL_WITHIN((world), __func__, (timeout));                                             \
    RETURN_IF_FAILED(control_enter(world))
#define CONTROL_ENTER(world) CONTROL_ENTER_WITHIN(world, (control_timeout){0})

/* Call `flush` before each message of this rank, so that its receiver finds everything that this
 * rank has written into its memory before. NULL: no more calls. */
void control_before_messages(banyan_world *world, banyan_status (*flush)(void *context),
                             void *context);

/* A private block of an upper layer, created once per world and destroyed with it, before its
 * memory. Keys are addresses of static variables. NULL when there is none yet. */
void *world_attachment(banyan_world *world, const void *key);
banyan_status world_attach(banyan_world *world, const void *key, void *attachment,
                           void (*destroy)(void *attachment));

#endif
