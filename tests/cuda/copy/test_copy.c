/* The copy service between GPUs: with any strides, every element arrives with its newest value,
 * and nothing else changes. A late or dead partner ends a run. */
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "cuda/gpu_copy.h"

static banyan_copy_service *open_direct(banyan_world *world, DLDevice device)
{
    const plan_of_test test = {.backend = "direct"};
    return open_on(world, device, &test);
}

/* One world for several tests, since a GPU's driver takes seconds to start. */
typedef struct plans_of_tests {
    plan_of_test tests[4];
    const char *engine_bytes[4]; /* BANYAN_COPY_ENGINE_BYTES */
    int count;
} plans_of_tests;

static void move_several(banyan_world *world, void *context)
{
    plans_of_tests *all = context;
    for (int i = 0; i < all->count; i++) {
        if (all->engine_bytes[i])
            setenv("BANYAN_COPY_ENGINE_BYTES", all->engine_bytes[i], 1);
        move_traffic(world, &all->tests[i]);
        unsetenv("BANYAN_COPY_ENGINE_BYTES");
    }
}

static void every_element_arrives_the_newest_one(void **state)
{
    (void)state;
    uint64_t seed = random_seed();
    plans_of_tests all = {.tests = {{.seed = seed, .most_elems = 20000},
                                    {.seed = seed + 1, .most_elems = 5000, .ids = TRAFFIC_BY_ORDER},
                                    {.seed = seed + 2, .most_elems = 60000}},
                          .engine_bytes = {NULL, NULL, "512"},
                          .count = 3};
    ranks_run(4, move_several, &all);
    all.count = 1;
    ranks_run(1, move_several, &all);
    if (gpu_is_emulated())
        ranks_run(3, move_several, &all);
}

static void ranks_may_be_threads_and_share_a_gpu(void **state)
{
    (void)state;
    plan_of_test test = {
        .seed = random_seed() + 10, .ids = TRAFFIC_BY_ORDER, .most_elems = 5000, .one_gpu = true};
    ranks_run_threads(4, move_traffic, &test);
}

static void a_graph_moves_the_current_data_at_each_replay(void **state)
{
    (void)state;
    uint64_t seed = random_seed() + 20;
    plans_of_tests all = {.tests = {{.seed = seed, .most_elems = 5000, .graph = true},
                                    {.seed = seed + 1, .most_elems = 5000, .graph = true}},
                          .engine_bytes = {NULL, "512"},
                          .count = 2};
    ranks_run(3, move_several, &all);
}

#define ROWS 300
#define ROW_BYTES 4096
#define CHAIN 20

/* Each rank repeatedly sends the data it received to the next one. A run that began before the
 * previous one was over would send old data. */
static void pass_round(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world), size = banyan_world_size(world);
    DLDevice device = gpu_device_for(rank);
    size_t bytes = (size_t)ROWS * ROW_BYTES;
    banyan_memory *memory;
    CHECK_OK(banyan_memory_alloc_on(world, device, 2 * bytes, &memory));
    char *boxes[] = {banyan_memory_local(memory), (char *)banyan_memory_local(memory) + bytes};
    unsigned char *image = malloc(bytes);
    for (size_t i = 0; i < bytes; i += 8)
        pattern_element("chain", (uint64_t)rank * bytes + i, 8, image + i);
    gpu_copy(boxes[0], image, bytes);
    gpu_poison(boxes[1], bytes);
    banyan_copy_service *service = open_direct(world, device);
    banyan_copy_schedule *schedules[2];
    int64_t shape[] = {ROWS, ROW_BYTES / 2};
    DLTensor tensor = {.device = device, .ndim = 2, .dtype = BANYAN_BF16, .shape = shape};
    for (int way = 0; way < 2; way++) {
        tensor.data = boxes[way];
        CHECK_OK(banyan_copy_service_submit_send(service, &tensor, (rank + 1) % size, 7));
        tensor.data = boxes[1 - way];
        CHECK_OK(banyan_copy_service_submit_recv(service, &tensor, (rank + size - 1) % size, 7));
        CHECK_OK(banyan_copy_service_prepare(service, &schedules[way]));
    }
    void *stream = gpu_stream_create(device);
    for (int run = 0; run < CHAIN; run++)
        CHECK_OK(banyan_copy_schedule_run(schedules[run % 2], stream));
    gpu_stream_wait(device, stream);
    CHECK_OK(banyan_copy_service_check(service));
    unsigned char *got = gpu_read(boxes[CHAIN % 2], bytes);
    uint64_t from = (uint64_t)((rank - CHAIN % size + size) % size);
    for (size_t i = 0; i < bytes; i += 8) {
        unsigned char wanted[8];
        pattern_element("chain", from * bytes + i, 8, wanted);
        CHECK(memcmp(wanted, got + i, 8) == 0, "rank %d, byte %zu after %d runs", rank, i, CHAIN);
    }
    free(got);
    free(image);
    CHECK_OK(banyan_world_barrier(world));
    banyan_copy_schedule_destroy(schedules[0]);
    banyan_copy_schedule_destroy(schedules[1]);
    banyan_copy_service_close(service);
    gpu_stream_destroy(device, stream);
    banyan_memory_free(memory);
}

