/* Loads plans: reaches agreement on one, and allocates its memory. */
#include <string.h>

#include "core/error.h"
#include "execute/device/device.h"
#include "execute/device/program.h"
#include "execute/load/binding.h"
#include "execute/load/nodes.h"
#include "execute/shuffle/shuffle.h"
#include "world/control.h"

#define PAGE ((uint64_t)4096)

static uint64_t round_to(uint64_t bytes, uint64_t multiple)
{
    return (bytes + multiple - 1) / multiple * multiple;
}

static banyan_status execute_load_check_arguments(const banyan_executor *executor,
                                                  const banyan_plan *plan,
                                                  const banyan_loaded_plan_options *options)
{
    if (plan->rank_count != executor->ranks)
        return error_set(BANYAN_ERR_INVALID,
                         "a plan for %d ranks cannot be loaded in a world of %d", plan->rank_count,
                         executor->ranks);
    const banyan_memory *memories[] = {options->input, options->output};
    for (int i = 0; i < 2; i++) {
        if (memories[i] && memories[i]->space != executor->space)
            return error_set(BANYAN_ERR_INVALID,
                             "rank %d: the %s memory of a plan belongs to another world",
                             executor->rank, i == 0 ? "input" : "output");
        if (memories[i])
            RETURN_IF_FAILED(binding_check_device(executor, banyan_memory_device(memories[i]),
                                                  banyan_memory_local(memories[i]),
                                                  i == 0 ? "input memory" : "output memory"));
    }
    return executor->transport ? nodes_check(executor, plan) : BANYAN_OK;
}

struct needs {
    uint64_t counters;
    bool scratch, staging[2];
};

/* Compute the sizes in a rank's part of the block. */
static void execute_load_measure(const banyan_loaded_plan *loaded, int rank, struct needs *needs)
{
    const uint32_t *channels = loaded->plan->ranks[rank].channel_count;
    uint64_t counters = (uint64_t)channels[PLAN_MEMORY] + channels[PLAN_PORT];
    counters++; /* arrivals of packets from other nodes */
    needs->counters = counters > needs->counters ? counters : needs->counters;
    needs->scratch |= loaded->reaches[step_base(rank, PLAN_SCRATCH)].used;
    for (int buffer = PLAN_INPUT; buffer <= PLAN_OUTPUT; buffer++)
        needs->staging[buffer] |= binding_is_staged(loaded, rank, (plan_buffer)buffer);
}

/* A multicast address is valid for all ranks' parts, so all parts have one layout. */
static void execute_load_lay_out(banyan_loaded_plan *loaded, int rank)
{
    block_layout *layout = &loaded->layouts[rank];
    uint64_t half = loaded->largest.scratch_half_bytes;
    struct needs needs = {0};
    for (int r = 0; r < loaded->executor->ranks; r++) {
        if (r == rank || loaded->executor->multicast)
            execute_load_measure(loaded, r, &needs);
    }
    uint64_t at = round_to(needs.counters * sizeof(counter), PAGE);
    layout->scratch = at;
    layout->scratch_half = round_to(half, PAGE);
    layout->scratch_bytes =
        needs.scratch ? layout->scratch_half * (loaded->plan->double_scratch + 1) : 0;
    at += layout->scratch_bytes;
    for (int buffer = PLAN_INPUT; buffer <= PLAN_OUTPUT; buffer++) {
        layout->staging[buffer] = at;
        if (needs.staging[buffer])
            at += round_to(loaded->largest.buffers[buffer].bytes, PAGE);
    }
    layout->bytes = at;
}

/* A plan may use any barrier numbers; map them to consecutive ones. */
static banyan_status number_barriers(banyan_loaded_plan *loaded, const plan_op *ops, uint32_t count)
{
    hash_map *places = &loaded->barrier_places;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t place;
        const uint32_t *number = &ops[i].barrier; /* the map keeps the pointer */
        if (ops[i].kind == PLAN_BARRIER && !map_get(places, number, sizeof *number, &place) &&
            !map_put(places, number, sizeof *number, loaded->barrier_count++))
            return BANYAN_ERR_NO_MEMORY;
        RETURN_IF_FAILED(number_barriers(loaded, ops[i].ops, ops[i].op_count));
    }
    return BANYAN_OK;
}

