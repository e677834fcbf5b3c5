#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ucx/ucx.h"

/* Operations that one put of many pieces has under way. */
#define PENDING_MAX 256
#define FLUSHED_TOGETHER 64
/* Before UCX knows more of a peer: a network of 8 Gbit/s. */
#define LATENCY_NS 10000
#define NS_PER_BYTE 1
/* How long closing waits for peers to take what was sent to them. */
#define CLOSE_NS UINT64_C(1000000000)

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static banyan_status worker_open(ucx *of)
{
    ucp_worker_params_t params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SERIALIZED,
    };
    ucs_status_t status = ucx_calls.ucp_worker_create(of->context, &params, &of->worker);
    return status == UCS_OK ? BANYAN_OK : ucx_failed(of, "ucp_worker_create", status);
}

/* Sent by a rank before its address. */
typedef struct address_record {
    uint64_t bytes; /* of its address */
    uint64_t has_cuda;
} address_record;

/* Exchange the workers' addresses. Collective. */
static banyan_status addresses_exchange(ucx *of)
{
    ucp_worker_attr_t own = {.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS};
    ucs_status_t queried = ucx_calls.ucp_worker_query(of->worker, &own);
    address_record mine = {queried == UCS_OK ? own.address_length : 0, of->has_cuda};
    address_record *records = calloc((size_t)of->size, sizeof *records);
    banyan_status status =
        queried == UCS_OK ? BANYAN_OK : ucx_failed(of, "ucp_worker_query", queried);
    if (status == BANYAN_OK && !records)
        status = banyan_error_set(BANYAN_ERR_NO_MEMORY, "ucx: rank %d is out of memory", of->rank);
    status = banyan_module_agree(of->world, status);
    if (status == BANYAN_OK)
        status = banyan_world_allgather(of->world, &mine, sizeof mine, records);
    for (int rank = 0; status == BANYAN_OK && rank < of->size; rank++) {
        if (records[rank].bytes > of->address_bytes)
            of->address_bytes = records[rank].bytes;
        of->peers[rank].has_cuda = of->has_cuda && records[rank].has_cuda;
    }
    char *padded = NULL;
    if (status == BANYAN_OK) {
        padded = calloc(1, of->address_bytes);
        of->addresses = calloc((size_t)of->size, of->address_bytes);
        if (!padded || !of->addresses)
            status = banyan_error_set(BANYAN_ERR_NO_MEMORY,
                                      "ucx: rank %d is out of memory for %d addresses of %zu bytes",
                                      of->rank, of->size, of->address_bytes);
        status = banyan_module_agree(of->world, status);
    }
    if (status == BANYAN_OK) {
        memcpy(padded, own.address, own.address_length);
        status = banyan_world_allgather(of->world, padded, of->address_bytes, of->addresses);
    }
    if (queried == UCS_OK)
        ucx_calls.ucp_worker_release_address(of->worker, own.address);
    free(padded);
    free(records);
    return status;
}

/* Puts and additions may still be on their way: let them arrive, unless their receiver has gone. */
static void ucx_close_endpoints(ucx *of)
{
    uint64_t end_ns = now_ns() + CLOSE_NS;
    ucp_request_param_t params = {0};
    for (int rank = 0; of->peers && rank < of->size; rank++) {
        ucx_peer *peer = &of->peers[rank];
        if (!peer->endpoint || peer->has_failed)
            continue;
        if (ucx_messages_flush(of, rank) != BANYAN_OK)
            continue;
        while (peer->pending > 0 && !peer->has_failed && now_ns() < end_ns &&
               banyan_world_check(of->world) == BANYAN_OK)
            ucx_turn(of);
        if (peer->has_failed)
            continue;
        ucs_status_ptr_t request = ucx_calls.ucp_ep_flush_nbx(peer->endpoint, &params);
        while (UCS_PTR_IS_PTR(request) &&
               ucx_calls.ucp_request_check_status(request) == UCS_INPROGRESS && now_ns() < end_ns &&
               banyan_world_check(of->world) == BANYAN_OK)
            ucx_turn(of);
        if (UCS_PTR_IS_PTR(request))
            ucx_calls.ucp_request_free(request);
    }
    for (int rank = 0; of->peers && rank < of->size; rank++)
        ucx_disconnect(of, rank);
}

