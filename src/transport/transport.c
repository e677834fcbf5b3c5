#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/containers.h"
#include "core/module.h"
#include "transport/shm.h"
#include "transport/signals.h"
#include "world/control.h"

#define TABLES_MAX 4
#define NAME_BYTES 64
#define NO_TABLE UINT8_MAX
/* Tables compete for a peer by the time for so many bytes. */
#define TYPICAL_BYTES ((size_t)64 << 10)

/* How a rank is reached. */
struct transport_peer {
    int local;     /* index of a rank on the node whose counters are mapped here; otherwise -1 */
    uint8_t table; /* NO_TABLE: it cannot be reached */
};

struct banyan_transport {
    transport_world *of;
    signal_set *signals;
    char name[NAME_BYTES];
    transport_table tables[TABLES_MAX];
    int table_count;
    struct transport_peer *peers;
    char why_not[256]; /* why a table that would reach more ranks is missing; "": none is */
};

/* The names of tables, before they are opened. */
typedef struct table_list {
    char name[NAME_BYTES];
    const banyan_transport_ops *ops[TABLES_MAX];
    int count;
    char why_not[256];
} table_list;

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
    if (!ops->name || !ops->open || !ops->close || !ops->capabilities || !ops->cost_ns ||
        !ops->put || !ops->get || !ops->put_many || !ops->get_many || !ops->add ||
        !ops->put_with_add || !ops->fetch_add || !ops->flush || !ops->address ||
        !ops->progress != !ops->rest || !ops->put_begin != !ops->pending ||
        !ops->put_begin != !ops->settle)
        return error_set(BANYAN_ERR_INVALID, "transport %s: the table lacks operations",
                         ops->name ? ops->name : "without a name");
    return BANYAN_OK;
}

/* Ranks with different tables would wait for each other forever. */
static banyan_status check_same_everywhere(banyan_world *world, const char *name)
{
    uint64_t mine = hash_string(name, 0), highest, lowest;
    RETURN_IF_FAILED(control_max(world, mine, &highest));
    RETURN_IF_FAILED(control_max(world, UINT64_MAX - mine, &lowest));
    if (highest != UINT64_MAX - lowest)
        return error_set(BANYAN_ERR_MISMATCH,
                         "the ranks open different transports; rank %d opens \"%s\"",
                         banyan_world_rank(world), name);
    return BANYAN_OK;
}

static void choose_tables(banyan_transport *transport)
{
    for (int rank = 0; rank < banyan_world_size(transport->of->world); rank++) {
        struct transport_peer *peer = &transport->peers[rank];
        uint64_t lowest = UINT64_MAX, can = 0;
        *peer = (struct transport_peer){-1, NO_TABLE};
        for (int i = 0; i < transport->table_count; i++) {
            const transport_table *table = &transport->tables[i];
            uint64_t capabilities = table->ops->capabilities(table->state, rank);
            if (capabilities == 0)
                continue;
            uint64_t cost = table->ops->cost_ns(table->state, rank, TYPICAL_BYTES);
            if (cost >= lowest)
                continue;
            peer->table = (uint8_t)i;
            lowest = cost;
            can = capabilities;
        }
        if (can & BANYAN_TRANSPORT_ADDRESS)
            peer->local = memory_space_local(transport->of->space, rank);
    }
}

static banyan_status transport_create(transport_world *of, const table_list *list,
                                      banyan_transport **transport)
{
    banyan_transport *made = alloc_zeroed(1, sizeof *made, "a transport");
    RETURN_IF_NO_MEMORY(made);
    made->of = of;
    memcpy(made->name, list->name, sizeof made->name);
    memcpy(made->why_not, list->why_not, sizeof made->why_not);
    made->peers = alloc_zeroed((size_t)banyan_world_size(of->world), sizeof *made->peers,
                               "the transports of the ranks");
    banyan_status status = made->peers ? signals_create(of, &made->signals) : BANYAN_ERR_NO_MEMORY;
    if (status != BANYAN_OK) {
        banyan_transport_close(made);
        return status;
    }
    *transport = made;
    return BANYAN_OK;
}

