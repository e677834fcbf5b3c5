/* The contents of a world. */
#ifndef WORLD_WORLD_H
#define WORLD_WORLD_H

#include "world/control.h"
#include "world/net/endpoint.h"

struct attachment {
    struct attachment *next;
    const void *key;
    void *data;
    void (*destroy)(void *attachment);
};

/* Number of sub-worlds that a list of ranks has opened. */
struct split_count {
    uint64_t list_hash, count;
};

struct banyan_world {
    struct endpoint *endpoint;
    struct context *context;
    bool is_sub; /* shares its parent's endpoint */
    int rank, size;
    int listening_size; /* see banyan_world_listening_size */
    int *node_of;       /* one per rank */
    int node_count;
    int *local_peers; /* the ranks of this node */
    int local_rank, local_size;
    _Atomic uint64_t timeout_ns;
    uint64_t opened_timeout_ns; /* restored by banyan_world_set_timeout(world, 0) */
    /* The bound of the call in progress, from an option of its object (0: none), and the option's
     * name. A world that is split off in such a call keeps the bound. */
    _Atomic uint64_t call_timeout_ns;
    const char *_Atomic call_option;
    uint64_t opens_until_ns; /* deadline of all waits during opening; 0: the world is open */
    uint64_t exchanges;      /* so far */
    bool agreeing;           /* a loss does not end the agreement at once */
    control_wait *gate;      /* this rank's wait at a gate; NULL: none */
    bool again;              /* the gate was given up, and this rank still has time */
    /* A wait of this call has already failed: no further wait of it is long. */
    const error_kept *in_vain;
    error_kept missed; /* the last call timed out at its gate; BANYAN_OK: it did not */
    const char *call;  /* the waiting call, for the error; NULL: unknown */
    ARRAY(struct split_count) splits;
    struct attachment *attachments;
    /* See control_before_messages. */
    banyan_status (*before_messages)(void *context);
    void *before_context;
};

/* Wait for the message of this kind and tag from a rank of the world. A failed wait ends the world
 * here. */
banyan_status world_receive(banyan_world *world, uint32_t kind, int source, uint64_t tag,
                            const char *what, struct message **message);

/* Send a message or step of this kind to a rank of the world. A failure ends the world for all,
 * except when a descriptor to send is missing: the message may then go without it. */
banyan_status world_send(banyan_world *world, uint32_t kind, int destination, uint64_t tag,
                         const void *data, size_t bytes, int fd);

/* Wait until the peers have acknowledged this rank's exchange messages. */
banyan_status world_wait_delivered(banyan_world *world, const control_message *messages,
                                   size_t count, const char *what);

/* Return the tag of the first step of a collective in which no rank asks for the late one. */
uint64_t world_next_collective(banyan_world *world);

/* True if the thread's outermost call begins here; it has then entered. */
bool world_begins_call(void);

/* Do everything that is due in a wait for a rank of the job, with the lock held: ask, and format a
 * log line, which is to be written without the lock. Returns when to call again. */
#define WORLD_LINE_BYTES 1024
uint64_t world_wait_due(control_wait *wait, uint64_t number, int job_rank, const char *text,
                        char line[WORLD_LINE_BYTES]);

/* Wait for the connections by which this rank's death and others' deaths are noticed. */
banyan_status world_wait_connected(banyan_world *world);

banyan_status world_barrier(banyan_world *world, const char *what);

/* Open a world as banyan_world_open does, unless `guard` (NULL: none) ends this before. */
struct join_guard;
banyan_status world_open_guarded(const banyan_world_options *options,
                                 const struct join_guard *guard, banyan_world **world);

/* Note the name of a rank that a message begins with. The message comes from the end of a world or
 * from an agreement; an agreement on it does not put another name before it. */
void world_note_name(const char *text);

#endif
