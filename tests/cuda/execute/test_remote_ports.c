/* Port channels of GPUs between nodes: every algorithm for several nodes is right, with messages of
 * many slots and in graphs; plans that need more are refused; lost peers end the waits for them. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/deadline.h"
#include "core/module.h"
#include "execute/collective_check.h"
#include "support/plans.h"

/* As rank_open_world names them. */
static void set_nodes(int count)
{
    char text[8];
    snprintf(text, sizeof text, "%d", count);
    setenv("BANYAN_TEST_NODES", text, 1);
}

static uint64_t message_of(const banyan_plan *plan, uint64_t elems, size_t elem_bytes)
{
    banyan_plan_info info = banyan_plan_describe(plan);
    bool blocks = info.collective == BANYAN_REDUCESCATTER || info.collective == BANYAN_ALLTOALL;
    return elems * elem_bytes * (blocks ? (uint64_t)info.ranks : 1);
}

/* A rank's objects for running plans. */
struct far_rig {
    banyan_world *world;
    DLDevice device;
    banyan_executor *executor;
    void *stream;
};

static struct far_rig set_up(banyan_world *world)
{
    struct far_rig rig = {.world = world, .device = gpu_device_for(banyan_world_rank(world))};
    banyan_executor_options options = BANYAN_EXECUTOR_OPTIONS_INIT;
    options.device = rig.device;
    CHECK_OK(banyan_executor_open(world, &options, &rig.executor));
    rig.stream = gpu_stream_create(rig.device);
    return rig;
}

static void take_down(const struct far_rig *rig)
{
    gpu_stream_destroy(rig->device, rig->stream);
    banyan_executor_close(rig->executor);
}

static void run_size(const struct far_rig *rig, const banyan_plan *plan, uint64_t elems,
                     uint64_t turn)
{
    collective_case c = {.plan = plan,
                         .dtype = dtypes[turn % DTYPES],
                         .symmetric = turn % 2 == 0,
                         .apart = !banyan_plan_describe(plan).in_place,
                         .runs = 3,
                         .device = rig->device,
                         .stream = rig->stream};
    c.message_bytes = message_of(plan, elems, banyan_dtype_bytes(c.dtype));
    case_run(rig->world, rig->executor, &c);
}

static banyan_plan *built_in(const char *name, banyan_world *world, int instances)
{
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    banyan_plan *plan;
    params.ranks = banyan_world_size(world);
    params.ranks_per_node = params.ranks / banyan_world_node_count(world);
    params.root = params.ranks - 1;
    params.shift = 1;
    params.instances = instances;
    CHECK_OK(banyan_algorithm_compile(name, &params, &plan));
    return plan;
}

static void run_algorithms(banyan_world *world, void *context)
{
    (void)context;
    struct far_rig rig = set_up(world);
    banyan_algorithm_info info;
    int tried = 0;
    for (size_t i = 0; banyan_algorithm_at(i, &info) == BANYAN_OK; i++) {
        if (!strstr(info.name, "hierarchical") && !strstr(info.name, "port"))
            continue;
        banyan_plan *plan = built_in(info.name, world, 1 + (int)(i % 2));
        run_size(&rig, plan, 7, i);
        run_size(&rig, plan, 30001, i + 1);
        banyan_plan_destroy(plan);
        tried++;
    }
    take_down(&rig);
    CHECK(tried >= 15, "%d algorithms", tried);
}

static void every_algorithm_for_several_nodes_is_right(void **state)
{
    (void)state;
    set_nodes(2);
    ranks_run(2, run_algorithms, NULL);
    ranks_run(4, run_algorithms, NULL);
    if (!gpu_worlds_are_cheap())
        return;
    set_nodes(3);
    ranks_run(6, run_algorithms, NULL);
}

/* Messages of more bytes than all slots hold. */
static void run_long(banyan_world *world, void *context)
{
    struct far_rig rig = set_up(world);
    banyan_plan *plan = built_in(context, world, 1);
    run_size(&rig, plan, 11000001, 8); /* u8 */
    run_size(&rig, plan, 2500001, 9);  /* f32, in ordinary memory */
    banyan_plan_destroy(plan);
    take_down(&rig);
}

static void long_messages_go_in_parts(void **state)
{
    (void)state;
    set_nodes(2);
    ranks_run(2, run_long, (void *)"allgather_ports");
    ranks_run(4, run_long, (void *)"sendrecv_port");
}

#define COUNT 50000

static int32_t element_of(int rank, int round, int i)
{
    return 100000 * round + 1000 * rank + i % 991;
}