static banyan_status open_tables(banyan_world *world, const table_list *list, bool are_shared,
                                 banyan_transport **transport)
{
    banyan_transport *made = NULL;
    transport_world *of;
    RETURN_IF_FAILED(transport_world_of(world, &of));
    banyan_status status = control_agree(world, transport_create(of, list, &made));
    for (int i = 0; i < list->count && status == BANYAN_OK; i++) {
        status = transport_world_open(of, list->ops[i], are_shared, &made->tables[i]);
        made->table_count += status == BANYAN_OK;
    }
    if (status != BANYAN_OK) {
        banyan_transport_close(made);
        return status;
    }
    choose_tables(made);
    *transport = made;
    return BANYAN_OK;
}

/* Find the tables that a text lists. */
static banyan_status tables_find(const char *text, table_list *list)
{
    snprintf(list->name, sizeof list->name, "%s", text);
    if (strlen(text) >= sizeof list->name)
        return error_set(BANYAN_ERR_INVALID, "the list of transports \"%.40s…\" is too long", text);
    for (const char *at = text; *at;) {
        size_t length = strcspn(at, ",");
        char name[NAME_BYTES];
        snprintf(name, sizeof name, "%.*s", (int)length, at);
        at += length + (at[length] == ',');
        if (list->count == TABLES_MAX)
            return error_set(BANYAN_ERR_INVALID, "\"%s\" lists more than %d transports", text,
                             TABLES_MAX);
        RETURN_IF_FAILED(banyan_transport_find(name, &list->ops[list->count]));
        list->count++;
    }
    return BANYAN_OK;
}

/* The tables of a world: between nodes also "ucx", if it works on all ranks. Collective. */
static banyan_status tables_by_default(banyan_world *world, table_list *list)
{
    list->ops[list->count++] = &shm_transport;
    snprintf(list->name, sizeof list->name, "shm");
    if (banyan_world_node_count(world) == 1)
        return BANYAN_OK;
    const banyan_transport_ops *ucx = NULL;
    banyan_status status = control_agree(world, banyan_transport_find("ucx", &ucx));
    if (status == BANYAN_OK) {
        list->ops[list->count++] = ucx;
        snprintf(list->name, sizeof list->name, "shm,ucx");
    } else if (status == BANYAN_ERR_NOT_FOUND) {
        snprintf(list->why_not, sizeof list->why_not, "%s", banyan_last_error());
        return BANYAN_OK;
    }
    return status;
}

banyan_status banyan_transport_open(banyan_world *world, const char *name,
                                    banyan_transport **transport)
{
    CONTROL_ENTER(world);
    table_list list = {.count = 0};
    if (!name)
        name = getenv("BANYAN_TRANSPORT");
    if (!name)
        name = "";
    RETURN_IF_FAILED(control_agree(world, tables_find(name, &list)));
    RETURN_IF_FAILED(check_same_everywhere(world, name));
    if (list.count == 0)
        RETURN_IF_FAILED(tables_by_default(world, &list));
    return open_tables(world, &list, true, transport);
}

banyan_status banyan_transport_open_ops(banyan_world *world, const banyan_transport_ops *ops,
                                        banyan_transport **transport)
{
    CONTROL_ENTER(world);
    table_list list = {.ops = {ops}, .count = 1};
    RETURN_IF_FAILED(control_agree(world, check_table(ops)));
    RETURN_IF_FAILED(check_same_everywhere(world, ops->name));
    snprintf(list.name, sizeof list.name, "%s", ops->name);
    return open_tables(world, &list, false, transport);
}

void banyan_transport_close(banyan_transport *transport)
{
    if (!transport)
        return;
    for (int i = 0; i < transport->table_count; i++)
        transport_world_close(transport->of, &transport->tables[i]);
    signals_destroy(transport->signals);
    free(transport->peers);
    free(transport);
}

const char *banyan_transport_name(const banyan_transport *transport)
{
    return transport->name;
}

static banyan_status transport_check_rank(const banyan_transport *transport, int rank)
{
    int size = banyan_world_size(transport->of->world);
    if (rank < 0 || rank >= size)
        return error_set(BANYAN_ERR_INVALID, "transport %s: there is no rank %d in a world of %d",
                         transport->name, rank, size);
    return BANYAN_OK;
}

