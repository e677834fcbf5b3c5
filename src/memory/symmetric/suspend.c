
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "memory/device.h"
#include "memory/symmetric/symmetric.h"
#include "world/control.h"

/* False for memory that its owner allocated: Banyan cannot release it. */
static bool can_be_suspended(const banyan_memory *memory)
{
    return memory->ops && memory->adopted.kind == 0 && !memory->attached;
}

static void suspend(banyan_memory *memory)
{
    memory_multicasts_suspend(memory);
    for (int i = 0; i < memory->part_count; i++) {
        if (memory->parts[i].mapped.address)
            memory->ops->suspend(&memory->parts[i].mapped);
    }
    memory->is_suspended = true;
}

void memory_suspend_all(banyan_world *world)
{
    const memory_space *space = memory_space_find(world);
    for (size_t i = 0; space && i < space->buffers.count; i++) {
        banyan_memory *memory = space->buffers.data[i];
        if (can_be_suspended(memory) && !memory->is_suspended)
            suspend(memory);
    }
}

/* A rank's description of its part, for its peers. */
struct suspended_record {
    uint64_t bytes, mapped_bytes, address;
    uint32_t has_name, unused;
    unsigned char name[DEVICE_NAME_BYTES]; /* as device_handles has it */
};

struct resumption {
    memory_space *space;
    banyan_memory **memories;
    device_handles *own;
    size_t count;
    struct suspended_record *records; /* of all ranks */
    int *fds;                         /* of this node's */
};

static banyan_status find_suspended(struct resumption *work, banyan_world *world)
{
    work->space = memory_space_find(world);
    if (!work->space)
        return BANYAN_OK;
    size_t most = work->space->buffers.count + 1;
    work->memories = calloc(most, sizeof(banyan_memory *));
    work->own = calloc(most, sizeof *work->own);
    work->records = calloc((size_t)banyan_world_size(world), sizeof *work->records);
    work->fds = calloc((size_t)work->space->local_size, sizeof *work->fds);
    if (!work->memories || !work->own || !work->records || !work->fds)
        return error_no_memory(most * sizeof(banyan_memory *), "buffers to resume");
    for (size_t i = 0; i + 1 < most; i++) {
        banyan_memory *memory = work->space->buffers.data[i];
        if (!memory->is_suspended)
            continue;
        work->own[work->count].fd = -1;
        work->memories[work->count++] = memory;
    }
    return BANYAN_OK;
}

static banyan_status recreate_own(struct resumption *work)
{
    for (size_t i = 0; i < work->count; i++) {
        const banyan_memory *memory = work->memories[i];
        const memory_part *own = &memory->parts[memory->own_part];
        if (own->bytes == 0)
            continue;
        banyan_status status =
            memory->ops->recreate(memory->device.device_id, &own->mapped, &work->own[i]);
        if (status != BANYAN_OK)
            return memory_explain_device(memory, own->bytes, status);
    }
    return BANYAN_OK;
}

static banyan_status remap_peer(struct resumption *work, const banyan_memory *memory, int local)
{
    memory_part *part = &memory->parts[local];
    int peer = work->space->local_ranks[local];
    const struct suspended_record *record = &work->records[peer];
    if (record->bytes != part->bytes || record->mapped_bytes != part->mapped.mapped_bytes)
        return error_set(BANYAN_ERR_MISMATCH,
                         "rank %d reserved %zu bytes for rank %d's part, which resumes %" PRIu64,
                         work->space->rank, part->bytes, peer, record->bytes);
    part->owner_address = record->address;
    if (part->bytes == 0)
        return BANYAN_OK;
    device_handles handles = {.fd = work->fds[local], .has_name = record->has_name};
    memcpy(handles.name, record->name, sizeof handles.name);
    if (handles.fd < 0 && !handles.has_name)
        return error_set(BANYAN_ERR_MISMATCH,
                         "rank %d: rank %d gave no descriptor for its part of %" PRIu64 " bytes",
                         work->space->rank, peer, record->bytes);
    banyan_status status = memory->ops->remap(memory->device.device_id, &handles, &part->mapped);
    if (status != BANYAN_OK)
        return error_set(status, "rank %d cannot map %zu bytes of rank %d's again: %s",
                         work->space->rank, part->bytes, peer, banyan_last_error());
    return BANYAN_OK;
}

static banyan_status remap_peers(struct resumption *work, const banyan_memory *memory)
{
    for (int i = 0; i < memory->part_count; i++) {
        if (i != memory->own_part)
            RETURN_IF_FAILED(remap_peer(work, memory, i));
    }
    return BANYAN_OK;
}

static banyan_status symmetric_suspend_exchange(struct resumption *work, size_t i)
{
    banyan_world *world = work->space->world;
    const banyan_memory *memory = work->memories[i];
    const memory_part *own = &memory->parts[memory->own_part];
    struct suspended_record mine = {.bytes = own->bytes,
                                    .mapped_bytes = own->mapped.mapped_bytes,
                                    .address = own->owner_address,
                                    .has_name = work->own[i].has_name};
    memcpy(mine.name, work->own[i].name, sizeof mine.name);
    RETURN_IF_FAILED(banyan_world_allgather(world, &mine, sizeof mine, work->records));
    banyan_status status = control_share_fd(world, work->own[i].fd, work->fds);
    if (status == BANYAN_OK)
        status = remap_peers(work, memory);
    for (int local = 0; local < work->space->local_size; local++) {
        if (work->fds[local] >= 0)
            close(work->fds[local]);
    }
    return control_agree(world, status);
}

static void resumption_end(struct resumption *work)
{
    for (size_t i = 0; i < work->count; i++)
        device_handles_close(&work->own[i]);
    free(work->memories);
    free(work->own);
    free(work->records);
    free(work->fds);
}

banyan_status memory_resume_all(banyan_world *world)
{
    struct resumption work = {0};
    banyan_status status = find_suspended(&work, world);
    if (status == BANYAN_OK)
        status = recreate_own(&work);
    status = control_agree(world, status);
    for (size_t i = 0; i < work.count && status == BANYAN_OK; i++)
        status = symmetric_suspend_exchange(&work, i);
    for (size_t i = 0; i < work.count && status == BANYAN_OK; i++)
        status = memory_multicasts_resume(work.memories[i]);
    for (size_t i = 0; i < work.count && status == BANYAN_OK; i++)
        work.memories[i]->is_suspended = false;
    if (status != BANYAN_OK) { /* a later attempt needs the addresses that peers have reserved */
        for (size_t i = 0; i < work.count; i++)
            suspend(work.memories[i]);
        (void)banyan_world_barrier(world);
    }
    resumption_end(&work);
    return status;
}

void memory_leave(banyan_memory *memory)
{
    if (memory->space)
        memory_leave_space(memory);
    memory->space = NULL;
}

banyan_status memory_join(banyan_world *world, banyan_memory *memory)
{
    memory_space *space;
    RETURN_IF_FAILED(memory_space_of(world, &space));
    if (memory->space || !memory->is_suspended)
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d: a buffer joins a world while it is suspended and in no other",
                         space->rank);
    if (memory->part_count != space->local_size || memory->own_part != space->local_rank)
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d: a buffer of local rank %d of %d cannot join a world as local "
                         "rank %d of %d",
                         space->rank, memory->own_part, memory->part_count, space->local_rank,
                         space->local_size);
    if (!memory_reserve_entry(space))
        return BANYAN_ERR_NO_MEMORY;
    memory->id = space->next_buffer_id;
    RETURN_IF_FAILED(memory_enter_space(space, memory));
    space->next_buffer_id++;
    return BANYAN_OK;
}
