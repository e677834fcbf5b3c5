/* Symmetric buffers. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "memory/device.h"
#include "memory/space.h"
#include "memory/symmetric/symmetric.h"
#include "world/control.h"

/* A rank's description of its part, for its peers. */
struct part_record {
    uint64_t bytes, mapped_bytes, address;
    int32_t device_type, device;
    unsigned char uuid[DEVICE_UUID_BYTES];
    uint32_t has_name;
    unsigned char name[DEVICE_NAME_BYTES]; /* as device_handles has it */
};

/* State of a collective allocation. */
struct allocation {
    banyan_memory *memory;
    struct part_record *records; /* of all ranks */
    unsigned char uuid[DEVICE_UUID_BYTES];
    int *fds; /* of this node's ranks; -1: none */
    device_handles own;
};

static void part_release(const banyan_memory *memory, memory_part *part)
{
    if (!memory->ops)
        pages_release(&part->mapped);
    else if (part->mapped.address)
        memory->ops->release(&part->mapped);
}

void memory_release(banyan_memory *memory)
{
    if (!memory)
        return;
    memory_multicasts_free(memory);
    for (int i = 0; memory->parts && !memory->attached && i < memory->part_count; i++)
        part_release(memory, &memory->parts[i]);
    memory_attachments_free(memory->attached);
    if (memory->adopted.kind != 0)
        banyan_memory_unregister(memory->space->world, &memory->adopted);
    free(memory->parts);
    free(memory);
}

static banyan_status symmetric_open_device(struct allocation *work)
{
    banyan_memory *memory = work->memory;
    if (device_is_host(memory->device)) {
        memory->device = BANYAN_HOST;
        return BANYAN_OK;
    }
    RETURN_IF_FAILED(memory_device_find(memory->device.device_type, &memory->ops));
    RETURN_IF_FAILED(memory->ops->open(memory->device.device_id));
    return memory->ops->identify(memory->device.device_id, work->uuid);
}

banyan_status memory_explain_device(const banyan_memory *memory, size_t bytes, banyan_status status)
{
    char room[80] = "";
    size_t free_bytes, all_bytes;
    error_kept kept = error_keep(status);
    if (status == BANYAN_ERR_NO_MEMORY &&
        memory->ops->room(memory->device.device_id, &free_bytes, &all_bytes) == BANYAN_OK)
        snprintf(room, sizeof room, "; %zu of %zu bytes are free", free_bytes, all_bytes);
    return error_set(status, "rank %d could not allocate %zu bytes: %s%s", memory->space->rank,
                     bytes, kept.message, room);
}

static banyan_status create_own(struct allocation *work, size_t bytes, bool sparse)
{
    banyan_memory *memory = work->memory;
    pages *own = &memory->parts[memory->space->local_rank].mapped;
    if (!memory->ops)
        return pages_create(bytes, sparse, &work->own.fd, own);
    banyan_status status = memory->ops->create(memory->device.device_id, bytes, &work->own, own);
    return status == BANYAN_OK ? BANYAN_OK : memory_explain_device(memory, bytes, status);
}

/* Do the local part of an allocation. */
static banyan_status allocation_begin(struct allocation *work, memory_space *space, DLDevice device,
                                      size_t bytes, bool sparse)
{
    size_t count = (size_t)space->local_size;
    size_t world_size = (size_t)banyan_world_size(space->world);
    work->memory = calloc(1, sizeof *work->memory);
    if (!work->memory)
        return error_no_memory(sizeof *work->memory, "a symmetric buffer");
    work->memory->space = space;
    work->memory->device = device;
    work->memory->part_count = space->local_size;
    work->memory->own_part = space->local_rank;
    work->memory->parts = calloc(count, sizeof *work->memory->parts);
    if (!work->memory->parts)
        return error_no_memory(count * sizeof(memory_part), "a symmetric buffer's parts");
    work->fds = malloc(count * sizeof *work->fds);
    if (!work->fds)
        return error_no_memory(count * sizeof *work->fds, "a symmetric buffer's descriptors");
    for (size_t i = 0; i < count; i++)
        work->fds[i] = -1;
    work->records = calloc(world_size, sizeof *work->records);
    if (!work->records)
        return error_no_memory(world_size * sizeof *work->records, "a symmetric buffer's records");
    if (!memory_reserve_entry(space))
        return BANYAN_ERR_NO_MEMORY;
    RETURN_IF_FAILED(symmetric_open_device(work));
    memory_part *own = &work->memory->parts[space->local_rank];
    own->bytes = bytes;
    if (bytes == 0)
        return BANYAN_OK;
    RETURN_IF_FAILED(create_own(work, bytes, sparse));
    own->owner_address = (uint64_t)(uintptr_t)own->mapped.address;
    return BANYAN_OK;
}