/* Find the table that serves a rank. */
static banyan_status transport_find_table(const banyan_transport *transport, int rank,
                                          const transport_table **table)
{
    RETURN_IF_FAILED(transport_check_rank(transport, rank));
    uint8_t index = transport->peers[rank].table;
    if (index == NO_TABLE)
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "transport %s: rank %d cannot reach rank %d, which is not on its node%s%s",
                         transport->name, banyan_world_rank(transport->of->world), rank,
                         transport->why_not[0] ? ": " : "", transport->why_not);
    *table = &transport->tables[index];
    return BANYAN_OK;
}

static banyan_status check_signal(const banyan_transport *transport, uint32_t signal)
{
    if (!signal_is_live(transport->signals, signal))
        return error_set(BANYAN_ERR_INVALID, "transport %s: signal %" PRIu32 " is not allocated",
                         transport->name, signal);
    return BANYAN_OK;
}

/* Check the remote, and find the table that serves its rank. */
static banyan_status transport_check_remote(const banyan_transport *transport,
                                            const banyan_remote *remote,
                                            const transport_table **table)
{
    const banyan_memory_handle *handle = &remote->handle;
    RETURN_IF_FAILED(transport_check_rank(transport, handle->rank));
    if (handle->kind == BANYAN_MEMORY_DEVICE)
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "transport %s: registered memory of rank %d's GPU is reached by copies "
                         "that are prepared, not by puts and gets",
                         transport->name, handle->rank);
    if (handle->kind != BANYAN_MEMORY_SYMMETRIC && handle->kind != BANYAN_MEMORY_USER)
        return error_set(BANYAN_ERR_INVALID, "transport %s: there is no memory of kind %" PRIu32,
                         transport->name, handle->kind);
    RETURN_IF_FAILED(transport_find_table(transport, handle->rank, table));
    if (handle->kind == BANYAN_MEMORY_USER &&
        !((*table)->ops->capabilities((*table)->state, handle->rank) &
          BANYAN_TRANSPORT_USER_MEMORY))
        return error_set(
            BANYAN_ERR_UNSUPPORTED, "transport %s: rank %d cannot reach ordinary memory of rank %d",
            (*table)->ops->name, banyan_world_rank(transport->of->world), handle->rank);
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
                         transport->name, bytes, remote->offset, offset, whole,
                         remote->handle.rank);
    if (!local && bytes > 0)
        return error_set(BANYAN_ERR_INVALID, "transport %s: %zu bytes at address 0",
                         transport->name, bytes);
    return BANYAN_OK;
}

static banyan_status transport_check_pieces(const banyan_transport *transport,
                                            const banyan_remote *remote, const banyan_iovec *pieces,
                                            size_t count, const transport_table **table)
{
    RETURN_IF_FAILED(transport_check_remote(transport, remote, table));
    for (size_t i = 0; i < count; i++)
        RETURN_IF_FAILED(transport_check_piece(transport, remote, pieces[i].offset, pieces[i].local,
                                               pieces[i].bytes));
    return BANYAN_OK;
}

uint64_t banyan_transport_capabilities(banyan_transport *transport, int peer)
{
    const transport_table *table;
    if (transport_find_table(transport, peer, &table) != BANYAN_OK)
        return 0;
    return table->ops->capabilities(table->state, peer);
}

banyan_status transport_check_reach(banyan_transport *transport, const char *what)
{
    const transport_table *table;
    for (int rank = 0; rank < banyan_world_size(transport->of->world); rank++) {
        banyan_status status = transport_find_table(transport, rank, &table);
        if (status != BANYAN_OK)
            return error_set(status, "%s need a way between all ranks: %s", what,
                             banyan_last_error());
    }
    return BANYAN_OK;
}

const char *banyan_transport_peer(banyan_transport *transport, int peer, uint64_t *cost_ns)
{
    const transport_table *table;
    if (transport_find_table(transport, peer, &table) != BANYAN_OK)
        return NULL;
    if (cost_ns)
        *cost_ns = table->ops->cost_ns(table->state, peer, TYPICAL_BYTES);
    return table->ops->name;
}

