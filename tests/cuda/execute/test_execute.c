/* Sequences of runs of plans on GPUs, in graphs, and with failures. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/deadline.h"
#include "support/gpu/gpu_stream.h"
#include "support/proof.h"
#include "support/test.h"

#define COUNT 512
#define BYTES (COUNT * sizeof(int32_t))

struct player {
    banyan_world *world;
    banyan_executor *executor;
    banyan_loaded_plan *loaded;
    int rank, ranks;
    DLDevice device;
    void *stream;
    int32_t *input, *output; /* on the device */
};

static banyan_plan *built_in(const char *name, int ranks, int instances)
{
    banyan_plan *plan;
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    params.ranks = ranks;
    params.instances = instances;
    CHECK_OK(banyan_algorithm_compile(name, &params, &plan));
    return plan;
}

static void load(struct player *p, const banyan_plan *plan, uint64_t most_bytes)
{
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    options.max_message_bytes = most_bytes;
    CHECK_OK(banyan_loaded_plan_open(p->executor, plan, &options, &p->loaded));
}

static int32_t *take(const struct player *p, size_t bytes)
{
    void *taken;
    CHECK_OK(gpu_memory()->alloc(p->device.device_id, bytes, &taken));
    gpu_poison(taken, bytes);
    return taken;
}

static void give_back(const struct player *p, int32_t *taken)
{
    gpu_memory()->free(p->device.device_id, taken);
}

static void enter(struct player *p, banyan_world *world)
{
    banyan_executor_options options = BANYAN_EXECUTOR_OPTIONS_INIT;
    *p = (struct player){
        .world = world, .rank = banyan_world_rank(world), .ranks = banyan_world_size(world)};
    options.device = p->device = gpu_device_for(p->rank);
    CHECK_OK(banyan_executor_open(world, &options, &p->executor));
    p->stream = gpu_stream_create(p->device);
    p->input = take(p, BYTES);
    p->output = take(p, BYTES);
}

static void leave(struct player *p)
{
    banyan_loaded_plan_close(p->loaded);
    gpu_stream_destroy(p->device, p->stream);
    give_back(p, p->input);
    give_back(p, p->output);
    banyan_executor_close(p->executor);
}

static int32_t value_of(int rank, int run, int i)
{
    return 100000 * rank + 1000 * (run % 90) + i;
}

static void fill(int32_t *words, int rank, int run)
{
    int32_t values[COUNT];
    for (int i = 0; i < COUNT; i++)
        values[i] = value_of(rank, run, i);
    gpu_copy(words, values, BYTES);
}

static void check_sums(const struct player *p, const int32_t *words, int run)
{
    int32_t *got = gpu_read(words, BYTES);
    for (int i = 0; i < COUNT; i++) {
        int32_t sum = 0;
        for (int r = 0; r < p->ranks; r++)
            sum += value_of(r, run, i);
        CHECK(got[i] == sum, "rank %d, run %d: sum %d is %d, not %d", p->rank, run, i, got[i], sum);
    }
    free(got);
}

static banyan_status run_once(struct player *p)
{
    return banyan_loaded_plan_run(p->loaded, p->input, p->output, BYTES, BANYAN_I32, p->stream);
}

static void run_and_check(struct player *p, int run)
{
    fill(p->input, p->rank, run);
    CHECK_OK(run_once(p));
    gpu_stream_wait(p->device, p->stream);
    CHECK_OK(banyan_loaded_plan_status(p->loaded));
    check_sums(p, p->output, run);
}

#define QUEUED 60

/* Inputs and outputs of all runs are adjacent; ranks wait only at the end. */
static void queue_runs(struct player *p)
{
    int32_t *inputs = take(p, QUEUED * BYTES), *outputs = take(p, QUEUED * BYTES);
    for (int run = 0; run < QUEUED; run++)
        fill(inputs + run * COUNT, p->rank, run);
    for (int run = 0; run < QUEUED; run++) {
        gpu_stream_copy(p->device, p->stream, p->input, inputs + run * COUNT, BYTES);
        CHECK_OK(run_once(p));
        gpu_stream_copy(p->device, p->stream, outputs + run * COUNT, p->output, BYTES);
    }
    gpu_stream_wait(p->device, p->stream);
    CHECK_OK(banyan_loaded_plan_status(p->loaded));
    for (int run = 0; run < QUEUED; run++)
        check_sums(p, outputs + run * COUNT, run);
    give_back(p, inputs);
    give_back(p, outputs);
}

