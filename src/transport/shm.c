#include "transport/shm.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>

#include <banyan/transport.h>

#include "core/containers.h"
#include "core/error.h"
#include "memory/pieces.h"
#include "memory/space.h"
#include "memory/stream.h"
#include "memory/user/user.h"
#include "world/control.h"

/* Typical of machines of 2020 and later: a store that a peer sees, and one core's copies. */
#define LATENCY_NS 100
#define BYTES_PER_NS 8

struct shm {
    memory_space *space;
    user_memory *user;
};

static void shm_close(void *state)
{
    free(state);
}

static banyan_status shm_open(const banyan_transport_host *host, void **state)
{
    struct shm *shm = calloc(1, sizeof *shm);
    banyan_status status = shm ? memory_space_of(host->world, &shm->space)
                               : error_no_memory(sizeof *shm, "transport shm");
    status = control_agree(host->world, status);
    if (status == BANYAN_OK)
        status = user_memory_open(shm->space, &shm->user);
    if (status != BANYAN_OK) {
        free(shm);
        return status;
    }
    *state = shm;
    return BANYAN_OK;
}

static uint64_t shm_cost_ns(void *state, int peer, size_t bytes)
{
    (void)state;
    (void)peer;
    return LATENCY_NS + bytes / BYTES_PER_NS;
}

static uint64_t shm_capabilities(void *state, int peer)
{
    struct shm *shm = state;
    if (memory_space_local(shm->space, peer) < 0)
        return 0;
    bool alone = peer == shm->space->rank || user_memory_path(shm->user) == BANYAN_USER_MEMORY_CMA;
    return BANYAN_TRANSPORT_ADDRESS | BANYAN_TRANSPORT_USER_MEMORY | BANYAN_TRANSPORT_CUDA |
           (alone ? BANYAN_TRANSPORT_ONE_SIDED : 0);
}

static banyan_status out_of_range(const struct shm *shm, const banyan_remote *remote,
                                  uint64_t offset, size_t bytes)
{
    return error_set(BANYAN_ERR_INVALID,
                     "rank %d: %zu bytes at offset %" PRIu64 " + %" PRIu64 " extend beyond %" PRIu64
                     " bytes of rank %d",
                     shm->space->rank, bytes, remote->offset, offset, remote->handle.bytes,
                     remote->handle.rank);
}

/* Find the mapped address of symmetric memory. */
static banyan_status shm_resolve(const struct shm *shm, const banyan_remote *remote, char **address)
{
    if (remote->offset > remote->handle.bytes)
        return out_of_range(shm, remote, 0, 0);
    RETURN_IF_FAILED(memory_resolve(shm->space, &remote->handle, address));
    *address += remote->offset;
    return BANYAN_OK;
}

static banyan_status sum_pieces(const struct shm *shm, const banyan_remote *remote,
                                const banyan_iovec *pieces, size_t count, uint64_t *total)
{
    uint64_t room = remote->handle.bytes - remote->offset, sum = 0;
    for (size_t i = 0; i < count; i++) {
        if (pieces[i].offset > room || pieces[i].bytes > room - pieces[i].offset)
            return out_of_range(shm, remote, pieces[i].offset, pieces[i].bytes);
        sum += pieces[i].bytes;
    }
    *total = sum;
    return BANYAN_OK;
}

static banyan_status move_pieces(struct shm *shm, const banyan_remote *remote,
                                 const banyan_iovec *pieces, size_t count, bool write)
{
    uint64_t total = 0;
    if (remote->offset > remote->handle.bytes)
        return out_of_range(shm, remote, 0, 0);
    RETURN_IF_FAILED(sum_pieces(shm, remote, pieces, count, &total));
    if (remote->handle.kind == BANYAN_MEMORY_SYMMETRIC) {
        char *there;
        RETURN_IF_FAILED(shm_resolve(shm, remote, &there));
        if (pieces_touch_device(there, pieces, count))
            return pieces_copy_on_device(there, pieces, count, write);
        pieces_copy(there, pieces, count, write, stream_is_worthwhile(total));
        return BANYAN_OK;
    }
    banyan_memory_handle handle = remote->handle;
    handle.address += remote->offset;
    handle.bytes -= remote->offset;
    return (write ? user_memory_write : user_memory_read)(shm->user, &handle, pieces, count, total);
}

static banyan_status shm_put_many(void *state, const banyan_remote *destination,
                                  const banyan_iovec *pieces, size_t count)
{
    return move_pieces(state, destination, pieces, count, true);
}

static banyan_status shm_get_many(void *state, const banyan_remote *source,
                                  const banyan_iovec *pieces, size_t count)
{
    return move_pieces(state, source, pieces, count, false);
}

/* A write only reads from `local`. */
static banyan_status shm_put(void *state, const banyan_remote *destination, const void *source,
                             size_t bytes)
{
    banyan_iovec piece = {.local = (void *)(uintptr_t)source, .bytes = bytes};
    return move_pieces(state, destination, &piece, 1, true);
}

static banyan_status shm_get(void *state, void *destination, const banyan_remote *source,
                             size_t bytes)
{
    banyan_iovec piece = {.local = destination, .bytes = bytes};
    return move_pieces(state, source, &piece, 1, false);
}

static banyan_status shm_fetch_add(void *state, const banyan_remote *counter, uint64_t add,
                                   uint64_t *before)
{
    char *address;
    RETURN_IF_FAILED(shm_resolve(state, counter, &address));
    *before =
        atomic_fetch_add_explicit((_Atomic uint64_t *)(void *)address, add, memory_order_acq_rel);
    return BANYAN_OK;
}

static banyan_status shm_add(void *state, const banyan_remote *counter, uint64_t add)
{
    uint64_t before;
    return shm_fetch_add(state, counter, add, &before);
}

static banyan_status shm_put_with_add(void *state, const banyan_remote *destination,
                                      const void *source, size_t bytes,
                                      const banyan_remote *counter, uint64_t add)
{
    RETURN_IF_FAILED(shm_put(state, destination, source, bytes));
    return shm_add(state, counter, add);
}

/* Stores to shared memory need no flush: every put that is not ordered ends with a fence. */
static banyan_status shm_flush(void *state, int peer)
{
    (void)state;
    (void)peer;
    return BANYAN_OK;
}

static banyan_status shm_address(void *state, const banyan_remote *remote, void **address)
{
    char *found;
    RETURN_IF_FAILED(shm_resolve(state, remote, &found));
    *address = found;
    return BANYAN_OK;
}

const banyan_transport_ops shm_transport = {
    .size = sizeof(banyan_transport_ops),
    .name = "shm",
    .open = shm_open,
    .close = shm_close,
    .capabilities = shm_capabilities,
    .cost_ns = shm_cost_ns,
    .put = shm_put,
    .get = shm_get,
    .put_many = shm_put_many,
    .get_many = shm_get_many,
    .add = shm_add,
    .put_with_add = shm_put_with_add,
    .fetch_add = shm_fetch_add,
    .flush = shm_flush,
    .address = shm_address,
};
