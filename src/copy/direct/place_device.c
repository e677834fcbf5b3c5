/* Places on a device, where peers write. */
#include <inttypes.h>

#include "copy/direct/place.h"
#include "copy/match/local.h"
#include "core/log.h"
#include "memory/symmetric/attach.h"
#include "world/control.h"

/* A place in the landing begins at a line of the device's memory. */
#define LANDING_ALIGNMENT ((uint64_t)256)

/* Receives of one batch that peers cannot map. */
typedef struct staged_recvs {
    ARRAY(size_t) ops; /* receives */
    uint64_t bytes;    /* in the landing */
} staged_recvs;

static banyan_status view_sends(direct_places *places, const banyan_copy_batch *batch, int rank)
{
    for (size_t i = 0; i < batch->send_count; i++)
        if (batch->sends[i].peer != rank)
            RETURN_IF_FAILED(copy_op_view(&batch->sends[i], true, &places->sends[i].view));
    return BANYAN_OK;
}

/* ---- destinations ---- */

static banyan_status register_place(direct_places *places, direct_place *place)
{
    char *low;
    size_t bytes;
    strided_view_span(&place->view, &low, &bytes);
    banyan_memory_handle handle;
    if (!array_reserve(&places->windows, 1))
        return BANYAN_ERR_NO_MEMORY;
    RETURN_IF_FAILED(banyan_memory_register(places->world, low, bytes, &handle));
    places->windows.data[places->windows.count++] = handle;
    if (handle.kind != BANYAN_MEMORY_DEVICE)
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "direct: rank %d receives at %p, which is no memory of a device",
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

/* ---- the landing ---- */

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
    if (status == BANYAN_OK)
        status = view_sends(&found, batch, rank);
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