static void *execute_load_take_zeroed(size_t count, size_t bytes, const char *what)
{
    void *taken = aligned_alloc(64, round_to((count + 1) * bytes, 64));
    if (!taken) {
        error_no_memory((count + 1) * bytes, what);
        return NULL;
    }
    return memset(taken, 0, round_to((count + 1) * bytes, 64));
}

static banyan_status take_own(banyan_loaded_plan *loaded)
{
    const plan_rank *rank = &loaded->plan->ranks[loaded->executor->rank];
    size_t ranks = (size_t)loaded->executor->ranks;
    for (uint32_t i = 0; i < rank->block_count; i++)
        RETURN_IF_FAILED(number_barriers(loaded, rank->blocks[i].ops, rank->blocks[i].op_count));
    loaded->semaphores = execute_load_take_zeroed(rank->semaphore_count, sizeof *loaded->semaphores,
                                                  "a plan's semaphores");
    loaded->barriers =
        execute_load_take_zeroed(loaded->barrier_count, sizeof *loaded->barriers, "barriers");
    loaded->tasks =
        execute_load_take_zeroed(rank->block_count, sizeof *loaded->tasks, "thread blocks");
    loaded->layouts = execute_load_take_zeroed(ranks, sizeof *loaded->layouts, "a plan's layout");
    if (!loaded->semaphores || !loaded->barriers || !loaded->tasks || !loaded->layouts)
        return BANYAN_ERR_NO_MEMORY;
    loaded->task_count = rank->block_count;
    for (uint32_t i = 0; i < rank->block_count; i++)
        loaded->tasks[i].block = &rank->blocks[i];
    for (int i = 0; i < 2; i++) {
        binding *made = &loaded->bindings[i];
        made->bases =
            execute_load_take_zeroed(ranks * PLAN_BUFFERS, sizeof(char *), "a plan's bases");
        if (!made->bases)
            return BANYAN_ERR_NO_MEMORY;
        if (!loaded->executor->transport)
            continue;
        made->remote =
            execute_load_take_zeroed(ranks * PLAN_BUFFERS, sizeof *made->remote, "a plan's bases");
        loaded->memory_bytes[i] = execute_load_take_zeroed(ranks, sizeof(uint64_t), "memories");
        if (!made->remote || !loaded->memory_bytes[i])
            return BANYAN_ERR_NO_MEMORY;
    }
    for (int type = PLAN_MEMORY; type <= PLAN_PORT; type++) {
        loaded->ends[type] = execute_load_take_zeroed(rank->channel_count[type],
                                                      sizeof *loaded->ends[type], "channels");
        if (!loaded->ends[type])
            return BANYAN_ERR_NO_MEMORY;
    }
    return BANYAN_OK;
}

static void load_note_reach(reach *reaches, const plan_cursor *at, uint32_t i)
{
    const plan_operand *operand = plan_operand_at(at->op, i);
    bool written = i >= at->op->source_count;
    const int *ranks;
    int room;
    int count = plan_operand_ranks(at->plan, at->rank, at->block, at->op, operand, &ranks, &room);
    plan_where where = plan_operand_where(at->plan, at->rank, at->block, at->op, operand);
    for (int r = 0; r < count; r++) {
        reach *of = &reaches[step_base(ranks[r], where.buffer)];
        of->used = true;
        of->read |= !written;
        of->written |= written;
        of->peers |= ranks[r] != at->rank;
    }
}

/* Return the accesses to every buffer of every rank, indexed by step_base. NULL: out of memory. */
static reach *load_find_reaches(const banyan_plan *plan)
{
    size_t bytes = (size_t)plan->rank_count * PLAN_BUFFERS * sizeof(reach);
    reach *reaches = calloc(1, bytes);
    if (!reaches) {
        error_no_memory(bytes, "the reach of a plan's buffers");
        return NULL;
    }
    for (plan_cursor at = {.plan = plan}; plan_cursor_next(&at);) {
        for (uint32_t i = 0; i < plan_operand_count(at.op); i++)
            load_note_reach(reaches, &at, i);
    }
    return reaches;
}

