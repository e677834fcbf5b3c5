#include "transport/shm.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <banyan/transport.h>

#include "core/containers.h"
#include "core/error.h"
#include "memory/pieces.h"
#include "memory/space.h"
#include "memory/staging/wake_up.h"
#include "memory/stream.h"
#include "memory/user/user.h"
#include "world/control.h"

/* Signals are counters in symmetric memory, with one wake-up per rank. */
#define SEGMENT_BITS 12
#define SEGMENT_SIGNALS (UINT32_C(1) << SEGMENT_BITS)
#define SIGNALS_MAX (UINT32_C(1) << 22)

/* One cache line each: different peers often add to neighbouring counters. */
typedef struct shm_counter {
    _Alignas(64) _Atomic uint64_t value;
} shm_counter;

struct signal_range {
    uint32_t first, count;
};

struct shm {
    banyan_world *world;
    memory_space *space;
    user_memory *user;
    banyan_memory *wake_ups;           /* one per rank; every signal to the rank rings it */
    ARRAY(banyan_memory *) segments;   /* SEGMENT_SIGNALS counters each */
    ARRAY(struct signal_range) unused; /* below `end`, ascending, apart from each other */
    uint32_t end;                      /* one more than the highest number ever allocated */
    uint32_t spins;
};

static shm_counter *counter_of(const struct shm *set, uint32_t signal, int local)
{
    char *segment = memory_part_of(set->segments.data[signal >> SEGMENT_BITS], local);
    return &((shm_counter *)segment)[signal & (SEGMENT_SIGNALS - 1)];
}

static wake_up *wake_up_of(const struct shm *set, int local)
{
    return (wake_up *)memory_part_of(set->wake_ups, local);
}

static uint32_t first_fit(const struct shm *set, uint32_t count)
{
    for (size_t i = 0; i < set->unused.count; i++) {
        if (set->unused.data[i].count >= count)
            return set->unused.data[i].first;
    }
    return set->end;
}

/* Ranks that freed signals in different orders may propose different numbers. Above the highest end
 * of all ranks, every number is free. */
static banyan_status agree_on_first(struct shm *set, uint32_t count, uint32_t *first)
{
    uint64_t mine = first_fit(set, count), highest, lowest, end;
    RETURN_IF_FAILED(control_max(set->world, mine, &highest));
    RETURN_IF_FAILED(control_max(set->world, UINT64_MAX - mine, &lowest));
    RETURN_IF_FAILED(control_max(set->world, set->end, &end));
    uint64_t agreed = highest == UINT64_MAX - lowest ? highest : end;
    if (agreed + count > SIGNALS_MAX)
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "%" PRIu32 " signals more than the %" PRIu64
                         " in use are over the limit of %" PRIu32,
                         count, agreed, SIGNALS_MAX);
    *first = (uint32_t)agreed;
    return BANYAN_OK;
}

static banyan_status unused_insert(struct shm *set, size_t at, struct signal_range range)
{
    if (range.count == 0)
        return BANYAN_OK;
    if (!array_reserve(&set->unused, 1))
        return BANYAN_ERR_NO_MEMORY;
    memmove(&set->unused.data[at + 1], &set->unused.data[at],
            (set->unused.count - at) * sizeof range);
    set->unused.data[at] = range;
    set->unused.count++;
    return BANYAN_OK;
}

static void unused_remove(struct shm *set, size_t at)
{
    set->unused.count--;
    memmove(&set->unused.data[at], &set->unused.data[at + 1],
            (set->unused.count - at) * sizeof(struct signal_range));
}

/* Take [first, first + count), which lies in one unused range or begins at or above the end. */
static banyan_status take_numbers(struct shm *set, uint32_t first, uint32_t count)
{
    if (first >= set->end) {
        RETURN_IF_FAILED(unused_insert(set, set->unused.count,
                                       (struct signal_range){set->end, first - set->end}));
        set->end = first + count;
        return BANYAN_OK;
    }
    size_t at = 0;
    while (set->unused.data[at].first != first)
        at++;
    set->unused.data[at].first += count;
    set->unused.data[at].count -= count;
    if (set->unused.data[at].count == 0)
        unused_remove(set, at);
    return BANYAN_OK;
}

static banyan_status signals_grow(struct shm *set, uint32_t end)
{
    while ((uint64_t)set->segments.count * SEGMENT_SIGNALS < end) {
        banyan_status status = BANYAN_OK;
        if (!array_reserve(&set->segments, 1))
            status = BANYAN_ERR_NO_MEMORY;
        RETURN_IF_FAILED(control_agree(set->world, status));
        banyan_memory *segment;
        RETURN_IF_FAILED(
            memory_alloc(set->world, SEGMENT_SIGNALS * sizeof(shm_counter), true, &segment));
        set->segments.data[set->segments.count++] = segment;
    }
    return BANYAN_OK;
}

/* Collective: see the transport's table. New counters are zero at every rank when it returns. */
static banyan_status signals_alloc(void *state, uint32_t count, uint32_t *first)
{
    struct shm *set = state;
    uint32_t agreed = 0;
    RETURN_IF_FAILED(agree_on_first(set, count, &agreed));
    RETURN_IF_FAILED(signals_grow(set, agreed + count));
    /* All ranks have finished with the old counters: they took part in the agreement. */
    for (uint32_t i = 0; i < count; i++)
        atomic_store_explicit(&counter_of(set, agreed + i, set->space->local_rank)->value, 0,
                              memory_order_relaxed);
    RETURN_IF_FAILED(control_agree(set->world, take_numbers(set, agreed, count)));
    *first = agreed;
    return BANYAN_OK;
}

