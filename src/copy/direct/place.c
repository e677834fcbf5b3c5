#include "copy/direct/place.h"

#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "copy/match/match.h"
#include "core/log.h"
#include "memory/symmetric/symmetric.h"
#include "world/control.h"

/* Registrations closer than this are merged. The gap is never read. */
#define WINDOW_GAP_BYTES ((uintptr_t)64 << 10)

/* Ordinary memory of one operation. */
typedef struct ordinary {
    uintptr_t low, high;
    size_t op;
} ordinary;

bool direct_is_remote(banyan_transport *transport, int peer)
{
    uint64_t can = banyan_transport_capabilities(transport, peer);
    return (can & BANYAN_TRANSPORT_USER_MEMORY) && !(can & BANYAN_TRANSPORT_ADDRESS);
}

bool direct_place_find_symmetric(banyan_world *world, direct_place *place)
{
    char *low;
    size_t bytes;
    strided_view_span(&place->view, &low, &bytes);
    banyan_memory_handle handle;
    if (bytes == 0 || banyan_memory_find(world, low, bytes, &handle) != BANYAN_OK ||
        handle.kind != BANYAN_MEMORY_SYMMETRIC)
        return false;
    place->handle = handle;
    place->offset = (int64_t)((uintptr_t)place->view.data - handle.address);
    return true;
}

static int compare_ordinary(const void *a, const void *b)
{
    const ordinary *left = a, *right = b;
    return COMPARE(left->low, right->low);
}

/* Register [low, high) for the operations that lie in it. */
static banyan_status register_window(direct_places *places, direct_place *ops,
                                     const ordinary *parts, size_t count, uintptr_t high)
{
    banyan_memory_handle handle;
    RETURN_IF_NO_MEMORY(array_reserve(&places->windows, 1));
    RETURN_IF_FAILED(
        banyan_memory_register(places->world, (void *)parts[0].low, high - parts[0].low, &handle));
    places->windows.data[places->windows.count++] = handle;
    for (size_t i = 0; i < count; i++) {
        direct_place *place = &ops[parts[i].op];
        place->handle = handle;
        place->offset = (int64_t)((uintptr_t)place->view.data - handle.address);
    }
    return BANYAN_OK;
}

/* A network card needs memory in all pages of a registration, so memory that is put to is merged
 * only across parts of pages. */
static bool window_reaches(uintptr_t high, uintptr_t low, bool is_put_to)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    return is_put_to ? low / page <= (high - 1) / page + 1 : low <= high + WINDOW_GAP_BYTES;
}

static banyan_status register_windows(direct_places *places, direct_place *ops, ordinary *parts,
                                      size_t count, bool are_put_to)
{
    sort_elements(parts, count, sizeof *parts, compare_ordinary);
    for (size_t first = 0, behind; first < count; first = behind) {
        uintptr_t high = parts[first].high;
        for (behind = first + 1;
             behind < count && window_reaches(high, parts[behind].low, are_put_to); behind++)
            high = parts[behind].high > high ? parts[behind].high : high;
        RETURN_IF_FAILED(register_window(places, ops, parts + first, behind - first, high));
    }
    return BANYAN_OK;
}

/* Find one side of the operations with other ranks: `ops` are their places. */
static banyan_status direct_places_find_side(direct_places *places, banyan_transport *transport,
                                             const banyan_copy_op *list, size_t op_count,
                                             bool are_sends, direct_place *ops)
{
    int rank = banyan_world_rank(places->world);
    ordinary *parts = alloc_zeroed(op_count, sizeof *parts, "the places of a batch");
    RETURN_IF_NO_MEMORY(parts);
    size_t count = 0;
    banyan_status status = BANYAN_OK;
    for (size_t i = 0; i < op_count && status == BANYAN_OK; i++) {
        direct_place *place = &ops[i];
        if (list[i].peer == rank)
            continue;
        status = strided_view_anywhere(&list[i].tensor, &place->view);
        bool is_accessed = are_sends != direct_is_remote(transport, list[i].peer);
        if (status != BANYAN_OK || place->view.elems == 0 ||
            direct_place_find_symmetric(places->world, place) || !is_accessed)
            continue;
        char *low;
        size_t bytes;
        strided_view_span(&place->view, &low, &bytes);
        parts[count++] = (ordinary){(uintptr_t)low, (uintptr_t)low + bytes, i};
    }
    if (status == BANYAN_OK)
        status = register_windows(places, ops, parts, count, !are_sends);
    free(parts);
    return status;
}