banyan_status banyan_transport_put(banyan_transport *transport, const banyan_remote *destination,
                                   const void *source, size_t bytes)
{
    const transport_table *table;
    RETURN_IF_FAILED(transport_check_remote(transport, destination, &table));
    RETURN_IF_FAILED(transport_check_piece(transport, destination, 0, source, bytes));
    return table->ops->put(table->state, destination, source, bytes);
}

banyan_status banyan_transport_get(banyan_transport *transport, void *destination,
                                   const banyan_remote *source, size_t bytes)
{
    const transport_table *table;
    RETURN_IF_FAILED(transport_check_remote(transport, source, &table));
    RETURN_IF_FAILED(transport_check_piece(transport, source, 0, destination, bytes));
    return table->ops->get(table->state, destination, source, bytes);
}

banyan_status banyan_transport_put_many(banyan_transport *transport,
                                        const banyan_remote *destination,
                                        const banyan_iovec *pieces, size_t count)
{
    const transport_table *table;
    RETURN_IF_FAILED(transport_check_pieces(transport, destination, pieces, count, &table));
    return table->ops->put_many(table->state, destination, pieces, count);
}

banyan_status banyan_transport_get_many(banyan_transport *transport, const banyan_remote *source,
                                        const banyan_iovec *pieces, size_t count)
{
    const transport_table *table;
    RETURN_IF_FAILED(transport_check_pieces(transport, source, pieces, count, &table));
    return table->ops->get_many(table->state, source, pieces, count);
}

/* After an addition by a table: the wake-up of a peer of this node is mapped. Peers of other nodes
 * are notified by their own table. */
static void transport_ring_peer(const banyan_transport *transport, int peer)
{
    int local = memory_space_local(transport->of->space, peer);
    if (local >= 0)
        transport_ring(transport->of, local);
}

banyan_status banyan_transport_put_with_signal(banyan_transport *transport,
                                               const banyan_remote *destination, const void *source,
                                               size_t bytes, uint32_t signal, uint64_t add)
{
    int peer = destination->handle.rank;
    const transport_table *table;
    RETURN_IF_FAILED(check_signal(transport, signal));
    RETURN_IF_FAILED(transport_check_remote(transport, destination, &table));
    RETURN_IF_FAILED(transport_check_piece(transport, destination, 0, source, bytes));
    int local = transport->peers[peer].local;
    if (local >= 0) {
        RETURN_IF_FAILED(table->ops->put(table->state, destination, source, bytes));
        signals_add(transport->signals, local, signal, add);
        return BANYAN_OK;
    }
    banyan_remote counter = signals_remote(transport->signals, peer, signal);
    RETURN_IF_FAILED(
        table->ops->put_with_add(table->state, destination, source, bytes, &counter, add));
    transport_ring_peer(transport, peer);
    return BANYAN_OK;
}

banyan_status transport_add(banyan_transport *transport, const banyan_remote *counter, uint64_t add)
{
    const transport_table *table;
    RETURN_IF_FAILED(transport_find_table(transport, counter->handle.rank, &table));
    RETURN_IF_FAILED(table->ops->add(table->state, counter, add));
    transport_ring_peer(transport, counter->handle.rank);
    return BANYAN_OK;
}

banyan_status banyan_transport_signal(banyan_transport *transport, int peer, uint32_t signal,
                                      uint64_t add)
{
    const transport_table *table;
    RETURN_IF_FAILED(check_signal(transport, signal));
    RETURN_IF_FAILED(transport_find_table(transport, peer, &table));
    int local = transport->peers[peer].local;
    if (local >= 0) {
        signals_add(transport->signals, local, signal, add);
        return BANYAN_OK;
    }
    banyan_remote counter = signals_remote(transport->signals, peer, signal);
    return transport_add(transport, &counter, add);
}