static void ucx_close(void *state)
{
    ucx *of = state;
    ucx_service_stop(of);
    ucx_close_endpoints(of);
    ucx_keys_free(of);
    ucx_messages_free(of);
    if (of->worker)
        ucx_calls.ucp_worker_destroy(of->worker);
    if (of->context)
        ucx_calls.ucp_cleanup(of->context);
    pthread_mutex_destroy(&of->lock);
    free(of->addresses);
    free(of->peers);
    free(of->dirty);
    free(of->owing);
    free(of);
}

static banyan_status ucx_create(const banyan_transport_host *host, ucx **made)
{
    ucx *of = calloc(1, sizeof *of);
    int size = banyan_world_size(host->world), rank = banyan_world_rank(host->world);
    ucx_peer *peers = of ? calloc((size_t)size, sizeof *peers) : NULL;
    int *dirty = of ? calloc((size_t)size, sizeof *dirty) : NULL;
    int *owing = of ? calloc((size_t)size, sizeof *owing) : NULL;
    if (!peers || !dirty || !owing) {
        free(peers);
        free(dirty);
        free(owing);
        free(of);
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "ucx: rank %d is out of memory for %d peers",
                                rank, size);
    }
    of->host = host;
    of->world = host->world;
    of->rank = rank;
    of->size = size;
    of->peers = peers;
    of->dirty = dirty;
    of->owing = owing;
    for (int i = 0; i < size; i++)
        peers[i].of = of;
    of->door = -1;
    pthread_mutex_init(&of->lock, NULL);
    banyan_status status = ucx_context_open(of);
    if (status == BANYAN_OK)
        status = worker_open(of);
    if (status == BANYAN_OK)
        status = ucx_keys_listen(of);
    if (status == BANYAN_OK)
        status = ucx_messages_listen(of);
    if (status != BANYAN_OK) {
        ucx_close(of);
        return status;
    }
    *made = of;
    return BANYAN_OK;
}

static banyan_status ucx_open(const banyan_transport_host *host, void **state)
{
    ucx *of = NULL;
    banyan_status status = banyan_module_agree(host->world, ucx_create(host, &of));
    if (status == BANYAN_OK)
        status = addresses_exchange(of);
    if (status == BANYAN_OK)
        status = banyan_module_agree(of->world, ucx_service_start(of));
    if (status != BANYAN_OK) {
        if (of)
            ucx_close(of);
        return status;
    }
    *state = of;
    return BANYAN_OK;
}

static uint64_t ucx_capabilities(void *state, int peer)
{
    const ucx *of = state;
    return BANYAN_TRANSPORT_USER_MEMORY | (of->peers[peer].has_cuda ? BANYAN_TRANSPORT_CUDA : 0);
}

static uint64_t ucx_cost_ns(void *state, int rank, size_t bytes)
{
    ucx *of = state;
    ucp_ep_evaluate_perf_param_t params = {.field_mask = UCP_EP_PERF_PARAM_FIELD_MESSAGE_SIZE,
                                           .message_size = bytes};
    ucp_ep_evaluate_perf_attr_t estimate = {.field_mask = UCP_EP_PERF_ATTR_FIELD_ESTIMATED_TIME};
    ucs_status_t status = UCS_ERR_NOT_CONNECTED;
    pthread_mutex_lock(&of->lock);
    if (of->peers[rank].endpoint && !of->peers[rank].has_failed)
        status = ucx_calls.ucp_ep_evaluate_perf(of->peers[rank].endpoint, &params, &estimate);
    pthread_mutex_unlock(&of->lock);
    if (status != UCS_OK)
        return LATENCY_NS + bytes * NS_PER_BYTE;
    return (uint64_t)(estimate.estimated_time * 1e9);
}

/* Find out whether the pieces lie in memory of GPUs; a list has pieces of one kind. */
static banyan_status pieces_locate(const ucx *of, int rank, const banyan_iovec *pieces,
                                   size_t count, bool *are_on_host)
{
    size_t on_host = 0;
    for (size_t i = 0; i < count; i++) {
        DLDevice device;
        banyan_status status = banyan_memory_locate(pieces[i].local, &device);
        if (status != BANYAN_OK)
            return status;
        on_host += device.device_type == kDLCPU;
    }
    *are_on_host = on_host == count;
    if (*are_on_host || of->peers[rank].has_cuda)
        return BANYAN_OK;
    return banyan_error_set(BANYAN_ERR_UNSUPPORTED,
                            "ucx: rank %d: UCX of this rank or of rank %d does not reach memory of "
                            "GPUs: copy it to the host",
                            of->rank, rank);
}

