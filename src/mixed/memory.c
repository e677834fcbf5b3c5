/* The memory of a context: symmetric memory of its engine, with multicast addresses on GPUs, and
 * staging on its device for data between two collectives. */
#include "mixed/memory.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/error.h"
#include "core/log.h"
#include "memory/symmetric/symmetric.h"
#include "world/control.h"

static banyan_status multicast_refuse(banyan_mixed *mixed, const char *why_not)
{
    mixed_multicast *multicast = &mixed->setup.multicast;
    snprintf(multicast->why_not, sizeof multicast->why_not, "%s", why_not);
    return BANYAN_OK;
}

/* Multicast is available only if all nodes have it. */
static banyan_status agree_of_nodes(banyan_mixed *mixed)
{
    mixed_multicast *multicast = &mixed->setup.multicast;
    uint64_t lacking; /* number of a node without it, plus 1 */
    RETURN_IF_FAILED(control_max(mixed->setup.worlds[MIXED_WORLD],
                                 multicast->is_expected ? 0 : (uint64_t)mixed->setup.grid.node + 1,
                                 &lacking));
    if (multicast->is_expected && lacking > 0)
        snprintf(multicast->why_not, sizeof multicast->why_not, "node %d has no multicast",
                 (int)lacking - 1);
    multicast->is_expected = lacking == 0;
    return BANYAN_OK;
}

banyan_status multicast_agree(banyan_mixed *mixed)
{
    mixed_multicast *multicast = &mixed->setup.multicast;
    if (mixed_is_host(mixed))
        return multicast_refuse(mixed, "the host has no multicast");
    if (mixed->setup.grid.local_size == 1)
        return multicast_refuse(mixed, mixed->setup.grid.nodes > 1 ? "there is one rank a node"
                                                                   : "there is one rank");
    RETURN_IF_FAILED(memory_multicast_agree(mixed->setup.worlds[MIXED_NODE], mixed->setup.device,
                                            &multicast->is_expected, multicast->why_not,
                                            sizeof multicast->why_not));
    return agree_of_nodes(mixed);
}

/* `ranks`: space for the node's ranks. */
static banyan_status make_addresses(const banyan_mixed *mixed, int *ranks, char **node, char **tp)
{
    const banyan_mixed_grid *grid = &mixed->setup.grid;
    size_t bytes;
    for (int i = 0; i < grid->local_size; i++)
        ranks[i] = i;
    RETURN_IF_FAILED(memory_multicast_make(mixed->memory, ranks, grid->local_size, node, &bytes));
    *tp = *node;
    if (grid->local_tp == 1 || grid->local_dp == 1)
        return BANYAN_OK;
    return memory_multicast_make(mixed->memory, ranks + grid->local_dp_rank * grid->local_tp,
                                 grid->local_tp, tp, &bytes);
}

static banyan_status multicast_make_together(const banyan_mixed *mixed, char **node, char **tp)
{
    size_t list_bytes = (size_t)mixed->setup.grid.local_size * sizeof(int);
    int *ranks = malloc(list_bytes);
    banyan_status status =
        control_agree(mixed->setup.worlds[MIXED_NODE],
                      ranks ? BANYAN_OK : error_no_memory(list_bytes, "ranks for multicast"));
    if (status == BANYAN_OK)
        status = make_addresses(mixed, ranks, node, tp);
    free(ranks);
    return status;
}

/* Once the memory exists, and again after a resume, when the addresses are as before. If an address
 * cannot be created, the log reports it and there are none. Collective. */
static banyan_status multicast_make(banyan_mixed *mixed)
{
    mixed_multicast *multicast = &mixed->setup.multicast;
    char *node = NULL, *tp = NULL;
    if (!multicast->is_expected || !mixed->memory)
        return BANYAN_OK;
    banyan_status status = multicast_make_together(mixed, &node, &tp);
    if (status != BANYAN_OK) {
        log_info("rank %d: mixed collectives go without multicast: %s", mixed->rank,
                 banyan_last_error());
        multicast->is_expected = false;
        (void)multicast_refuse(mixed, banyan_last_error());
        status = control_check(mixed->setup.worlds[MIXED_NODE]);
    }
    RETURN_IF_FAILED(control_agree(mixed->setup.worlds[MIXED_WORLD], status));
    RETURN_IF_FAILED(agree_of_nodes(mixed));
    multicast->node = multicast->is_expected ? node : NULL;
    multicast->tp = multicast->is_expected ? tp : NULL;
    return BANYAN_OK;
}