static const char *const algorithms[] = {
    "allreduce_packets", "allreduce_packets_twoshot", "allreduce_twoshot", "allreduce_pipelined",
    "allreduce_ring",    "allreduce_oneshot_direct",
};

static void run_one_after_another(banyan_world *world, void *context)
{
    (void)context;
    for (size_t i = 0; i < sizeof algorithms / sizeof *algorithms; i++) {
        struct player p;
        enter(&p, world);
        banyan_plan *plan = built_in(algorithms[i], p.ranks, 2);
        load(&p, plan, BYTES);
        queue_runs(&p);
        leave(&p);
        banyan_plan_destroy(plan);
    }
}

static void runs_follow_each_other_without_the_host(void **state)
{
    (void)state;
    ranks_run(2, run_one_after_another, NULL);
    ranks_run_threads(2, run_one_after_another, NULL);
}

/* More sizes than specialized plans are kept, each of them twice. */
static void run_many_sizes(banyan_world *world, void *context)
{
    (void)context;
    struct player p;
    enter(&p, world);
    banyan_plan *plan = built_in("allreduce_packets", p.ranks, 1);
    load(&p, plan, BYTES);
    for (int turn = 0; turn < 2; turn++) {
        for (int count = 1; count <= 20; count++) {
            fill(p.input, p.rank, count);
            gpu_poison(p.output, BYTES);
            CHECK_OK(banyan_loaded_plan_run(p.loaded, p.input, p.output, (uint64_t)count * 4,
                                            BANYAN_I32, p.stream));
            gpu_stream_wait(p.device, p.stream);
            int32_t *got = gpu_read(p.output, BYTES);
            CHECK(got[count - 1] == value_of(0, count, count - 1) + value_of(1, count, count - 1),
                  "%d elements: the last is %d", count, got[count - 1]);
            CHECK((uint32_t)got[count] == 0xC9C9C9C9u, "element %d was written", count);
            free(got);
        }
    }
    CHECK_OK(banyan_loaded_plan_status(p.loaded));
    leave(&p);
    banyan_plan_destroy(plan);
}

static void programs_come_and_go_with_sizes(void **state)
{
    (void)state;
    ranks_run(2, run_many_sizes, NULL);
}

/* A loop with more iterations than the host prepares in advance. */
static void run_long_loop(banyan_world *world, void *context)
{
    (void)context;
    enum { ELEMS = 70000 };
    struct player p;
    enter(&p, world);
    banyan_collective collective = {.kind = BANYAN_CUSTOM, .input_chunks = 2, .output_chunks = 1};
    banyan_program *program;
    banyan_plan *plan;
    CHECK_OK(banyan_program_create("long_loop", &collective, 1, NULL, &program));
    banyan_program_loop_begin(program, sizeof(int32_t), 1);
    banyan_chunk other = banyan_program_input(program, 0, 1, 2);
    banyan_program_reduce(program, 0, banyan_program_input(program, 0, 0, 1), &other, 1,
                          banyan_program_output(program, 0, 0, 1), BANYAN_SUM, BANYAN_TB(0));
    banyan_program_loop_end(program);
    CHECK_OK(banyan_program_compile(program, &plan));
    banyan_program_destroy(program);
    load(&p, plan, 2 * ELEMS * 4);
    int32_t *input = take(&p, 2 * ELEMS * 4), *output = take(&p, ELEMS * 4);
    int32_t *values = malloc(2 * ELEMS * 4);
    for (int i = 0; i < 2 * ELEMS; i++)
        values[i] = 3 * i;
    gpu_copy(input, values, 2 * ELEMS * 4);
    CHECK_OK(banyan_loaded_plan_run(p.loaded, input, output, 2 * ELEMS * 4, BANYAN_I32, p.stream));
    gpu_stream_wait(p.device, p.stream);
    CHECK_OK(banyan_loaded_plan_status(p.loaded));
    int32_t *got = gpu_read(output, ELEMS * 4);
    for (int i = 0; i < ELEMS; i++)
        CHECK(got[i] == values[i] + values[ELEMS + i], "element %d is %d", i, got[i]);
    free(got);
    free(values);
    give_back(&p, input);
    give_back(&p, output);
    leave(&p);
    banyan_plan_destroy(plan);
}