/* Chunks of this rank's output that an operation writes. */
typedef struct load_write {
    uint64_t first, end;
} load_write;

static int load_compare_writes(const void *left, const void *right)
{
    const load_write *a = left, *b = right;
    return COMPARE(a->first, b->first);
}

static bool load_names_rank(const plan_cursor *at, const plan_operand *operand, int rank)
{
    const int *ranks;
    int room;
    int count = plan_operand_ranks(at->plan, at->rank, at->block, at->op, operand, &ranks, &room);
    for (int r = 0; r < count; r++)
        if (ranks[r] == rank)
            return true;
    return false;
}

/* Find out whether no two operations write a chunk of the rank's output. */
static banyan_status load_writes_once(const banyan_plan *plan, int rank, bool *once)
{
    ARRAY(load_write) writes = {0};
    banyan_status status = BANYAN_OK;
    for (plan_cursor at = {.plan = plan}; plan_cursor_next(&at);) {
        for (uint32_t i = at.op->source_count; i < plan_operand_count(at.op); i++) {
            const plan_operand *operand = plan_operand_at(at.op, i);
            plan_where where = plan_operand_where(plan, at.rank, at.block, at.op, operand);
            load_write made = {operand->index, operand->index + operand->size};
            if (where.buffer == PLAN_OUTPUT && load_names_rank(&at, operand, rank) &&
                !array_push(&writes, made))
                status = BANYAN_ERR_NO_MEMORY;
        }
    }
    sort_elements(writes.data, writes.count, sizeof *writes.data, load_compare_writes);
    *once = true;
    for (size_t i = 1; i < writes.count; i++)
        *once &= writes.data[i - 1].end <= writes.data[i].first;
    array_free(&writes);
    return status;
}

/* Puts of other nodes into this rank's staged output may arrive in the caller's output instead, if
 * nobody reads it there and nothing overwrites it: a run then copies the rest. */
static banyan_status load_find_redirection(banyan_loaded_plan *loaded)
{
    const banyan_executor *executor = loaded->executor;
    if (!executor_is_host(executor) || !executor->transport || loaded->plan->in_place ||
        loaded->reaches[step_base(executor->rank, PLAN_OUTPUT)].read ||
        !binding_is_staged(loaded, executor->rank, PLAN_OUTPUT))
        return BANYAN_OK;
    return load_writes_once(loaded->plan, executor->rank, &loaded->redirects_output);
}

static banyan_status execute_load_prepare(banyan_loaded_plan *loaded, const banyan_plan *plan,
                                          const banyan_loaded_plan_options *options)
{
    RETURN_IF_FAILED(execute_load_check_arguments(loaded->executor, plan, options));
    RETURN_IF_FAILED(plan_clone(plan, &loaded->plan));
    loaded->max_message_bytes = options->max_message_bytes;
    loaded->memories[PLAN_INPUT] = options->input;
    loaded->memories[PLAN_OUTPUT] = options->output;
    loaded->flag = 1;
    loaded->reaches = load_find_reaches(loaded->plan);
    if (!loaded->reaches)
        return BANYAN_ERR_NO_MEMORY;
    if (loaded->plan->in_place)
        RETURN_IF_FAILED(binding_find_longer(loaded->plan, &loaded->longer));
    loaded->copies_output = binding_copies_output(loaded);
    RETURN_IF_FAILED(load_find_redirection(loaded));
    RETURN_IF_FAILED(
        plan_geometry_largest(loaded->plan, loaded->max_message_bytes, &loaded->largest));
    RETURN_IF_FAILED(take_own(loaded));
    for (int r = 0; r < loaded->executor->ranks; r++)
        execute_load_lay_out(loaded, r);
    return BANYAN_OK;
}

/* A rank's counters: of memory channels, of port channels, of arrivals. */
static uint32_t counter_index(const banyan_loaded_plan *loaded, int rank, plan_channel_type type)
{
    const uint32_t *channels = loaded->plan->ranks[rank].channel_count;
    return type == PLAN_MEMORY ? 0 : channels[PLAN_MEMORY];
}

