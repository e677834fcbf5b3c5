/* The copy service between GPUs, receiving into memory of any origin: peers write directly where
 * they can map it; otherwise it is staged. Nothing else changes. */
#include "cuda/gpu_traffic.h"

#define TASKS 40
#define RUNS 3

enum origin { PLAIN, POOLED, MIXED, ORIGINS };

/* MIXED: some ranks receive into symmetric memory, the others into the other kinds. */
static enum origin origin_at(enum origin asked, int rank)
{
    return asked == MIXED ? (enum origin)(rank % ORIGINS) : asked;
}

static void receive_into(gpu_traffic *all, enum origin origin)
{
    void *pooled;
    if (origin == PLAIN)
        all->received = gpu_plain_alloc(all->device, all->recv_bytes);
    if (origin == POOLED) {
        CHECK_OK(gpu_memory()->alloc(all->device.device_id, all->recv_bytes, &pooled));
        all->received = pooled;
    }
}

static void give_back(gpu_traffic *all, enum origin origin)
{
    if (origin == PLAIN)
        gpu_plain_free(all->device, all->received);
    if (origin == POOLED)
        gpu_memory()->free(all->device.device_id, all->received);
}

typedef struct anywhere {
    uint64_t seed;
    enum origin origin;
    bool graph;
} anywhere;

static void run(banyan_world *world, gpu_traffic *all, banyan_copy_service *service,
                banyan_copy_schedule *schedule, bool as_graph)
{
    void *graph = NULL;
    if (as_graph) {
        gpu_capture_begin(all->device, all->stream);
        gpu_traffic_update(all);
        CHECK_OK(banyan_copy_schedule_run(schedule, all->stream));
        graph = gpu_capture_end(all->device, all->stream);
    }
    for (uint64_t i = 0; i < RUNS; i++) {
        gpu_traffic_fill(all, i);
        CHECK_OK(banyan_world_barrier(world)); /* the destinations are poisoned */
        if (as_graph) {
            gpu_graph_launch(all->device, graph, all->stream);
        } else {
            gpu_traffic_update(all);
            CHECK_OK(banyan_copy_schedule_run(schedule, all->stream));
        }
        gpu_stream_wait(all->device, all->stream);
        CHECK_OK(banyan_copy_service_check(service));
        gpu_traffic_check(all, i);
    }
    if (graph)
        gpu_graph_destroy(all->device, graph);
}

static void move_anywhere(banyan_world *world, void *context)
{
    const anywhere *test = context;
    int rank = banyan_world_rank(world);
    enum origin origin = origin_at(test->origin, rank);
    banyan_copy_options options = BANYAN_COPY_OPTIONS_INIT;
    options.device = gpu_device_for(rank);
    banyan_copy_service *service;
    CHECK_OK(banyan_copy_service_open(world, "direct", &options, &service));
    gpu_traffic *all =
        gpu_traffic_make(world, options.device, test->seed, TASKS, TRAFFIC_BY_ID, 5000);
    receive_into(all, origin);
    gpu_traffic_submit(all, service);
    banyan_copy_schedule *schedule;
    CHECK_OK(banyan_copy_service_prepare(service, &schedule));
    run(world, all, service, schedule, test->graph);
    banyan_copy_schedule_destroy(schedule);
    CHECK_OK(banyan_world_barrier(world));
    banyan_copy_service_close(service);
    give_back(all, origin);
    gpu_traffic_free(all);
}

static void tensors_are_received_into_memory_of_any_origin(void **state)
{
    (void)state;
    for (enum origin origin = gpu_worlds_are_cheap() ? PLAIN : MIXED; origin < ORIGINS; origin++) {
        anywhere test = {.seed = random_seed() + origin, .origin = origin};
        ranks_run(4, move_anywhere, &test);
        if (gpu_worlds_are_cheap()) {
            ranks_run(2, move_anywhere, &test);
            ranks_run_threads(3, move_anywhere, &test);
        }
    }
}

static void a_graph_does_so_too(void **state)
{
    (void)state;
    anywhere test = {.seed = random_seed() + 10, .origin = MIXED, .graph = true};
    ranks_run(3, move_anywhere, &test);
}

int main(void)
{
    gpu_count();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_received_into_memory_of_any_origin),
        cmocka_unit_test(a_graph_does_so_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
