/* Contexts that return their memory for a while. */
#include <stdlib.h>

#include "collective/comm.h"
#include "core/error.h"
#include "memory/symmetric/symmetric.h"
#include "mixed/memory.h"
#include "mixed/worlds.h"
#include "world/control.h"

/* Contexts that are suspended in a world: they leave it when it ends. */
typedef struct suspended {
    ARRAY(banyan_mixed *) contexts;
} suspended;

static const char suspended_key;

/* Close communicators with their worlds; the memory waits for another world. Collective while the
 * worlds are healthy. */
static void leave_groups(banyan_mixed *mixed)
{
    mixed->ops->leave_worlds(mixed->engine);
    for (int group = MIXED_GROUPS; group-- > 0;) {
        mixed->nccl_is_open[group] = false;
        if (!mixed->comms[group])
            continue;
        mixed->graphs_hold_comms |= comm_is_captured(mixed->comms[group]);
        (void)banyan_comm_destroy(mixed->comms[group]);
        mixed->comms[group] = NULL;
    }
    if (mixed->memory)
        memory_leave(mixed->memory);
    worlds_close(mixed->setup.worlds);
    mixed->latest = BANYAN_MIXED_AUTO;
}

static void world_ends(void *attachment)
{
    suspended *all = attachment;
    for (size_t i = 0; i < all->contexts.count; i++) {
        leave_groups(all->contexts.data[i]);
        all->contexts.data[i]->world = NULL;
    }
    array_free(&all->contexts);
    free(all);
}

static banyan_status suspension_note(banyan_world *world, banyan_mixed *mixed)
{
    suspended *all = world_attachment(world, &suspended_key);
    if (!all) {
        all = calloc(1, sizeof *all);
        if (!all)
            return error_no_memory(sizeof *all, "suspended mixed collectives");
        banyan_status status = world_attach(world, &suspended_key, all, world_ends);
        if (status != BANYAN_OK) {
            free(all);
            return status;
        }
    }
    return array_push(&all->contexts, mixed) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

void suspension_forget(banyan_mixed *mixed)
{
    suspended *all = mixed->world ? world_attachment(mixed->world, &suspended_key) : NULL;
    for (size_t i = 0; all && i < all->contexts.count; i++) {
        if (all->contexts.data[i] != mixed)
            continue;
        all->contexts.data[i] = all->contexts.data[--all->contexts.count];
        return;
    }
}

/* All ranks have come, and none uses the memory; it is free when all have released their part. */
static banyan_status suspension_release(banyan_mixed *mixed)
{
    staging_suspend(mixed);
    for (int group = 0; group < MIXED_GROUPS; group++)
        memory_suspend_all(mixed->setup.worlds[group]);
    return banyan_world_barrier(mixed->world);
}

static banyan_status check_can_suspend(const banyan_mixed *mixed)
{
    if (mixed->is_suspended)
        return error_set(BANYAN_ERR_INVALID, "rank %d: the mixed collectives are suspended already",
                         mixed->rank);
    if (mixed_is_host(mixed))
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "rank %d: mixed collectives on the host cannot be suspended", mixed->rank);
    if (mixed->setup.grid.nodes > 1)
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "rank %d: mixed collectives of %d nodes cannot be suspended: NVSHMEM "
                         "keeps its memory",
                         mixed->rank, mixed->setup.grid.nodes);
    return BANYAN_OK;
}

banyan_status banyan_mixed_suspend(banyan_mixed *mixed)
{
    RETURN_IF_NULL(mixed);
    RETURN_IF_FAILED(check_can_suspend(mixed));
    CONTROL_CALL_WITHIN(mixed->world, __func__, mixed->timeout);
    banyan_status status = control_enter(mixed->world);
    if (status == BANYAN_OK)
        status = control_agree(mixed->world, suspension_note(mixed->world, mixed));
    if (status == BANYAN_OK) {
        mixed->is_suspended = true;
        status = suspension_release(mixed);
    } else {
        suspension_forget(mixed);
    }
    return status == BANYAN_OK ? BANYAN_OK : mixed_stop_groups(mixed, status);
}

static banyan_status suspension_check_shape(const banyan_mixed *mixed, const banyan_world *world)
{
    int rank = banyan_world_rank(world), ranks = banyan_world_size(world);
    int machines = banyan_world_node_count(world);
    if (rank == mixed->rank && ranks == mixed->ranks && machines == 1)
        return BANYAN_OK;
    return error_set(BANYAN_ERR_INVALID,
                     "rank %d of %d on 1 machine has suspended mixed collectives, and would resume "
                     "them as rank %d of %d on %d",
                     mixed->rank, mixed->ranks, rank, ranks, machines);
}

