/* The transport "ucx": one UCX worker for each rank of a world, and an endpoint for each peer that
 * it talks to.
 *
 * Long puts and gets are UCX's own. Short puts and all additions are active messages, which the
 * owner's processor carries out: an addition therefore wakes the owner's service thread. The owner
 * of memory sends its key to each peer that asks for it, once. */
#ifndef UCX_UCX_H
#define UCX_UCX_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <banyan/transport.h>

#include "core/module.h"
#include "ucx/library.h"

/* A memory, by its kind and id, in a table (table.c). */
typedef struct ucx_entry {
    struct ucx_entry *next;
    uint64_t id;
    uint32_t kind;
} ucx_entry;

typedef struct ucx_table {
    ucx_entry **buckets;
    size_t capacity, count; /* `capacity`: a power of two, or 0 */
} ucx_table;

/* A peer's memory. */
typedef struct ucx_key {
    ucx_entry entry;
    banyan_status status; /* of the owner's answer */
    bool is_answered;
    bool has_ended;          /* its owner has reported that */
    _Atomic size_t users;    /* calls that use it now */
    uint64_t address, bytes; /* the whole memory, at its owner */
    bool is_on_host;         /* its owner's processor can write it */
    ucp_rkey_h rkey;         /* NULL until the first use */
    char *answer;            /* the packed key, or a message */
    size_t answer_bytes;
} ucx_key;

typedef struct ucx_message ucx_message;

typedef struct ucx_peer {
    struct ucx *of;
    ucp_ep_h endpoint; /* NULL: not connected */
    bool has_cuda;     /* its UCX and this rank's reach memory of GPUs */
    bool has_failed;
    bool is_unreachable;    /* no endpoint could be made: `failure` is why */
    ucs_status_t failure;   /* why it has failed */
    bool is_dirty;          /* listed in `dirty` */
    _Atomic size_t pending; /* operations that have not completed here */
    size_t message_most;    /* bytes of the longest put that goes in messages */
    ucx_table keys;
    size_t ended; /* keys of memory that has ended */

    /* Messages to the peer (messages.c). */
    ucx_message *open;                /* takes more puts; NULL: none */
    _Atomic bool is_held;             /* `open` reads its data from the caller's source */
    ucx_message *owed, *owed_last;    /* wait until earlier puts of UCX are flushed */
    size_t queued;                    /* messages that UCX has not sent, and those in `owed` */
    uint64_t sent, confirmed;         /* numbers of the last message, and of the last confirmed */
    uint64_t puts, flushing, flushed; /* puts of UCX: started, in a flush under way, flushed */
    uint64_t flush_to;                /* puts that somebody waits for */
    bool is_flushing;
    size_t asked;    /* answers that have not come; a part of `pending` */
    uint64_t *fetch; /* receives the next answer's value */

    /* Messages from the peer. */
    uint64_t received;  /* number of the last one */
    ucx_message *early; /* those that came before an earlier one, ascending */
    uint64_t confirms;  /* confirmations to send */
    uint64_t fetched;   /* an answer to send */
    bool has_fetched;
    bool owes; /* listed in `owing` */
} ucx_peer;

/* Memory of this rank for which a peer has asked. */
typedef struct ucx_mapping {
    ucx_entry entry;
    uint64_t address, bytes;
    bool is_on_host;
    ucp_mem_h memory; /* NULL: it has 0 bytes */
    int *askers;      /* ranks that have its key */
    size_t asker_count, asker_capacity;
} ucx_mapping;

/* A peer's request for a key, until the service has answered it. */
typedef struct ucx_question {
    struct ucx_question *next;
    int rank;
    uint32_t kind;
    uint64_t id;
} ucx_question;

typedef struct ucx {
    const banyan_transport_host *host;
    banyan_world *world;
    int rank, size;

    pthread_mutex_t lock; /* for all that follows, up to the service */
    ucp_context_h context;
    ucp_worker_h worker;
    bool has_cuda;   /* this rank's UCX reaches memory of GPUs */
    char *addresses; /* of all ranks' workers */
    size_t address_bytes;
    ucx_peer *peers;
    int *dirty; /* ranks to which something went since their last flush */
    int dirty_count;
    ucx_table mappings;
    ucx_question *questions;
    ucx_message *unused;   /* messages that may be filled */
    uint32_t records_most; /* of a message */
    int *owing;            /* ranks that wait for an answer */
    int owing_count;
    banyan_redirection *redirection; /* of puts in messages; NULL: none */
    char fault[256];                 /* why a peer's message was refused; "": none was */
    _Atomic bool has_fault;          /* and it is not reported yet */

    pthread_t service;
    bool is_served;
    int event; /* readable when the worker has something to do */
    int door;  /* an eventfd that wakes the service */
    _Atomic bool stop;
    _Atomic bool is_driven; /* the thread that drives the world makes progress itself */
    _Atomic bool is_parked; /* the service leaves it to that thread */
    _Atomic uint64_t turns; /* of that thread */
} ucx;

/* Open UCX's context, and find out whether it reaches memory of GPUs. */
banyan_status ucx_context_open(ucx *of);

/* Start and stop the thread that makes progress while no other thread does. */
banyan_status ucx_service_start(ucx *of);
void ucx_service_stop(ucx *of);

/* Make progress once and answer questions; return the number of events. More may be ready: the
 * caller looks first whether it still waits. With the lock held. */
size_t ucx_turn(ucx *of);
/* The operations `progress` and `rest` of the table. */
size_t ucx_progress(void *state);
void ucx_rest(void *state);