static void loops_may_be_long(void **state)
{
    (void)state;
    ranks_run(1, run_long_loop, NULL);
}

/* Rank 0 puts its input to rank 1, 16 bytes and a signal at a time. */
static banyan_plan *small_puts(void)
{
    banyan_collective collective = {.kind = BANYAN_CUSTOM, .input_chunks = 1, .output_chunks = 1};
    banyan_program *program;
    banyan_plan *plan;
    CHECK_OK(banyan_program_create("small_puts", &collective, 2, NULL, &program));
    banyan_program_port_channel *to = banyan_program_port_channel_create(program, 1, 0);
    banyan_program_port_channel *from = banyan_program_port_channel_create(program, 0, 1);
    banyan_program_memory_channel *tell = banyan_program_memory_channel_create(program, 0, 1);
    banyan_program_memory_channel *hear = banyan_program_memory_channel_create(program, 1, 0);
    banyan_program_memory_signal(tell, 0, BANYAN_SYNC_BOTH);
    banyan_program_memory_wait(hear, 0, BANYAN_SYNC_BOTH);
    banyan_program_loop_begin(program, 16, 1);
    banyan_program_port_put_with_signal(to, banyan_program_output(program, 1, 0, 1),
                                        banyan_program_input(program, 0, 0, 1), 0);
    banyan_program_port_wait(from, 0, BANYAN_SYNC_BOTH);
    banyan_program_loop_end(program);
    banyan_program_port_flush(to, 0, BANYAN_SYNC_BOTH);
    CHECK_OK(banyan_program_compile(program, &plan));
    banyan_program_destroy(program);
    proof_demand(plan, "small_puts");
    return plan;
}

static void put_often(banyan_world *world, void *context)
{
    (void)context;
    struct player p;
    enter(&p, world);
    banyan_plan *plan = small_puts();
    enum { ELEMS = 4096 };
    load(&p, plan, ELEMS * 4);
    int32_t *input = take(&p, ELEMS * 4), *output = take(&p, ELEMS * 4);
    int32_t *values = malloc(ELEMS * 4);
    for (int run = 0; run < 3; run++) {
        for (int i = 0; i < ELEMS; i++)
            values[i] = value_of(p.rank, run, i);
        gpu_copy(input, values, ELEMS * 4);
        CHECK_OK(banyan_loaded_plan_run(p.loaded, input, output, ELEMS * 4, BANYAN_I32, p.stream));
        gpu_stream_wait(p.device, p.stream);
        CHECK_OK(banyan_loaded_plan_status(p.loaded));
        int32_t *got = gpu_read(output, ELEMS * 4);
        for (int i = 0; i < ELEMS && p.rank == 1; i++)
            CHECK(got[i] == value_of(0, run, i), "run %d: element %d is %d", run, i, got[i]);
        free(got);
        if (run == 1)
            CHECK_OK(banyan_loaded_plan_reset(p.loaded));
    }
    free(values);
    give_back(&p, input);
    give_back(&p, output);
    leave(&p);
    banyan_plan_destroy(plan);
}

static void a_port_channel_carries_more_than_its_queue_holds(void **state)
{
    (void)state;
    ranks_run(2, put_often, NULL);
}

static void replay(struct player *p, int replays)
{
    run_and_check(p, 0);
    gpu_capture_begin(p->device, p->stream);
    CHECK_OK(run_once(p));
    void *graph = gpu_capture_end(p->device, p->stream);
    int32_t *inputs = take(p, QUEUED * BYTES), *outputs = take(p, QUEUED * BYTES);
    for (int run = 0; run < QUEUED; run++)
        fill(inputs + run * COUNT, p->rank, run);
    for (int run = 0; run < replays; run++) {
        int slot = run % QUEUED;
        gpu_stream_copy(p->device, p->stream, p->input, inputs + slot * COUNT, BYTES);
        gpu_graph_launch(p->device, graph, p->stream);
        gpu_stream_copy(p->device, p->stream, outputs + slot * COUNT, p->output, BYTES);
        if (slot < QUEUED - 1 && run < replays - 1)
            continue;
        gpu_stream_wait(p->device, p->stream);
        CHECK_OK(banyan_loaded_plan_status(p->loaded));
        for (int i = 0; i <= slot; i++)
            check_sums(p, outputs + i * COUNT, i);
    }
    run_and_check(p, replays);
    gpu_graph_destroy(p->device, graph);
    give_back(p, inputs);
    give_back(p, outputs);
}