static void ucx_mark(ucx *of, int rank)
{
    if (!of->peers[rank].is_dirty)
        of->dirty[of->dirty_count++] = rank;
    of->peers[rank].is_dirty = true;
}

/* A peer that is lost often closes its endpoint before the world has said why. */
static banyan_status ucx_explain(ucx *of, int rank, banyan_status status)
{
    return status == BANYAN_ERR_PEER_LOST ? ucx_peer_lost(of, rank) : status;
}

/* Find own memory, which this rank accesses itself. NULL, with the error set, when it has ended.
 * With the lock held. */
static void *own_find(ucx *of, const ucx_key *key, uint64_t address)
{
    if (ucx_find_mapping(of, key->entry.kind, key->entry.id))
        return (void *)(uintptr_t)address; /* NOLINT(performance-no-int-to-ptr) */
    (void)banyan_error_set(BANYAN_ERR_NOT_FOUND, "ucx: rank %d has no memory %#" PRIx64 " any more",
                           of->rank, key->entry.id);
    return NULL;
}

static banyan_status own_move(ucx *of, const ucx_key *key, uint64_t address,
                              const banyan_iovec *piece, bool is_put)
{
    void *found = own_find(of, key, address + piece->offset);
    if (!found)
        return BANYAN_ERR_NOT_FOUND;
    memmove(is_put ? found : piece->local, is_put ? piece->local : found, piece->bytes);
    return BANYAN_OK;
}

/* Start to put or get a piece from its byte `*done` on: all of it, or one part by a message. With
 * the lock held. */
static banyan_status piece_start(ucx *of, int rank, const ucx_key *key, uint64_t address,
                                 const banyan_iovec *piece, bool is_on_host, bool is_put,
                                 size_t *done)
{
    ucx_peer *peer = &of->peers[rank];
    ucp_ep_h endpoint;
    banyan_status status = ucx_connect(of, rank, &endpoint);
    size_t bytes = piece->bytes - *done;
    if (status != BANYAN_OK || bytes == 0)
        return status;
    if (rank == of->rank && is_on_host && key->is_on_host) {
        *done = bytes;
        return own_move(of, key, address, piece, is_put);
    }
    if (is_put)
        ucx_mark(of, rank);
    if (is_put && is_on_host && key->is_on_host && piece->bytes <= peer->message_most) {
        const char *source = (const char *)piece->local + *done;
        size_t part = ucx_message_part(bytes);
        address += piece->offset + *done;
        *done += part;
        return ucx_message_put(of, rank, key, address, source, part);
    }
    ucp_request_param_t params = ucx_tracked(of, rank);
    if (is_on_host) {
        params.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
        params.memory_type = UCS_MEMORY_TYPE_HOST;
    }
    peer->puts += is_put;
    *done = bytes;
    address += piece->offset;
    return ucx_track(
        of, rank,
        is_put ? ucx_calls.ucp_put_nbx(endpoint, piece->local, bytes, address, key->rkey, &params)
               : ucx_calls.ucp_get_nbx(endpoint, piece->local, bytes, address, key->rkey, &params),
        is_put ? "a put" : "a get");
}

/* Start puts or gets of pieces, without waiting for the last ones. */
static banyan_status pieces_start(ucx *of, const banyan_remote *remote, const banyan_iovec *pieces,
                                  size_t count, bool is_put)
{
    int rank = remote->handle.rank;
    const ucx_peer *peer = &of->peers[rank];
    uint64_t address;
    ucx_key *key = NULL;
    size_t done = 0; /* of the piece */
    bool are_on_host = true;
    banyan_status status = pieces_locate(of, rank, pieces, count, &are_on_host);
    if (status == BANYAN_OK)
        status = ucx_find_key(of, remote, &address, &key);
    for (size_t i = 0; i < count && status == BANYAN_OK;) {
        pthread_mutex_lock(&of->lock);
        while (i < count && status == BANYAN_OK && peer->pending < PENDING_MAX &&
               ucx_messages_have_room(peer)) {
            status = piece_start(of, rank, key, address, &pieces[i], are_on_host, is_put, &done);
            if (done < pieces[i].bytes)
                continue;
            i++;
            done = 0;
        }
        pthread_mutex_unlock(&of->lock);
        if (i < count && status == BANYAN_OK)
            status = ucx_wait(of, rank, peer->pending < PENDING_MAX ? UCX_HAS_ROOM : UCX_SETTLED,
                              NULL, "for earlier puts and gets");
    }
    if (key)
        key->users--;
    return ucx_explain(of, rank, status);
}

