/* Memory for messages between and inside nodes, and launches that send them. */
#include <stdio.h>

#include "cuda/mixed/engine.h"

#define TURNS 2
#define TURN_MOST (UINT64_C(64) << 20) /* bytes of a turn's slots */
#define SLOT_LEAST (UINT64_C(4) << 10)
#define TILE_LEAST (UINT64_C(4) << 10)
#define POSTED_TILES 8 /* most tiles of a message, if the host makes the puts */
#define POSTED_LEAST (UINT64_C(64) << 10)
#define PUT_LEAST (UINT64_C(16) << 10) /* smallest tile, if kernels make them */
#define TRIAL_BYTES 64

static uint64_t nodes_up(uint64_t value, uint64_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

static bool grid_has(const banyan_mixed_grid *grid, banyan_mixed_mode mode)
{
    return mode == BANYAN_MIXED_ONE_SHOT || (mode == BANYAN_MIXED_TWO_SHOT && grid->local_tp > 1) ||
           (mode == BANYAN_MIXED_TWO_SHOT_NODES && grid->inter_tp > 1);
}

void nodes_size(cuda_mixed *engine)
{
    const banyan_mixed_grid *grid = &engine->setup->grid;
    cuda_nodes *nodes = &engine->nodes;
    nodes->places = (nodes_places){
        .grid = grid,
        .rank = grid->node * grid->local_size + grid->local_rank,
        .ranks = grid->nodes * grid->local_size,
    };
    for (int mode = BANYAN_MIXED_ONE_SHOT; mode <= BANYAN_MIXED_TWO_SHOT_NODES; mode++) {
        if (!grid_has(grid, (banyan_mixed_mode)mode))
            continue;
        int slots = 2 * nodes_slots(grid, (banyan_mixed_mode)mode); /* half of them are staged */
        uint64_t bytes =
            (uint64_t)slots * nodes_cell_bytes(grid, (banyan_mixed_mode)mode, engine->most_bytes);
        nodes->slots = slots > nodes->slots ? slots : nodes->slots;
        nodes->slots_bytes = bytes > nodes->slots_bytes ? bytes : nodes->slots_bytes;
    }
    uint64_t least = (uint64_t)nodes->slots * SLOT_LEAST;
    if (nodes->slots_bytes > TURN_MOST)
        nodes->slots_bytes = TURN_MOST;
    if (nodes->slots_bytes < least)
        nodes->slots_bytes = least;
    nodes->slots_at = nodes_up((uint64_t)nodes->slots * NODES_TILES * sizeof(uint64_t), MIXED_UNIT);
    nodes->turn_bytes = nodes_up(nodes->slots_at + nodes->slots_bytes, 4096);
}

uint64_t nodes_room(const cuda_mixed *engine)
{
    return engine->nodes.places.ranks <= MIXED_RANKS_MAX
               ? TURNS * engine->nodes.turn_bytes + TRIAL_BYTES
               : 0;
}

static banyan_status start_proxy(cuda_mixed *engine)
{
    cuda_nodes *nodes = &engine->nodes;
    if (nodes->by != NODES_BY_PROXY)
        return BANYAN_OK;
    return DRIVER_WITHIN(engine->device,
                         nodes_proxy_start(engine->device, &nodes->part, nodes->places.ranks,
                                           nodes->part.local + TURNS * nodes->turn_bytes,
                                           &nodes->proxy));
}

static banyan_status nodes_open_parts(cuda_mixed *engine)
{
    cuda_nodes *nodes = &engine->nodes;
    const mixed_engine_setup *setup = engine->setup;
    nvshmem_start start = {.is_there = !setup->should_init_nvshmem,
                           .sets_ibgda = true,
                           .ibgda = setup->ib_enable_ibgda};
    uint64_t bytes = nodes_room(engine);
    if (bytes == 0 || !engine->has_parts)
        return banyan_error_set(BANYAN_ERR_UNSUPPORTED,
                                "cuda: mixed collectives between nodes take 2 to %d ranks and "
                                "their virtual memory, and there are %d",
                                MIXED_RANKS_MAX, nodes->places.ranks);
    RETURN_IF_FAILED(nvshmem_take(setup->worlds[MIXED_WORLD], engine->device, &start, bytes, bytes,
                                  &nodes->part));
    RETURN_IF_FAILED(nodes_reach(engine));
    return nodes_agree(engine, start_proxy(engine));
}

/* The error that ended the world takes precedence. */
banyan_status nodes_open(cuda_mixed *engine)
{
    banyan_status status = nodes_open_parts(engine);
    if (status == BANYAN_OK) {
        engine->nodes.is_ready = true;
        return BANYAN_OK;
    }
    error_kept kept = error_keep(status);
    nodes_close(engine);
    if (banyan_world_check(engine->setup->worlds[MIXED_WORLD]) == BANYAN_OK)
        kept.status = BANYAN_ERR_NVSHMEM;
    return error_again(&kept);
}

void nodes_close(cuda_mixed *engine)
{
    nodes_proxy_end(engine->nodes.proxy);
    engine->nodes.proxy = NULL;
    engine->nodes.is_ready = false;
    nvshmem_give_back(&engine->nodes.part);
}

bool nodes_have(const cuda_mixed *engine, banyan_mixed_mode mode, char *reason, size_t reason_bytes)
{
    const char *why = NULL;
    if (!grid_has(&engine->setup->grid, mixed_unicast(mode)))
        why = "GPUs do not have it";
    else if (engine->nodes.places.ranks > MIXED_RANKS_MAX)
        why = "there are more GPUs than its kernels address";
    else if (!engine->nodes.is_ready)
        why = "NVSHMEM is not there: banyan_mixed_init_nvshmem has not been called, or failed";
    if (why)
        snprintf(reason, reason_bytes, "%s", why);
    return !why;
}

/* The layout with everything that this mode may need. */
static nodes_layout layout_of(const cuda_mixed *engine, banyan_mixed_mode mode)
{
    int received = nodes_slots(&engine->setup->grid, mode);
    uint64_t slots = (uint64_t)received * (engine->nodes.by == NODES_BY_STORES ? 1 : 2);
    return (nodes_layout){
        .slots_at = engine->nodes.slots_at,
        .slot_bytes = engine->nodes.slots_bytes / slots / MIXED_UNIT * MIXED_UNIT,
        .received = received,
    };
}

static uint64_t tile_bytes(const cuda_mixed *engine, uint64_t cell_bytes)
{
    static const uint64_t leasts[] = {[NODES_BY_STORES] = TILE_LEAST,
                                      [NODES_BY_PUTS] = PUT_LEAST,
                                      [NODES_BY_PROXY] = POSTED_LEAST};
    uint64_t least = leasts[engine->nodes.by];
    uint64_t tiles = engine->nodes.by == NODES_BY_PROXY ? POSTED_TILES : NODES_TILES;
    uint64_t tile = nodes_up(cell_bytes / tiles + 1, MIXED_UNIT);
    return tile > least ? tile : least;
}

static mixed_kernel nodes_choose_kernel(const cuda_mixed *engine, const nodes_call *call)
{
    uint64_t together = (uintptr_t)call->input | (uintptr_t)call->output | call->bytes;
    if (engine->setup->grid.dp > 1)
        together |= call->whole_bytes;
    mixed_kernel first = engine->nodes.by == NODES_BY_PUTS ? MIXED_NODES_PUTS : MIXED_NODES;
    return (mixed_kernel)((int)first + (together % MIXED_UNIT ? 1 : 0) +
                          (mode_is_multicast(call->mode) ? 2 : 0));
}

/* One thread block for each tile, as far as they run at once. The queue for the host's puts has
 * space for two launches, so these have few tiles. */
static launch_shape nodes_choose_shape(const cuda_mixed *engine, mixed_kernel kernel,
                                       uint64_t cell_bytes, uint64_t tile_bytes)
{
    uint32_t threads = engine->least_threads, units = (uint32_t)(tile_bytes / MIXED_UNIT);
    while (threads * 2 <= engine->most_threads && threads < units)
        threads *= 2;
    uint32_t at_once = mixed_blocks_at_once(engine, kernel, threads);
    uint32_t most = at_once < engine->most_blocks ? at_once : engine->most_blocks;
    uint64_t tiles = (cell_bytes + tile_bytes - 1) / tile_bytes;
    uint32_t blocks = tiles < most ? (uint32_t)tiles : most;
    return mixed_shape_of(engine, kernel, blocks, threads);
}

static banyan_status nodes_run_part(const cuda_mixed *engine, const nodes_call *call,
                                    CUstream stream)
{
    uint64_t cell = nodes_cell_bytes(&engine->setup->grid, call->mode, call->bytes);
    nodes_layout layout = layout_of(engine, call->mode);
    nodes_args args = {
        .base =
            {
                .states = engine->states,
                .state_count = engine->most_blocks,
                .broken = engine->broken,
                .reports = engine->reports,
                .timeout_ns = engine->setup->timeout_ns,
                .call = mixed_report_own(call->op, call->mode),
            },
        .turn_bytes = engine->nodes.turn_bytes,
        .tile_bytes = tile_bytes(engine, cell),
        .queues = engine->nodes.proxy ? nodes_proxy_queues(engine->nodes.proxy) : NULL,
    };
    RETURN_IF_FAILED(nodes_build(&engine->nodes.places, &layout, call, &args));
    mixed_kernel kernel = nodes_choose_kernel(engine, call);
    launch_shape by = nodes_choose_shape(engine, kernel, cell, args.tile_bytes);
    return launch_kernel(engine->device, engine->kernels[kernel], by, &args, stream);
}

banyan_status nodes_run(const cuda_mixed *engine, const mixed_call *call, CUstream stream)
{
    uint64_t bytes = call->elems * engine->elem_bytes;
    uint64_t most = layout_of(engine, call->mode).slot_bytes *
                    (uint64_t)nodes_cells(&engine->setup->grid, call->mode);
    most = most < engine->most_bytes ? most : engine->most_bytes;
    nodes_call part = {.op = call->op, .mode = call->mode, .whole_bytes = bytes};
    for (uint64_t at = 0; at < bytes; at += part.bytes) {
        part.bytes = bytes - at < most ? bytes - at : most;
        part.input = (const char *)call->input + at;
        part.output = (char *)call->output + at;
        RETURN_IF_FAILED(nodes_run_part(engine, &part, stream));
    }
    return BANYAN_OK;
}
