#include "memory/multicast.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/log.h"
#include "core/map.h"
#include "memory/device.h"
#include "world/control.h"

struct memory_multicast {
    struct memory_multicast *next;
    device_multicast made;
    int count;
    int ranks[];
};

/* What ranks tell each other of their groups. */
struct group_record {
    int32_t count, first; /* its lowest rank; -1: none */
    uint64_t hash;        /* of its ranks */
};

/* Collective work on the way to an address. */
struct multicast_work {
    banyan_memory *memory;
    struct memory_multicast *entry; /* NULL: this rank is in no group */
    struct group_record *records;   /* of all ranks */
    size_t bytes;
    int *fds; /* of this node's ranks; -1: none */
    int own_fd;
};

/* ---- is there multicast? ---- */

static bool is_wanted(void)
{
    const char *wanted = getenv("BANYAN_MULTICAST");
    return wanted && strcmp(wanted, "1") == 0;
}

static banyan_status check_own(DLDevice device, unsigned char *uuid)
{
    const memory_device_ops *ops;
    RETURN_IF_FAILED(memory_device_find(device.device_type, &ops));
    RETURN_IF_FAILED(ops->open(device.device_id));
    RETURN_IF_FAILED(ops->identify(device.device_id, uuid));
    return ops->multicast_check(device.device_id);
}

/* A multicast object has a device once. */
static banyan_status check_apart(banyan_world *world, const unsigned char *uuid)
{
    int ranks = banyan_world_size(world);
    unsigned char *all = calloc((size_t)ranks, DEVICE_UUID_BYTES);
    banyan_status status = control_agree(
        world, all ? BANYAN_OK : error_no_memory((size_t)ranks * DEVICE_UUID_BYTES, "devices"));
    if (status == BANYAN_OK)
        status = banyan_world_allgather(world, uuid, DEVICE_UUID_BYTES, all);
    for (int b = 0; b < ranks && status == BANYAN_OK; b++) {
        for (int a = 0; a < b && status == BANYAN_OK; a++) {
            if (memcmp(all + (size_t)a * DEVICE_UUID_BYTES, all + (size_t)b * DEVICE_UUID_BYTES,
                       DEVICE_UUID_BYTES) == 0)
                status = error_set(BANYAN_ERR_UNSUPPORTED, "ranks %d and %d share a device", a, b);
        }
    }
    free(all);
    return status;
}

banyan_status memory_multicast_agree(banyan_world *world, DLDevice device, bool *usable)
{
    unsigned char uuid[DEVICE_UUID_BYTES] = {0};
    uint64_t wanted;
    *usable = false;
    RETURN_IF_FAILED(control_max(world, is_wanted(), &wanted));
    if (!wanted)
        return BANYAN_OK;
    banyan_status status = control_agree(world, check_own(device, uuid));
    if (status == BANYAN_OK)
        status = check_apart(world, uuid);
    if (status == BANYAN_ERR_UNSUPPORTED) {
        log_info("rank %d: no multicast: %s", banyan_world_rank(world), banyan_last_error());
        return BANYAN_OK;
    }
    *usable = status == BANYAN_OK;
    return status;
}

/* ---- groups ---- */

static banyan_status check_group(const banyan_memory *memory, const int *ranks, int count)
{
    const memory_space *space = memory->space;
    bool own = count == 0;
    if (!memory->ops || memory->attached)
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "rank %d: only symmetric buffers that Banyan made on devices have "
                         "multicast addresses",
                         space->rank);
    for (int i = 0; i < count; i++) {
        if (memory_space_local(space, ranks[i]) < 0 || (i > 0 && ranks[i] <= ranks[i - 1]))
            return error_set(BANYAN_ERR_INVALID,
                             "rank %d: place %d of a group for multicast is rank %d: they are "
                             "ascending, and of one node",
                             space->rank, i, ranks[i]);
        own |= ranks[i] == space->rank;
    }
    return own ? BANYAN_OK
               : error_set(BANYAN_ERR_INVALID,
                           "rank %d is not in the group that it names for multicast", space->rank);
}

static struct memory_multicast *find_entry(const banyan_memory *memory, const int *ranks, int count)
{
    struct memory_multicast *at = memory->multicasts;
    while (at && (at->count != count || memcmp(at->ranks, ranks, (size_t)count * sizeof *ranks)))
        at = at->next;
    return at;
}

/* The least that all of a group have mapped. */
static size_t bytes_of(const banyan_memory *memory, const int *ranks, int count)
{
    size_t least = SIZE_MAX;
    for (int i = 0; i < count; i++) {
        size_t bytes =
            memory->parts[memory_space_local(memory->space, ranks[i])].mapped.mapped_bytes;
        least = bytes < least ? bytes : least;
    }
    return least;
}

static banyan_status check_same_group(const struct multicast_work *work)
{
    const struct memory_multicast *entry = work->entry;
    int rank = work->memory->space->rank;
    for (int i = 0; entry && i < entry->count; i++) {
        const struct group_record *mine = &work->records[rank],
                                  *peer = &work->records[entry->ranks[i]];
        if (memcmp(mine, peer, sizeof *mine) != 0)
            return error_set(BANYAN_ERR_MISMATCH,
                             "ranks %d and %d name different groups for multicast", rank,
                             entry->ranks[i]);
    }
    return BANYAN_OK;
}

/* ---- making ---- */