banyan_status banyan_transport_fetch_add(banyan_transport *transport, int peer, uint32_t signal,
                                         uint64_t add, uint64_t *before)
{
    const transport_table *table;
    RETURN_IF_FAILED(check_signal(transport, signal));
    RETURN_IF_FAILED(transport_find_table(transport, peer, &table));
    banyan_remote counter = signals_remote(transport->signals, peer, signal);
    RETURN_IF_FAILED(table->ops->fetch_add(table->state, &counter, add, before));
    transport_ring_peer(transport, peer);
    return BANYAN_OK;
}

banyan_status banyan_transport_wait(banyan_transport *transport, uint32_t signal, uint64_t value,
                                    int peer, const char *what)
{
    RETURN_IF_FAILED(transport_check_rank(transport, peer));
    RETURN_IF_FAILED(check_signal(transport, signal));
    return signals_wait(transport->signals, signal, value, peer, what ? what : "a signal");
}

uint64_t banyan_transport_read(banyan_transport *transport, uint32_t signal)
{
    if (check_signal(transport, signal) != BANYAN_OK)
        return 0;
    return signals_read(transport->signals, signal);
}

uint64_t banyan_transport_epoch(banyan_transport *transport)
{
    return transport_epoch(transport->of);
}

banyan_status banyan_transport_idle(banyan_transport *transport, uint64_t seen)
{
    const transport_world *of = transport->of;
    for (uint32_t i = 0; i < of->spins; i++) {
        if (transport_epoch(of) != (uint32_t)seen)
            return BANYAN_OK;
        transport_progress(of);
        spin_pause();
    }
    RETURN_IF_FAILED(control_check(of->world));
    transport_sleep(of, (uint32_t)seen, WAKE_UP_NAP_NS);
    return BANYAN_OK;
}

void banyan_module_transport_progress(banyan_transport *transport)
{
    transport_progress(transport->of);
}

void banyan_module_transport_rest(banyan_transport *transport)
{
    transport_rest(transport->of);
}

banyan_status banyan_transport_put_begin(banyan_transport *transport,
                                         const banyan_remote *destination, const void *source,
                                         size_t bytes)
{
    const transport_table *table;
    RETURN_IF_FAILED(transport_check_remote(transport, destination, &table));
    RETURN_IF_FAILED(transport_check_piece(transport, destination, 0, source, bytes));
    return (table->ops->put_begin ? table->ops->put_begin
                                  : table->ops->put)(table->state, destination, source, bytes);
}

size_t banyan_transport_pending(banyan_transport *transport, int peer)
{
    const transport_table *table;
    if (transport_find_table(transport, peer, &table) != BANYAN_OK || !table->ops->pending)
        return 0;
    return table->ops->pending(table->state, peer);
}

banyan_status banyan_transport_settle(banyan_transport *transport, int peer)
{
    const transport_table *table;
    RETURN_IF_FAILED(transport_find_table(transport, peer, &table));
    return table->ops->settle ? table->ops->settle(table->state, peer) : BANYAN_OK;
}

banyan_status banyan_transport_flush(banyan_transport *transport, int peer)
{
    const transport_table *table;
    RETURN_IF_FAILED(transport_find_table(transport, peer, &table));
    return table->ops->flush(table->state, peer);
}

banyan_status banyan_transport_signals_alloc(banyan_transport *transport, uint32_t count,
                                             uint32_t *first)
{
    CONTROL_ENTER(transport->of->world);
    if (count == 0)
        return error_set(BANYAN_ERR_INVALID, "transport %s: 0 signals were asked for",
                         transport->name);
    return signals_alloc(transport->signals, count, first);
}

void banyan_transport_signals_free(banyan_transport *transport, uint32_t first, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (i > UINT32_MAX - first || !signal_is_live(transport->signals, first + i))
            return;
    }
    signals_free(transport->signals, first, count);
}

banyan_status banyan_transport_address(banyan_transport *transport, const banyan_remote *remote,
                                       void **address)
{
    const transport_table *table;
    RETURN_IF_FAILED(transport_check_remote(transport, remote, &table));
    RETURN_IF_FAILED(transport_check_piece(transport, remote, 0, remote, 0));
    return table->ops->address(table->state, remote, address);
}
