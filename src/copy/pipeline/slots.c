/* Slots in symmetric memory, handed over by two signals for each peer.
 *
 * A signal counts events of the current execution only: its upper half is the execution's number,
 * so that counts left by a failed execution do not count in the next one. The lower half of a grant
 * is the number of grants and, below it, the slot of the last grant; when two grants are
 * outstanding, the one before has the other slot. The lower half of an arrival is the number of
 * batches sent. */
#include <banyan/pipeline.h>

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/containers.h"
#include "core/deadline.h"
#include "core/error.h"
#include "world/control.h"

#define SLOTS BANYAN_PIPELINE_SLOTS
#define PAGE_BYTES 4096
#define DEFAULT_SLOT_BYTES (512 * 1024)
#define EXECUTION_SHIFT 32
#define LOWER_HALF UINT64_C(0xffffffff)

typedef struct slot_peer {
    banyan_memory_handle handle; /* of the peer's receive slots */
    char *address;               /* the same memory mapped here, or NULL */
    uint64_t grants, arrivals;   /* values added to the peer's two signals so far */
    uint64_t execution;          /* execution that the counts below belong to */
    uint32_t granted, taken, sent, arrived;
} slot_peer;

typedef struct slot_buffers {
    banyan_pipeline_buffers table; /* first: the caller holds a pointer to it */
    banyan_world *world;
    banyan_transport *transport;
    banyan_memory *memory;
    slot_peer *peers;
    void *send_slots;
    size_t stride; /* distance between slots */
    uint32_t first_signal;
    bool has_signals;
    uint64_t execution;
    uint64_t epoch; /* of the signals, before they were last read */
    bool waits;
    control_wait wait; /* since the last progress */
} slot_buffers;

static uint32_t grant_signal(const slot_buffers *buffers, int peer)
{
    return buffers->first_signal + (uint32_t)peer;
}

static uint32_t arrival_signal(const slot_buffers *buffers, int peer)
{
    return buffers->first_signal + (uint32_t)banyan_world_size(buffers->world) + (uint32_t)peer;
}

/* Return the peer, with its counts of the current execution. */
static slot_peer *present_peer(slot_buffers *buffers, int rank)
{
    slot_peer *peer = &buffers->peers[rank];
    if (peer->execution != buffers->execution) {
        peer->execution = buffers->execution;
        peer->granted = peer->taken = peer->sent = peer->arrived = 0;
    }
    return peer;
}

/* Return how much to add to the peer's signal to make it `lower` of this execution. */
static uint64_t raise_to(const slot_buffers *buffers, uint64_t lower, uint64_t *added)
{
    uint64_t value = buffers->execution << EXECUTION_SHIFT | lower;
    uint64_t add = value - *added;
    *added = value;
    return add;
}

/* Return the lower half of one of this rank's signals; 0 when it is not of this execution. */
static uint64_t pipeline_slots_received(const slot_buffers *buffers, uint32_t signal)
{
    uint64_t value = banyan_transport_read(buffers->transport, signal);
    return value >> EXECUTION_SHIFT == (buffers->execution & LOWER_HALF) ? value & LOWER_HALF : 0;
}

static banyan_status slots_begin(void *context)
{
    slot_buffers *buffers = context;
    buffers->execution++;
    buffers->epoch = banyan_transport_epoch(buffers->transport);
    return BANYAN_OK;
}

static void *slots_peer_slot(void *context, int peer, int slot)
{
    slot_buffers *buffers = context;
    char *address = buffers->peers[peer].address;
    return address ? address + (size_t)slot * buffers->stride : NULL;
}

static banyan_status slots_grant(void *context, banyan_stream stream, int rank, int slot)
{
    (void)stream;
    slot_buffers *buffers = context;
    slot_peer *peer = present_peer(buffers, rank);
    uint64_t lower = (uint64_t)++peer->granted << 1 | (unsigned)slot;
    return banyan_transport_signal(buffers->transport, rank,
                                   grant_signal(buffers, banyan_world_rank(buffers->world)),
                                   raise_to(buffers, lower, &peer->grants));
}

static void pipeline_slots_end_wait(slot_buffers *buffers)
{
    if (buffers->waits)
        control_wait_end(&buffers->wait);
    buffers->waits = false;
}