banyan_status direct_places_make(banyan_world *world, const banyan_copy_batch *batch,
                                 direct_places *places)
{
    direct_places made = {.world = world};
    made.sends = calloc(batch->send_count + 1, sizeof *made.sends);
    made.recvs = calloc(batch->recv_count + 1, sizeof *made.recvs);
    if (!made.sends || !made.recvs) {
        direct_places_free(&made);
        return error_no_memory((batch->send_count + batch->recv_count) * sizeof *made.sends,
                               "the places of a batch");
    }
    *places = made;
    return BANYAN_OK;
}

banyan_status direct_places_find(banyan_world *world, banyan_transport *transport,
                                 const banyan_copy_batch *batch, direct_places *places)
{
    direct_places found;
    RETURN_IF_FAILED(direct_places_make(world, batch, &found));
    banyan_status status = direct_places_find_side(&found, transport, batch->sends,
                                                   batch->send_count, true, found.sends);
    if (status == BANYAN_OK)
        status = direct_places_find_side(&found, transport, batch->recvs, batch->recv_count, false,
                                         found.recvs);
    if (status == BANYAN_OK)
        *places = found;
    else
        direct_places_free(&found);
    return status;
}

void direct_places_withdraw(direct_places *places)
{
    for (size_t i = 0; i < places->windows.count; i++)
        banyan_memory_unregister(places->world, &places->windows.data[i]);
    array_free(&places->windows);
}

void direct_places_free(direct_places *places)
{
    direct_places_withdraw(places);
    banyan_memory_free(places->landing);
    direct_moves_free(&places->landed);
    free(places->sends);
    free(places->recvs);
    *places = (direct_places){0};
}

bool direct_place_is_symmetric(const direct_place *place)
{
    return place->handle.kind == BANYAN_MEMORY_SYMMETRIC;
}

void direct_place_write(const direct_place *place, bytes_writer *note)
{
    bytes_write(note, &place->handle, sizeof place->handle);
    bytes_write_u64(note, (uint64_t)place->offset);
    bytes_write_u32(note, (uint32_t)place->view.ndim);
    for (int i = 0; i < place->view.ndim; i++) {
        bytes_write_u64(note, (uint64_t)place->view.extent[i]);
        bytes_write_u64(note, (uint64_t)place->view.stride[i]);
    }
}

static banyan_status direct_place_malformed(int peer)
{
    return error_set(BANYAN_ERR_FORMAT, "direct: rank %d sent an invalid description of a tensor",
                     peer);
}

/* True if all of it lies in the handle's memory; the computation cannot overflow. */
static bool direct_place_is_inside(const direct_place *place, uint64_t elems)
{
    const strided_view *view = &place->view;
    __int128 low = place->offset, high = place->offset, count = 1;
    for (int i = 0; i < view->ndim; i++) {
        if (view->extent[i] < 2 || count > (__int128)elems)
            return false;
        count *= view->extent[i];
        __int128 length = (__int128)(view->extent[i] - 1) * view->stride[i];
        if (length < 0)
            low += length;
        else
            high += length;
        if (low < 0 || high > INT64_MAX)
            return false;
    }
    return count == (__int128)elems && low >= 0 &&
           high + (__int128)view->elem_bytes <= (__int128)place->handle.bytes;
}

banyan_status direct_place_read(const void *note, size_t bytes, int peer, uint64_t elems,
                                size_t elem_bytes, direct_place *place)
{
    direct_place read = {.view = {.elem_bytes = elem_bytes, .elems = elems}};
    bytes_reader reader = bytes_reader_of(note, bytes);
    bytes_read(&reader, &read.handle, sizeof read.handle);
    read.offset = (int64_t)bytes_read_u64(&reader);
    uint32_t ndim = bytes_read_u32(&reader);
    if (reader.failed || ndim > BANYAN_MAX_DIMS)
        return direct_place_malformed(peer);
    read.view.ndim = (int)ndim;
    for (uint32_t i = 0; i < ndim; i++) {
        read.view.extent[i] = (int64_t)bytes_read_u64(&reader);
        read.view.stride[i] = (int64_t)bytes_read_u64(&reader);
    }
    if (reader.failed || reader.left > 0)
        return direct_place_malformed(peer);
    if (read.handle.kind != 0 &&
        (read.handle.rank != peer || !direct_place_is_inside(&read, elems)))
        return direct_place_malformed(peer);
    *place = read;
    return BANYAN_OK;
}

/* Places on a device, where peers write. */

/* A place in the landing begins at a line of the device's memory. */
#define LANDING_ALIGNMENT ((uint64_t)256)

/* Receives of one batch that peers cannot map. */
typedef struct staged_recvs {
    ARRAY(size_t) ops; /* receives */
    uint64_t bytes;    /* in the landing */
} staged_recvs;

