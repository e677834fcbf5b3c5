/* The control plane inside Banyan: what layers above world may use beyond the public API. */
#ifndef WORLD_CONTROL_H
#define WORLD_CONTROL_H

#include <stddef.h>

#include <banyan/world.h>

#include "core/module.h"
#include "core/options.h"

/* Messages between two ranks of a world, matched by tag, in order for equal tags. Sending buffers
 * and does not wait for the receiver. Receiving waits until the deadline (the world's timeout).
 * `*data` is to be freed. `what` is for the error: "rank 2 waited 60 s for rank 3 (allgather)". */
banyan_status control_send(banyan_world *world, int destination, uint64_t tag, const void *data,
                           size_t bytes);
banyan_status control_receive(banyan_world *world, int source, uint64_t tag, const char *what,
                              void **data, size_t *bytes);

typedef struct control_message {
    int rank; /* the other end */
    void *data;
    size_t bytes;
} control_message;

/* Send each message to its rank and receive all that others sent here, from however few or many,
 * without anyone knowing who will write to whom. Collective; costs a rank its own messages and one
 * barrier. Messages to oneself are allowed. `*received`, sorted by rank, and each data in it are to
 * be freed (control_messages_free). */
banyan_status control_exchange(banyan_world *world, const control_message *messages, size_t count,
                               const char *what, control_message **received,
                               size_t *received_count);
void control_messages_free(control_message *messages, size_t count);

/* UNSUPPORTED, when the world has several nodes: `what` ("plans run") takes one. The sentence names
 * a rank of each of two nodes, then `instead`. Local, and alike on all ranks. */
banyan_status control_require_one_node(const banyan_world *world, const char *what,
                                       const char *instead);
/* "rank 0 is on node a, rank 2 on node b": a rank of another node than rank 0's. Returns `text`. */
#define CONTROL_NODES_TEXT_BYTES 256
const char *control_nodes_text(const banyan_world *world, char text[CONTROL_NODES_TEXT_BYTES]);

/* Did all ranks succeed so far? Each gives its own status, with its sentence in
 * banyan_last_error(); all return BANYAN_OK, or the status of the lowest rank that failed, with its
 * sentence (prefixed "rank N: " on the others). Whoever knows of a failure may end at once: the
 * others hear the same, not of its end. Collective. */
banyan_status control_agree(banyan_world *world, banyan_status mine);

/* All ranks have found the same failure in the same data. A rank may exit on error, and its end
 * must not reach those that have not found it yet: return when all have. Returns `status` with this
 * rank's message; BANYAN_OK at once. Collective when it has failed. */
banyan_status control_fail_together(banyan_world *world, banyan_status status);

/* When all ranks have succeeded so far, `bytes` from each of them, in rank order, to be freed.
 * `what` they are is for whoever has no memory for them. Else, or when that fails somewhere,
 * `*all` is NULL, and it is as control_agree has it. Collective. */
banyan_status control_gather(banyan_world *world, banyan_status status, const void *mine,
                             size_t bytes, const char *what, void **all);

/* Largest of all ranks' values. Collective. */
banyan_status control_max(banyan_world *world, uint64_t mine, uint64_t *max);

/* Give a descriptor to, and receive one from, every rank of this node: fds[i] (to be closed) is
 * local rank i's, and -1 this rank's own. mine -1: gives none, the others receive -1. Collective
 * over the world (ranks of other nodes do the same among themselves). A rank without room for a
 * descriptor goes through all of it before it fails, and so does the rank that was to receive it:
 * an agreement must follow. After a failure all of `fds` is -1. */
banyan_status control_share_fd(banyan_world *world, int mine, int *fds);

/* Messages that may carry a descriptor (-1: none), between ranks of this node. All ranks take the
 * same tags in the same order, as calls that are collective. Receiving waits until the deadline;
 * `*data` is to be freed, and `*fd` to be closed. */
uint64_t control_take_tag(banyan_world *world);
banyan_status control_send_fd(banyan_world *world, int destination, uint64_t tag, const void *data,
                              size_t bytes, int fd);
banyan_status control_receive_fd(banyan_world *world, int source, uint64_t tag, const char *what,
                                 void **data, size_t *bytes, int *fd);

/* A peer's process id as seen in this process, for ranks of this node; 0 elsewhere. */
int control_pid(const banyan_world *world, int rank);

/* BANYAN_OK, or the error that ended the world; one atomic load when all is well. Loops that wait
 * in shared memory call it between sleeps, at least every 100 ms. */
banyan_status control_check(banyan_world *world);