/* All ranks have identical records, so all fail in the same way. */
static banyan_status check_device_types(const struct allocation *work)
{
    const struct part_record *first = &work->records[0];
    for (int rank = 1; rank < banyan_world_size(work->memory->space->world); rank++) {
        const struct part_record *record = &work->records[rank];
        if (record->device_type != first->device_type)
            return error_set(BANYAN_ERR_MISMATCH,
                             "a symmetric buffer lies on the host or on devices of one kind, not "
                             "on a device of DLPack's type %d at rank 0 and %d at rank %d",
                             first->device_type, record->device_type, rank);
    }
    return BANYAN_OK;
}

/* Every rank that is a thread of this process maps the memory once more, for its own device. */
static banyan_status map_on_device(const struct allocation *work, int local)
{
    const banyan_memory *memory = work->memory;
    int id = memory->device.device_id, rank = memory->space->local_ranks[local];
    const struct part_record *record = &work->records[rank];
    device_handles handles = {.fd = work->fds[local], .has_name = record->has_name};
    memcpy(handles.name, record->name, sizeof handles.name);
    banyan_status status = memory->ops->reach(id, record->uuid);
    if (status == BANYAN_OK)
        status = memory->ops->map(id, &handles, record->mapped_bytes, &memory->parts[local].mapped);
    if (status != BANYAN_OK)
        return error_set(status,
                         "rank %d cannot map on device %d what rank %d has on its device %d: %s",
                         memory->space->rank, id, rank, record->device, banyan_last_error());
    return BANYAN_OK;
}

/* Ranks that are threads of this process have already mapped their part on the host. */
static banyan_status map_peer(struct allocation *work, int local)
{
    memory_space *space = work->memory->space;
    memory_part *part = &work->memory->parts[local];
    int rank = space->local_ranks[local];
    const struct part_record *record = &work->records[rank];
    part->bytes = record->bytes;
    part->owner_address = record->address;
    if (record->bytes == 0)
        return BANYAN_OK;
    if (!work->memory->ops && control_pid(space->world, rank) == getpid())
        return pages_share((void *)(uintptr_t)record->address, record->mapped_bytes, &part->mapped);
    if (work->fds[local] < 0 && !record->has_name)
        return error_set(BANYAN_ERR_MISMATCH,
                         "rank %d: rank %d gave no descriptor for its part of %" PRIu64 " bytes",
                         space->rank, rank, record->bytes);
    if (work->memory->ops)
        return map_on_device(work, local);
    return pages_map(work->fds[local], record->mapped_bytes, &part->mapped);
}

static banyan_status map_peers(struct allocation *work)
{
    for (int i = 0; i < work->memory->space->local_size; i++) {
        if (i != work->memory->space->local_rank)
            RETURN_IF_FAILED(map_peer(work, i));
    }
    return BANYAN_OK;
}

/* Do the collective part of an allocation, after each rank made its own part. */
static banyan_status allocation_exchange(struct allocation *work)
{
    memory_space *space = work->memory->space;
    const memory_part *own = &work->memory->parts[space->local_rank];
    struct part_record mine = {
        .bytes = own->bytes,
        .mapped_bytes = own->mapped.mapped_bytes,
        .address = own->owner_address,
        .device_type = (int32_t)work->memory->device.device_type,
        .device = work->memory->device.device_id,
    };
    memcpy(mine.uuid, work->uuid, sizeof mine.uuid);
    mine.has_name = work->own.has_name;
    memcpy(mine.name, work->own.name, sizeof mine.name);
    RETURN_IF_FAILED(banyan_world_allgather(space->world, &mine, sizeof mine, work->records));
    RETURN_IF_FAILED(check_device_types(work));
    banyan_status status = control_share_fd(space->world, work->own.fd, work->fds);
    if (status == BANYAN_OK)
        status = map_peers(work);
    return control_agree(space->world, status);
}

