#include "execute/executor.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "channel/scale.h"
#include "core/error.h"
#include "core/threads/cpu.h"
#include "execute/device/device.h"
#include "execute/shuffle/shuffle.h"
#include "memory/stream.h"
#include "memory/symmetric/symmetric.h"
#include "world/control.h"

/* Whatever the size of the pieces that they are moved in: measured with 2, 4 and 8 ranks, first on
 * cores with 2 MiB of second-level cache each. AMD's share a third level of 32 MiB, up to eight of
 * them, and reach each other's caches fastest with what memcpy does (docs/notes/performance.md). */
#define LARGE_BYTES (UINT64_C(4) << 20)
#define LARGE_BYTES_AMD (UINT64_C(96) << 20) /* of all ranks that share caches */

static uint64_t large_bytes_of(int ranks)
{
    int sharers = ranks < 2 ? 2 : ranks > 8 ? 8 : ranks;
    return cpu_amd_family() > 0 ? LARGE_BYTES_AMD / (uint64_t)sharers : LARGE_BYTES;
}

/* Read a variable of the environment, if it is set. */
static banyan_status read_variable(const char *name, const char *what, uint64_t *number)
{
    const char *text = getenv(name);
    if (!text || !*text)
        return BANYAN_OK;
    char *end;
    errno = 0;
    unsigned long long found = strtoull(text, &end, 10);
    if (errno != 0 || *end != 0 || *text < '0' || *text > '9')
        return error_set(BANYAN_ERR_INVALID, "%s is \"%s\", and should be %s", name, text, what);
    *number = found;
    return BANYAN_OK;
}

/* Count the processors that the node's ranks may run on together, unless they are counted
 * already. */
static banyan_status execute_executor_count_processors(banyan_executor *executor)
{
    if (executor->space->processors > 0)
        return BANYAN_OK;
    cpu_set_t mine, all;
    CPU_ZERO(&mine);
    CPU_ZERO(&all);
    if (sched_getaffinity(0, sizeof mine, &mine) != 0)
        CPU_ZERO(&mine); /* the set is too small for the machine */
    void *sets;
    RETURN_IF_FAILED(control_gather(executor->world, BANYAN_OK, &mine, sizeof mine,
                                    "sets of processors", &sets));
    for (int r = 0; r < executor->ranks; r++) {
        if (memory_space_local(executor->space, r) >= 0)
            CPU_OR(&all, &all, &((const cpu_set_t *)sets)[r]);
    }
    free(sets);
    executor->space->processors = CPU_COUNT(&all);
    return BANYAN_OK;
}

static banyan_status open_alone(banyan_world *world, const banyan_executor_options *options,
                                banyan_executor **made)
{
    int threads = options->workers;
    if (threads < 1 || threads > 1024)
        return error_set(BANYAN_ERR_INVALID,
                         "an executor has 1 to 1024 workers, and rank %d asks for %d",
                         banyan_world_rank(world), threads);
    bool on_host = device_is_host(options->device);
    if (!on_host && options->shuffle_seed != 0)
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "rank %d: plans are shuffled on the host, not on a device",
                         banyan_world_rank(world));
    uint64_t seed = options->shuffle_seed, large_bytes = large_bytes_of(banyan_world_size(world));
    if (on_host && seed == 0)
        RETURN_IF_FAILED(read_variable("BANYAN_SHUFFLE", "a seed, which is a number", &seed));
    RETURN_IF_FAILED(read_variable("BANYAN_PAST_CACHES", "a number of bytes", &large_bytes));
    banyan_executor *executor = calloc(1, sizeof *executor);
    if (!executor)
        return error_no_memory(sizeof *executor, "an executor");
    executor->world = world;
    executor->timeout = control_timeout_now(world);
    executor->rank = banyan_world_rank(world);
    executor->ranks = banyan_world_size(world);
    executor->worker_count = threads;
    executor->shuffle_seed = seed;
    executor->large_bytes = large_bytes;
    executor->device = on_host ? BANYAN_HOST : options->device;
    banyan_status status = memory_space_of(world, &executor->space);
    if (status == BANYAN_OK && !on_host)
        status = device_open(executor, options->device);
    if (status != BANYAN_OK) {
        free(executor);
        return status;
    }
    *made = executor;
    return BANYAN_OK;
}

/* Check that a plan runs on the host on all ranks, or on their devices on all ranks. */
static banyan_status agree_on_device(banyan_executor *executor)
{
    int32_t mine = executor->device.device_type;
    void *gathered;
    banyan_status status =
        control_gather(executor->world, BANYAN_OK, &mine, sizeof mine, "devices", &gathered);
    const int32_t *all = gathered;
    for (int r = 1; r < executor->ranks && status == BANYAN_OK; r++) {
        if (all[r] != all[0])
            status = control_fail_together(
                executor->world,
                error_set(BANYAN_ERR_MISMATCH, "rank 0 opens an executor on %s, and rank %d on %s",
                          all[0] == kDLCPU ? "the host" : "a device", r,
                          all[r] == kDLCPU ? "the host" : "a device"));
    }
    free(gathered);
    return status;
}

