/* Opens and closes contexts, step by step. */
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/module.h"
#include "mixed/fused/host.h"
#include "mixed/grid.h"
#include "mixed/memory.h"
#include "mixed/tuning/autotune.h"
#include "mixed/worlds.h"
#include "transport/tables.h"
#include "world/control.h"

#define DEFAULT_MAX_BYTES (UINT64_C(64) << 20)

/* The open contexts of this process, so that closing one twice is an error. Any thread. */
static pthread_mutex_t live_lock = PTHREAD_MUTEX_INITIALIZER;
static ARRAY(const banyan_mixed *) live;

/* False, with the error set, if out of memory. */
static bool live_add(const banyan_mixed *mixed)
{
    pthread_mutex_lock(&live_lock);
    bool added = array_push(&live, mixed);
    pthread_mutex_unlock(&live_lock);
    return added;
}

/* False: the context is not open. The pointer is not dereferenced. */
static bool live_remove(const banyan_mixed *mixed)
{
    pthread_mutex_lock(&live_lock);
    size_t at = 0;
    while (at < live.count && live.data[at] != mixed)
        at++;
    bool found = at < live.count;
    if (found)
        live.data[at] = live.data[--live.count];
    if (live.count == 0)
        array_free(&live);
    pthread_mutex_unlock(&live_lock);
    return found;
}

static banyan_status open_find_engine(banyan_mixed *mixed)
{
    DLDevice device = mixed->options.device;
    if (device_is_host(device)) {
        mixed->ops = &mixed_host_ops;
        return BANYAN_OK;
    }
    const module_tables *tables;
    RETURN_IF_FAILED(module_load("cuda", &tables));
    if (!tables->mixed || tables->mixed->size != sizeof(mixed_engine_ops))
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "module cuda: it has no mixed collectives that fit this libbanyan");
    RETURN_IF_FAILED(memory_device_find(device.device_type, &mixed->device_memory));
    RETURN_IF_FAILED(mixed->device_memory->open(device.device_id));
    mixed->ops = tables->mixed;
    return BANYAN_OK;
}

static void fill_setup(banyan_mixed *mixed)
{
    const banyan_mixed_options *options = &mixed->options;
    mixed_engine_setup *setup = &mixed->setup;
    setup->dtype = options->dtype;
    setup->device = device_is_host(options->device) ? BANYAN_HOST : options->device;
    setup->grid_size = options->grid_size;
    setup->max_block_size = options->max_block_size;
    setup->min_block_size = options->min_block_size;
    setup->min_num_steps = options->min_num_steps;
    setup->max_bytes = options->max_bytes ? options->max_bytes : DEFAULT_MAX_BYTES;
    setup->timeout_ns = banyan_world_timeout_ns(mixed->world);
    setup->ib_enable_ibgda = options->ib_enable_ibgda;
    setup->should_init_nvshmem = options->should_init_nvshmem;
}

/* Return a lower rank with this rank's GPU, if NCCL cannot start on shared GPUs; -1: none. */
static int find_sharer(const mixed_nccl *all, int rank)
{
    for (int other = 0; other < rank; other++) {
        if (!(all[rank].shares_gpus && all[other].shares_gpus) &&
            memcmp(all[other].gpu, all[rank].gpu, sizeof all[rank].gpu) == 0)
            return other;
    }
    return -1;
}

static void explain_nccl(banyan_mixed *mixed, const mixed_nccl *all, int without, int sharer)
{
    size_t bytes = sizeof mixed->nccl_lacks;
    if (mixed_is_host(mixed))
        snprintf(mixed->nccl_lacks, bytes, "NCCL is for GPUs");
    else if (without >= 0)
        snprintf(mixed->nccl_lacks, bytes,
                 "rank %d has not found NCCL's library, which BANYAN_NCCL names", without);
    else
        snprintf(mixed->nccl_lacks, bytes,
                 "ranks %d and %d share a GPU, where NCCL starts from 2.30 on with "
                 "NCCL_MULTI_RANK_GPU_ENABLE=1",
                 find_sharer(all, sharer), sharer);
}

/* The library's collectives are available if all ranks have found it and it can start. */
static banyan_status find_nccl(banyan_mixed *mixed)
{
    mixed_nccl mine = {.is_here = 0}, *all;
    void *gathered;
    uint64_t sharer;
    int without = -1;
    if (mixed->ops->nccl_find)
        mine.is_here = mixed->ops->nccl_find(mixed->engine, &mine) == BANYAN_OK;
    RETURN_IF_FAILED(control_gather(mixed->world, BANYAN_OK, &mine, sizeof mine,
                                    "what ranks find of NCCL", &gathered));
    all = gathered;
    for (int rank = 0; rank < banyan_world_size(mixed->world) && without < 0; rank++)
        without = all[rank].is_here ? -1 : rank;
    uint64_t shares = without < 0 && find_sharer(all, mixed->rank) >= 0 ? (uint64_t)mixed->rank : 0;
    banyan_status status = control_max(mixed->world, shares, &sharer);
    mixed->has_nccl = without < 0 && sharer == 0;
    if (status == BANYAN_OK && !mixed->has_nccl)
        explain_nccl(mixed, all, without, (int)sharer);
    free(gathered);
    return status;
}