/* Wait for the operations of a call that has started some, also after an error. */
static banyan_status ucx_finish(ucx *of, int rank, banyan_status so_far, const char *text)
{
    if (so_far == BANYAN_OK)
        return ucx_wait(of, rank, UCX_SETTLED, NULL, text);
    pthread_mutex_lock(&of->lock);
    if (of->peers[rank].pending > 0)
        ucx_disconnect(of, rank);
    pthread_mutex_unlock(&of->lock);
    return so_far;
}

static banyan_status ucx_put_many(void *state, const banyan_remote *destination,
                                  const banyan_iovec *pieces, size_t count)
{
    banyan_status status = pieces_start(state, destination, pieces, count, true);
    return ucx_finish(state, destination->handle.rank, status, "to take what is put");
}

static banyan_status ucx_get_many(void *state, const banyan_remote *source,
                                  const banyan_iovec *pieces, size_t count)
{
    banyan_status status = pieces_start(state, source, pieces, count, false);
    return ucx_finish(state, source->handle.rank, status, "for what is got");
}

/* A put only reads from `source`. */
static banyan_status ucx_put(void *state, const banyan_remote *destination, const void *source,
                             size_t bytes)
{
    banyan_iovec piece = {.local = (void *)(uintptr_t)source, .bytes = bytes};
    return ucx_put_many(state, destination, &piece, 1);
}

static banyan_status ucx_put_begin(void *state, const banyan_remote *destination,
                                   const void *source, size_t bytes)
{
    banyan_iovec piece = {.local = (void *)(uintptr_t)source, .bytes = bytes};
    return pieces_start(state, destination, &piece, 1, true);
}

/* A message that waits for an addition is sent now: the caller wants its source back. */
static size_t ucx_pending(void *state, int rank)
{
    ucx *of = state;
    const ucx_peer *peer = &of->peers[rank];
    if (atomic_load_explicit(&peer->is_held, memory_order_relaxed)) {
        pthread_mutex_lock(&of->lock);
        (void)ucx_messages_release(of, rank); /* `settle` reports it */
        pthread_mutex_unlock(&of->lock);
    }
    return atomic_load_explicit(&peer->pending, memory_order_acquire);
}

static banyan_status ucx_settle(void *state, int rank)
{
    return ucx_pending(state, rank) == 0
               ? BANYAN_OK
               : ucx_wait(state, rank, UCX_SETTLED, NULL, "to take what is put");
}

static banyan_status ucx_get(void *state, void *destination, const banyan_remote *source,
                             size_t bytes)
{
    banyan_iovec piece = {.local = destination, .bytes = bytes};
    return ucx_get_many(state, source, &piece, 1);
}

static banyan_status own_add(ucx *of, const ucx_key *key, uint64_t address, uint64_t add,
                             uint64_t *before)
{
    _Atomic uint64_t *counter = own_find(of, key, address);
    if (!counter)
        return BANYAN_ERR_NOT_FOUND;
    uint64_t was = atomic_fetch_add_explicit(counter, add, memory_order_acq_rel);
    if (before)
        *before = was;
    return BANYAN_OK;
}

static banyan_status addition_start(ucx *of, const banyan_remote *counter, uint64_t add,
                                    uint64_t *before)
{
    int rank = counter->handle.rank;
    uint64_t address;
    ucx_key *key = NULL;
    banyan_status status = ucx_find_key(of, counter, &address, &key);
    while (status == BANYAN_OK) {
        pthread_mutex_lock(&of->lock);
        bool has_room = ucx_messages_have_room(&of->peers[rank]);
        if (rank == of->rank) {
            status = own_add(of, key, address, add, before);
        } else if (has_room) {
            ucx_mark(of, rank);
            status = ucx_message_add(of, rank, key, address, add, before);
        }
        pthread_mutex_unlock(&of->lock);
        if (has_room)
            break;
        status = ucx_wait(of, rank, UCX_HAS_ROOM, NULL, "to take earlier messages");
    }
    if (key)
        key->users--;
    return ucx_explain(of, rank, status);
}

static banyan_status ucx_add(void *state, const banyan_remote *counter, uint64_t add)
{
    return addition_start(state, counter, add, NULL);
}