static banyan_status open_together(banyan_executor *executor)
{
    RETURN_IF_FAILED(agree_on_device(executor));
    if (!executor_is_host(executor))
        RETURN_IF_FAILED(memory_multicast_agree(executor->world, executor->device,
                                                &executor->multicast, NULL, 0));
    RETURN_IF_FAILED(execute_executor_count_processors(executor));
    RETURN_IF_FAILED(transport_world_of(executor->world, &executor->transports));
    if (banyan_world_node_count(executor->world) > 1)
        RETURN_IF_FAILED(banyan_transport_open(executor->world, NULL, &executor->transport));
    if (executor->transport && !executor_is_host(executor))
        RETURN_IF_FAILED(device_connect(executor));
    executor->crowded = memory_space_is_crowded(executor->space, executor->worker_count);
    banyan_status status = BANYAN_OK;
    if (executor->worker_count > 1 && executor_is_host(executor))
        status = workers_create(executor->worker_count, executor->crowded, &executor->pool);
    return control_agree(executor->world, status);
}

banyan_status banyan_executor_open(banyan_world *world, const banyan_executor_options *options,
                                   banyan_executor **executor)
{
    CONTROL_ENTER_WITHIN(world, CONTROL_TIMEOUT(options, banyan_executor_options));
    banyan_executor_options taken = BANYAN_EXECUTOR_OPTIONS_INIT;
    banyan_executor *made = NULL;
    banyan_status status =
        options_take(options, "BANYAN_EXECUTOR_OPTIONS_INIT", &taken, sizeof taken);
    if (status == BANYAN_OK)
        status = open_alone(world, &taken, &made);
    status = control_agree(world, status);
    if (status == BANYAN_OK)
        status = open_together(made);
    if (status != BANYAN_OK) {
        banyan_executor_close(made);
        return status;
    }
    *executor = made;
    return BANYAN_OK;
}

void banyan_executor_close(banyan_executor *executor)
{
    if (!executor)
        return;
    device_close(executor);
    array_free(&executor->on_device);
    workers_destroy(executor->pool);
    if (executor->proxy)
        port_proxy_destroy(executor->proxy);
    banyan_transport_close(executor->transport);
    trace_free(executor->trace);
    free(executor);
}

banyan_status executor_copy(const banyan_executor *executor, void *to, const void *from,
                            uint64_t bytes, void *stream)
{
    if (!executor_is_host(executor))
        return executor->engine_ops->copy(executor->engine, to, from, bytes, stream);
    stream_copy(to, from, (size_t)bytes);
    return BANYAN_OK;
}

banyan_status executor_scale(const banyan_executor *executor, void *to, const void *from,
                             uint64_t elems, DLDataType dtype, const engine_scaling *by,
                             void *stream)
{
    if (!executor_is_host(executor))
        return executor->engine_ops->scale(executor->engine, to, from, elems, dtype, by, stream);
    if (dtype.code == kDLInt || dtype.code == kDLUInt)
        scale_integers(to, from, (size_t)elems, dtype, by->whole, by->divides);
    else
        scale_floats(to, from, (size_t)elems, dtype, by->factor);
    return BANYAN_OK;
}

/* A rank's description of its device, for the other ranks. */
typedef struct room {
    int32_t process, device;
    uint32_t blocks; /* thread blocks that run there at once */
} room;

/* Return a rank's share of the device, if all ranks that are threads of one process and use the
 * device must fit. */
static uint32_t execute_executor_share_of(const banyan_world *world, const room *all, int rank)
{
    uint32_t sharers = 0;
    for (int r = 0; r < banyan_world_size(world); r++)
        sharers += all[r].process == all[rank].process && all[r].device == all[rank].device &&
                   banyan_world_node_of(world, r) == banyan_world_node_of(world, rank);
    return all[rank].blocks / sharers;
}

bool executor_plan_is_captured(const banyan_loaded_plan *loaded)
{
    return loaded->captured;
}

banyan_status executor_share_with(banyan_executor *executor, banyan_world *world, uint32_t *blocks)
{
    room mine = {.process = (int32_t)getpid(), .device = executor->device.device_id};
    uint32_t least = UINT32_MAX;
    memory_space *space;
    void *all;
    if (executor_is_host(executor)) {
        if (memory_space_of(world, &space) == BANYAN_OK)
            executor->crowded |= memory_space_is_crowded(space, executor->worker_count);
    } else {
        banyan_status status = executor->engine_ops->blocks_at_once(executor->engine, &mine.blocks);
        RETURN_IF_FAILED(
            control_gather(world, status, &mine, sizeof mine, "room on devices", &all));
        for (int rank = 0; rank < banyan_world_size(world); rank++) {
            uint32_t share = execute_executor_share_of(world, all, rank);
            least = share < least ? share : least;
        }
        free(all);
    }
    *blocks = least > 0 ? least : 1;
    return BANYAN_OK;
}