/* Replays follow each other without the host; new inputs come by the same stream. */
static void replay(banyan_world *world, void *context)
{
    (void)context;
    enum { ROUNDS = 4 };
    struct far_rig rig = set_up(world);
    int rank = banyan_world_rank(world), ranks = banyan_world_size(world);
    banyan_plan *plan = built_in("allgather_ports", world, 1);
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    banyan_loaded_plan *loaded;
    size_t part = COUNT * sizeof(int32_t), whole = part * (size_t)ranks;
    char *device;
    void *memory;
    options.max_message_bytes = part;
    CHECK_OK(banyan_loaded_plan_open(rig.executor, plan, &options, &loaded));
    CHECK_OK(
        gpu_memory()->alloc(rig.device.device_id, part * (ROUNDS + 1) + whole * ROUNDS, &memory));
    device = memory;
    char *input = device, *inputs = device + part, *outputs = inputs + part * ROUNDS;
    int32_t *host = malloc(part);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < COUNT; i++)
            host[i] = element_of(rank, round, i);
        gpu_copy(inputs + (size_t)round * part, host, part);
    }
    free(host);
    gpu_poison(outputs, whole * ROUNDS);
    char *output = gpu_plain_alloc(rig.device, whole);
    gpu_capture_begin(rig.device, rig.stream);
    CHECK_OK(banyan_loaded_plan_run(loaded, input, output, part, BANYAN_I32, rig.stream));
    void *graph = gpu_capture_end(rig.device, rig.stream);
    for (int round = 0; round < ROUNDS; round++) {
        gpu_stream_copy(rig.device, rig.stream, input, inputs + (size_t)round * part, part);
        gpu_graph_launch(rig.device, graph, rig.stream);
        gpu_stream_copy(rig.device, rig.stream, outputs + (size_t)round * whole, output, whole);
    }
    gpu_stream_wait(rig.device, rig.stream);
    CHECK_OK(banyan_loaded_plan_status(loaded));
    int32_t *got = gpu_read(outputs, whole * ROUNDS);
    for (int i = 0; i < ROUNDS * ranks * COUNT; i++) {
        int32_t expected = element_of(i / COUNT % ranks, i / COUNT / ranks, i % COUNT);
        CHECK(got[i] == expected, "element %d is %d, not %d", i, got[i], expected);
    }
    free(got);
    gpu_graph_destroy(rig.device, graph);
    CHECK_OK(banyan_loaded_plan_close(loaded));
    gpu_plain_free(rig.device, output);
    gpu_memory()->free(rig.device.device_id, memory);
    banyan_plan_destroy(plan);
    take_down(&rig);
}

/* Emulated GPUs' memory is the host's for UCX, so it reaches it. */
static void data_goes_straight_where_ucx_reaches_memory_of_gpus(void **state)
{
    (void)state;
    if (!gpu_is_emulated()) {
        printf("left out: on emulated GPUs only\n");
        skip();
    }
    setenv("BANYAN_GPU_NETWORK", "direct", 1);
    set_nodes(2);
    ranks_run(2, run_long, (void *)"allgather_ports");
    ranks_run(4, run_algorithms, NULL);
    ranks_run(2, replay, NULL);
    unsetenv("BANYAN_GPU_NETWORK");
}

static void a_graph_of_a_run_may_be_replayed(void **state)
{
    (void)state;
    set_nodes(2);
    ranks_run(2, replay, NULL);
    ranks_run(4, replay, NULL);
}

/* A communicator chooses algorithms for several nodes. */
static void call(banyan_world *world, void *context)
{
    (void)context;
    static const int counts[] = {1, 100, COUNT};
    int rank = banyan_world_rank(world), ranks = banyan_world_size(world);
    banyan_comm_options options = BANYAN_COMM_OPTIONS_INIT;
    banyan_comm *comm;
    DLDevice device = options.device = gpu_device_for(rank);
    CHECK_OK(banyan_comm_create(world, &options, &comm));
    void *stream = gpu_stream_create(device);
    char *input = gpu_plain_alloc(device, COUNT * sizeof(int32_t));
    char *output = gpu_plain_alloc(device, COUNT * sizeof(int32_t));
    int32_t *host = malloc(COUNT * sizeof *host);
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        size_t bytes = (size_t)counts[c] * sizeof *host;
        for (int i = 0; i < counts[c]; i++)
            host[i] = element_of(rank, (int)c, i);
        gpu_copy(input, host, bytes);
        gpu_poison(output, bytes);
        CHECK_OK(banyan_comm_allreduce(comm, input, output, (uint64_t)counts[c], BANYAN_I32,
                                       BANYAN_MAX, stream));
        gpu_stream_wait(device, stream);
        CHECK_OK(banyan_comm_status(comm));
        int32_t *got = gpu_read(output, bytes);
        for (int i = 0; i < counts[c]; i++)
            CHECK(got[i] == element_of(ranks - 1, (int)c, i), "element %d is %d", i, got[i]);
        free(got);
    }
    free(host);
    CHECK_OK(banyan_comm_destroy(comm));
    gpu_plain_free(device, input);
    gpu_plain_free(device, output);
    gpu_stream_destroy(device, stream);
}

static void communicators_span_nodes(void **state)
{
    (void)state;
    set_nodes(2);
    ranks_run(2, call, NULL);
    ranks_run(4, call, NULL);
}

