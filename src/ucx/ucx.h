/* The transport "ucx": one UCX worker for each rank of a world, and an endpoint for each peer that
 * it talks to.
 *
 * Data goes by UCX's puts and gets, and signals by its atomic additions, which UCX performs at the
 * owner (ATOMIC_MODE=cpu): an addition therefore wakes the owner's service thread. The owner of
 * memory sends its key to each peer that asks for it, once. */
#ifndef UCX_UCX_H
#define UCX_UCX_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <banyan/transport.h>

#include "core/module.h"
#include "ucx/library.h"

/* A peer's memory. */
typedef struct ucx_key {
    uint64_t id;
    uint32_t kind;
    banyan_status status; /* of the owner's answer */
    bool is_answered;
    uint64_t address, bytes; /* the whole memory, at its owner */
    ucp_rkey_h rkey;         /* NULL until the first use */
    char *answer;            /* the packed key, or a message */
    size_t answer_bytes;
} ucx_key;

typedef struct ucx_peer {
    ucp_ep_h endpoint; /* NULL: not connected */
    bool has_failed;
    ucs_status_t failure;   /* why it has failed */
    bool is_dirty;          /* listed in `dirty` */
    _Atomic size_t pending; /* operations that have not completed here */
    ucx_key **keys;         /* a hash table of a power of two; NULL: an unused entry */
    size_t key_count, key_capacity;
} ucx_peer;

/* Memory of this rank for which a peer has asked. */
typedef struct ucx_mapping {
    uint64_t id;
    uint32_t kind;
    uint64_t address, bytes;
    ucp_mem_h memory; /* NULL: it has 0 bytes */
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
    char *addresses; /* of all ranks' workers */
    size_t address_bytes;
    ucx_peer *peers;
    int *dirty; /* ranks to which something went since their last flush */
    int dirty_count;
    ucx_mapping *mappings;
    size_t mapping_count, mapping_capacity;
    ucx_question *questions;

    pthread_t service;
    bool is_served;
    int event; /* readable when the worker has something to do */
    int door;  /* an eventfd that wakes the service */
    _Atomic bool stop;
    _Atomic bool is_driven; /* the thread that drives the world makes progress itself */
    _Atomic bool is_parked; /* the service leaves it to that thread */
    _Atomic uint64_t turns; /* of that thread */
} ucx;

/* Start and stop the thread that makes progress while no other thread does. */
banyan_status ucx_service_start(ucx *of);
void ucx_service_stop(ucx *of);

/* Make progress and answer questions; return the number of events. With the lock held. */
size_t ucx_turn(ucx *of);
/* The operations `progress` and `rest` of the table. */
size_t ucx_progress(void *state);
void ucx_rest(void *state);

/* Make progress until no operation to the peer is pending here, or until `*answered`, if it is not
 * NULL. On failure, all pending operations are cancelled. `text` describes the wait. */
banyan_status ucx_wait(ucx *of, int peer, const bool *answered, const char *text);

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

/* Messages about keys. An answer's payload is the packed key, or the error's message. */
enum { UCX_QUESTION = 1, UCX_ANSWER };
typedef struct ucx_key_message {
    int32_t rank; /* of the sender */
    uint32_t kind;
    uint64_t id;
    int32_t status;
    uint64_t address, bytes;
} ucx_key_message;

/* Receive the messages about keys. */
banyan_status ucx_keys_listen(ucx *of);
/* Send one with a payload. With the lock held. */
banyan_status ucx_key_send(ucx *of, int rank, unsigned number, const ucx_key_message *header,
                           const void *payload, size_t bytes);
/* Find the place of a memory's entry in the table of a peer, which has some. */
ucx_key **ucx_key_place(const ucx_peer *peer, uint32_t kind, uint64_t id);
/* Find the address and the key of remote memory, asking its owner the first time. */
banyan_status ucx_find_key(ucx *of, const banyan_remote *remote, uint64_t *address,
                           ucp_rkey_h *rkey);
/* Answer the questions of peers. With the lock held. */
void ucx_answer_questions(ucx *of);
/* The operation `forget` of the table. */
void ucx_forget(void *state, uint32_t kind, uint64_t id);
void ucx_keys_free(ucx *of);

extern const banyan_transport_ops ucx_transport;

#endif
