/* The pipeline between GPUs: whatever the strides and however many rounds, every element arrives,
 * the newest one, and nothing else changes; a partner that is late or dead ends a run. */
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "cuda/gpu_traffic.h"

#define TASKS 40
#define RUNS 3
#define REPLAYS 6

typedef struct plan_of_test {
    uint64_t seed;
    const char *transport;
    size_t slot_bytes;
    traffic_ids ids;
    int64_t most_elems;
    bool one_gpu; /* for all ranks */
    bool graph;
    bool optimal_rounds;
} plan_of_test;

static banyan_copy_service *open_on(banyan_world *world, DLDevice device, const plan_of_test *test)
{
    banyan_copy_service *service;
    banyan_copy_options options = BANYAN_COPY_OPTIONS_INIT;
    options.device = device;
    options.transport = test->transport;
    options.slot_bytes = test->slot_bytes;
    options.optimal_rounds = test->optimal_rounds;
    CHECK_OK(banyan_copy_service_open(world, "pipeline", &options, &service));
    return service;
}

static void run_eagerly(banyan_world *world, gpu_traffic *all, banyan_copy_service *service,
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

static void run_as_graph(banyan_world *world, gpu_traffic *all, banyan_copy_service *service,
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

static void move_traffic(banyan_world *world, void *context)
{
    const plan_of_test *test = context;
    DLDevice device = gpu_device_for(test->one_gpu ? 0 : banyan_world_rank(world));
    banyan_copy_service *service = open_on(world, device, test);
    CHECK(strcmp(banyan_copy_service_name(service), "pipeline") == 0);
    gpu_traffic *all =
        gpu_traffic_make(world, device, test->seed, TASKS, test->ids, test->most_elems);
    banyan_copy_schedule *schedule;
    gpu_traffic_submit(all, service);
    CHECK_OK(banyan_copy_service_prepare(service, &schedule));
    run_eagerly(world, all, service, schedule);
    if (test->graph)
        run_as_graph(world, all, service, schedule);
    CHECK_OK(banyan_world_barrier(world));
    banyan_copy_schedule_free(schedule);
    banyan_copy_service_close(service);
    gpu_traffic_free(all);
}

static void every_element_arrives_the_newest_one(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks++) {
        plan_of_test test = {.seed = random_seed() + (uint64_t)ranks, .most_elems = 20000};
        ranks_run(ranks, move_traffic, &test);
    }
}

static void small_slots_make_many_rounds(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 4; ranks++) {
        plan_of_test test = {.seed = random_seed() + 10 + (uint64_t)ranks,
                             .slot_bytes = ranks == 3 ? 5000 : 16384,
                             .optimal_rounds = ranks == 4,
                             .most_elems = 20000};
        ranks_run(ranks, move_traffic, &test);
    }
}

static void ranks_may_be_threads_and_share_a_gpu(void **state)
{
    (void)state;
    plan_of_test test = {.seed = random_seed() + 20,
                         .ids = TRAFFIC_BY_ORDER,
                         .slot_bytes = 10000,
                         .most_elems = 5000};
    ranks_run_threads(3, move_traffic, &test);
    test.one_gpu = true;
    ranks_run_threads(4, move_traffic, &test);
}

static void a_graph_moves_what_is_there_at_each_replay(void **state)
{
    (void)state;
    plan_of_test test = {
        .seed = random_seed() + 30, .slot_bytes = 20000, .most_elems = 5000, .graph = true};
    ranks_run(3, move_traffic, &test);
}

/* ---- failures ---- */

#define PAIR_BYTES 100000
#define PAIR_SLOT_BYTES 10000

typedef struct pair {
    banyan_memory *memory; /* what is sent, then what is received */
    banyan_copy_service *service;
    banyan_copy_schedule *schedule;
    DLDevice device;
    void *stream;
} pair;

/* Every rank sends to all others, and so receives from all: in many rounds. */
static pair open_pair(banyan_world *world)
{
    static int64_t shape[] = {PAIR_BYTES};
    int rank = banyan_world_rank(world), size = banyan_world_size(world);
    plan_of_test test = {.slot_bytes = PAIR_SLOT_BYTES};
    pair made = {.device = gpu_device_for(rank)};
    CHECK_OK(banyan_memory_alloc_on(world, made.device, (size_t)size * PAIR_BYTES, &made.memory));
    gpu_poison(banyan_memory_local(made.memory), (size_t)size * PAIR_BYTES);
    made.stream = gpu_stream_create(made.device);
    made.service = open_on(world, made.device, &test);
    DLTensor tensor = {.device = made.device, .ndim = 1, .dtype = BANYAN_U8, .shape = shape};
    for (int i = 1; i < size; i++) {
        tensor.data = banyan_memory_local(made.memory);
        CHECK_OK(banyan_copy_service_submit_send(made.service, &tensor, (rank + i) % size, 1));
        tensor.data = (char *)tensor.data + i * PAIR_BYTES;
        CHECK_OK(banyan_copy_service_submit_recv(made.service, &tensor, (rank + i) % size, 1));
    }
    CHECK_OK(banyan_copy_service_prepare(made.service, &made.schedule));
    return made;
}