static int open_node_of(void *world, int rank)
{
    return banyan_world_node_of(world, rank);
}

static banyan_status open_engine(banyan_mixed *mixed)
{
    RETURN_IF_FAILED(control_agree(mixed->world, open_find_engine(mixed)));
    fill_setup(mixed);
    RETURN_IF_FAILED(multicast_agree(mixed));
    RETURN_IF_FAILED(control_agree(mixed->world, mixed->ops->open(&mixed->setup, &mixed->engine)));
    return find_nccl(mixed);
}

/* Check, before anything is opened, that a transport joins the nodes for communicators. */
static banyan_status open_check_reach(banyan_world *world)
{
    banyan_transport *transport;
    RETURN_IF_FAILED(banyan_transport_open(world, NULL, &transport));
    banyan_status status = transport_check_reach(transport, "mixed collectives on the host");
    banyan_transport_close(transport);
    return control_fail_together(world, status);
}

static banyan_status create_together(banyan_mixed *mixed)
{
    banyan_world *world = mixed->world;
    RETURN_IF_FAILED(mixed_options_agree(world, &mixed->options));
    bool on_host = device_is_host(mixed->options.device); /* the engine does not exist yet */
    if (on_host && banyan_world_node_count(world) > 1)
        RETURN_IF_FAILED(open_check_reach(world));
    RETURN_IF_FAILED(mixed_check_calls_begin(mixed));
    RETURN_IF_FAILED(
        control_fail_together(world, grid_resolve(&mixed->options, mixed->rank, mixed->ranks,
                                                  open_node_of, world, &mixed->setup.grid)));
    for (int group = 0; group < MIXED_GROUPS; group++)
        mixed->has_comms[group] =
            on_host || worlds_are_near(world, &mixed->setup.grid, (mixed_group)group);
    RETURN_IF_FAILED(worlds_open(world, &mixed->setup.grid, mixed->setup.worlds));
    return open_engine(mixed);
}

static void mixed_free(banyan_mixed *mixed)
{
    suspension_forget(mixed);
    (void)worlds_end_together(mixed->world, mixed->setup.worlds, NULL);
    for (int group = MIXED_GROUPS; group-- > 0;)
        (void)banyan_comm_destroy(mixed->comms[group]);
    if (mixed->ops)
        mixed->ops->close(mixed->engine);
    banyan_memory_free(mixed->memory);
    staging_free(mixed);
    autotune_free(mixed);
    worlds_close(mixed->setup.worlds);
    free(mixed);
}

/* Undo a partial open; the latest error is the reason. */
static banyan_status open_give_up(banyan_mixed *mixed, banyan_status status)
{
    error_kept kept = error_keep(status);
    (void)live_remove(mixed);
    if (mixed)
        mixed_free(mixed);
    return error_again(&kept);
}

static banyan_status create_alone(banyan_world *world, const banyan_mixed_options *options,
                                  banyan_mixed **mixed)
{
    banyan_mixed *made = calloc(1, sizeof *made);
    if (!made)
        return error_no_memory(sizeof *made, "mixed collectives");
    made->world = world;
    made->timeout = control_timeout_now(world);
    made->rank = banyan_world_rank(world);
    made->ranks = banyan_world_size(world);
    made->options = (banyan_mixed_options)BANYAN_MIXED_OPTIONS_INIT;
    banyan_status status =
        options_take(options, "BANYAN_MIXED_OPTIONS_INIT", &made->options, sizeof made->options);
    made->options.autotune = NULL;
    if (status == BANYAN_OK)
        status = mixed_options_check(&made->options, made->rank);
    if (status != BANYAN_OK) {
        free(made);
        return status;
    }
    *mixed = made;
    return BANYAN_OK;
}

banyan_status banyan_mixed_open_empty(banyan_world *world, const banyan_mixed_options *options,
                                      banyan_mixed **mixed)
{
    RETURN_IF_NULL(world);
    CONTROL_ENTER_WITHIN(world, CONTROL_TIMEOUT(options, banyan_mixed_options));
    banyan_mixed *made = NULL;
    banyan_status status =
        mixed ? create_alone(world, options, &made) : error_null(__func__, "mixed");
    status = control_agree(world, status);
    if (status == BANYAN_OK)
        status = create_together(made);
    if (status == BANYAN_OK)
        status = control_agree(world, live_add(made) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY);
    if (status != BANYAN_OK)
        return open_give_up(made, status);
    *mixed = made;
    return BANYAN_OK;
}

static banyan_status open_take_memory(banyan_mixed *mixed)
{
    uint64_t bytes = mixed->ops->room(mixed->engine);
    if (bytes > 0 && !mixed->memory)
        RETURN_IF_FAILED(
            control_agree(mixed->world, banyan_memory_alloc_on(mixed->setup.worlds[MIXED_NODE],
                                                               mixed->options.device, (size_t)bytes,
                                                               &mixed->memory)));
    return mixed_use_memory(mixed);
}