static banyan_status slots_take_grant(void *context, int rank, int *slot)
{
    slot_buffers *buffers = context;
    slot_peer *peer = present_peer(buffers, rank);
    uint64_t lower = pipeline_slots_received(buffers, grant_signal(buffers, rank));
    int last = (int)(lower & 1);
    *slot = -1;
    if (lower >> 1 <= peer->taken)
        return BANYAN_OK;
    uint64_t ahead = (lower >> 1) - peer->taken;
    if (ahead > SLOTS)
        return error_set(BANYAN_ERR_MISMATCH,
                         "pipeline: rank %d granted rank %d more slots than there are", rank,
                         banyan_world_rank(buffers->world));
    *slot = ahead == 1 ? last : 1 - last;
    peer->taken++;
    pipeline_slots_end_wait(buffers);
    return BANYAN_OK;
}

static banyan_status slots_send(void *context, banyan_stream stream, int rank, int from, int to,
                                uint64_t bytes)
{
    (void)stream;
    slot_buffers *buffers = context;
    slot_peer *peer = present_peer(buffers, rank);
    uint32_t signal = arrival_signal(buffers, banyan_world_rank(buffers->world));
    uint64_t add = raise_to(buffers, ++peer->sent, &peer->arrivals);
    if (from < 0)
        return banyan_transport_signal(buffers->transport, rank, signal, add);
    banyan_remote remote = {peer->handle, (uint64_t)to * buffers->stride};
    return banyan_transport_put_with_signal(buffers->transport, &remote,
                                            buffers->table.send_slot[from], bytes, signal, add);
}

static banyan_status slots_take_arrival(void *context, int rank, int slot, bool *yes)
{
    (void)slot;
    slot_buffers *buffers = context;
    slot_peer *peer = present_peer(buffers, rank);
    *yes = pipeline_slots_received(buffers, arrival_signal(buffers, rank)) > peer->arrived;
    peer->arrived += *yes;
    if (*yes)
        pipeline_slots_end_wait(buffers);
    return BANYAN_OK;
}

static void describe_stall(const banyan_pipeline_stall *stall, char text[160])
{
    char grant[64] = "", arrival[64] = "";
    if (stall->grant_from >= 0)
        snprintf(grant, sizeof grant, " for a slot of rank %d", stall->grant_from);
    if (stall->arrival_from >= 0)
        snprintf(arrival, sizeof arrival, " for a batch from rank %d", stall->arrival_from);
    snprintf(text, 160, "%s%s%s%s", stall->for_events ? " for its own streams" : "", grant,
             grant[0] && arrival[0] ? " and" : "", arrival);
}

/* The epoch was read before the signals, so no change is missed. */
static banyan_status slots_idle(void *context, const banyan_pipeline_stall *stall)
{
    slot_buffers *buffers = context;
    int peer = stall->arrival_from >= 0 ? stall->arrival_from : stall->grant_from;
    uint64_t nap_ns;
    char text[160];
    if (!buffers->waits)
        buffers->wait = control_wait_begin(buffers->world);
    buffers->waits = true;
    control_wait_is_idle_for(&buffers->wait, stall->stalled_ns);
    describe_stall(stall, text);
    RETURN_IF_FAILED(control_wait_on(&buffers->wait, peer, text + 1, &nap_ns));
    if (stall->for_events) {
        sched_yield();
        return BANYAN_OK;
    }
    RETURN_IF_FAILED(banyan_transport_idle(buffers->transport, buffers->epoch));
    buffers->epoch = banyan_transport_epoch(buffers->transport);
    return BANYAN_OK;
}

static banyan_status agree_on_bytes(banyan_world *world, size_t slot_bytes)
{
    uint64_t most, least;
    RETURN_IF_FAILED(control_max(world, slot_bytes, &most));
    RETURN_IF_FAILED(control_max(world, UINT64_MAX - slot_bytes, &least));
    least = UINT64_MAX - least;
    if (most != least)
        return error_set(BANYAN_ERR_MISMATCH,
                         "pipeline: rank %d opens slots of %zu bytes, other ranks of %" PRIu64
                         " to %" PRIu64,
                         banyan_world_rank(world), slot_bytes, least, most);
    if (most > SIZE_MAX / SLOTS - PAGE_BYTES)
        return error_set(BANYAN_ERR_INVALID, "pipeline: slots of %zu bytes", slot_bytes);
    return BANYAN_OK;
}

