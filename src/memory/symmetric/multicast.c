#include "memory/symmetric/symmetric.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/containers.h"
#include "core/error.h"
#include "core/log.h"
#include "memory/device.h"
#include "world/control.h"

/* All ranks have equally many entries, in one order. The entry of a group without this rank is
 * empty. */
struct memory_multicast {
    struct memory_multicast *next;
    device_multicast made;
    int count;
    int locals[]; /* the group's indices among the node's ranks, ascending */
};

/* A rank's description of its group, for its peers. */
struct group_record {
    int32_t count, first; /* its lowest rank; -1: none */
    uint64_t hash;        /* of its places */
};

/* State of a collective creation of an address. */
struct multicast_work {
    banyan_memory *memory;
    struct memory_multicast *entry;
    struct group_record *records; /* of all ranks */
    int *fds;                     /* of this node's ranks; -1: none */
    int own_fd;
};

static bool is_wanted(void)
{
    const char *wanted = getenv("BANYAN_MULTICAST");
    return wanted && strcmp(wanted, "1") == 0;
}

static banyan_status symmetric_multicast_check_own(DLDevice device, unsigned char *uuid)
{
    const memory_device_ops *ops;
    RETURN_IF_FAILED(memory_device_find(device.device_type, &ops));
    RETURN_IF_FAILED(ops->open(device.device_id));
    RETURN_IF_FAILED(ops->identify(device.device_id, uuid));
    return ops->multicast_check(device.device_id);
}

/* Refuse ranks that share a device: a multicast object can contain a device only once. */
static banyan_status check_apart(banyan_world *world, const unsigned char *uuid)
{
    int ranks = banyan_world_size(world);
    void *gathered;
    banyan_status status =
        control_gather(world, BANYAN_OK, uuid, DEVICE_UUID_BYTES, "devices", &gathered);
    const unsigned char *all = gathered;
    for (int b = 0; b < ranks && status == BANYAN_OK; b++) {
        for (int a = 0; a < b && status == BANYAN_OK; a++) {
            if (memcmp(all + (size_t)a * DEVICE_UUID_BYTES, all + (size_t)b * DEVICE_UUID_BYTES,
                       DEVICE_UUID_BYTES) == 0)
                status = error_set(BANYAN_ERR_UNSUPPORTED, "ranks %d and %d share a device", a, b);
        }
    }
    free(gathered);
    return status;
}

banyan_status memory_multicast_agree(banyan_world *world, DLDevice device, bool *usable,
                                     char *why_not, size_t why_not_bytes)
{
    unsigned char uuid[DEVICE_UUID_BYTES] = {0};
    uint64_t wanted;
    *usable = false;
    RETURN_IF_FAILED(control_max(world, is_wanted(), &wanted));
    if (!wanted) {
        snprintf(why_not, why_not_bytes, "BANYAN_MULTICAST is not 1");
        return BANYAN_OK;
    }
    banyan_status status = control_agree(world, symmetric_multicast_check_own(device, uuid));
    if (status == BANYAN_OK)
        status = check_apart(world, uuid);
    if (status == BANYAN_ERR_UNSUPPORTED) {
        snprintf(why_not, why_not_bytes, "%s", banyan_last_error());
        log_info("rank %d: no multicast: %s", banyan_world_rank(world), banyan_last_error());
        return BANYAN_OK;
    }
    *usable = status == BANYAN_OK;
    return status;
}

static banyan_status symmetric_multicast_check_group(const banyan_memory *memory, const int *ranks,
                                                     int count)
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

static bool symmetric_multicast_is_of(const memory_space *space,
                                      const struct memory_multicast *entry, const int *ranks,
                                      int count)
{
    bool same = entry->count == count;
    for (int i = 0; same && i < count; i++)
        same = entry->locals[i] == memory_space_local(space, ranks[i]);
    return same;
}

static struct memory_multicast *symmetric_multicast_find_entry(const banyan_memory *memory,
                                                               const int *ranks, int count)
{
    struct memory_multicast *at = memory->multicasts;
    while (at && !symmetric_multicast_is_of(memory->space, at, ranks, count))
        at = at->next;
    return at;
}

/* Make an entry; empty for a rank in no group. */
static banyan_status make_entry(const banyan_memory *memory, const int *ranks, int count,
                                struct memory_multicast **entry)
{
    size_t room = sizeof **entry + (size_t)count * sizeof *ranks;
    RETURN_IF_FAILED(symmetric_multicast_check_group(memory, ranks, count));
    *entry = calloc(1, room);
    if (!*entry)
        return error_no_memory(room, "a group for multicast");
    (*entry)->count = count;
    for (int i = 0; i < count; i++)
        (*entry)->locals[i] = memory_space_local(memory->space, ranks[i]);
    return BANYAN_OK;
}

/* Return the smallest mapped size in the group. */
static size_t symmetric_multicast_bytes_of(const struct multicast_work *work)
{
    size_t least = SIZE_MAX;
    for (int i = 0; i < work->entry->count; i++) {
        size_t bytes = work->memory->parts[work->entry->locals[i]].mapped.mapped_bytes;
        least = bytes < least ? bytes : least;
    }
    return least;
}

static banyan_status symmetric_multicast_take_room(struct multicast_work *work)
{
    const memory_space *space = work->memory->space;
    size_t world_size = (size_t)banyan_world_size(space->world);
    work->records = calloc(world_size, sizeof *work->records);
    work->fds = malloc((size_t)space->local_size * sizeof *work->fds);
    if (!work->records || !work->fds)
        return error_no_memory(world_size * sizeof *work->records, "groups for multicast");
    for (int i = 0; i < space->local_size; i++)
        work->fds[i] = -1;
    if (symmetric_multicast_bytes_of(work) == 0)
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "rank %d: a rank of its group has no part of the buffer that is to have "
                         "a multicast address",
                         space->rank);
    return BANYAN_OK;
}