typedef enum ucx_aim {
    UCX_SETTLED,      /* no operation to the peer is pending here */
    UCX_FLUSHED,      /* and a flush has ended */
    UCX_KEY_ANSWERED, /* the peer has answered a question */
    UCX_HAS_ROOM      /* the peer takes more messages */
} ucx_aim;
/* Make progress until the aim is reached. `key`: for UCX_KEY_ANSWERED. On failure, all pending
 * operations are cancelled. `text` describes the wait. */
banyan_status ucx_wait(ucx *of, int peer, ucx_aim aim, const ucx_key *key, const char *text);

/* Return the peer's endpoint, connecting it first. With the lock held. */
banyan_status ucx_connect(ucx *of, int peer, ucp_ep_h *endpoint);
/* Return the error of a peer whose endpoint has failed. */
banyan_status ucx_peer_lost(ucx *of, int peer);
/* Drop an endpoint and cancel its operations. With the lock held. */
void ucx_disconnect(ucx *of, int peer);
/* Take over the result of a UCX call that may go on: `request`. With the lock held. */
banyan_status ucx_track(ucx *of, int peer, ucs_status_ptr_t request, const char *call);
/* Parameters for a request that ucx_track takes over. */
ucp_request_param_t ucx_tracked(ucx *of, int peer);

banyan_status ucx_failed(const ucx *of, const char *call, ucs_status_t status);

banyan_status ucx_no_memory(const ucx *of, size_t bytes);

/* Numbers of UCX's active messages. */
enum { UCX_QUESTION = 1, UCX_ANSWER, UCX_END, UCX_MESSAGE, UCX_REPLY };

/* Find an entry. NULL: there is none. */
ucx_entry *ucx_table_find(const ucx_table *table, uint32_t kind, uint64_t id);
/* Add an entry that is not there. False: out of memory. */
bool ucx_table_add(ucx_table *table, ucx_entry *entry);
/* Remove an entry that is there. */
void ucx_table_remove(ucx_table *table, const ucx_entry *entry);
/* Remove all entries that `keep` refuses; it may free those. */
void ucx_table_filter(ucx_table *table, bool (*keep)(ucx_entry *entry, void *context),
                      void *context);
/* Free a table that has no entries. */
void ucx_table_free(ucx_table *table);

/* Messages about keys. An answer's payload is the packed key, or the error's message. */
typedef struct ucx_key_message {
    int32_t rank; /* of the sender */
    uint32_t kind;
    uint64_t id;
    int32_t status;
    uint32_t is_on_host;
    uint64_t address, bytes;
} ucx_key_message;

/* Call `arrived` for active messages of a number. */
banyan_status ucx_listen(ucx *of, unsigned number, ucp_am_recv_callback_t arrived);
/* Receive the messages about keys. */
banyan_status ucx_keys_listen(ucx *of);
/* Send an active message; its header and its payload are copied. With the lock held. */
banyan_status ucx_send(ucx *of, int rank, unsigned number, const void *header, size_t header_bytes,
                       const void *payload, size_t bytes);
/* Find the key of remote memory, asking its owner the first time, and the remote's address there.
 * The caller is one of the key's users, and decrements their number at its end. */
banyan_status ucx_find_key(ucx *of, const banyan_remote *remote, uint64_t *address, ucx_key **key);
/* Find own memory that a peer has asked for. NULL: there is none. With the lock held. */
const ucx_mapping *ucx_find_mapping(ucx *of, uint32_t kind, uint64_t id);
/* Answer the questions of peers. With the lock held. */
void ucx_answer_questions(ucx *of);
/* Unmap memory for which a peer may have asked, and tell those that have its key. */
void ucx_unmap(ucx *of, uint32_t kind, uint64_t id);
/* The operation `forget` of the table. */
void ucx_forget(void *state, uint32_t kind, uint64_t id);
void ucx_key_free(ucx_key *key);
void ucx_keys_free(ucx *of);

/* Receive messages of puts and additions, and the replies to them. */
banyan_status ucx_messages_listen(ucx *of);
/* Return the bytes of the next part of a put that goes in messages. */
size_t ucx_message_part(size_t bytes);
/* Put a part by a message. A part is `pending` as long as its source is in use. `key` and
 * `address`: the destination. With the lock held. */
banyan_status ucx_message_put(ucx *of, int rank, const ucx_key *key, uint64_t address,
                              const void *source, size_t bytes);
/* Add to a counter, after all earlier puts to its rank. `before` (NULL: not wanted) receives its
 * value before the addition, when nothing is pending to the rank any more. With the lock held. */
banyan_status ucx_message_add(ucx *of, int rank, const ucx_key *key, uint64_t address, uint64_t add,
                              uint64_t *before);
/* Send what waits for an addition, if it reads from a source. With the lock held. */
banyan_status ucx_messages_release(ucx *of, int rank);
/* Ask the peer to confirm all messages, if it has not: this is pending until then. With the lock
 * held. */
banyan_status ucx_messages_flush(ucx *of, int rank);
/* True if the peer takes more messages now. With the lock held. */
bool ucx_messages_have_room(const ucx_peer *peer);
/* The operation `redirect` of the table. */
void ucx_redirect(void *state, banyan_redirection *redirection);
/* Send replies that peers wait for; return their number. With the lock held. */
size_t ucx_messages_reply(ucx *of);
/* Drop what was not sent to a peer whose endpoint is closed. With the lock held. */
void ucx_messages_drop(ucx *of, int rank);
void ucx_messages_free(ucx *of);
/* End the world if a message of a peer was refused. Without the lock. */
void ucx_report_fault(ucx *of);

extern const banyan_transport_ops ucx_transport;

#endif
