#include "transport/shm.h"

#include <inttypes.h>
#include <stdlib.h>

#include "core/error.h"
#include "memory/pieces.h"
#include "memory/stream.h"
#include "memory/user/user.h"
#include "transport/signals.h"
#include "world/control.h"

struct shm {
    memory_space *space;
    user_memory *user;
    signals *signals;
};

static void shm_close(void *state)
{
    struct shm *shm = state;
    if (shm->signals)
        signals_close(shm->signals);
    free(shm);
}

static banyan_status shm_open(banyan_world *world, void **state)
{
    struct shm *shm = calloc(1, sizeof *shm);
    banyan_status status =
        shm ? memory_space_of(world, &shm->space) : error_no_memory(sizeof *shm, "transport shm");
    status = control_agree(world, status);
    if (status != BANYAN_OK) {
        free(shm);
        return status;
    }
    status = user_memory_open(shm->space, &shm->user);
    if (status == BANYAN_OK)
        status = signals_open(world, &shm->signals);
    if (status != BANYAN_OK) {
        shm_close(shm);
        return status;
    }
    *state = shm;
    return BANYAN_OK;
}

static uint64_t shm_capabilities(void *state, int peer)
{
    struct shm *shm = state;
    if (memory_space_local(shm->space, peer) < 0)
        return 0;
    bool alone = peer == shm->space->rank || user_memory_path(shm->user) == BANYAN_USER_MEMORY_CMA;
    return BANYAN_TRANSPORT_ADDRESS | BANYAN_TRANSPORT_USER_MEMORY |
           (alone ? BANYAN_TRANSPORT_ONE_SIDED : 0);
}

static banyan_status check_on_node(const struct shm *shm, int peer)
{
    if (memory_space_local(shm->space, peer) < 0)
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "transport shm: rank %d cannot reach rank %d, which is not on its node",
                         shm->space->rank, peer);
    return BANYAN_OK;
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

/* Make a handle of the memory at the remote's offset. */
static banyan_status remote_narrow(const struct shm *shm, const banyan_remote *remote,
                                   banyan_memory_handle *handle)
{
    if (remote->offset > remote->handle.bytes)
        return out_of_range(shm, remote, 0, 0);
    *handle = remote->handle;
    handle->address += remote->offset;
    handle->bytes -= remote->offset;
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
    banyan_memory_handle handle;
    uint64_t total = 0;
    RETURN_IF_FAILED(remote_narrow(shm, remote, &handle));
    RETURN_IF_FAILED(sum_pieces(shm, remote, pieces, count, &total));
    if (handle.kind == BANYAN_MEMORY_SYMMETRIC) {
        char *there;
        RETURN_IF_FAILED(memory_resolve(shm->space, &handle, &there));
        if (pieces_touch_device(there, pieces, count))
            return pieces_copy_on_device(there, pieces, count, write);
        pieces_copy(there, pieces, count, write, stream_is_worthwhile(total));
        return BANYAN_OK;
    }
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

static banyan_status shm_signal(void *state, int peer, uint32_t signal, uint64_t add)
{
    struct shm *shm = state;
    RETURN_IF_FAILED(check_on_node(shm, peer));
    signals_add(shm->signals, peer, signal, add);
    return BANYAN_OK;
}

static banyan_status shm_put_with_signal(void *state, const banyan_remote *destination,
                                         const void *source, size_t bytes, uint32_t signal,
                                         uint64_t add)
{
    RETURN_IF_FAILED(shm_put(state, destination, source, bytes));
    return shm_signal(state, destination->handle.rank, signal, add);
}

static banyan_status shm_wait(void *state, uint32_t signal, uint64_t value, int peer,
                              const char *what)
{
    struct shm *shm = state;
    return signals_wait(shm->signals, signal, value, peer, what);
}

static uint64_t shm_read(void *state, uint32_t signal)
{
    struct shm *shm = state;
    return signals_read(shm->signals, signal);
}

static uint64_t shm_epoch(void *state)
{
    struct shm *shm = state;
    return signals_epoch(shm->signals);
}

static banyan_status shm_idle(void *state, uint64_t seen)
{
    struct shm *shm = state;
    return signals_idle(shm->signals, seen);
}

/* Stores to shared memory need no flush: every put that is not ordered ends with a fence. */
static banyan_status shm_flush(void *state, int peer)
{
    return check_on_node(state, peer);
}

static banyan_status shm_signals_alloc(void *state, uint32_t count, uint32_t *first)
{
    struct shm *shm = state;
    return signals_alloc(shm->signals, count, first);
}

static void shm_signals_free(void *state, uint32_t first, uint32_t count)
{
    struct shm *shm = state;
    signals_free(shm->signals, first, count);
}

static banyan_status shm_address(void *state, const banyan_remote *remote, void **address)
{
    struct shm *shm = state;
    banyan_memory_handle handle;
    char *found;
    RETURN_IF_FAILED(remote_narrow(shm, remote, &handle));
    RETURN_IF_FAILED(memory_resolve(shm->space, &handle, &found));
    *address = found;
    return BANYAN_OK;
}

const banyan_transport_ops shm_transport = {
    .size = sizeof(banyan_transport_ops),
    .name = "shm",
    .open = shm_open,
    .close = shm_close,
    .capabilities = shm_capabilities,
    .put = shm_put,
    .get = shm_get,
    .put_many = shm_put_many,
    .get_many = shm_get_many,
    .put_with_signal = shm_put_with_signal,
    .signal = shm_signal,
    .wait = shm_wait,
    .read = shm_read,
    .epoch = shm_epoch,
    .idle = shm_idle,
    .flush = shm_flush,
    .signals_alloc = shm_signals_alloc,
    .signals_free = shm_signals_free,
    .address = shm_address,
};