static banyan_status allocate_own(slot_buffers *buffers)
{
    size_t ranks = (size_t)banyan_world_size(buffers->world);
    RETURN_IF_NO_MEMORY(buffers->peers =
                            alloc_zeroed(ranks, sizeof *buffers->peers, "the pipeline's peers"));
    buffers->send_slots = aligned_alloc(PAGE_BYTES, SLOTS * buffers->stride);
    if (!buffers->send_slots)
        return error_no_memory(SLOTS * buffers->stride, "the pipeline's send slots");
    for (int slot = 0; slot < SLOTS; slot++)
        buffers->table.send_slot[slot] =
            (char *)buffers->send_slots + (size_t)slot * buffers->stride;
    return BANYAN_OK;
}

/* Find the peers' receive slots. */
static banyan_status find_peers(slot_buffers *buffers, const banyan_memory_handle *handles)
{
    for (int rank = 0; rank < banyan_world_size(buffers->world); rank++) {
        slot_peer *peer = &buffers->peers[rank];
        peer->handle = handles[rank];
        uint64_t can = banyan_transport_capabilities(buffers->transport, rank);
        if (rank == banyan_world_rank(buffers->world) || !(can & BANYAN_TRANSPORT_ADDRESS))
            continue;
        void *address;
        banyan_remote remote = {peer->handle, 0};
        RETURN_IF_FAILED(banyan_transport_address(buffers->transport, &remote, &address));
        peer->address = address;
    }
    return BANYAN_OK;
}

static banyan_status pipeline_slots_open_shared(slot_buffers *buffers)
{
    banyan_world *world = buffers->world;
    uint32_t ranks = (uint32_t)banyan_world_size(world);
    RETURN_IF_FAILED(banyan_memory_alloc(world, SLOTS * buffers->stride, &buffers->memory));
    RETURN_IF_FAILED(
        banyan_transport_signals_alloc(buffers->transport, 2 * ranks, &buffers->first_signal));
    buffers->has_signals = true;
    char *slots = banyan_memory_local(buffers->memory);
    for (int slot = 0; slot < SLOTS; slot++)
        buffers->table.recv_slot[slot] = slots + (size_t)slot * buffers->stride;
    banyan_memory_handle mine = {0};
    void *all;
    banyan_status status = banyan_memory_find(world, slots, SLOTS * buffers->stride, &mine);
    status = control_gather(world, status, &mine, sizeof mine, "handles of slots", &all);
    if (status == BANYAN_OK)
        status = find_peers(buffers, all);
    free(all);
    return status;
}

static slot_buffers *pipeline_slots_create(banyan_world *world, banyan_transport *transport,
                                           size_t slot_bytes)
{
    slot_buffers *made = calloc(1, sizeof *made);
    if (!made)
        return NULL;
    made->world = world;
    made->transport = transport;
    made->stride = (slot_bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    made->table = (banyan_pipeline_buffers){.size = sizeof made->table,
                                            .context = made,
                                            .ranks = banyan_world_size(world),
                                            .slot_bytes = slot_bytes,
                                            .begin = slots_begin,
                                            .peer_slot = slots_peer_slot,
                                            .grant = slots_grant,
                                            .take_grant = slots_take_grant,
                                            .send = slots_send,
                                            .take_arrival = slots_take_arrival,
                                            .idle = slots_idle};
    return made;
}

banyan_status banyan_pipeline_buffers_open(banyan_world *world, banyan_transport *transport,
                                           size_t slot_bytes, banyan_pipeline_buffers **buffers)
{
    CONTROL_ENTER(world);
    if (slot_bytes == 0)
        slot_bytes = DEFAULT_SLOT_BYTES;
    RETURN_IF_FAILED(agree_on_bytes(world, slot_bytes));
    slot_buffers *made = pipeline_slots_create(world, transport, slot_bytes);
    banyan_status status =
        made ? allocate_own(made) : error_no_memory(sizeof *made, "the pipeline's buffers");
    status = control_agree(world, status);
    if (status == BANYAN_OK)
        status = pipeline_slots_open_shared(made);
    status = control_agree(world, status);
    if (status != BANYAN_OK) {
        banyan_pipeline_buffers_close(made ? &made->table : NULL);
        return status;
    }
    *buffers = &made->table;
    return BANYAN_OK;
}

void banyan_pipeline_buffers_close(banyan_pipeline_buffers *buffers)
{
    if (!buffers)
        return;
    slot_buffers *made = buffers->context;
    if (made->has_signals)
        banyan_transport_signals_free(made->transport, made->first_signal,
                                      2 * (uint32_t)banyan_world_size(made->world));
    banyan_memory_free(made->memory);
    free(made->send_slots);
    free(made->peers);
    free(made);
}