static void run_graphs(banyan_world *world, void *context)
{
    (void)context;
    static const char *const captured[] = {"allreduce_packets", "allreduce_twoshot"};
    for (int i = 0; i < 2; i++) {
        struct player p;
        enter(&p, world);
        banyan_plan *plan = built_in(captured[i], p.ranks, 2);
        load(&p, plan, BYTES);
        replay(&p, 1000);
        leave(&p);
        banyan_plan_destroy(plan);
    }
}

static void a_graph_of_one_run_is_right_a_thousand_times(void **state)
{
    (void)state;
    ranks_run(2, run_graphs, NULL);
}

/* Capture the first run of a size, including the upload of its program. */
static void capture_first(banyan_world *world, void *context)
{
    (void)context;
    struct player p;
    enter(&p, world);
    banyan_plan *plan = built_in("allreduce_twoshot", p.ranks, 1);
    load(&p, plan, BYTES);
    fill(p.input, p.rank, 5);
    gpu_capture_begin(p.device, p.stream);
    CHECK_OK(run_once(&p));
    void *graph = gpu_capture_end(p.device, p.stream);
    for (int size = 1; size < 20; size++)
        CHECK_OK(banyan_loaded_plan_run(p.loaded, p.input, p.output, (uint64_t)size * 4, BANYAN_I32,
                                        p.stream));
    gpu_graph_launch(p.device, graph, p.stream);
    gpu_stream_wait(p.device, p.stream);
    CHECK_OK(banyan_loaded_plan_status(p.loaded));
    check_sums(&p, p.output, 5);
    gpu_graph_destroy(p.device, graph);
    leave(&p);
    banyan_plan_destroy(plan);
}

static void a_captured_program_stays_when_others_make_room(void **state)
{
    (void)state;
    ranks_run(2, capture_first, NULL);
}

static void refuse(banyan_world *world, void *context)
{
    (void)context;
    struct player p;
    enter(&p, world);
    banyan_plan *plan = built_in("allreduce_packets", p.ranks, 1), *wide;
    load(&p, plan, BYTES);
    int32_t here[COUNT];
    CHECK_FAILS(banyan_loaded_plan_run(p.loaded, here, p.output, BYTES, BANYAN_I32, p.stream),
                BANYAN_ERR_INVALID, "lies on the host");
    banyan_request *request;
    CHECK_FAILS(banyan_loaded_plan_start(p.loaded, p.input, p.output, BYTES, BANYAN_I32, &request),
                BANYAN_ERR_UNSUPPORTED, "GPU");
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    options.max_message_bytes = BYTES;
    banyan_memory *on_host;
    CHECK_OK(banyan_memory_alloc(world, BYTES, &on_host));
    options.input = on_host;
    banyan_loaded_plan *none;
    CHECK_FAILS(banyan_loaded_plan_open(p.executor, plan, &options, &none), BANYAN_ERR_INVALID,
                "lies on the host");
    banyan_memory_free(on_host);
    options.input = NULL;
    wide = built_in("allreduce_packets", p.ranks, 1000);
    CHECK_FAILS(banyan_loaded_plan_open(p.executor, wide, &options, &none), BANYAN_ERR_INVALID,
                "1000 thread blocks");
    run_and_check(&p, 1);
    banyan_plan_destroy(wide);
    banyan_plan_destroy(plan);
    leave(&p);
}

static void plans_that_a_gpu_cannot_run_are_refused_with_numbers(void **state)
{
    (void)state;
    ranks_run(2, refuse, NULL);
}

#define SHORT_NS NS_PER_S

static int lines;