/* All ranks allocate in the same order, so buffer ids are equal on all ranks. */
static void allocation_commit(struct allocation *work, banyan_status *status)
{
    memory_space *space = work->memory->space;
    const memory_part *own = &work->memory->parts[space->local_rank];
    work->memory->id = space->next_buffer_id;
    uintptr_t start = (uintptr_t)own->mapped.address;
    if (own->bytes > 0 &&
        !spans_add(&space->buffer_spans, start, start + own->bytes, work->memory->id))
        *status = BANYAN_ERR_NO_MEMORY;
}

static void allocation_end(struct allocation *work)
{
    for (int i = 0; work->fds && i < work->memory->space->local_size; i++) {
        if (work->fds[i] >= 0)
            close(work->fds[i]);
    }
    device_handles_close(&work->own);
    free(work->fds);
    free(work->records);
}

static banyan_status symmetric_allocate(banyan_world *world, DLDevice device, size_t bytes,
                                        bool sparse, banyan_memory **memory)
{
    memory_space *space = NULL;
    struct allocation work = {.own = {.fd = -1}};
    banyan_status status = memory_space_of(world, &space);
    if (status == BANYAN_OK)
        status = allocation_begin(&work, space, device, bytes, sparse);
    if (status == BANYAN_OK)
        allocation_commit(&work, &status);
    bool committed = status == BANYAN_OK;
    status = control_agree(world, status);
    if (status == BANYAN_OK)
        status = allocation_exchange(&work);
    allocation_end(&work);
    if (status != BANYAN_OK) {
        if (committed && work.memory->parts[space->local_rank].bytes > 0)
            spans_remove(&space->buffer_spans,
                         (uintptr_t)work.memory->parts[space->local_rank].mapped.address,
                         work.memory->id);
        memory_release(work.memory);
        return status;
    }
    space->next_buffer_id++;
    memory_append(space, work.memory);
    *memory = work.memory;
    return BANYAN_OK;
}

banyan_status memory_alloc(banyan_world *world, size_t bytes, bool sparse, banyan_memory **memory)
{
    return symmetric_allocate(world, BANYAN_HOST, bytes, sparse, memory);
}

banyan_status banyan_memory_alloc(banyan_world *world, size_t bytes, banyan_memory **memory)
{
    CONTROL_ENTER(world);
    return symmetric_allocate(world, BANYAN_HOST, bytes, false, memory);
}

banyan_status banyan_memory_alloc_on(banyan_world *world, DLDevice device, size_t bytes,
                                     banyan_memory **memory)
{
    CONTROL_ENTER(world);
    return symmetric_allocate(world, device, bytes, false, memory);
}

DLDevice banyan_memory_device(const banyan_memory *memory)
{
    return memory->device;
}