banyan_status banyan_mixed_init_virtual_memory(banyan_mixed *mixed)
{
    RETURN_IF_NULL(mixed);
    RETURN_IF_FAILED(mixed_check_awake(mixed));
    CONTROL_ENTER_WITHIN(mixed->world, mixed->timeout);
    if (mixed->has_memory)
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d: mixed collectives have their virtual memory already",
                         mixed->rank);
    banyan_status status = open_take_memory(mixed);
    mixed->has_memory = status == BANYAN_OK;
    autotune_choose(mixed);
    return status;
}

banyan_status banyan_mixed_init_nvshmem(banyan_mixed *mixed)
{
    RETURN_IF_NULL(mixed);
    RETURN_IF_FAILED(mixed_check_awake(mixed));
    CONTROL_ENTER_WITHIN(mixed->world, mixed->timeout);
    if (mixed_is_host(mixed) || mixed->setup.grid.nodes == 1)
        return error_set(
            BANYAN_ERR_INVALID, "rank %d: mixed collectives of %d nodes %s do not use NVSHMEM",
            mixed->rank, mixed->setup.grid.nodes, mixed_is_host(mixed) ? "on the host" : "on GPUs");
    if (mixed->has_nvshmem)
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d: mixed collectives have initialised NVSHMEM already",
                         mixed->rank);
    RETURN_IF_FAILED(control_agree(mixed->world, mixed->ops->init_nvshmem(mixed->engine)));
    mixed->has_nvshmem = true;
    autotune_choose(mixed);
    return BANYAN_OK;
}

/* All ranks use rank 0's file, or none. */
static banyan_status open_table(banyan_mixed *mixed, const char *path)
{
    int has_path = path != NULL;
    RETURN_IF_FAILED(banyan_world_broadcast(mixed->world, &has_path, sizeof has_path, 0));
    if (has_path)
        return banyan_mixed_load_autotune(mixed, path ? path : "");
    return mixed->options.use_autotune ? banyan_mixed_run_autotune(mixed) : BANYAN_OK;
}

/* An older program's options may end before this field. */
static const char *table_of(const banyan_mixed_options *options)
{
    size_t end = offsetof(banyan_mixed_options, autotune) + sizeof options->autotune;
    return options && options->size >= end ? options->autotune : NULL;
}

static banyan_status open_steps(banyan_mixed *mixed, const char *autotune)
{
    RETURN_IF_FAILED(banyan_mixed_init_virtual_memory(mixed));
    if (!mixed_is_host(mixed) && mixed->setup.grid.nodes > 1)
        RETURN_IF_FAILED(banyan_mixed_init_nvshmem(mixed));
    return open_table(mixed, autotune);
}

banyan_status banyan_mixed_open(banyan_world *world, const banyan_mixed_options *options,
                                banyan_mixed **mixed)
{
    CONTROL_ENTER_WITHIN(world, CONTROL_TIMEOUT(options, banyan_mixed_options));
    banyan_mixed *made;
    RETURN_IF_FAILED(banyan_mixed_open_empty(world, options, mixed ? &made : NULL));
    banyan_status status = open_steps(made, table_of(options));
    if (status != BANYAN_OK)
        return open_give_up(made, status);
    *mixed = made;
    return BANYAN_OK;
}

banyan_mixed_grid banyan_mixed_describe(const banyan_mixed *mixed)
{
    return mixed ? mixed->setup.grid : (banyan_mixed_grid){0};
}

banyan_status banyan_mixed_peer_memory(const banyan_mixed *mixed, int local_rank, void **address,
                                       size_t *bytes)
{
    RETURN_IF_NULL(mixed);
    RETURN_IF_NULL(address);
    RETURN_IF_NULL(bytes);
    if (!mixed->memory)
        return error_set(BANYAN_ERR_NOT_FOUND, "the mixed context has no memory of GPUs");
    return banyan_memory_peer(mixed->memory, local_rank, address, bytes);
}

void *banyan_mixed_multicast_memory(const banyan_mixed *mixed, bool of_tp)
{
    if (!mixed)
        return NULL;
    return of_tp ? mixed->setup.multicast.tp : mixed->setup.multicast.node;
}

banyan_status banyan_mixed_close(banyan_mixed *mixed)
{
    if (!live_remove(mixed))
        return error_set(BANYAN_ERR_INVALID,
                         "the mixed collectives at %p are closed already, or never were open",
                         (const void *)mixed);
    CONTROL_CALL_WITHIN(mixed->world, __func__, mixed->timeout);
    /* All ranks synchronize before closing, so that no memory disappears while a peer uses it. */
    banyan_world *all = mixed->setup.worlds[MIXED_WORLD];
    banyan_status status = all ? banyan_world_barrier(all) : BANYAN_OK;
    mixed_free(mixed);
    return status;
}
