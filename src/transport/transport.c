#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/containers.h"
#include "core/module.h"
#include "transport/shm.h"
#include "world/control.h"

struct banyan_transport {
    banyan_world *world;
    const banyan_transport_ops *ops;
    void *state;
    ARRAY(uint64_t) live; /* one bit per signal */
};

static const banyan_transport_ops *const built_in[] = {&shm_transport};

banyan_status banyan_transport_find(const char *name, const banyan_transport_ops **ops)
{
    for (size_t i = 0; i < sizeof built_in / sizeof *built_in; i++) {
        if (strcmp(built_in[i]->name, name) == 0) {
            *ops = built_in[i];
            return BANYAN_OK;
        }
    }
    const module_tables *tables;
    if (module_load(name, &tables) != BANYAN_OK)
        return error_set(BANYAN_ERR_NOT_FOUND,
                         "there is no transport \"%s\"; built in is shm, and of modules: %s", name,
                         banyan_last_error());
    if (!tables->transport)
        return error_set(BANYAN_ERR_NOT_FOUND,
                         "there is no transport \"%s\": the module of that name has none; built in "
                         "is shm",
                         name);
    *ops = tables->transport;
    return BANYAN_OK;
}

static banyan_status check_table(const banyan_transport_ops *ops)
{
    if (ops->size < sizeof *ops)
        return error_set(BANYAN_ERR_INVALID,
                         "a transport's table of %zu bytes is older than this library's of %zu",
                         ops->size, sizeof *ops);
    if (!ops->name || !ops->open || !ops->close || !ops->capabilities || !ops->put || !ops->get ||
        !ops->put_many || !ops->get_many || !ops->put_with_signal || !ops->signal || !ops->wait ||
        !ops->read || !ops->epoch || !ops->idle || !ops->flush || !ops->signals_alloc ||
        !ops->signals_free || !ops->address)
        return error_set(BANYAN_ERR_INVALID, "transport %s: the table lacks operations",
                         ops->name ? ops->name : "without a name");
    return BANYAN_OK;
}

/* Ranks with different tables would wait for each other forever. */
static banyan_status check_same_everywhere(banyan_world *world, const banyan_transport_ops *ops)
{
    uint64_t mine = hash_string(ops->name, 0), highest, lowest;
    RETURN_IF_FAILED(control_max(world, mine, &highest));
    RETURN_IF_FAILED(control_max(world, UINT64_MAX - mine, &lowest));
    if (highest != UINT64_MAX - lowest)
        return error_set(BANYAN_ERR_MISMATCH,
                         "the ranks open different transports; rank %d opens \"%s\"",
                         banyan_world_rank(world), ops->name);
    return BANYAN_OK;
}

/* `so_far`: whether this rank has a table at all. */
static banyan_status open_agreed(banyan_world *world, banyan_status so_far,
                                 const banyan_transport_ops *ops, banyan_transport **transport)
{
    banyan_transport *made = NULL;
    banyan_status status = so_far == BANYAN_OK ? check_table(ops) : so_far;
    if (status == BANYAN_OK) {
        made = calloc(1, sizeof *made);
        status = made ? BANYAN_OK : error_no_memory(sizeof *made, "a transport");
    }
    status = control_agree(world, status);
    if (status == BANYAN_OK)
        status = check_same_everywhere(world, ops);
    if (status == BANYAN_OK)
        status = ops->open(world, &made->state);
    if (status != BANYAN_OK) {
        free(made);
        return status;
    }
    made->world = world;
    made->ops = ops;
    *transport = made;
    return BANYAN_OK;
}

banyan_status banyan_transport_open(banyan_world *world, const char *name,
                                    banyan_transport **transport)
{
    CONTROL_ENTER(world);
    const banyan_transport_ops *ops = NULL;
    if (!name)
        name = getenv("BANYAN_TRANSPORT");
    if (!name || name[0] == '\0')
        name = "shm";
    banyan_status status = banyan_transport_find(name, &ops);
    return open_agreed(world, status, ops, transport);
}

banyan_status banyan_transport_open_ops(banyan_world *world, const banyan_transport_ops *ops,
                                        banyan_transport **transport)
{
    CONTROL_ENTER(world);
    return open_agreed(world, BANYAN_OK, ops, transport);
}

void banyan_transport_close(banyan_transport *transport)
{
    if (!transport)
        return;
    transport->ops->close(transport->state);
    array_free(&transport->live);
    free(transport);
}

const char *banyan_transport_name(const banyan_transport *transport)
{
    return transport->ops->name;
}