static void close_pair(pair *closed)
{
    banyan_copy_schedule_free(closed->schedule);
    banyan_copy_service_close(closed->service);
    gpu_stream_destroy(closed->device, closed->stream);
    banyan_memory_free(closed->memory);
}

static void be_late(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    banyan_world *world = ranks_open_world(rank, count, id, UINT64_C(1500000000));
    pair both = open_pair(world);
    if (rank == 0) {
        CHECK_OK(banyan_copy_schedule_run(both.schedule, both.stream));
        CHECK_OK(banyan_copy_service_check(both.service));
        gpu_stream_wait(both.device, both.stream);
        CHECK_FAILS(banyan_copy_service_check(both.service), BANYAN_ERR_TIMEOUT,
                    "rank 0 waited 1.5 s for a");
        CHECK_FAILS(banyan_copy_schedule_run(both.schedule, both.stream), BANYAN_ERR_TIMEOUT,
                    "rank 1");
    } else {
        /* What rank 0 had to send is there, or not the batch that it should be: nobody takes it
         * for the data. */
        usleep(2500000);
        CHECK_OK(banyan_copy_schedule_run(both.schedule, both.stream));
        gpu_stream_wait(both.device, both.stream);
        CHECK_FAILS(banyan_copy_service_check(both.service), BANYAN_ERR_ABORTED,
                    "rank 1 got no batch from rank 0, whose run has failed");
    }
    close_pair(&both);
    banyan_world_close(world);
}

static void a_late_partner_ends_a_run(void **state)
{
    (void)state;
    int statuses[2];
    ranks_fork(2, be_late, NULL, statuses);
    assert_int_equal(statuses[0], 0);
    assert_int_equal(statuses[1], 0);
}

static void die(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    banyan_world *world = ranks_open_world(rank, count, id, UINT64_C(60000000000));
    pair all = open_pair(world);
    CHECK_OK(banyan_world_barrier(world));
    if (rank == 1) {
        usleep(200000);
        kill(getpid(), SIGKILL);
    }
    CHECK_OK(banyan_copy_schedule_run(all.schedule, all.stream));
    gpu_stream_wait(all.device, all.stream);
    CHECK(banyan_copy_service_check(all.service) != BANYAN_OK, "rank %d has all of rank 1's data",
          rank);
    CHECK_FAILS(banyan_world_check(world), BANYAN_ERR_PEER_LOST, "rank 1");
    close_pair(&all);
    banyan_world_close(world);
}

static void a_dead_partner_ends_runs_at_once(void **state)
{
    (void)state;
    int statuses[3];
    time_t begun = time(NULL);
    ranks_fork(3, die, NULL, statuses);
    assert_int_equal(statuses[0], 0);
    assert_int_equal(statuses[2], 0);
    assert_true(time(NULL) - begun < 20);
}

static void refuse(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world);
    banyan_copy_service *service;
    banyan_copy_options options = BANYAN_COPY_OPTIONS_INIT;
    options.device = gpu_device_for(rank);
    options.transport = "pigeon";
    CHECK_FAILS(banyan_copy_service_open(world, "pipeline", &options, &service),
                BANYAN_ERR_NOT_FOUND, "there are peer");
    options.transport = "peer";
    options.slot_bytes = rank == 1 ? 5000 : 4000;
    CHECK_FAILS(banyan_copy_service_open(world, "pipeline", &options, &service),
                BANYAN_ERR_MISMATCH, "rank 1 opens slots of 5000 bytes, rank 0 of 4000");
    options.slot_bytes = SIZE_MAX;
    CHECK_FAILS(banyan_copy_service_open(world, "pipeline", &options, &service), BANYAN_ERR_INVALID,
                "slots of 18446744073709551615 bytes");
    options.transport = rank == 0 ? "pigeon" : "peer";
    options.slot_bytes = 4000;
    CHECK_FAILS(banyan_copy_service_open(world, "pipeline", &options, &service),
                BANYAN_ERR_NOT_FOUND, rank == 0 ? "there is no" : "rank 0: pipeline: there is no");
}

static void what_cannot_be_opened_is_refused(void **state)
{
    (void)state;
    ranks_run(2, refuse, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_arrives_the_newest_one),
        cmocka_unit_test(small_slots_make_many_rounds),
        cmocka_unit_test(ranks_may_be_threads_and_share_a_gpu),
        cmocka_unit_test(a_graph_moves_what_is_there_at_each_replay),
        cmocka_unit_test(a_late_partner_ends_a_run),
        cmocka_unit_test(a_dead_partner_ends_runs_at_once),
        cmocka_unit_test(what_cannot_be_opened_is_refused),
    };
    /* For the ranks that share a GPU as threads: what waits in one of its queues must not stand in
     * front of what it waits for. */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    gpu_count();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