static banyan_status check_same_group(const struct multicast_work *work)
{
    const memory_space *space = work->memory->space;
    for (int i = 0; i < work->entry->count; i++) {
        int peer = space->local_ranks[work->entry->locals[i]];
        if (memcmp(&work->records[space->rank], &work->records[peer], sizeof *work->records) != 0)
            return error_set(BANYAN_ERR_MISMATCH,
                             "ranks %d and %d name different groups for multicast", space->rank,
                             peer);
    }
    return BANYAN_OK;
}

static banyan_status exchange_groups(struct multicast_work *work)
{
    const memory_space *space = work->memory->space;
    const struct memory_multicast *entry = work->entry;
    struct group_record mine = {.first = -1};
    if (entry->count > 0)
        mine = (struct group_record){
            entry->count, space->local_ranks[entry->locals[0]],
            hash_bytes(entry->locals, (size_t)entry->count * sizeof *entry->locals, 0)};
    RETURN_IF_FAILED(banyan_world_allgather(space->world, &mine, sizeof mine, work->records));
    return control_agree(space->world, check_same_group(work));
}

static banyan_status symmetric_multicast_create(struct multicast_work *work)
{
    const banyan_memory *memory = work->memory;
    struct memory_multicast *entry = work->entry;
    if (entry->count == 0 || entry->locals[0] != memory->own_part)
        return BANYAN_OK;
    return memory->ops->multicast_create(memory->device.device_id, entry->count,
                                         symmetric_multicast_bytes_of(work), &work->own_fd,
                                         &entry->made);
}

static banyan_status symmetric_multicast_join(struct multicast_work *work)
{
    const banyan_memory *memory = work->memory;
    struct memory_multicast *entry = work->entry;
    if (entry->count == 0)
        return BANYAN_OK;
    int creator = entry->locals[0];
    int fd = creator == memory->own_part ? work->own_fd : work->fds[creator];
    if (fd < 0)
        return error_set(BANYAN_ERR_MISMATCH,
                         "rank %d: rank %d gave no descriptor of a multicast object",
                         memory->space->rank, memory->space->local_ranks[entry->locals[0]]);
    return memory->ops->multicast_join(memory->device.device_id, fd, &entry->made);
}

static banyan_status symmetric_multicast_bind(const struct multicast_work *work)
{
    const banyan_memory *memory = work->memory;
    struct memory_multicast *entry = work->entry;
    if (entry->count == 0)
        return BANYAN_OK;
    return memory->ops->multicast_map(memory->device.device_id, entry->count,
                                      &memory->parts[memory->own_part].mapped,
                                      symmetric_multicast_bytes_of(work), &entry->made);
}

static banyan_status symmetric_multicast_make_together(struct multicast_work *work)
{
    const memory_space *space = work->memory->space;
    RETURN_IF_FAILED(exchange_groups(work));
    RETURN_IF_FAILED(control_agree(space->world, symmetric_multicast_create(work)));
    banyan_status status = control_share_fd(space->world, work->own_fd, work->fds);
    if (status == BANYAN_OK)
        status = symmetric_multicast_join(work);
    RETURN_IF_FAILED(control_agree(space->world, status));
    return control_agree(space->world, symmetric_multicast_bind(work));
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

/* Create the object. A failed attempt stays with the entry, which cleans up. */
static banyan_status make_object(banyan_memory *memory, struct memory_multicast *entry)
{
    struct multicast_work work = {.memory = memory, .entry = entry, .own_fd = -1};
    banyan_status status =
        control_agree(memory->space->world, symmetric_multicast_take_room(&work));
    if (status == BANYAN_OK)
        status = symmetric_multicast_make_together(&work);
    end_work(&work);
    return status;
}

static banyan_status symmetric_multicast_add_entry(banyan_memory *memory, const int *ranks,
                                                   int count)
{
    struct memory_multicast *entry = NULL;
    banyan_status status =
        control_agree(memory->space->world, make_entry(memory, ranks, count, &entry));
    if (status == BANYAN_OK)
        status = make_object(memory, entry);
    if (status != BANYAN_OK) {
        if (entry)
            memory->ops->multicast_leave(&entry->made);
        free(entry);
        return status;
    }
    entry->next = memory->multicasts;
    memory->multicasts = entry;
    return BANYAN_OK;
}

banyan_status memory_multicast_make(banyan_memory *memory, const int *ranks, int count,
                                    char **address, size_t *bytes)
{
    uint64_t missing;
    RETURN_IF_FAILED(control_max(memory->space->world,
                                 count > 0 && !symmetric_multicast_find_entry(memory, ranks, count),
                                 &missing));
    if (missing)
        RETURN_IF_FAILED(symmetric_multicast_add_entry(memory, ranks, count));
    const struct memory_multicast *entry =
        count > 0 ? symmetric_multicast_find_entry(memory, ranks, count) : NULL;
    *address = entry ? entry->made.mapped.address : NULL;
    *bytes = entry ? entry->made.mapped.mapped_bytes : 0;
    return BANYAN_OK;
}

void memory_multicasts_suspend(banyan_memory *memory)
{
    for (struct memory_multicast *at = memory->multicasts; at; at = at->next)
        memory->ops->multicast_suspend(&at->made);
}

banyan_status memory_multicasts_resume(banyan_memory *memory)
{
    for (struct memory_multicast *at = memory->multicasts; at; at = at->next)
        RETURN_IF_FAILED(make_object(memory, at));
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