/* NULL: the rank is on another node. */
static counter *counters_of(const banyan_loaded_plan *loaded, int rank, plan_channel_type type)
{
    int local = memory_space_local(loaded->executor->space, rank);
    if (local < 0)
        return NULL;
    return (counter *)memory_part_of(loaded->block, local) + counter_index(loaded, rank, type);
}

static banyan_remote remote_counter(const banyan_loaded_plan *loaded, int rank, uint32_t index)
{
    return (banyan_remote){.handle = {.rank = rank,
                                      .kind = BANYAN_MEMORY_SYMMETRIC,
                                      .id = loaded->block->id,
                                      .bytes = loaded->layouts[rank].bytes},
                           .offset = index * sizeof(counter)};
}

/* Connect to a peer of another node. A channel without a peer end has no signals; its counter is
 * that of arrivals. */
static banyan_status connect_remote(banyan_loaded_plan *loaded, channel_end *end, bool has_end,
                                    uint32_t peer_channel)
{
    const uint32_t *channels = loaded->plan->ranks[end->peer].channel_count;
    uint32_t ports = counter_index(loaded, end->peer, PLAN_PORT);
    uint32_t arrivals = ports + channels[PLAN_PORT];
    banyan_remote arrival = remote_counter(loaded, end->peer, arrivals);
    banyan_remote signal =
        remote_counter(loaded, end->peer, has_end ? ports + peer_channel : arrivals);
    if (!executor_is_host(loaded->executor)) {
        end->outgoing = (counter *)(void *)engine_remote(signal.handle.id, signal.offset);
        return BANYAN_OK;
    }
    return remote_port_create(loaded->executor->world, loaded->executor->transport, &signal,
                              &arrival, &end->remote);
}

static banyan_status connect_end(banyan_loaded_plan *loaded, plan_channel_type type, uint32_t i)
{
    banyan_executor *executor = loaded->executor;
    channel_end *end = &loaded->ends[type][i];
    uint32_t peer_channel = 0;
    end->number = i;
    end->peer = loaded->plan->ranks[executor->rank].peers[type][i];
    end->incoming = &counters_of(loaded, executor->rank, type)[i];
    /* A channel without a peer end carries only data: the plan's check ensures that. */
    bool has_end =
        plan_channel_pair(loaded->plan, executor->rank, type, i, &end->peer, &peer_channel);
    if (memory_space_local(executor->space, end->peer) < 0)
        return connect_remote(loaded, end, has_end, peer_channel);
    if (has_end)
        end->outgoing = &counters_of(loaded, end->peer, type)[peer_channel];
    end->wake_up = executor_wake_up(executor, end->peer);
    if (type != PLAN_PORT || !executor_is_host(executor))
        return BANYAN_OK;
    if (!executor->proxy)
        RETURN_IF_FAILED(port_proxy_create(executor_wake_up(executor, executor->rank),
                                           executor->crowded, &executor->proxy));
    return port_queue_create(executor->proxy, &end->queue);
}

static banyan_status execute_load_connect(banyan_loaded_plan *loaded)
{
    const banyan_executor *executor = loaded->executor;
    const plan_rank *rank = &loaded->plan->ranks[executor->rank];
    for (int type = PLAN_MEMORY; type <= PLAN_PORT; type++) {
        for (uint32_t i = 0; i < rank->channel_count[type]; i++)
            RETURN_IF_FAILED(connect_end(loaded, (plan_channel_type)type, i));
    }
    for (int parity = 0; parity < 2; parity++) {
        for (int r = 0; r < executor->ranks; r++) {
            const block_layout *layout = &loaded->layouts[r];
            uint64_t half = loaded->plan->double_scratch ? layout->scratch_half : 0;
            binding_place_in_block(loaded, &loaded->bindings[parity], r, PLAN_SCRATCH,
                                   layout->scratch + (uint64_t)parity * half);
        }
    }
    return executor_is_host(executor) ? BANYAN_OK : device_load(loaded);
}