static void move_through_nccl(banyan_world *world, void *context)
{
    plans_of_tests *all = context;
    banyan_copy_service *service;
    banyan_copy_options options = BANYAN_COPY_OPTIONS_INIT;
    options.device = gpu_device_for(banyan_world_rank(world));
    banyan_status status = banyan_copy_service_open(world, "nccl", &options, &service);
    if (status == BANYAN_ERR_UNSUPPORTED) {
        printf("without NCCL: %s\n", banyan_last_error());
        return;
    }
    CHECK_OK(status);
    banyan_copy_service_close(service);
    move_several(world, all);
}

/* NCCL needs a GPU for each rank. */
static void nccl_moves_the_same(void **state)
{
    (void)state;
    uint64_t seed = random_seed() + 40;
    plans_of_tests all = {.tests = {{.seed = seed, .backend = "nccl", .most_elems = 20000},
                                    {.seed = seed + 1,
                                     .backend = "nccl",
                                     .most_elems = 500,
                                     .tasks = TRAFFIC_TASKS,
                                     .ids = TRAFFIC_BY_ORDER,
                                     .graph = true}},
                          .count = 2};
    ranks_run(gpu_count() < 4 ? gpu_count() : 4, move_through_nccl, &all);
}

static void runs_follow_each_other(void **state)
{
    (void)state;
    ranks_run(3, pass_round, NULL);
}

#define PAIR_BYTES 100000

typedef struct pair {
    banyan_memory *memory; /* the sent data, then the received */
    banyan_copy_service *service;
    banyan_copy_schedule *schedule;
    DLDevice device;
} pair;

/* Two ranks that send to each other. */
static pair open_pair(banyan_world *world, uint64_t timeout_ns)
{
    static int64_t shape[] = {PAIR_BYTES};
    int peer = 1 - banyan_world_rank(world);
    pair made = {.device = gpu_device_for(banyan_world_rank(world))};
    CHECK_OK(banyan_memory_alloc_on(world, made.device, 2 * PAIR_BYTES, &made.memory));
    gpu_poison(banyan_memory_local(made.memory), 2 * PAIR_BYTES);
    made.service = open_on(world, made.device, &(plan_of_test){.timeout_ns = timeout_ns});
    DLTensor tensor = {.device = made.device, .ndim = 1, .dtype = BANYAN_U8, .shape = shape};
    tensor.data = banyan_memory_local(made.memory);
    CHECK_OK(banyan_copy_service_submit_send(made.service, &tensor, peer, 1));
    tensor.data = (char *)tensor.data + PAIR_BYTES;
    CHECK_OK(banyan_copy_service_submit_recv(made.service, &tensor, peer, 1));
    CHECK_OK(banyan_copy_service_prepare(made.service, &made.schedule));
    return made;
}

static void close_pair(pair *closed)
{
    banyan_copy_schedule_destroy(closed->schedule);
    banyan_copy_service_close(closed->service);
    banyan_memory_free(closed->memory);
}

static int lines;

static void count_line(banyan_log_level level, const char *message, void *context)
{
    (void)context;
    lines += level == BANYAN_LOG_WARN &&
             strstr(message, " on its device for rank 1 to enter the run (direct); rank 1 (pid ") &&
             strstr(message, "(timeout_ns of banyan_copy_options)");
}