static banyan_status ucx_put_with_add(void *state, const banyan_remote *destination,
                                      const void *source, size_t bytes,
                                      const banyan_remote *counter, uint64_t add)
{
    banyan_iovec piece = {.local = (void *)(uintptr_t)source, .bytes = bytes};
    banyan_status status = pieces_start(state, destination, &piece, 1, true);
    if (status == BANYAN_OK)
        status = addition_start(state, counter, add, NULL);
    return ucx_finish(state, counter->handle.rank, status, "to take what is put");
}

static banyan_status ucx_fetch_add(void *state, const banyan_remote *counter, uint64_t add,
                                   uint64_t *before)
{
    banyan_status status = addition_start(state, counter, add, before);
    return ucx_finish(state, counter->handle.rank, status, "for the value of a counter");
}

/* With the lock held. */
static banyan_status flush_start(ucx *of, int rank)
{
    ucp_ep_h endpoint;
    banyan_status status = ucx_connect(of, rank, &endpoint);
    return status == BANYAN_OK ? ucx_messages_flush(of, rank) : status;
}

static banyan_status flush_finish(ucx *of, int rank, banyan_status so_far)
{
    return so_far == BANYAN_OK ? ucx_wait(of, rank, UCX_FLUSHED, NULL, "to take all that was put")
                               : ucx_finish(of, rank, ucx_explain(of, rank, so_far), NULL);
}

static banyan_status ucx_flush(void *state, int rank)
{
    ucx *of = state;
    if (!of->peers[rank].is_dirty)
        return BANYAN_OK;
    pthread_mutex_lock(&of->lock);
    banyan_status status = flush_start(of, rank);
    pthread_mutex_unlock(&of->lock);
    return flush_finish(of, rank, status);
}

static banyan_status ucx_flush_all(void *state)
{
    ucx *of = state;
    int ranks[FLUSHED_TOGETHER], count;
    banyan_status status = BANYAN_OK;
    do {
        pthread_mutex_lock(&of->lock);
        for (count = 0; count < FLUSHED_TOGETHER && of->dirty_count > 0; count++) {
            ranks[count] = of->dirty[--of->dirty_count];
            of->peers[ranks[count]].is_dirty = false;
            if (status == BANYAN_OK)
                status = flush_start(of, ranks[count]);
        }
        pthread_mutex_unlock(&of->lock);
        for (int i = 0; i < count; i++)
            status = flush_finish(of, ranks[i], status);
    } while (count == FLUSHED_TOGETHER);
    return status;
}

static banyan_status ucx_address(void *state, const banyan_remote *remote, void **address)
{
    (void)address;
    const ucx *of = state;
    return banyan_error_set(BANYAN_ERR_UNSUPPORTED, "ucx: rank %d does not map memory of rank %d",
                            of->rank, remote->handle.rank);
}

const banyan_transport_ops ucx_transport = {
    .size = sizeof(banyan_transport_ops),
    .name = "ucx",
    .open = ucx_open,
    .close = ucx_close,
    .capabilities = ucx_capabilities,
    .cost_ns = ucx_cost_ns,
    .put = ucx_put,
    .get = ucx_get,
    .put_many = ucx_put_many,
    .get_many = ucx_get_many,
    .add = ucx_add,
    .put_with_add = ucx_put_with_add,
    .fetch_add = ucx_fetch_add,
    .flush = ucx_flush,
    .put_begin = ucx_put_begin,
    .pending = ucx_pending,
    .settle = ucx_settle,
    .address = ucx_address,
    .flush_all = ucx_flush_all,
    .progress = ucx_progress,
    .rest = ucx_rest,
    .forget = ucx_forget,
    .redirect = ucx_redirect,
};

static const module_tables tables = {
    .abi_version = MODULE_ABI_VERSION,
    .name = "ucx",
    .transport = &ucx_transport,
};

BANYAN_API bool banyan_module_entry(uint32_t abi_version, const module_tables **handed_over,
                                    char *reason, size_t reason_bytes);

bool banyan_module_entry(uint32_t abi_version, const module_tables **handed_over, char *reason,
                         size_t reason_bytes)
{
    if (abi_version != MODULE_ABI_VERSION) {
        snprintf(reason, reason_bytes, "made for version %d of the module interface, not %u",
                 MODULE_ABI_VERSION, abi_version);
        return false;
    }
    if (!ucx_library_open(reason, reason_bytes))
        return false;
    *handed_over = &tables;
    return true;
}