static void check_refused(const struct far_rig *rig, const banyan_plan *plan, const char *text)
{
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    banyan_loaded_plan *loaded;
    options.max_message_bytes = 4096;
    CHECK_FAILS(banyan_loaded_plan_open(rig->executor, plan, &options, &loaded),
                BANYAN_ERR_UNSUPPORTED, text);
}

static void refuse(banyan_world *world, void *context)
{
    (void)context;
    struct far_rig rig = set_up(world);
    banyan_plan *plan = built_in("allreduce_ring", world, 1);
    check_refused(&rig, plan,
                  "memory channel 1 of rank 0 joins it with rank 3, which is on another node");
    banyan_plan_destroy(plan);
    plan = built_in("allreduce_switch", world, 1);
    check_refused(&rig, plan, "on another node; memory and switch channels join ranks of one node");
    banyan_plan_destroy(plan);
    take_down(&rig);
}

/* Packets of a plan for 2 nodes of 4 ranks. */
static void refuse_packets(banyan_world *world, void *context)
{
    (void)context;
    char path[512];
    banyan_plan *plan;
    struct far_rig rig = set_up(world);
    snprintf(path, sizeof path, "%s/multi_node_reducescatter_pkt_8.json", plans_dir());
    CHECK_OK(banyan_plan_read(path, &plan));
    check_refused(&rig, plan, "which is on another node; between nodes GPUs put data and signals");
    banyan_plan_destroy(plan);
    take_down(&rig);
}

static void channels_that_need_mapped_memory_are_refused(void **state)
{
    (void)state;
    set_nodes(2);
    ranks_run(4, refuse, NULL);
    if (gpu_worlds_are_cheap())
        ranks_run(8, refuse_packets, NULL);
}

/* Rank 1 ends, or stops, while rank 0's kernel waits for it. */
static void lose(int rank, int count, const banyan_unique_id *id, void *context)
{
    int number = *(const int *)context;
    banyan_world *world = ranks_open_world(rank, count, id, 3 * NS_PER_S);
    struct far_rig rig = set_up(world);
    banyan_plan *plan = built_in("allgather_ports", world, 1);
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    banyan_loaded_plan *loaded;
    enum { BYTES = 8 << 20 };
    char *input = gpu_plain_alloc(rig.device, BYTES);
    char *output = gpu_plain_alloc(rig.device, 2 * BYTES);
    options.max_message_bytes = BYTES;
    CHECK_OK(banyan_loaded_plan_open(rig.executor, plan, &options, &loaded));
    CHECK_OK(banyan_loaded_plan_run(loaded, input, output, BYTES, BANYAN_U8, rig.stream));
    gpu_stream_wait(rig.device, rig.stream);
    CHECK_OK(banyan_loaded_plan_status(loaded));
    pid_t own = getpid(), pids[2];
    CHECK_OK(banyan_world_allgather(world, &own, sizeof own, pids));
    if (rank == 1) {
        raise(number);
        pause();
    }
    CHECK_OK(banyan_loaded_plan_run(loaded, input, output, BYTES, BANYAN_U8, rig.stream));
    uint64_t start_ns = time_now_ns();
    gpu_stream_wait(rig.device, rig.stream);
    banyan_status status = banyan_loaded_plan_status(loaded);
    CHECK(status == BANYAN_ERR_PEER_LOST || status == BANYAN_ERR_TIMEOUT, "%s",
          banyan_last_error());
    CHECK(strstr(banyan_last_error(), "rank 1"), "%s", banyan_last_error());
    CHECK(time_now_ns() - start_ns < 10 * NS_PER_S, "the kernel did not end in time");
    (void)banyan_loaded_plan_close(loaded);
    take_down(&rig);
    banyan_plan_destroy(plan);
    (void)banyan_world_close(world);
    CHECK(time_now_ns() - start_ns < 30 * NS_PER_S, "closing did not end in time");
    (void)kill(pids[1], SIGKILL);
}

static void a_lost_peer_ends_the_kernel(void **state)
{
    (void)state;
    const int numbers[] = {SIGKILL, SIGSTOP};
    set_nodes(2);
    for (int i = 0; i < 2; i++) {
        int number = numbers[i], statuses[2];
        ranks_fork(2, lose, &number, statuses);
        assert_int_equal(statuses[0], 0);
        assert_true(WIFSIGNALED(statuses[1]));
    }
}

int main(void)
{
    gpu_count();
    if (!module_is_there("ucx")) {
        printf("skipped: this build has no UCX module\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_algorithm_for_several_nodes_is_right),
        cmocka_unit_test(long_messages_go_in_parts),
        cmocka_unit_test(a_graph_of_a_run_may_be_replayed),
        cmocka_unit_test(data_goes_straight_where_ucx_reaches_memory_of_gpus),
        cmocka_unit_test(communicators_span_nodes),
        cmocka_unit_test(channels_that_need_mapped_memory_are_refused),
        cmocka_unit_test(a_lost_peer_ends_the_kernel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