static banyan_status register_place(direct_places *places, direct_place *place)
{
    char *low;
    size_t bytes;
    strided_view_span(&place->view, &low, &bytes);
    banyan_memory_handle handle;
    RETURN_IF_NO_MEMORY(array_reserve(&places->windows, 1));
    RETURN_IF_FAILED(banyan_memory_register(places->world, low, bytes, &handle));
    places->windows.data[places->windows.count++] = handle;
    if (handle.kind != BANYAN_MEMORY_DEVICE)
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "direct: rank %d receives at %p, which is not memory of a device",
                         banyan_world_rank(places->world), (void *)place->view.data);
    place->handle = handle;
    place->offset = (int64_t)(place->view.data - low);
    return BANYAN_OK;
}

/* Round up to the next aligned place in the landing. */
static uint64_t landing_bytes(uint64_t bytes)
{
    return (bytes + LANDING_ALIGNMENT - 1) / LANDING_ALIGNMENT * LANDING_ALIGNMENT;
}

/* Each operation needs its own registration: two of them may lie in different allocations, however
 * near. */
static banyan_status place_recv(direct_places *places, size_t op, staged_recvs *staged)
{
    direct_place *place = &places->recvs[op];
    const char *reason;
    if (place->view.elems == 0 || direct_place_find_symmetric(places->world, place))
        return BANYAN_OK;
    RETURN_IF_FAILED(register_place(places, place));
    RETURN_IF_FAILED(memory_check_attachable(places->world, &place->handle, &reason));
    if (!reason)
        return BANYAN_OK;
    if (staged->ops.count == 0)
        log_info("direct: rank %d stages what it receives at %p: %s",
                 banyan_world_rank(places->world), (void *)place->view.data, reason);
    staged->bytes += landing_bytes(place->view.elems * place->view.elem_bytes);
    return array_push(&staged->ops, op) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

static banyan_status place_recvs(direct_places *places, const banyan_copy_batch *batch, int rank,
                                 staged_recvs *staged)
{
    for (size_t i = 0; i < batch->recv_count; i++) {
        if (batch->recvs[i].peer == rank)
            continue;
        RETURN_IF_FAILED(copy_op_view(&batch->recvs[i], false, &places->recvs[i].view));
        RETURN_IF_FAILED(place_recv(places, i, staged));
    }
    return BANYAN_OK;
}

static strided_view place_device_dense_view(const strided_view *like, char *data)
{
    strided_view view = *like;
    int64_t stride = (int64_t)like->elem_bytes;
    view.data = data;
    for (int i = view.ndim - 1; i >= 0; i--) {
        view.stride[i] = stride;
        stride *= view.extent[i];
    }
    return view;
}

/* Give peers dense places in the landing; data is moved on from there. */
static banyan_status place_device_land(direct_places *places, const staged_recvs *staged)
{
    char *at = staged->ops.count > 0 ? banyan_memory_local(places->landing) : NULL;
    for (size_t i = 0; i < staged->ops.count; i++) {
        direct_place *place = &places->recvs[staged->ops.data[i]];
        uint64_t bytes = place->view.elems * place->view.elem_bytes;
        strided_view dense = place_device_dense_view(&place->view, at);
        RETURN_IF_FAILED(direct_moves_add_whole(&places->landed, &place->view, &dense));
        RETURN_IF_FAILED(banyan_memory_find(places->world, at, bytes, &place->handle));
        place->view = dense;
        place->offset = 0;
        at += landing_bytes(bytes);
    }
    return BANYAN_OK;
}

/* Collective, also for ranks that have failed: their landing is empty. */
static banyan_status make_landing(direct_places *places, DLDevice device,
                                  const staged_recvs *staged, banyan_status mine)
{
    uint64_t bytes = mine == BANYAN_OK ? staged->bytes : 0, most;
    RETURN_IF_FAILED(control_max(places->world, bytes, &most));
    if (most == 0)
        return mine;
    banyan_status status = banyan_memory_alloc_on(places->world, device, bytes, &places->landing);
    return mine == BANYAN_OK ? status : mine;
}

banyan_status direct_places_find_on_device(banyan_world *world, DLDevice device,
                                           const banyan_copy_batch *batch, direct_places *places)
{
    direct_places found = {.world = world};
    staged_recvs staged = {0};
    int rank = banyan_world_rank(world);
    banyan_status status = direct_places_make(world, batch, &found);
    for (size_t i = 0; i < batch->send_count && status == BANYAN_OK; i++)
        if (batch->sends[i].peer != rank)
            status = copy_op_view(&batch->sends[i], true, &found.sends[i].view);
    if (status == BANYAN_OK)
        status = place_recvs(&found, batch, rank, &staged);
    status = make_landing(&found, device, &staged, status);
    if (status == BANYAN_OK)
        status = place_device_land(&found, &staged);
    array_free(&staged.ops);
    if (status == BANYAN_OK)
        *places = found;
    else
        direct_places_free(&found);
    return status;
}