/* Count log lines about rank 0's device that name the late rank. */
static void count_line(banyan_log_level level, const char *message, void *context)
{
    (void)context;
    lines += level == BANYAN_LOG_WARN && strstr(message, " on its device for rank ") &&
             strstr(message, "; rank 1 (pid ") && strstr(message, "BANYAN_TIMEOUT");
}

/* Rank 0 runs alone until its deadline; then all ranks reset. */
static void be_late(int rank, int count, const banyan_unique_id *id, void *context)
{
    struct player p;
    (void)context;
    setenv("BANYAN_WAIT_LOG", "0.5", 1);
    banyan_log_set(count_line, NULL);
    banyan_world *world = ranks_open_world(rank, count, id, SHORT_NS);
    enter(&p, world);
    banyan_plan *plan = built_in("allreduce_twoshot", count, 1);
    load(&p, plan, BYTES);
    run_and_check(&p, 0);
    if (rank == 0) {
        uint64_t start_ns = time_now_ns();
        CHECK_OK(run_once(&p));
        CHECK_OK(run_once(&p));
        gpu_stream_wait(p.device, p.stream);
        CHECK(time_now_ns() - start_ns < 4 * SHORT_NS, "the runs did not end in time");
        CHECK_FAILS(banyan_loaded_plan_status(p.loaded), BANYAN_ERR_TIMEOUT,
                    " s for rank 1: thread block 0, operation ");
        double waited_s = 0;
        CHECK(sscanf(banyan_last_error(), "rank 0 waited %lf s", &waited_s) == 1 && waited_s > 0.9,
              "%s", banyan_last_error());
        CHECK(strstr(banyan_last_error(), "; rank 1 (pid ") &&
                  strstr(banyan_last_error(), " has not come; BANYAN_TIMEOUT"),
              "%s", banyan_last_error());
        CHECK(lines > 0, "the log has no line about the wait");
        CHECK_FAILS(run_once(&p), BANYAN_ERR_TIMEOUT, "(wait) on memory channel ");
    }
    if (rank == 1)
        usleep((useconds_t)(SHORT_NS / 1000)); /* its own waits are as short */
    CHECK_OK(banyan_loaded_plan_reset(p.loaded));
    for (int run = 1; run < 4; run++)
        run_and_check(&p, run);
    leave(&p);
    banyan_plan_destroy(plan);
    CHECK_OK(banyan_world_close(world));
}

static void a_late_peer_is_named_and_a_reset_begins_anew(void **state)
{
    (void)state;
    int statuses[2];
    ranks_fork(2, be_late, NULL, statuses);
    for (int r = 0; r < 2; r++)
        assert_int_equal(statuses[r], 0);
}

/* Rank 2's reduction reads rank 0's packets, for which the plan has a separate operation. */
static void wait_in_a_reduction(int rank, int count, const banyan_unique_id *id, void *context)
{
    struct player p;
    (void)context;
    banyan_world *world = ranks_open_world(rank, count, id, SHORT_NS);
    enter(&p, world);
    banyan_plan *plan = built_in("allreduce_packets", count, 1);
    load(&p, plan, BYTES);
    run_and_check(&p, 0);
    if (rank == 2) {
        CHECK_OK(run_once(&p));
        gpu_stream_wait(p.device, p.stream);
        CHECK_FAILS(banyan_loaded_plan_status(p.loaded), BANYAN_ERR_TIMEOUT,
                    " s for rank 0: thread block 0, operation 2 (upkt) on packets");
    } else {
        usleep((useconds_t)(SHORT_NS / 1000)); /* its own waits are as short */
    }
    CHECK_OK(banyan_loaded_plan_reset(p.loaded));
    run_and_check(&p, 1);
    leave(&p);
    banyan_plan_destroy(plan);
    CHECK_OK(banyan_world_close(world));
}

static void a_wait_names_the_operation_of_the_plan_that_was_fused(void **state)
{
    (void)state;
    int statuses[3];
    ranks_fork(3, wait_in_a_reduction, NULL, statuses);
    for (int r = 0; r < 3; r++)
        assert_int_equal(statuses[r], 0);
}

#define CHAIN_NS (3 * NS_PER_S)

/* In a ring, rank 2 waits for rank 1, which stays away, and rank 0 for rank 2: all name rank 1.
 * The world is one of several, with other rank numbers. */