/* Return the index of the first buffer whose id is at least `id`. */
static size_t buffer_position(const memory_space *space, uint64_t id)
{
    size_t low = 0, high = space->buffers.count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (space->buffers.data[middle]->id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool memory_reserve_entry(memory_space *space)
{
    pthread_rwlock_wrlock(&space->lock);
    bool is_reserved = array_reserve(&space->buffers, 1);
    pthread_rwlock_unlock(&space->lock);
    return is_reserved;
}

void memory_append(memory_space *space, banyan_memory *memory)
{
    pthread_rwlock_wrlock(&space->lock);
    space->buffers.data[space->buffers.count++] = memory;
    pthread_rwlock_unlock(&space->lock);
}

banyan_status memory_enter_space(memory_space *space, banyan_memory *memory)
{
    const memory_part *own = &memory->parts[memory->own_part];
    uintptr_t start = (uintptr_t)own->mapped.address;
    if (own->bytes > 0 && !spans_add(&space->buffer_spans, start, start + own->bytes, memory->id))
        return BANYAN_ERR_NO_MEMORY;
    memory_append(space, memory);
    memory->space = space;
    return BANYAN_OK;
}

void memory_leave_space(banyan_memory *memory)
{
    memory_space *space = memory->space;
    const memory_part *own = &memory->parts[memory->own_part];
    if (own->bytes > 0)
        spans_remove(&space->buffer_spans, (uintptr_t)own->mapped.address, memory->id);
    size_t at = buffer_position(space, memory->id);
    pthread_rwlock_wrlock(&space->lock);
    space->buffers.count--;
    memmove(&space->buffers.data[at], &space->buffers.data[at + 1],
            (space->buffers.count - at) * sizeof(banyan_memory *));
    pthread_rwlock_unlock(&space->lock);
    if (space->watcher)
        space->watcher(space->watcher_context, BANYAN_MEMORY_SYMMETRIC, memory->id);
}

static banyan_memory *buffer_find(const memory_space *space, uint64_t id)
{
    size_t at = buffer_position(space, id);
    return at < space->buffers.count && space->buffers.data[at]->id == id ? space->buffers.data[at]
                                                                          : NULL;
}

banyan_status memory_with(memory_space *space, uint32_t kind, uint64_t id, memory_use use,
                          void *argument)
{
    banyan_status status = BANYAN_ERR_NOT_FOUND;
    pthread_rwlock_rdlock(&space->lock);
    const banyan_memory *memory = kind == BANYAN_MEMORY_SYMMETRIC ? buffer_find(space, id) : NULL;
    const registration *registered =
        kind == BANYAN_MEMORY_SYMMETRIC ? NULL : registration_find(space, kind, id);
    if (memory && !memory->is_suspended)
        status = use(argument, banyan_memory_local(memory), banyan_memory_bytes(memory));
    else if (registered)
        status = use(argument, (void *)registered->address, registered->bytes);
    else
        error_set(BANYAN_ERR_NOT_FOUND, "rank %d has no memory %#" PRIx64 " of kind %" PRIu32,
                  space->rank, id, kind);
    pthread_rwlock_unlock(&space->lock);
    return status;
}

void memory_watch(memory_space *space, memory_watcher watcher, void *context)
{
    space->watcher = watcher;
    space->watcher_context = context;
}

void banyan_memory_free(banyan_memory *memory)
{
    if (!memory)
        return;
    if (memory->space)
        memory_leave_space(memory);
    memory_release(memory);
}

void *banyan_memory_local(const banyan_memory *memory)
{
    return memory->parts[memory->own_part].mapped.address;
}

size_t banyan_memory_bytes(const banyan_memory *memory)
{
    return memory->parts[memory->own_part].bytes;
}

/* Find the index of `rank` among this node's ranks; an error for other ranks. */
static banyan_status find_local(const memory_space *space, int rank, int *local)
{
    int world_size = banyan_world_size(space->world);
    if (rank < 0 || rank >= world_size)
        return error_set(BANYAN_ERR_INVALID, "there is no rank %d in a world of %d", rank,
                         world_size);
    int found = memory_space_local(space, rank);
    if (found < 0)
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "rank %d cannot map memory of rank %d, which is on another node",
                         space->rank, rank);
    *local = found;
    return BANYAN_OK;
}

banyan_status banyan_memory_peer(const banyan_memory *memory, int rank, void **address,
                                 size_t *bytes)
{
    int local;
    RETURN_IF_FAILED(find_local(memory->space, rank, &local));
    *address = memory->parts[local].mapped.address;
    *bytes = memory->parts[local].bytes;
    return BANYAN_OK;
}

banyan_status memory_resolve(memory_space *space, const banyan_memory_handle *handle,
                             char **address)
{
    int local;
    RETURN_IF_FAILED(find_local(space, handle->rank, &local));
    if (handle->kind != BANYAN_MEMORY_SYMMETRIC)
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "registered memory of rank %d has no address at rank %d", handle->rank,
                         space->rank);
    const banyan_memory *found = buffer_find(space, handle->id);
    if (!found)
        return error_set(BANYAN_ERR_NOT_FOUND,
                         "rank %d has no symmetric buffer %" PRIu64 " (freed, or of another world)",
                         space->rank, handle->id);
    const memory_part *part = &found->parts[local];
    uint64_t address_there = handle->address != 0 ? handle->address : part->owner_address;
    uint64_t offset = address_there - part->owner_address;
    if (address_there < part->owner_address || offset > part->bytes ||
        handle->bytes > part->bytes - offset)
        return error_set(BANYAN_ERR_INVALID,
                         "%" PRIu64 " bytes at %#" PRIx64 " extend beyond rank %d's %zu bytes of "
                         "symmetric buffer %" PRIu64,
                         handle->bytes, handle->address, handle->rank, part->bytes, handle->id);
    *address = part->mapped.address + offset;
    return BANYAN_OK;
}

banyan_status banyan_memory_map(banyan_world *world, const banyan_memory_handle *handle,
                                void **address)
{
    memory_space *space;
    char *found;
    RETURN_IF_FAILED(memory_space_of(world, &space));
    RETURN_IF_FAILED(memory_resolve(space, handle, &found));
    *address = found;
    return BANYAN_OK;
}