/* The time since the world ended, which it has. */
uint64_t control_ended_for_ns(banyan_world *world);

/* For a failure that may follow from a loss which others heard of first: the error that ends the
 * world if it ends within a second, by when every rank has heard of a loss, or else `status`, whose
 * sentence stays. */
banyan_status control_first_cause(banyan_world *world, banyan_status status);

/* One wait, from its begin or its last progress on. It logs every BANYAN_WAIT_LOG seconds for whom
 * it waits, and ends at the timeout of the call in progress (control_timeout), else the world's. */
typedef module_wait control_wait;
control_wait control_wait_begin(banyan_world *world);
/* Something has moved: the time starts anew. */
void control_wait_restart(control_wait *wait);
/* Nothing has moved for so long, by the caller's own clock. */
void control_wait_is_idle_for(control_wait *wait, uint64_t idle_ns);

/* Called between looks in vain, at least every 100 ms; `*nap_ns` is how long to sleep at most. It
 * fails with the error that ended the world, or with TIMEOUT. `rank` is waited for (-1: none in
 * particular). `text` continues "rank 2 waited 60.0 s", as in "for rank 3 to read"; it is used when
 * control_wait_speaks is true, and may be NULL else. */
banyan_status control_wait_on(control_wait *wait, int rank, const char *text, uint64_t *nap_ns);
bool control_wait_speaks(const control_wait *wait);
/* Has it gone on for so long that peers may ask for whom? Before that, `rank` may be -1. */
bool control_wait_is_long(const control_wait *wait);
void control_wait_end(control_wait *wait);

/* "rank 0", and "(rank 4 of the job)" behind it where that differs. */
#define CONTROL_RANK_BYTES 64
const char *control_own_name(const banyan_world *world, char name[CONTROL_RANK_BYTES]);

/* "; rank 3 (rank 7 of the job, pid 12 on node x) has not come": the late rank, as far as is known,
 * in a wait for `rank`. */
#define CONTROL_LATE_BYTES 320
void control_name_late(banyan_world *world, int rank, char *text, size_t bytes);

/* A device tells that it waits for a rank (MODULE_SOME_RANK: one that it does not know), and since
 * when: from a thread that looks at it, every
 * 100 ms at least, until it tells otherwise (`rank` -1). This logs lines as other waits do, and
 * peers that ask are told of it. The device ends its wait itself: a wait that has ended in vain
 * stays until it is used for something else. The first of several waits of a world is the one that
 * peers are told of. `wait`: of control_wait_begin, when the device's object is opened; its
 * deadline is that object's. */
void control_device_waits(control_wait *wait, int rank, uint64_t waited_ns, const char *text);
/* As control_name_late, for a wait of the device. It asks, if need be, and takes 100 ms at most. */
void control_device_late(banyan_world *world, int rank, char *text, size_t bytes);

/* A local failure after which this rank cannot take its part in what the others wait for, or a wait
 * in vain, after which it is out of step with them: end the world for all ranks with `status` and
 * the message in banyan_last_error(), which names this rank to them. The first cause stays. Returns
 * `status`; BANYAN_OK ends nothing. Any thread. */
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

/* What this rank has called, for the messages of its waits: "rank 0 waited 60.0 s in
 * banyan_memory_alloc for rank 1". `CONTROL_CALL(world, __func__);` opens a collective function,
 * and holds until it returns. The outermost of several counts, and so does the outermost bound that
 * CONTROL_CALL_WITHIN sets. `world` may be NULL. */
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
 * has moved and before this rank has changed anything. After TIMEOUT no rank has gone through, and
 * the world goes on: the call may be called again. Does nothing within another call, which has its
 * own. `CONTROL_ENTER(world);` opens a collective function that begins so. */
banyan_status control_enter(banyan_world *world);
/* A gate that costs nothing where ranks begin with a value of each: *max is the largest of all. */
banyan_status control_enter_max(banyan_world *world, uint64_t mine, uint64_t *max);
#define CONTROL_ENTER_WITHIN(world, timeout)                                                       \
    CONTROL_CALL_WITHIN((world), __func__, (timeout));                                             \
    RETURN_IF_FAILED(control_enter(world))
#define CONTROL_ENTER(world) CONTROL_ENTER_WITHIN(world, (control_timeout){0})

/* A private block of an upper layer, made once a world and destroyed with it, before its memory.
 * Keys are addresses of static variables. NULL when there is none yet. */
void *world_attachment(banyan_world *world, const void *key);
banyan_status world_attach(banyan_world *world, const void *key, void *attachment,
                           void (*destroy)(void *attachment));

#endif