static banyan_status transport_check_rank(const banyan_transport *transport, int rank)
{
    int size = banyan_world_size(transport->world);
    if (rank < 0 || rank >= size)
        return error_set(BANYAN_ERR_INVALID, "transport %s: there is no rank %d in a world of %d",
                         transport->ops->name, rank, size);
    return BANYAN_OK;
}

static bool signal_is_live(const banyan_transport *transport, uint32_t signal)
{
    return signal / 64 < transport->live.count &&
           (transport->live.data[signal / 64] >> signal % 64 & 1) != 0;
}

static banyan_status check_signal(const banyan_transport *transport, uint32_t signal)
{
    if (!signal_is_live(transport, signal))
        return error_set(BANYAN_ERR_INVALID, "transport %s: signal %" PRIu32 " is not allocated",
                         transport->ops->name, signal);
    return BANYAN_OK;
}

static banyan_status transport_check_remote(banyan_transport *transport,
                                            const banyan_remote *remote)
{
    const banyan_memory_handle *handle = &remote->handle;
    RETURN_IF_FAILED(transport_check_rank(transport, handle->rank));
    if (handle->kind == BANYAN_MEMORY_DEVICE)
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "transport %s: registered memory of rank %d's GPU is reached by copies "
                         "that are prepared, not by puts and gets",
                         transport->ops->name, handle->rank);
    if (handle->kind != BANYAN_MEMORY_SYMMETRIC && handle->kind != BANYAN_MEMORY_USER)
        return error_set(BANYAN_ERR_INVALID, "transport %s: there is no memory of kind %" PRIu32,
                         transport->ops->name, handle->kind);
    uint64_t can = transport->ops->capabilities(transport->state, handle->rank);
    if (can == 0 || (handle->kind == BANYAN_MEMORY_USER && !(can & BANYAN_TRANSPORT_USER_MEMORY)))
        return error_set(
            BANYAN_ERR_UNSUPPORTED, "transport %s: rank %d cannot reach %s memory of rank %d",
            transport->ops->name, banyan_world_rank(transport->world),
            handle->kind == BANYAN_MEMORY_USER ? "ordinary" : "symmetric", handle->rank);
    return BANYAN_OK;
}

/* Check that the piece is inside the remote, and has a local address. */
static banyan_status transport_check_piece(const banyan_transport *transport,
                                           const banyan_remote *remote, uint64_t offset,
                                           const void *local, size_t bytes)
{
    uint64_t whole = remote->handle.bytes;
    uint64_t room = remote->offset <= whole ? whole - remote->offset : 0;
    if (remote->offset > whole || offset > room || bytes > room - offset)
        return error_set(BANYAN_ERR_INVALID,
                         "transport %s: %zu bytes at offset %" PRIu64 " + %" PRIu64
                         " extend beyond the %" PRIu64 " bytes of rank %d",
                         transport->ops->name, bytes, remote->offset, offset, whole,
                         remote->handle.rank);
    if (!local && bytes > 0)
        return error_set(BANYAN_ERR_INVALID, "transport %s: %zu bytes at address 0",
                         transport->ops->name, bytes);
    return BANYAN_OK;
}

static banyan_status transport_check_pieces(banyan_transport *transport,
                                            const banyan_remote *remote, const banyan_iovec *pieces,
                                            size_t count)
{
    RETURN_IF_FAILED(transport_check_remote(transport, remote));
    for (size_t i = 0; i < count; i++)
        RETURN_IF_FAILED(transport_check_piece(transport, remote, pieces[i].offset, pieces[i].local,
                                               pieces[i].bytes));
    return BANYAN_OK;
}

uint64_t banyan_transport_capabilities(banyan_transport *transport, int peer)
{
    if (transport_check_rank(transport, peer) != BANYAN_OK)
        return 0;
    return transport->ops->capabilities(transport->state, peer);
}

banyan_status banyan_transport_put(banyan_transport *transport, const banyan_remote *destination,
                                   const void *source, size_t bytes)
{
    RETURN_IF_FAILED(transport_check_remote(transport, destination));
    RETURN_IF_FAILED(transport_check_piece(transport, destination, 0, source, bytes));
    return transport->ops->put(transport->state, destination, source, bytes);
}

banyan_status banyan_transport_get(banyan_transport *transport, void *destination,
                                   const banyan_remote *source, size_t bytes)
{
    RETURN_IF_FAILED(transport_check_remote(transport, source));
    RETURN_IF_FAILED(transport_check_piece(transport, source, 0, destination, bytes));
    return transport->ops->get(transport->state, destination, source, bytes);
}

banyan_status banyan_transport_put_many(banyan_transport *transport,
                                        const banyan_remote *destination,
                                        const banyan_iovec *pieces, size_t count)
{
    RETURN_IF_FAILED(transport_check_pieces(transport, destination, pieces, count));
    return transport->ops->put_many(transport->state, destination, pieces, count);
}