static banyan_status take_room(struct multicast_work *work, const int *ranks, int count)
{
    size_t world_size = (size_t)banyan_world_size(work->memory->space->world);
    size_t local = (size_t)work->memory->space->local_size;
    RETURN_IF_FAILED(check_group(work->memory, ranks, count));
    work->records = calloc(world_size, sizeof *work->records);
    work->fds = malloc(local * sizeof *work->fds);
    if (!work->records || !work->fds)
        return error_no_memory(world_size * sizeof *work->records, "groups for multicast");
    for (size_t i = 0; i < local; i++)
        work->fds[i] = -1;
    if (count == 0)
        return BANYAN_OK;
    size_t room = sizeof *work->entry + (size_t)count * sizeof *ranks;
    work->entry = calloc(1, room);
    if (!work->entry)
        return error_no_memory(room, "a group for multicast");
    work->entry->count = count;
    memcpy(work->entry->ranks, ranks, (size_t)count * sizeof *ranks);
    work->bytes = bytes_of(work->memory, ranks, count);
    if (work->bytes == 0)
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "rank %d: a rank of its group has no part of the buffer that is to have "
                         "a multicast address",
                         work->memory->space->rank);
    return BANYAN_OK;
}

static bool is_first(const struct multicast_work *work)
{
    return work->entry && work->entry->ranks[0] == work->memory->space->rank;
}

static banyan_status create(struct multicast_work *work)
{
    const banyan_memory *memory = work->memory;
    if (!is_first(work))
        return BANYAN_OK;
    return memory->ops->multicast_create(memory->device.device_id, work->entry->count, work->bytes,
                                         &work->own_fd, &work->entry->made);
}

static banyan_status join(struct multicast_work *work)
{
    const banyan_memory *memory = work->memory;
    if (!work->entry)
        return BANYAN_OK;
    int fd = work->fds[memory_space_local(memory->space, work->entry->ranks[0])];
    if (fd < 0)
        return error_set(BANYAN_ERR_MISMATCH,
                         "rank %d: rank %d gave no descriptor of a multicast object",
                         memory->space->rank, work->entry->ranks[0]);
    return memory->ops->multicast_join(memory->device.device_id, fd, &work->entry->made);
}

static banyan_status bind(const struct multicast_work *work)
{
    const banyan_memory *memory = work->memory;
    if (!work->entry)
        return BANYAN_OK;
    return memory->ops->multicast_map(memory->device.device_id, work->entry->count,
                                      &memory->parts[memory->space->local_rank].mapped, work->bytes,
                                      &work->entry->made);
}

static banyan_status make_together(struct multicast_work *work)
{
    const memory_space *space = work->memory->space;
    const struct memory_multicast *entry = work->entry;
    struct group_record mine = {.first = -1};
    if (entry)
        mine = (struct group_record){
            entry->count, entry->ranks[0],
            hash_bytes(entry->ranks, (size_t)entry->count * sizeof *entry->ranks, 0)};
    RETURN_IF_FAILED(banyan_world_allgather(space->world, &mine, sizeof mine, work->records));
    RETURN_IF_FAILED(control_agree(space->world, check_same_group(work)));
    RETURN_IF_FAILED(control_agree(space->world, create(work)));
    banyan_status status = control_share_fd(space->world, work->own_fd, work->fds);
    if (status != BANYAN_OK) {
        for (int i = 0; i < space->local_size; i++)
            work->fds[i] = -1;
        return status;
    }
    RETURN_IF_FAILED(control_agree(space->world, join(work)));
    return control_agree(space->world, bind(work));
}

static void end_work(struct multicast_work *work)
{
    for (int i = 0; work->fds && i < work->memory->space->local_size; i++) {
        if (work->fds[i] >= 0)
            close(work->fds[i]);
    }
    if (work->own_fd >= 0)
        close(work->own_fd);
    free(work->fds);
    free(work->records);
}

static banyan_status make_entry(banyan_memory *memory, const int *ranks, int count)
{
    struct multicast_work work = {.memory = memory, .own_fd = -1};
    banyan_world *world = memory->space->world;
    banyan_status status = control_agree(world, take_room(&work, ranks, count));
    if (status == BANYAN_OK)
        status = make_together(&work);
    end_work(&work);
    if (status != BANYAN_OK) {
        if (work.entry)
            memory->ops->multicast_leave(&work.entry->made);
        free(work.entry);
        return status;
    }
    if (work.entry) {
        work.entry->next = memory->multicasts;
        memory->multicasts = work.entry;
    }
    return BANYAN_OK;
}

banyan_status memory_multicast_make(banyan_memory *memory, const int *ranks, int count,
                                    char **address, size_t *bytes)
{
    uint64_t missing;
    RETURN_IF_FAILED(control_max(memory->space->world,
                                 count > 0 && !find_entry(memory, ranks, count), &missing));
    if (missing)
        RETURN_IF_FAILED(make_entry(memory, ranks, count));
    const struct memory_multicast *entry = count > 0 ? find_entry(memory, ranks, count) : NULL;
    *address = entry ? entry->made.mapped.address : NULL;
    *bytes = entry ? entry->made.mapped.mapped_bytes : 0;
    return BANYAN_OK;
}

void memory_multicasts_free(banyan_memory *memory)
{
    for (struct memory_multicast *at = memory->multicasts, *next; at; at = next) {
        next = at->next;
        memory->ops->multicast_leave(&at->made);
        free(at);
    }
    memory->multicasts = NULL;
}