static void be_late(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    setenv("BANYAN_WAIT_LOG", "0.7", 1);
    banyan_log_set(count_line, NULL);
    banyan_world *world = ranks_open_world(rank, count, id, UINT64_C(60000000000));
    pair both = open_pair(world, UINT64_C(1500000000));
    unsigned char *before = gpu_read(banyan_memory_local(both.memory), 2 * PAIR_BYTES);
    if (rank == 0) {
        CHECK_OK(banyan_copy_schedule_run(both.schedule, NULL));
        CHECK_OK(banyan_copy_service_check(both.service));
        gpu_stream_wait(both.device, NULL);
        CHECK_FAILS(banyan_copy_service_check(both.service), BANYAN_ERR_TIMEOUT,
                    " s for rank 1 to enter the run; rank 1 (pid ");
        CHECK(strstr(banyan_last_error(), "; timeout_ns of banyan_copy_options sets how long"),
              "%s", banyan_last_error());
        CHECK(lines > 0, "the log has no line about the wait");
        CHECK_FAILS(banyan_copy_schedule_run(both.schedule, NULL), BANYAN_ERR_TIMEOUT, "rank 1");
    } else {
        usleep(2500000);
        unsigned char *after = gpu_read(banyan_memory_local(both.memory), 2 * PAIR_BYTES);
        CHECK(memcmp(before, after, 2 * PAIR_BYTES) == 0,
              "rank 0 wrote to memory of a rank that had not come");
        free(after);
    }
    free(before);
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
    pair both = open_pair(world, 0);
    CHECK_OK(banyan_world_barrier(world));
    if (rank == 1) {
        usleep(200000);
        kill(getpid(), SIGKILL);
    }
    CHECK_OK(banyan_copy_schedule_run(both.schedule, NULL));
    gpu_stream_wait(both.device, NULL);
    CHECK_FAILS(banyan_copy_service_check(both.service), BANYAN_ERR_PEER_LOST, "rank 1");
    close_pair(&both);
    banyan_world_close(world);
}

static void a_dead_partner_ends_a_run_at_once(void **state)
{
    (void)state;
    int statuses[2];
    time_t begun = time(NULL);
    ranks_fork(2, die, NULL, statuses);
    assert_int_equal(statuses[0], 0);
    assert_true(time(NULL) - begun < 20);
}

static void refuse(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world), peer = 1 - rank;
    DLDevice device = gpu_device_for(rank), other = BANYAN_CUDA(device.device_id + 1);
    static int64_t shape[] = {64};
    char *here = calloc(1, 64);
    banyan_copy_service *service = open_direct(world, device);
    DLTensor tensor = {
        .data = here, .device = BANYAN_HOST, .ndim = 1, .dtype = BANYAN_U8, .shape = shape};
    CHECK_FAILS(banyan_copy_service_submit_send(service, &tensor, peer, 1), BANYAN_ERR_INVALID,
                "is said to lie in host memory, and the service moves tensors in GPU ");
    tensor.device = other;
    CHECK_FAILS(banyan_copy_service_submit_send(service, &tensor, peer, 1), BANYAN_ERR_INVALID,
                "open it with banyan_copy_options.device = GPU ");
    tensor.device = device;
    CHECK_FAILS(banyan_copy_service_submit_send(service, &tensor, peer, 1), BANYAN_ERR_INVALID,
                "lies in host memory");
    banyan_copy_service_close(service);
    banyan_copy_options options = BANYAN_COPY_OPTIONS_INIT;
    options.device = device;
    CHECK_FAILS(banyan_copy_service_open(world, "pigeon", &options, &service), BANYAN_ERR_NOT_FOUND,
                "there are direct, pipeline");
    if (rank == 0)
        options.device = BANYAN_HOST;
    CHECK_FAILS(banyan_copy_service_open(world, "direct", &options, &service), BANYAN_ERR_MISMATCH,
                "direct");
    free(here);
}

static void tensors_that_cannot_be_moved_are_refused(void **state)
{
    (void)state;
    ranks_run(2, refuse, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_arrives_the_newest_one),
        cmocka_unit_test(ranks_may_be_threads_and_share_a_gpu),
        cmocka_unit_test(a_graph_moves_the_current_data_at_each_replay),
        cmocka_unit_test(nccl_moves_the_same),
        cmocka_unit_test(runs_follow_each_other),
        cmocka_unit_test(a_late_partner_ends_a_run),
        cmocka_unit_test(a_dead_partner_ends_a_run_at_once),
        cmocka_unit_test(tensors_that_cannot_be_moved_are_refused),
    };
    gpu_count();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
