#include "cuda/execute/remote.h"

#include <stdlib.h>
#include <string.h>

#include <banyan/transport.h>

#include "core/module.h"
#include "cuda/memory/memory.h"
#include "cuda/runtime/watch.h"

/* A slot takes longer on any network than what starts it. */
#define SLOTS 4
#define SLOT_BYTES ((uint64_t)1 << 20)

/* At the start of a slot, before its bytes. */
typedef struct remote_message {
    uint64_t number; /* counted from 1 between the two ranks */
    uint64_t memory, offset, bytes;
    uint64_t unused[12];
} remote_message;

#define STRIDE (sizeof(remote_message) + SLOT_BYTES)
#define BOX_BYTES (SLOTS * STRIDE)

typedef struct port_peer {
    int rank;
    bool is_direct; /* the transport reaches memory of its GPU */
    banyan_remote box;
    char *sends, *receives; /* slots, pinned */
    CUevent staged[SLOTS];  /* the slot's bytes are there */
    CUevent placed[SLOTS];  /* the slot's bytes are at their place */
    /* Counts of messages. To the peer: begun and given to the transport; the peer's additions tell
     * how many are at their place. From it: taken out of slots, and at their place. */
    uint64_t begun, passed, taken, landed;
} port_peer;

struct remote_peers {
    banyan_world *world;
    int device, rank, ranks, count;
    banyan_transport *transport;
    uint32_t arrived, granted; /* signals, one for each rank: of messages, and of places */
    bool has_failed;
    port_peer *peers;
    void *pinned;
    uint64_t pinned_bytes;
    banyan_memory_handle registered;
    CUstream out, in;
};

static bool remote_is_apart(const banyan_world *world, int a, int b)
{
    return banyan_world_node_of(world, a) != banyan_world_node_of(world, b);
}

/* Return the place of a rank among those of other nodes than `owner`'s. */
static uint64_t remote_place(const banyan_world *world, int owner, int rank)
{
    uint64_t place = 0;
    for (int r = 0; r < rank; r++)
        place += remote_is_apart(world, owner, r);
    return place;
}

static banyan_status remote_no_memory(const remote_peers *of)
{
    return banyan_error_set(BANYAN_ERR_NO_MEMORY,
                            "cuda: rank %d is out of memory for %d ranks of other nodes", of->rank,
                            of->count);
}

static banyan_status peer_make_events(const remote_peers *of, port_peer *peer)
{
    banyan_status status = BANYAN_OK;
    for (int i = 0; i < SLOTS && status == BANYAN_OK; i++) {
        status = DRIVER(of->device, cuEventCreate, &peer->staged[i], CU_EVENT_DISABLE_TIMING);
        if (status == BANYAN_OK)
            status = DRIVER(of->device, cuEventCreate, &peer->placed[i], CU_EVENT_DISABLE_TIMING);
    }
    return status;
}

