#include "mixed/memory/multicast.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/error.h"
#include "core/log.h"
#include "memory/symmetric/multicast.h"
#include "world/control.h"

static banyan_status memory_multicast_refuse(banyan_mixed *mixed, const char *why_not)
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
        return memory_multicast_refuse(mixed, "the host has no multicast");
    if (mixed->setup.grid.local_size == 1)
        return memory_multicast_refuse(
            mixed, mixed->setup.grid.nodes > 1 ? "there is one rank a node" : "there is one rank");
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

static banyan_status memory_multicast_make_together(const banyan_mixed *mixed, char **node,
                                                    char **tp)
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

banyan_status multicast_make(banyan_mixed *mixed)
{
    mixed_multicast *multicast = &mixed->setup.multicast;
    char *node = NULL, *tp = NULL;
    if (!multicast->is_expected || !mixed->memory)
        return BANYAN_OK;
    banyan_status status = memory_multicast_make_together(mixed, &node, &tp);
    if (status != BANYAN_OK) {
        log_info("rank %d: mixed collectives go without multicast: %s", mixed->rank,
                 banyan_last_error());
        multicast->is_expected = false;
        (void)memory_multicast_refuse(mixed, banyan_last_error());
        status = control_check(mixed->setup.worlds[MIXED_NODE]);
    }
    RETURN_IF_FAILED(control_agree(mixed->setup.worlds[MIXED_WORLD], status));
    RETURN_IF_FAILED(agree_of_nodes(mixed));
    multicast->node = multicast->is_expected ? node : NULL;
    multicast->tp = multicast->is_expected ? tp : NULL;
    return BANYAN_OK;
}
