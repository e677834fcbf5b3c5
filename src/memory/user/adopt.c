/* Symmetric buffers over memory that the caller allocated. */
#include "core/error.h"
#include "memory/device.h"
#include "memory/space.h"
#include "memory/symmetric/symmetric.h"
#include "world/control.h"

/* State of a collective adoption. */
struct adoption {
    memory_space *space;
    banyan_memory *memory;
    banyan_memory_handle *handles; /* of all ranks */
    memory_wanted *wanted;         /* one per local rank with memory */
};

static banyan_status adopt_check_own(const struct adoption *work, void *address, size_t bytes)
{
    DLDevice wanted = work->memory->device, found = wanted;
    if (bytes > 0)
        RETURN_IF_FAILED(work->memory->ops->locate(address, &found));
    if (found.device_type == wanted.device_type && found.device_id == wanted.device_id)
        return BANYAN_OK;
    return error_set(
        BANYAN_ERR_INVALID,
        "rank %d: the memory at %p lies on device %d (type %d), not on device %d (type "
        "%d)",
        work->space->rank, address, found.device_id, (int)found.device_type, wanted.device_id,
        (int)wanted.device_type);
}

static banyan_status register_own(struct adoption *work, void *address, size_t bytes)
{
    banyan_memory *memory = work->memory;
    memory_part *own = &memory->parts[work->space->local_rank];
    const char *reason;
    if (bytes == 0)
        return BANYAN_OK;
    RETURN_IF_FAILED(banyan_memory_register(work->space->world, address, bytes, &memory->adopted));
    RETURN_IF_FAILED(memory_check_attachable(work->space->world, &memory->adopted, &reason));
    if (reason)
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "rank %d: peers cannot map the memory at %p of device %d: %s",
                         work->space->rank, address, memory->device.device_id, reason);
    uintptr_t start = (uintptr_t)address;
    if (!spans_add(&work->space->buffer_spans, start, start + bytes, memory->id))
        return BANYAN_ERR_NO_MEMORY;
    *own = (memory_part){.mapped = {address, bytes}, .bytes = bytes, .owner_address = start};
    return BANYAN_OK;
}

static banyan_status adopt_make_room(struct adoption *work)
{
    memory_space *space = work->space;
    size_t peers = (size_t)space->local_size, ranks = (size_t)banyan_world_size(space->world);
    work->memory = calloc(1, sizeof *work->memory);
    work->handles = calloc(ranks, sizeof *work->handles);
    work->wanted = calloc(peers, sizeof *work->wanted);
    if (work->memory) {
        work->memory->space = space;
        work->memory->id = space->next_buffer_id;
        work->memory->part_count = space->local_size;
        work->memory->own_part = space->local_rank;
        work->memory->parts = calloc(peers, sizeof *work->memory->parts);
    }
    if (!work->memory || !work->memory->parts || !work->handles || !work->wanted)
        return error_no_memory(ranks * sizeof *work->handles, "a symmetric buffer");
    return memory_reserve_entry(space) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

/* Do the local part of an adoption. */
static banyan_status adoption_begin(struct adoption *work, DLDevice device, void *address,
                                    size_t bytes)
{
    RETURN_IF_FAILED(adopt_make_room(work));
    if (device_is_host(device))
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "rank %d: peers cannot map host memory that you allocated: use "
                         "banyan_memory_alloc",
                         work->space->rank);
    banyan_memory *memory = work->memory;
    memory->device = device;
    RETURN_IF_FAILED(memory_device_find(device.device_type, &memory->ops));
    RETURN_IF_FAILED(memory->ops->open(device.device_id));
    RETURN_IF_FAILED(adopt_check_own(work, address, bytes));
    return register_own(work, address, bytes);
}

static banyan_status set_parts(struct adoption *work)
{
    const memory_wanted *next = work->wanted;
    for (int local = 0; local < work->space->local_size; local++) {
        const banyan_memory_handle *handle = &work->handles[work->space->local_ranks[local]];
        if (handle->kind == 0)
            continue;
        const memory_wanted *wanted = next++;
        if (!wanted->address)
            return error_set(BANYAN_ERR_UNSUPPORTED, "rank %d cannot map %s", work->space->rank,
                             memory_attachments_reason(work->memory->attached));
        work->memory->parts[local] = (memory_part){
            .mapped = {wanted->address, handle->bytes},
            .bytes = handle->bytes,
            .owner_address = handle->address,
        };
    }
    return BANYAN_OK;
}

static banyan_status adoption_exchange(struct adoption *work)
{
    memory_space *space = work->space;
    size_t count = 0;
    RETURN_IF_FAILED(banyan_world_allgather(space->world, &work->memory->adopted,
                                            sizeof work->memory->adopted, work->handles));
    for (int local = 0; local < space->local_size; local++) {
        const banyan_memory_handle *handle = &work->handles[space->local_ranks[local]];
        if (handle->kind != 0)
            work->wanted[count++] = (memory_wanted){.handle = *handle};
    }
    RETURN_IF_FAILED(memory_attach(space->world, work->memory->device.device_id, work->wanted,
                                   count, &work->memory->attached));
    return control_agree(space->world, set_parts(work));
}

static void adoption_undo(struct adoption *work)
{
    const memory_part *own = NULL;
    if (work->memory && work->memory->parts)
        own = &work->memory->parts[work->space->local_rank];
    if (own && own->bytes > 0)
        spans_remove(&work->space->buffer_spans, (uintptr_t)own->mapped.address, work->memory->id);
    if (work->memory && !work->memory->attached && own)
        work->memory->parts[work->space->local_rank] = (memory_part){0};
    memory_release(work->memory);
}

banyan_status banyan_memory_adopt(banyan_world *world, DLDevice device, void *address, size_t bytes,
                                  banyan_memory **memory)
{
    CONTROL_ENTER(world);
    struct adoption work = {.space = NULL};
    banyan_status status = memory_space_of(world, &work.space);
    if (status == BANYAN_OK)
        status = adoption_begin(&work, device, address, bytes);
    status = control_agree(world, status);
    if (status == BANYAN_OK)
        status = adoption_exchange(&work);
    free(work.handles);
    free(work.wanted);
    if (status != BANYAN_OK) {
        adoption_undo(&work);
        return status;
    }
    work.space->next_buffer_id++;
    memory_append(work.space, work.memory);
    *memory = work.memory;
    return BANYAN_OK;
}