banyan_status banyan_transport_get_many(banyan_transport *transport, const banyan_remote *source,
                                        const banyan_iovec *pieces, size_t count)
{
    RETURN_IF_FAILED(transport_check_pieces(transport, source, pieces, count));
    return transport->ops->get_many(transport->state, source, pieces, count);
}

banyan_status banyan_transport_put_with_signal(banyan_transport *transport,
                                               const banyan_remote *destination, const void *source,
                                               size_t bytes, uint32_t signal, uint64_t add)
{
    RETURN_IF_FAILED(check_signal(transport, signal));
    RETURN_IF_FAILED(transport_check_remote(transport, destination));
    RETURN_IF_FAILED(transport_check_piece(transport, destination, 0, source, bytes));
    return transport->ops->put_with_signal(transport->state, destination, source, bytes, signal,
                                           add);
}

banyan_status banyan_transport_signal(banyan_transport *transport, int peer, uint32_t signal,
                                      uint64_t add)
{
    RETURN_IF_FAILED(transport_check_rank(transport, peer));
    RETURN_IF_FAILED(check_signal(transport, signal));
    return transport->ops->signal(transport->state, peer, signal, add);
}

banyan_status banyan_transport_wait(banyan_transport *transport, uint32_t signal, uint64_t value,
                                    int peer, const char *what)
{
    RETURN_IF_FAILED(transport_check_rank(transport, peer));
    RETURN_IF_FAILED(check_signal(transport, signal));
    return transport->ops->wait(transport->state, signal, value, peer, what ? what : "a signal");
}

uint64_t banyan_transport_read(banyan_transport *transport, uint32_t signal)
{
    if (check_signal(transport, signal) != BANYAN_OK)
        return 0;
    return transport->ops->read(transport->state, signal);
}

uint64_t banyan_transport_epoch(banyan_transport *transport)
{
    return transport->ops->epoch(transport->state);
}

banyan_status banyan_transport_idle(banyan_transport *transport, uint64_t seen)
{
    return transport->ops->idle(transport->state, seen);
}

banyan_status banyan_transport_flush(banyan_transport *transport, int peer)
{
    RETURN_IF_FAILED(transport_check_rank(transport, peer));
    return transport->ops->flush(transport->state, peer);
}

static void mark_signals(banyan_transport *transport, uint32_t first, uint32_t count, bool live)
{
    for (uint32_t i = first; i < first + count; i++) {
        uint64_t bit = UINT64_C(1) << i % 64;
        if (live)
            transport->live.data[i / 64] |= bit;
        else
            transport->live.data[i / 64] &= ~bit;
    }
}

static banyan_status make_room_for_marks(banyan_transport *transport, uint32_t end)
{
    size_t words = ((size_t)end + 63) / 64;
    if (words <= transport->live.count)
        return BANYAN_OK;
    if (!array_reserve(&transport->live, words - transport->live.count))
        return BANYAN_ERR_NO_MEMORY;
    memset(&transport->live.data[transport->live.count], 0,
           (words - transport->live.count) * sizeof(uint64_t));
    transport->live.count = words;
    return BANYAN_OK;
}

banyan_status banyan_transport_signals_alloc(banyan_transport *transport, uint32_t count,
                                             uint32_t *first)
{
    CONTROL_ENTER(transport->world);
    uint32_t given;
    if (count == 0)
        return error_set(BANYAN_ERR_INVALID, "transport %s: 0 signals were asked for",
                         transport->ops->name);
    RETURN_IF_FAILED(transport->ops->signals_alloc(transport->state, count, &given));
    banyan_status status = make_room_for_marks(transport, given + count);
    status = control_agree(transport->world, status);
    if (status != BANYAN_OK) {
        transport->ops->signals_free(transport->state, given, count);
        return status;
    }
    mark_signals(transport, given, count, true);
    *first = given;
    return BANYAN_OK;
}

void banyan_transport_signals_free(banyan_transport *transport, uint32_t first, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (i > UINT32_MAX - first || !signal_is_live(transport, first + i))
            return;
    }
    mark_signals(transport, first, count, false);
    transport->ops->signals_free(transport->state, first, count);
}

banyan_status banyan_transport_address(banyan_transport *transport, const banyan_remote *remote,
                                       void **address)
{
    RETURN_IF_FAILED(transport_check_remote(transport, remote));
    RETURN_IF_FAILED(transport_check_piece(transport, remote, 0, remote, 0));
    return transport->ops->address(transport->state, remote, address);
}