/* Receive slots come first, in the order of ranks; then the send slots. */
static banyan_status remote_take_device(remote_peers *of)
{
    void *there;
    of->pinned_bytes = 2 * (uint64_t)of->count * BOX_BYTES;
    RETURN_IF_FAILED(pinned_alloc(of->device, of->pinned_bytes, &of->pinned, &there));
    RETURN_IF_FAILED(DRIVER(of->device, cuStreamCreate, &of->out, CU_STREAM_NON_BLOCKING));
    RETURN_IF_FAILED(DRIVER(of->device, cuStreamCreate, &of->in, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < of->count; i++) {
        port_peer *peer = &of->peers[i];
        peer->receives = (char *)of->pinned + (uint64_t)i * BOX_BYTES;
        peer->sends = (char *)of->pinned + (uint64_t)(of->count + i) * BOX_BYTES;
        RETURN_IF_FAILED(peer_make_events(of, peer));
    }
    return BANYAN_OK;
}

static banyan_status remote_take_own(remote_peers *of)
{
    of->peers = calloc((size_t)of->count, sizeof *of->peers);
    if (!of->peers)
        return remote_no_memory(of);
    int count = 0;
    for (int rank = 0; rank < of->ranks; rank++) {
        if (remote_is_apart(of->world, of->rank, rank))
            of->peers[count++].rank = rank;
    }
    RETURN_IF_FAILED(DRIVER_WITHIN_UNCAPTURED(of->device, remote_take_device(of)));
    return banyan_memory_register(of->world, of->pinned, of->pinned_bytes, &of->registered);
}

static banyan_status remote_connect(remote_peers *of)
{
    banyan_memory_handle *all = calloc((size_t)of->ranks, sizeof *all);
    banyan_status status = banyan_module_agree(of->world, all ? BANYAN_OK : remote_no_memory(of));
    if (status == BANYAN_OK)
        status = banyan_world_allgather(of->world, &of->registered, sizeof *all, all);
    for (int i = 0; i < of->count && status == BANYAN_OK; i++) {
        port_peer *peer = &of->peers[i];
        peer->box = (banyan_remote){all[peer->rank],
                                    remote_place(of->world, peer->rank, of->rank) * BOX_BYTES};
        uint64_t can = banyan_transport_capabilities(of->transport, peer->rank);
        if (can == 0)
            status = banyan_error_set(BANYAN_ERR_UNSUPPORTED,
                                      "cuda: rank %d cannot reach rank %d, which is on another "
                                      "node: %s",
                                      of->rank, peer->rank, banyan_last_error());
        peer->is_direct = (can & BANYAN_TRANSPORT_CUDA) && module_network_is_direct();
    }
    free(all);
    return banyan_module_agree(of->world, status);
}

static bool remote_is_direct(const remote_peers *of)
{
    bool any = false;
    for (int i = 0; i < of->count; i++)
        any |= of->peers[i].is_direct;
    return any;
}

/* Put an empty header to every peer. `empty` is on the device; NULL: no peer is direct. */
static banyan_status peers_greet(const remote_peers *of, void *empty)
{
    if (empty)
        RETURN_IF_FAILED(bytes_copy(empty, of->peers[0].sends, sizeof(remote_message)));
    for (int i = 0; i < of->count; i++) {
        const port_peer *peer = &of->peers[i];
        RETURN_IF_FAILED(banyan_transport_put(of->transport, &peer->box,
                                              peer->is_direct ? empty : peer->sends,
                                              sizeof(remote_message)));
        RETURN_IF_FAILED(banyan_transport_flush(of->transport, peer->rank));
    }
    return BANYAN_OK;
}

/* The first put to a peer can wait for kernels, so it comes before the first kernel that waits for
 * the peer. If the transport is to read memory of the device, it begins with that here, too. */
static banyan_status remote_greet(const remote_peers *of)
{
    CUdeviceptr empty = 0;
    if (remote_is_direct(of))
        RETURN_IF_FAILED(DRIVER(of->device, cuMemAlloc, &empty, sizeof(remote_message)));
    banyan_status status = peers_greet(of, (void *)(uintptr_t)empty);
    if (empty)
        driver.cuMemFree(empty);
    return status;
}

static banyan_status remote_open_parts(remote_peers *of)
{
    RETURN_IF_FAILED(banyan_transport_open(of->world, NULL, &of->transport));
    RETURN_IF_FAILED(
        banyan_transport_signals_alloc(of->transport, 2 * (uint32_t)of->ranks, &of->arrived));
    of->granted = of->arrived + (uint32_t)of->ranks;
    RETURN_IF_FAILED(banyan_module_agree(of->world, remote_take_own(of)));
    RETURN_IF_FAILED(remote_connect(of));
    banyan_status status = DRIVER_WITHIN_UNCAPTURED(of->device, remote_greet(of));
    return banyan_module_agree(of->world, status);
}

banyan_status remote_open(banyan_world *world, int device, remote_peers **opened)
{
    *opened = NULL;
    if (banyan_world_node_count(world) == 1)
        return BANYAN_OK;
    remote_peers *of = calloc(1, sizeof *of);
    banyan_status status =
        of ? BANYAN_OK
           : banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: no memory for ranks of other nodes");
    status = banyan_module_agree(world, status);
    if (status == BANYAN_OK) {
        of->world = world;
        of->device = device;
        of->rank = banyan_world_rank(world);
        of->ranks = banyan_world_size(world);
        of->count = (int)remote_place(world, of->rank, of->ranks);
        status = remote_open_parts(of);
    }
    if (status != BANYAN_OK) {
        remote_close(of);
        return status;
    }
    *opened = of;
    return BANYAN_OK;
}

static void remote_close_device(remote_peers *of)
{
    CUstream streams[] = {of->out, of->in};
    for (int i = 0; i < 2; i++) {
        if (!streams[i])
            continue;
        driver.cuStreamSynchronize(streams[i]);
        driver.cuStreamDestroy(streams[i]);
    }
    for (int i = 0; i < of->count && of->peers; i++) {
        for (int slot = 0; slot < SLOTS; slot++) {
            if (of->peers[i].staged[slot])
                driver.cuEventDestroy(of->peers[i].staged[slot]);
            if (of->peers[i].placed[slot])
                driver.cuEventDestroy(of->peers[i].placed[slot]);
        }
    }
    pinned_free(of->pinned);
}

void remote_close(remote_peers *of)
{
    if (!of)
        return;
    for (int i = 0; i < of->count && of->peers && of->transport; i++)
        (void)banyan_transport_settle(of->transport, of->peers[i].rank);
    if (of->registered.kind != 0)
        (void)banyan_memory_unregister(of->world, &of->registered);
    if (driver_enter(of->device) == BANYAN_OK) {
        driver_capture before = driver_capture_relax();
        remote_close_device(of);
        driver_capture_restore(before);
        driver_leave();
    }
    banyan_transport_close(of->transport);
    free(of->peers);
    free(of);
}

static bool remote_holds(remote_peers *of, banyan_status status)
{
    of->has_failed |= !module_world_holds(of->world, status);
    return !of->has_failed;
}

static port_peer *remote_peer_of(const remote_peers *of, int rank)
{
    port_peer *peer = of->peers;
    while (peer->rank != rank)
        peer++;
    return peer;
}

CUstream remote_stream(const remote_peers *of)
{
    return of->out;
}

bool remote_reads_sources(const remote_peers *of, int rank)
{
    return remote_peer_of(of, rank)->is_direct && banyan_transport_pending(of->transport, rank) > 0;
}

static uint64_t peer_granted(const remote_peers *of, const port_peer *peer)
{
    return banyan_transport_read(of->transport, of->granted + (uint32_t)peer->rank);
}

static banyan_status remote_slot_fill(const remote_peers *of, const remote_message *message,
                                      char *slot, const void *source, bool is_value)
{
    memcpy(slot, message, sizeof *message);
    slot += sizeof *message;
    if (!is_value)
        return DRIVER(of->device, cuMemcpyAsync, (CUdeviceptr)(uintptr_t)slot,
                      (CUdeviceptr)(uintptr_t)source, message->bytes, of->out);
    memcpy(slot, source, message->bytes);
    return BANYAN_OK;
}

/* Begin a message, if a slot is free. */
static bool message_begin(remote_peers *of, port_peer *peer, const remote_message *message,
                          const void *source, bool is_value)
{
    if (peer->begun - peer_granted(of, peer) >= SLOTS)
        return false;
    uint64_t slot = peer->begun % SLOTS;
    banyan_status status =
        remote_slot_fill(of, message, peer->sends + slot * STRIDE, source, is_value);
    if (status == BANYAN_OK)
        status = DRIVER(of->device, cuEventRecord, peer->staged[slot], of->out);
    if (!remote_holds(of, status))
        return false;
    peer->begun++;
    return true;
}

bool remote_put(remote_peers *of, int rank, const void *destination, const void *source,
                uint64_t bytes, bool is_value, uint64_t *passed)
{
    port_peer *peer = remote_peer_of(of, rank);
    uint64_t memory = engine_remote_memory(destination);
    uint64_t offset = engine_remote_offset(destination);
    if (of->has_failed)
        return false;
    if (peer->is_direct && !is_value) {
        banyan_remote to = {
            {.rank = rank, .kind = BANYAN_MEMORY_SYMMETRIC, .id = memory, .bytes = offset + bytes},
            offset};
        return remote_holds(of, banyan_transport_put_begin(of->transport, &to, source, bytes));
    }
    while (*passed < bytes) {
        uint64_t rest = bytes - *passed;
        remote_message message = {.number = peer->begun + 1,
                                  .memory = memory,
                                  .offset = offset + *passed,
                                  .bytes = rest < SLOT_BYTES ? rest : SLOT_BYTES};
        if (!message_begin(of, peer, &message, (const char *)source + *passed, is_value))
            return false;
        *passed += message.bytes;
    }
    return true;
}

/* Give the transport the messages whose slots are filled. */
static bool peer_pass_on(remote_peers *of, port_peer *peer)
{
    bool any = false;
    while (peer->passed < peer->begun && !of->has_failed) {
        uint64_t slot = peer->passed % SLOTS;
        if (driver.cuEventQuery(peer->staged[slot]) == CUDA_ERROR_NOT_READY)
            break;
        const char *from = peer->sends + slot * STRIDE;
        banyan_remote to = peer->box;
        to.offset += slot * STRIDE;
        uint64_t bytes =
            ((const remote_message *)(const void *)from)->bytes + sizeof(remote_message);
        banyan_status status = banyan_transport_put_begin(of->transport, &to, from, bytes);
        if (status == BANYAN_OK)
            status = banyan_transport_signal(of->transport, peer->rank,
                                             of->arrived + (uint32_t)of->rank, 1);
        if (!remote_holds(of, status))
            break;
        peer->passed++;
        any = true;
    }
    return any;
}

/* Start to copy a message to its place. */
static banyan_status message_place(const remote_peers *of, const port_peer *peer, remote_find find,
                                   void *context)
{
    uint64_t slot = peer->taken % SLOTS;
    const char *at = peer->receives + slot * STRIDE;
    remote_message message;
    memcpy(&message, at, sizeof message);
    CUdeviceptr place = 0;
    if (message.number == peer->taken + 1 && message.bytes <= SLOT_BYTES)
        place = find(context, message.memory, message.offset, message.bytes);
    if (!place)
        return banyan_error_set(BANYAN_ERR_INVALID,
                                "cuda: rank %d got a message of rank %d, %llu bytes for byte %llu "
                                "of memory %llu, that belongs to no plan",
                                of->rank, peer->rank, (unsigned long long)message.bytes,
                                (unsigned long long)message.offset,
                                (unsigned long long)message.memory);
    RETURN_IF_FAILED(DRIVER(of->device, cuMemcpyAsync, place,
                            (CUdeviceptr)(uintptr_t)(at + sizeof message), message.bytes, of->in));
    return DRIVER(of->device, cuEventRecord, peer->placed[slot], of->in);
}

/* Take what has arrived out of the slots, and return the empty ones. */
static bool peer_take(remote_peers *of, port_peer *peer, remote_find find, void *context)
{
    uint64_t before = peer->taken, landed = peer->landed;
    uint64_t arrived = banyan_transport_read(of->transport, of->arrived + (uint32_t)peer->rank);
    while (peer->taken < arrived && peer->taken - peer->landed < SLOTS && !of->has_failed) {
        if (!remote_holds(of, message_place(of, peer, find, context)))
            return false;
        peer->taken++;
    }
    while (peer->landed < peer->taken &&
           driver.cuEventQuery(peer->placed[peer->landed % SLOTS]) != CUDA_ERROR_NOT_READY)
        peer->landed++;
    if (peer->landed != landed)
        remote_holds(of, banyan_transport_signal(of->transport, peer->rank,
                                                 of->granted + (uint32_t)of->rank,
                                                 peer->landed - landed));
    return peer->taken != before || peer->landed != landed;
}

bool remote_serve(remote_peers *of, remote_find find, void *context)
{
    bool any = false;
    if (of->has_failed)
        return false;
    banyan_module_transport_progress(of->transport);
    for (int i = 0; i < of->count && !of->has_failed; i++) {
        any |= peer_pass_on(of, &of->peers[i]);
        any |= peer_take(of, &of->peers[i], find, context);
    }
    return any;
}

bool remote_is_idle(const remote_peers *of)
{
    for (int i = 0; i < of->count && !of->has_failed; i++) {
        const port_peer *peer = &of->peers[i];
        if (peer_granted(of, peer) < peer->begun || remote_reads_sources(of, peer->rank))
            return false;
    }
    return true;
}

void remote_rest(const remote_peers *of)
{
    banyan_module_transport_rest(of->transport);
}
