/* Selects how messages reach ranks of other nodes: by stores if their slots are mapped, else by
 * puts, of one kind on all ranks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/module.h"
#include "cuda/mixed/engine.h"
#include "cuda/mixed/nodes/puts.h"

static const char variable[] = "BANYAN_MIXED_NVSHMEM";

/* The value of the environment variable. */
typedef enum put_setting {
    SETTING_NONE,
    SETTING_DEVICE,
    SETTING_PROXY,
    SETTING_UNKNOWN
} put_setting;

static const char *const setting_names[] = {"nothing", "device", "proxy", "something else"};

static put_setting own_setting(void)
{
    const char *value = getenv(variable);
    if (!value || !*value)
        return SETTING_NONE;
    return strcmp(value, "device") == 0  ? SETTING_DEVICE
           : strcmp(value, "proxy") == 0 ? SETTING_PROXY
                                         : SETTING_UNKNOWN;
}

/* Kernels write to mapped memory, unless everything is to be put. */
static void find_places(cuda_mixed *engine, put_setting wanted)
{
    nodes_places *places = &engine->nodes.places;
    const nvshmem_part *part = &engine->nodes.part;
    places->own = places->from_elsewhere = part->local;
    places->from_node = engine->parts[engine->rank];
    places->cast_node = engine->setup->multicast.node;
    places->cast_tp = engine->setup->multicast.tp;
    for (int rank = 0; rank < places->ranks; rank++) {
        if (rank / engine->ranks == places->rank / engine->ranks)
            places->mapped[rank] = engine->parts[rank % engine->ranks];
        else if (wanted == SETTING_NONE)
            places->mapped[rank] = part->functions->nvshmem_ptr(part->local, part->pes[rank]);
        else
            places->mapped[rank] = NULL;
    }
}

/* True if any rank puts. Collective. */
static banyan_status agree_on_setting(cuda_mixed *engine, put_setting wanted, bool *any_puts)
{
    const nodes_places *places = &engine->nodes.places;
    struct {
        int32_t wanted, puts;
    } mine = {.wanted = (int32_t)wanted}, all[MIXED_RANKS_MAX];
    for (int rank = 0; rank < places->ranks; rank++)
        mine.puts |= !places->mapped[rank];
    RETURN_IF_FAILED(
        banyan_world_allgather(engine->setup->worlds[MIXED_WORLD], &mine, sizeof mine, all));
    *any_puts = false;
    for (int rank = 0; rank < places->ranks; rank++) {
        if (all[rank].wanted == SETTING_UNKNOWN)
            return banyan_error_set(BANYAN_ERR_INVALID,
                                    "cuda: rank %d: %s is neither device nor proxy", rank,
                                    variable);
        if (all[rank].wanted != all[0].wanted)
            return banyan_error_set(
                BANYAN_ERR_INVALID, "cuda: %s is %s on rank 0, and %s on rank %d", variable,
                setting_names[all[0].wanted], setting_names[all[rank].wanted], rank);
        *any_puts |= all[rank].puts != 0;
    }
    return BANYAN_OK;
}

banyan_status nodes_agree(const cuda_mixed *engine, banyan_status status)
{
    struct {
        int32_t failed; /* banyan_status */
        char reason[252];
    } mine = {.failed = (int32_t)status}, all[MIXED_RANKS_MAX];
    if (status != BANYAN_OK)
        snprintf(mine.reason, sizeof mine.reason, "%s", banyan_last_error());
    RETURN_IF_FAILED(
        banyan_world_allgather(engine->setup->worlds[MIXED_WORLD], &mine, sizeof mine, all));
    for (int rank = 0; rank < engine->nodes.places.ranks; rank++) {
        if (all[rank].failed)
            return banyan_error_set((banyan_status)all[rank].failed, "rank %d: %.*s", rank,
                                    (int)sizeof all[rank].reason, all[rank].reason);
    }
    return BANYAN_OK;
}

/* OK: every rank has loaded kernels that put. Collective. */
static banyan_status load_everywhere(cuda_mixed *engine)
{
    banyan_status status = DRIVER_WITHIN(engine->device, nodes_puts_load(engine));
    return nodes_agree(engine, status);
}

/* Use the device library if all ranks can, else the host. Collective. */
static banyan_status choose_puts(cuda_mixed *engine, put_setting wanted)
{
    cuda_nodes *nodes = &engine->nodes;
    nodes->by = NODES_BY_PROXY;
    if (wanted == SETTING_PROXY)
        return BANYAN_OK;
    banyan_status status = load_everywhere(engine);
    if (status == BANYAN_OK) {
        nodes->by = NODES_BY_PUTS;
        nodes->places.pes = nodes->part.pes;
        return BANYAN_OK;
    }
    if (wanted == SETTING_DEVICE)
        return status;
    banyan_module_log(BANYAN_LOG_INFO, banyan_last_error());
    return banyan_world_check(engine->setup->worlds[MIXED_WORLD]);
}

banyan_status nodes_reach(cuda_mixed *engine)
{
    static const char *const lines[] = {
        [NODES_BY_STORES] = "cuda: kernels store to ranks of other nodes",
        [NODES_BY_PUTS] = "cuda: kernels put to ranks of other nodes, by NVSHMEM's device library",
        [NODES_BY_PROXY] = "cuda: a thread of the host puts to ranks of other nodes",
    };
    cuda_nodes *nodes = &engine->nodes;
    put_setting wanted = own_setting();
    bool any_puts;
    find_places(engine, wanted);
    RETURN_IF_FAILED(agree_on_setting(engine, wanted, &any_puts));
    nodes->by = NODES_BY_STORES;
    nodes->places.pes = NULL;
    if (any_puts)
        RETURN_IF_FAILED(choose_puts(engine, wanted));
    banyan_module_log(BANYAN_LOG_INFO, lines[nodes->by]);
    return BANYAN_OK;
}