static void wait_in_a_chain(int rank, int count, const banyan_unique_id *id, void *context)
{
    struct player p;
    (void)context;
    static const int members[] = {1, 2, 3};
    banyan_world *job = ranks_open_world(rank, count, id, 60 * NS_PER_S), *world;
    if (rank == 0) {
        CHECK_OK(banyan_world_close(job));
        return;
    }
    CHECK_OK(banyan_world_split(job, members, 3, &world));
    CHECK_OK(banyan_world_set_timeout(world, CHAIN_NS));
    enter(&p, world);
    banyan_plan *plan = built_in("allreduce_ring", 3, 1);
    load(&p, plan, BYTES);
    run_and_check(&p, 0);
    if (rank != 2) {
        CHECK_OK(run_once(&p));
        gpu_stream_wait(p.device, p.stream);
        CHECK_FAILS(banyan_loaded_plan_status(p.loaded), BANYAN_ERR_TIMEOUT,
                    "; rank 1 (rank 2 of the job, pid ");
        CHECK(strstr(banyan_last_error(), rank == 1 ? "rank 0 (rank 1 of the job) waited "
                                                    : "rank 2 (rank 3 of the job) waited "),
              "%s", banyan_last_error());
        usleep((useconds_t)(NS_PER_S / 1000)); /* others still ask */
    } else {
        usleep((useconds_t)(CHAIN_NS / 1000));
    }
    CHECK_OK(banyan_world_set_timeout(world, 60 * NS_PER_S));
    CHECK_OK(banyan_loaded_plan_reset(p.loaded));
    run_and_check(&p, 1);
    leave(&p);
    banyan_plan_destroy(plan);
    CHECK_OK(banyan_world_close(world));
    CHECK_OK(banyan_world_close(job));
}

static void chains_of_waits_on_devices_are_followed(void **state)
{
    (void)state;
    int statuses[4];
    ranks_fork(4, wait_in_a_chain, NULL, statuses);
    for (int r = 0; r < 4; r++)
        assert_int_equal(statuses[r], 0);
}

/* Rank 1 dies while rank 0's kernel waits for it. */
static void die(int rank, int count, const banyan_unique_id *id, void *context)
{
    struct player p;
    (void)context;
    banyan_world *world = ranks_open_world(rank, count, id, 30 * NS_PER_S);
    enter(&p, world);
    banyan_plan *plan = built_in("allreduce_packets", count, 1);
    load(&p, plan, BYTES);
    run_and_check(&p, 0);
    CHECK_OK(banyan_world_barrier(world));
    if (rank == 1) {
        usleep(300000);
        raise(SIGKILL);
    }
    CHECK_OK(run_once(&p));
    uint64_t start_ns = time_now_ns();
    gpu_stream_wait(p.device, p.stream);
    CHECK(time_now_ns() - start_ns < 10 * NS_PER_S, "the kernel did not end");
    CHECK_FAILS(banyan_loaded_plan_status(p.loaded), BANYAN_ERR_PEER_LOST, "rank 1");
    CHECK_FAILS(run_once(&p), BANYAN_ERR_PEER_LOST, "while rank 0 waited for rank 1");
    leave(&p);
    banyan_plan_destroy(plan);
    banyan_world_close(world);
}

static void a_dead_peer_ends_the_kernel(void **state)
{
    (void)state;
    ranks_fork_and_lose_one(die, NULL);
}

int main(void)
{
    gpu_count();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_follow_each_other_without_the_host),
        cmocka_unit_test(programs_come_and_go_with_sizes),
        cmocka_unit_test(loops_may_be_long),
        cmocka_unit_test(a_port_channel_carries_more_than_its_queue_holds),
        cmocka_unit_test(a_graph_of_one_run_is_right_a_thousand_times),
        cmocka_unit_test(a_captured_program_stays_when_others_make_room),
        cmocka_unit_test(plans_that_a_gpu_cannot_run_are_refused_with_numbers),
        cmocka_unit_test(a_late_peer_is_named_and_a_reset_begins_anew),
        cmocka_unit_test(a_wait_names_the_operation_of_the_plan_that_was_fused),
        cmocka_unit_test(chains_of_waits_on_devices_are_followed),
        cmocka_unit_test(a_dead_peer_ends_the_kernel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