static void execute_load_release(banyan_loaded_plan *loaded)
{
    if (!executor_is_host(loaded->executor))
        device_unload(loaded);
    uint32_t ports = loaded->plan && loaded->ends[PLAN_PORT]
                         ? loaded->plan->ranks[loaded->executor->rank].channel_count[PLAN_PORT]
                         : 0;
    for (uint32_t i = 0; i < ports; i++) {
        port_queue_destroy(loaded->ends[PLAN_PORT][i].queue);
        remote_port_destroy(loaded->ends[PLAN_PORT][i].remote);
    }
    for (int type = 0; type < PLAN_CHANNEL_TYPES; type++)
        free(loaded->ends[type]);
    for (size_t i = 0; i < loaded->specialized.count; i++)
        specialize_free(loaded->specialized.data[i]);
    array_free(&loaded->specialized);
    map_free(&loaded->barrier_places);
    for (uint32_t i = 0; i < loaded->task_count; i++)
        task_free(&loaded->tasks[i]);
    shuffle_free(loaded->shuffle);
    for (int i = 0; i < 2; i++) {
        free(loaded->bindings[i].bases);
        free(loaded->bindings[i].remote);
        free(loaded->memory_bytes[i]);
        free(loaded->private_buffers[i]);
    }
    free(loaded->tasks);
    free(loaded->semaphores);
    free(loaded->barriers);
    free(loaded->layouts);
    free(loaded->reaches);
    banyan_memory_free(loaded->block);
    banyan_plan_destroy(loaded->plan);
    pthread_mutex_destroy(&loaded->waits.lock);
    free(loaded);
}

/* Other nodes' parts of the memories for input and output are not mapped here. */
static banyan_status exchange_memory_bytes(banyan_loaded_plan *loaded)
{
    banyan_world *world = loaded->executor->world;
    for (int i = 0; i < 2; i++) {
        uint64_t mine = loaded->memories[i] ? banyan_memory_bytes(loaded->memories[i]) : 0;
        RETURN_IF_FAILED(
            banyan_world_allgather(world, &mine, sizeof mine, loaded->memory_bytes[i]));
    }
    return BANYAN_OK;
}

banyan_status banyan_loaded_plan_open(banyan_executor *executor, const banyan_plan *plan,
                                      const banyan_loaded_plan_options *options,
                                      banyan_loaded_plan **loaded)
{
    CONTROL_ENTER_WITHIN(executor->world, executor->timeout);
    banyan_loaded_plan *made = calloc(1, sizeof *made);
    banyan_status status = made ? BANYAN_OK : error_no_memory(sizeof *made, "a plan");
    banyan_loaded_plan_options taken = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    if (made) {
        made->executor = executor;
        made->waits.wait = control_wait_begin(executor->world);
        pthread_mutex_init(&made->waits.lock, NULL);
        status = options_take(options, "BANYAN_LOADED_PLAN_OPTIONS_INIT", &taken, sizeof taken);
    }
    if (status == BANYAN_OK)
        status = execute_load_prepare(made, plan, &taken);
    status = control_agree(executor->world, status);
    if (status == BANYAN_OK)
        status = load_agree(made);
    if (status == BANYAN_OK && executor->transport)
        status = exchange_memory_bytes(made);
    if (status == BANYAN_OK)
        status = banyan_memory_alloc_on(executor->world, executor->device,
                                        made->layouts[executor->rank].bytes, &made->block);
    if (status == BANYAN_OK)
        status = multicast_load(made);
    if (status == BANYAN_OK)
        status = control_agree(executor->world, execute_load_connect(made));
    if (status != BANYAN_OK) {
        if (made)
            execute_load_release(made);
        return status;
    }
    *loaded = made;
    return BANYAN_OK;
}

banyan_status banyan_loaded_plan_close(banyan_loaded_plan *loaded)
{
    if (!loaded)
        return BANYAN_OK;
    /* Peers of other nodes have this plan until all that was sent to them is at its place. */
    if (loaded->on_device && loaded->executor->transport)
        (void)device_drain(loaded);
    banyan_status status = banyan_world_barrier(loaded->executor->world);
    execute_load_release(loaded);
    return status;
}