static banyan_status check_graphs(const banyan_mixed *mixed)
{
    bool hold = mixed->graphs_hold_comms;
    for (int group = 0; group < MIXED_GROUPS; group++)
        hold |= mixed->comms[group] && comm_is_captured(mixed->comms[group]);
    if (!hold)
        return BANYAN_OK;
    return error_set(BANYAN_ERR_UNSUPPORTED,
                     "rank %d: graphs hold mixed collectives that run through communicators, which "
                     "end with the world in which they were made: another world cannot resume them",
                     mixed->rank);
}

/* True if the context's own worlds are closed, or one has ended. */
static bool groups_have_ended(const banyan_mixed *mixed)
{
    bool ended = false;
    for (int group = 0; group < MIXED_GROUPS; group++) {
        banyan_world *world = mixed->setup.worlds[group];
        ended |= !world || control_check(world) != BANYAN_OK;
    }
    return ended;
}

/* Open the context's own worlds anew. If it fails in the context's world, the context stays there
 * without them. */
static banyan_status enter_world(banyan_mixed *mixed, banyan_world *world)
{
    banyan_status status = suspension_check_shape(mixed, world);
    if (status == BANYAN_OK)
        status = check_graphs(mixed);
    RETURN_IF_FAILED(control_agree(world, status));
    bool is_new = world != mixed->world;
    if (is_new)
        suspension_forget(mixed);
    leave_groups(mixed);
    if (is_new)
        mixed->world = NULL;
    RETURN_IF_FAILED(worlds_open(world, &mixed->setup.grid, mixed->setup.worlds));
    mixed->world = world;
    if (mixed->memory)
        status = memory_join(mixed->setup.worlds[MIXED_NODE], mixed->memory);
    if (status == BANYAN_OK && is_new)
        status = suspension_note(world, mixed);
    status = control_agree(world, status);
    if (status == BANYAN_OK)
        return BANYAN_OK;
    error_kept kept = error_keep(status);
    leave_groups(mixed);
    if (is_new) {
        suspension_forget(mixed);
        mixed->world = NULL;
    }
    return error_again(&kept);
}

/* Groups of one kind may succeed or fail separately, so all ranks agree on the first failure. */
static banyan_status take_back(banyan_mixed *mixed)
{
    for (int group = 0; group < MIXED_GROUPS; group++)
        RETURN_IF_FAILED(
            control_agree(mixed->world, memory_resume_all(mixed->setup.worlds[group])));
    return control_agree(mixed->world, staging_resume(mixed));
}

/* Clear the state that kernels keep between runs: it belongs to other memory. */
static banyan_status suspension_begin_anew(banyan_mixed *mixed)
{
    banyan_world *all = mixed->setup.worlds[MIXED_WORLD];
    for (int group = 0; group < MIXED_GROUPS; group++) {
        if (mixed->comms[group])
            RETURN_IF_FAILED(control_agree(all, banyan_comm_reset(mixed->comms[group])));
    }
    if (mixed->has_memory)
        RETURN_IF_FAILED(mixed_use_memory(mixed));
    mixed->failed.status = BANYAN_OK;
    return BANYAN_OK;
}

static banyan_status check_can_resume(const banyan_mixed *mixed, const banyan_world *world)
{
    if (!mixed->is_suspended)
        return error_set(BANYAN_ERR_INVALID, "rank %d: the mixed collectives are not suspended",
                         mixed->rank);
    if (!world && !mixed->world)
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d: the world of the mixed collectives is closed, and "
                         "banyan_mixed_resume was given no other",
                         mixed->rank);
    return BANYAN_OK;
}

banyan_status banyan_mixed_resume(banyan_mixed *mixed, banyan_world *world)
{
    RETURN_IF_NULL(mixed);
    RETURN_IF_FAILED(check_can_resume(mixed, world));
    world = world ? world : mixed->world;
    CONTROL_CALL_WITHIN(world, __func__, mixed->timeout);
    /* A group of some ranks may have ended in an attempt that failed. */
    uint64_t enters = world != mixed->world || groups_have_ended(mixed);
    banyan_status status = control_enter_max(world, enters, &enters);
    if (status == BANYAN_OK && enters)
        status = enter_world(mixed, world);
    if (status != BANYAN_OK)
        return mixed_stop_groups(mixed, status);
    status = take_back(mixed);
    if (status == BANYAN_OK)
        status = suspension_begin_anew(mixed);
    status = control_agree(world, status);
    if (status != BANYAN_OK) {
        /* peers in a group must not wait for a rank that gave up */
        error_kept kept = error_keep(mixed_stop_groups(mixed, status));
        (void)suspension_release(mixed);
        return error_again(&kept);
    }
    suspension_forget(mixed);
    mixed->is_suspended = false;
    return BANYAN_OK;
}
