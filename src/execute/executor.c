#include "execute/executor.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "core/options.h"
#include "execute/shuffle.h"
#include "world/control.h"

/* Processors that the node's ranks may run on, together, when nobody has counted them yet. */
static banyan_status count_processors(banyan_executor *executor)
{
    if (executor->space->processors > 0)
        return BANYAN_OK;
    cpu_set_t mine, all;
    CPU_ZERO(&mine);
    CPU_ZERO(&all);
    if (sched_getaffinity(0, sizeof mine, &mine) != 0)
        CPU_ZERO(&mine); /* more than the set has room for */
    void *sets;
    size_t *sizes = calloc((size_t)executor->ranks, sizeof *sizes);
    RETURN_IF_FAILED(control_agree(
        executor->world,
        sizes ? BANYAN_OK : error_no_memory((size_t)executor->ranks * sizeof *sizes, "sizes")));
    banyan_status status =
        banyan_world_allgatherv(executor->world, &mine, sizeof mine, &sets, sizes);
    free(sizes);
    RETURN_IF_FAILED(status);
    for (int r = 0; r < executor->ranks; r++)
        CPU_OR(&all, &all, &((const cpu_set_t *)sets)[r]);
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
    if (banyan_world_node_count(world) > 1)
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "plans run between ranks of one node, and rank %d's world has %d nodes",
                         banyan_world_rank(world), banyan_world_node_count(world));
    uint64_t seed;
    RETURN_IF_FAILED(shuffle_find_seed(options->shuffle_seed, &seed));
    banyan_executor *executor = calloc(1, sizeof *executor);
    if (!executor)
        return error_no_memory(sizeof *executor, "an executor");
    executor->world = world;
    executor->rank = banyan_world_rank(world);
    executor->ranks = banyan_world_size(world);
    executor->worker_count = threads;
    executor->shuffle_seed = seed;
    banyan_status status = memory_space_of(world, &executor->space);
    if (status != BANYAN_OK) {
        free(executor);
        return status;
    }
    *made = executor;
    return BANYAN_OK;
}

static banyan_status open_together(banyan_executor *executor)
{
    RETURN_IF_FAILED(count_processors(executor));
    RETURN_IF_FAILED(banyan_memory_alloc(executor->world, sizeof(bell), &executor->bells));
    executor->crowded = memory_space_is_crowded(executor->space, executor->worker_count);
    banyan_status status = BANYAN_OK;
    if (executor->worker_count > 1)
        status = workers_create(executor->worker_count, executor->crowded, &executor->pool);
    return control_agree(executor->world, status);
}

banyan_status banyan_executor_open(banyan_world *world, const banyan_executor_options *options,
                                   banyan_executor **executor)
{
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
    workers_destroy(executor->pool);
    if (executor->proxy)
        port_proxy_destroy(executor->proxy);
    banyan_memory_free(executor->bells);
    trace_free(executor->trace);
    free(executor);
}
