/* Random traffic through the copy service between GPUs, with any backend: run after run, and as a
 * graph. */
#ifndef TESTS_CUDA_GPU_COPY_H
#define TESTS_CUDA_GPU_COPY_H

#include "cuda/gpu_traffic.h"

#define TASKS 40
#define RUNS 3
#define REPLAYS 6

typedef struct plan_of_test {
    uint64_t seed;
    const char *backend; /* NULL: the default, which is direct */
    const char *transport;
    size_t slot_bytes;
    traffic_ids ids;
    int64_t most_elems;
    int tasks;    /* 0: TASKS */
    bool one_gpu; /* for all ranks */
    bool graph;   /* also replay a graph */
    bool optimal_rounds;
    uint64_t timeout_ns; /* 0: the world's */
} plan_of_test;

static inline banyan_copy_service *open_on(banyan_world *world, DLDevice device,
                                           const plan_of_test *test)
{
    banyan_copy_service *service;
    banyan_copy_options options = BANYAN_COPY_OPTIONS_INIT;
    options.device = device;
    options.transport = test->transport;
    options.slot_bytes = test->slot_bytes;
    options.optimal_rounds = test->optimal_rounds;
    options.timeout_ns = test->timeout_ns;
    CHECK_OK(banyan_copy_service_open(world, test->backend, &options, &service));
    return service;
}

static inline void run_eagerly(banyan_world *world, gpu_traffic *all, banyan_copy_service *service,
                               banyan_copy_schedule *schedule)
{
    for (uint64_t run = 0; run < RUNS; run++) {
        gpu_traffic_fill(all, run);
        CHECK_OK(banyan_world_barrier(world)); /* the destinations are poisoned */
        gpu_traffic_update(all);
        CHECK_OK(banyan_copy_schedule_run(schedule, all->stream));
        gpu_stream_wait(all->device, all->stream);
        CHECK_OK(banyan_copy_service_check(service));
        gpu_traffic_check(all, run);
    }
}

static inline void run_as_graph(banyan_world *world, gpu_traffic *all, banyan_copy_service *service,
                                banyan_copy_schedule *schedule)
{
    gpu_capture_begin(all->device, all->stream);
    gpu_traffic_update(all);
    CHECK_OK(banyan_copy_schedule_run(schedule, all->stream));
    void *graph = gpu_capture_end(all->device, all->stream);
    for (uint64_t run = 0; run < REPLAYS; run++) {
        gpu_traffic_fill(all, run);
        CHECK_OK(banyan_world_barrier(world));
        gpu_graph_launch(all->device, graph, all->stream);
        gpu_stream_wait(all->device, all->stream);
        CHECK_OK(banyan_copy_service_check(service));
        gpu_traffic_check(all, run);
    }
    gpu_graph_destroy(all->device, graph);
}

static inline void move_traffic(banyan_world *world, void *context)
{
    const plan_of_test *test = context;
    DLDevice device = gpu_device_for(test->one_gpu ? 0 : banyan_world_rank(world));
    banyan_copy_service *service = open_on(world, device, test);
    CHECK(strcmp(banyan_copy_service_name(service), test->backend ? test->backend : "direct") == 0);
    gpu_traffic *all = gpu_traffic_make(
        world, device, test->seed, test->tasks ? test->tasks : TASKS, test->ids, test->most_elems);
    banyan_copy_schedule *schedule;
    gpu_traffic_submit(all, service);
    CHECK_OK(banyan_copy_service_prepare(service, &schedule));
    run_eagerly(world, all, service, schedule);
    if (test->graph)
        run_as_graph(world, all, service, schedule);
    CHECK_OK(banyan_world_barrier(world));
    banyan_copy_schedule_destroy(schedule);
    banyan_copy_service_close(service);
    gpu_traffic_free(all);
}

#endif