static void merge_with_next(struct shm *set, size_t at)
{
    if (at + 1 >= set->unused.count)
        return;
    struct signal_range *low = &set->unused.data[at], *high = low + 1;
    if (low->first + low->count == high->first) {
        low->count += high->count;
        unused_remove(set, at + 1);
    }
}

/* If there is no memory to record a freed range, its numbers are not reused. */
static void signals_free(void *state, uint32_t first, uint32_t count)
{
    struct shm *set = state;
    size_t at = 0;
    while (at < set->unused.count && set->unused.data[at].first < first)
        at++;
    if (unused_insert(set, at, (struct signal_range){first, count}) != BANYAN_OK)
        return;
    merge_with_next(set, at);
    if (at > 0)
        merge_with_next(set, at - 1);
}

static uint64_t signals_read(void *state, uint32_t signal)
{
    struct shm *set = state;
    return atomic_load_explicit(&counter_of(set, signal, set->space->local_rank)->value,
                                memory_order_acquire);
}

static banyan_status signals_wait_longer(struct shm *set, control_wait *wait, uint32_t signal,
                                         uint64_t value, int peer, const char *what,
                                         uint64_t *nap_ns)
{
    char text[256];
    bool speaks = control_wait_speaks(wait);
    if (speaks)
        snprintf(text, sizeof text,
                 "for rank %d (%.100s): signal %" PRIu32 " is %" PRIu64 ", not yet %" PRIu64, peer,
                 what, signal, signals_read(set, signal), value);
    return control_wait_on(wait, peer, speaks ? text : NULL, nap_ns);
}

static banyan_status signals_wait(void *state, uint32_t signal, uint64_t value, int peer,
                                  const char *what)
{
    struct shm *set = state;
    for (uint32_t i = 0; i < set->spins; i++) {
        if (signals_read(set, signal) >= value)
            return BANYAN_OK;
        spin_pause();
    }
    wake_up *mine = wake_up_of(set, set->space->local_rank);
    control_wait wait = control_wait_begin(set->world);
    banyan_status status = BANYAN_OK;
    for (;;) {
        uint64_t nap_ns;
        uint32_t seen = wake_up_read(mine);
        if (signals_read(set, signal) >= value)
            break;
        status = signals_wait_longer(set, &wait, signal, value, peer, what, &nap_ns);
        if (status != BANYAN_OK)
            break;
        wake_up_sleep(mine, seen, nap_ns);
    }
    control_wait_end(&wait);
    return status;
}

static uint64_t signals_epoch(void *state)
{
    struct shm *set = state;
    return wake_up_read(wake_up_of(set, set->space->local_rank));
}

static banyan_status signals_idle(void *state, uint64_t seen)
{
    struct shm *set = state;
    wake_up *mine = wake_up_of(set, set->space->local_rank);
    for (uint32_t i = 0; i < set->spins; i++) {
        if (wake_up_read(mine) != (uint32_t)seen)
            return BANYAN_OK;
        spin_pause();
    }
    RETURN_IF_FAILED(control_check(set->world));
    wake_up_sleep(mine, (uint32_t)seen, WAKE_UP_NAP_NS);
    return BANYAN_OK;
}

static void shm_close(void *state)
{
    struct shm *shm = state;
    for (size_t i = 0; i < shm->segments.count; i++)
        banyan_memory_free(shm->segments.data[i]);
    array_free(&shm->segments);
    array_free(&shm->unused);
    banyan_memory_free(shm->wake_ups);
    free(shm);
}

static banyan_status shm_open(banyan_world *world, void **state)
{
    struct shm *shm = calloc(1, sizeof *shm);
    banyan_status status =
        shm ? memory_space_of(world, &shm->space) : error_no_memory(sizeof *shm, "transport shm");
    status = control_agree(world, status);
    if (status == BANYAN_OK)
        status = user_memory_open(shm->space, &shm->user);
    if (status == BANYAN_OK)
        status = memory_alloc(world, sizeof(wake_up), true, &shm->wake_ups);
    if (status != BANYAN_OK) {
        free(shm);
        return status;
    }
    shm->world = world;
    shm->spins = wake_up_spins(memory_space_is_crowded(shm->space, 1));
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
    int local = memory_space_local(shm->space, peer);
    atomic_fetch_add_explicit(&counter_of(shm, signal, local)->value, add, memory_order_release);
    wake_up_notify(wake_up_of(shm, local));
    return BANYAN_OK;
}

static banyan_status shm_put_with_signal(void *state, const banyan_remote *destination,
                                         const void *source, size_t bytes, uint32_t signal,
                                         uint64_t add)
{
    RETURN_IF_FAILED(shm_put(state, destination, source, bytes));
    return shm_signal(state, destination->handle.rank, signal, add);
}

/* Stores to shared memory need no flush: every put that is not ordered ends with a fence. */
static banyan_status shm_flush(void *state, int peer)
{
    return check_on_node(state, peer);
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
    .wait = signals_wait,
    .read = signals_read,
    .epoch = signals_epoch,
    .idle = signals_idle,
    .flush = shm_flush,
    .signals_alloc = signals_alloc,
    .signals_free = signals_free,
    .address = shm_address,
};