/* Find the memory of the node's ranks, by local rank. */
static banyan_status memory_find_parts(const banyan_mixed *mixed, char **parts)
{
    for (int local = 0; local < mixed->setup.grid.local_size; local++) {
        void *part;
        size_t part_bytes;
        RETURN_IF_FAILED(banyan_memory_peer(mixed->memory, local, &part, &part_bytes));
        parts[local] = part;
    }
    return BANYAN_OK;
}

banyan_status mixed_use_memory(banyan_mixed *mixed)
{
    banyan_world *all = mixed->setup.worlds[MIXED_WORLD];
    if (!mixed->memory)
        return control_agree(all, mixed->ops->use(mixed->engine, NULL));
    size_t list_bytes = (size_t)mixed->setup.grid.local_size * sizeof(char *);
    char **parts = malloc(list_bytes);
    banyan_status status =
        parts ? memory_find_parts(mixed, parts) : error_no_memory(list_bytes, "parts of peers");
    status = control_agree(all, status);
    if (status == BANYAN_OK)
        status = multicast_make(mixed);
    if (status == BANYAN_OK)
        status = control_agree(all, mixed->ops->use(mixed->engine, parts));
    free(parts);
    return status;
}

static void staging_drop(const banyan_mixed *mixed, pages *made)
{
    if (mixed_is_host(mixed))
        free(made->address);
    else
        mixed->device_memory->release(made);
}

static void drop_last(banyan_mixed *mixed)
{
    staging_drop(mixed, &mixed->staging.data[--mixed->staging.count]);
}

static banyan_status staging_make(const banyan_mixed *mixed, uint64_t bytes, pages *made)
{
    device_handles handles;
    if (mixed_is_host(mixed)) {
        *made = (pages){malloc((size_t)bytes), (size_t)bytes};
        return made->address ? BANYAN_OK
                             : error_no_memory((size_t)bytes, "staging of mixed collectives");
    }
    RETURN_IF_FAILED(mixed->device_memory->create(mixed->options.device.device_id, (size_t)bytes,
                                                  &handles, made));
    device_handles_close(&handles);
    return BANYAN_OK;
}

/* Grow on all ranks or on none, so that all grow together in later calls, too. Collective. */
static banyan_status staging_grow(banyan_mixed *mixed, uint64_t bytes)
{
    pages made;
    bool is_made = false;
    banyan_status status = BANYAN_ERR_NO_MEMORY;
    if (array_reserve(&mixed->staging, 1)) {
        status = staging_make(mixed, bytes, &made);
        is_made = status == BANYAN_OK;
    }
    status = control_agree(mixed->setup.worlds[MIXED_WORLD], status);
    if (status != BANYAN_OK) {
        if (is_made)
            staging_drop(mixed, &made);
        return status;
    }
    if (mixed_is_host(mixed) && mixed->staging.count > 0)
        drop_last(mixed); /* no graph uses it */
    mixed->staging.data[mixed->staging.count++] = made;
    return BANYAN_OK;
}

/* Grow to at least twice the size, so that the total kept for graphs never exceeds the last
 * buffer. */
banyan_status staging_take(banyan_mixed *mixed, uint64_t bytes, void **staging)
{
    size_t count = mixed->staging.count;
    uint64_t last = count > 0 ? mixed->staging.data[count - 1].mapped_bytes : 0;
    if (bytes > last)
        RETURN_IF_FAILED(staging_grow(mixed, bytes > 2 * last ? bytes : 2 * last));
    *staging = mixed->staging.data[mixed->staging.count - 1].address;
    return BANYAN_OK;
}

void staging_suspend(const banyan_mixed *mixed)
{
    for (size_t i = 0; i < mixed->staging.count; i++)
        mixed->device_memory->suspend(&mixed->staging.data[i]);
}

banyan_status staging_resume(const banyan_mixed *mixed)
{
    for (size_t i = 0; i < mixed->staging.count; i++) {
        device_handles handles;
        banyan_status status = mixed->device_memory->recreate(mixed->options.device.device_id,
                                                              &mixed->staging.data[i], &handles);
        if (status != BANYAN_OK) {
            staging_suspend(mixed);
            return error_set(status,
                             "rank %d could not allocate its staging of %zu bytes again: %s",
                             mixed->rank, mixed->staging.data[i].mapped_bytes, banyan_last_error());
        }
        device_handles_close(&handles);
    }
    return BANYAN_OK;
}

void staging_free(banyan_mixed *mixed)
{
    while (mixed->staging.count > 0)
        drop_last(mixed);
    array_free(&mixed->staging);
}
