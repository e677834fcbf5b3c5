/* Collectives between GPUs: plans from other sources and the built-in algorithms; every byte is
 * compared with the collective's definition. */
#include <dirent.h>
#include <fnmatch.h>

#include "execute/collective_check.h"
#include "support/plans.h"

static uint64_t message_of(const banyan_plan *plan, uint64_t elems, size_t elem_bytes)
{
    banyan_plan_info info = banyan_plan_describe(plan);
    bool blocks = info.collective == BANYAN_REDUCESCATTER || info.collective == BANYAN_ALLTOALL;
    return elems * elem_bytes * (blocks ? (uint64_t)info.ranks : 1);
}

static banyan_executor *open_executor(banyan_world *world, DLDevice device)
{
    banyan_executor_options options = BANYAN_EXECUTOR_OPTIONS_INIT;
    banyan_executor *executor;
    options.device = device;
    CHECK_OK(banyan_executor_open(world, &options, &executor));
    return executor;
}

/* A rank's objects for running plans. */
struct rig {
    banyan_world *world;
    DLDevice device;
    banyan_executor *executor;
    void *stream;
};

static struct rig set_up(banyan_world *world)
{
    DLDevice device = gpu_device_for(banyan_world_rank(world));
    return (struct rig){world, device, open_executor(world, device), gpu_stream_create(device)};
}

static void take_down(const struct rig *rig)
{
    gpu_stream_destroy(rig->device, rig->stream);
    banyan_executor_close(rig->executor);
}

/* Alternate sizes with types, kinds of memory, and buffers in place and apart. */
static void run_sizes(const struct rig *rig, const banyan_plan *plan, const uint64_t *sizes,
                      size_t count, uint64_t turn)
{
    for (size_t i = 0; i < count; i++, turn++) {
        collective_case c = {.plan = plan,
                             .dtype = dtypes[turn % DTYPES],
                             .symmetric = turn % 2 == 0,
                             .apart = turn % 4 >= 2 || !banyan_plan_describe(plan).in_place,
                             .runs = 3,
                             .device = rig->device,
                             .stream = rig->stream};
        c.message_bytes = message_of(plan, sizes[i], banyan_dtype_bytes(c.dtype));
        case_run(rig->world, rig->executor, &c);
    }
}

static banyan_plan *read_plan(const char *name)
{
    char path[512];
    banyan_plan *plan;
    snprintf(path, sizeof path, "%s/%s", plans_dir(), name);
    CHECK_OK(banyan_plan_read(path, &plan));
    return plan;
}

static int ranks_of(const banyan_plan *plan)
{
    banyan_plan_info info = banyan_plan_describe(plan);
    return info.collective == BANYAN_CUSTOM ? 0 : info.ranks;
}

/* Run every file for this number of ranks; returns the number of files. A process takes longer to
 * start a GPU than to run all of them. */
static int run_files(const struct rig *rig, struct dirent **names, int count)
{
    static const uint64_t sizes[] = {0, 1, 7, 64, 1000, 4096, 30001};
    int matched = 0;
    for (int i = 0; i < count; i++) {
        if (fnmatch("*_node_*.json", names[i]->d_name, 0) != 0)
            continue;
        banyan_plan *plan = read_plan(names[i]->d_name);
        if (ranks_of(plan) == banyan_world_size(rig->world)) {
            if (banyan_world_rank(rig->world) == 0)
                print_message("%s\n", names[i]->d_name);
            run_sizes(rig, plan, sizes, sizeof sizes / sizeof *sizes, (uint64_t)i);
            matched++;
        }
        banyan_plan_destroy(plan);
    }
    return matched;
}

static void run_folder(banyan_world *world, void *context)
{
    (void)context;
    struct dirent **names;
    int count = scandir(plans_dir(), &names, NULL, alphasort);
    CHECK(count > 0, "%s", plans_dir());
    struct rig rig = set_up(world);
    int matched = run_files(&rig, names, count);
    take_down(&rig);
    CHECK(matched >= (banyan_world_size(world) == 2 ? 12 : 6), "%d plans of %d ranks", matched,
          banyan_world_size(world));
    for (int i = 0; i < count; i++)
        free(names[i]);
    free(names);
}

static void every_whole_collective_is_right_at_any_size(void **state)
{
    (void)state;
    ranks_run(2, run_folder, NULL);
    if (gpu_count() >= 4)
        ranks_run(4, run_folder, NULL);
}

/* Compiled one by one, since some cannot be in place, or need other numbers of ranks. */
static void run_algorithms(banyan_world *world, void *context)
{
    (void)context;
    static const uint64_t sizes[] = {3, 5000};
    banyan_algorithm_info info;
    struct rig rig = set_up(world);
    for (size_t i = 0; banyan_algorithm_at(i, &info) == BANYAN_OK; i++) {
        banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
        params.ranks = banyan_world_size(world);
        params.in_place = i % 2 == 0;
        params.root = (int)(i % (size_t)params.ranks);
        params.shift = 1;
        params.instances = 1 + (int)(i % 3);
        params.unit_bytes = 1024;
        banyan_plan *plan;
        if (banyan_algorithm_compile(info.name, &params, &plan) != BANYAN_OK) {
            params.in_place = false;
            CHECK_OK(banyan_algorithm_compile(info.name, &params, &plan));
        }
        run_sizes(&rig, plan, sizes, 2, i);
        banyan_plan_destroy(plan);
    }
    take_down(&rig);
}

static void every_built_in_algorithm_is_right(void **state)
{
    (void)state;
    ranks_run(gpu_count() >= 3 ? 3 : 2, run_algorithms, NULL);
}

/* All ranks draw equal sizes, types and kinds of buffers, and queue run after run. */
static void change_sizes(banyan_world *world, void *context)
{
    enum { RUNS = 60, MOST = 40000 };
    random_state random = random_from(*(uint64_t *)context);
    int rank = banyan_world_rank(world);
    DLDevice device = gpu_device_for(rank);
    banyan_executor *executor = open_executor(world, device);
    void *stream = gpu_stream_create(device);
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    params.ranks = banyan_world_size(world);
    params.in_place = random_next(&random) % 2;
    params.instances = (int)random_between(&random, 1, 4);
    banyan_plan *plan;
    CHECK_OK(banyan_algorithm_compile("allreduce_packets_twoshot", &params, &plan));
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    options.max_message_bytes = MOST;
    banyan_loaded_plan *loaded;
    CHECK_OK(banyan_loaded_plan_open(executor, plan, &options, &loaded));
    collective_case cases[RUNS];
    case_buffers buffers[RUNS];
    for (int run = 0; run < RUNS; run++) {
        collective_case *c = &cases[run];
        *c = (collective_case){.plan = plan, .device = device, .stream = stream};
        c->apart = !params.in_place || random_next(&random) % 2;
        c->dtype = dtypes[random_next(&random) % DTYPES];
        uint64_t most = UINT64_C(1) << random_between(&random, 0, 12);
        c->message_bytes =
            (uint64_t)random_between(&random, 0, (int64_t)most) * banyan_dtype_bytes(c->dtype);
        buffers[run] = case_take(c, world);
        case_fill(c, &buffers[run], rank, run);
    }
    for (int run = 0; run < RUNS; run++)
        CHECK_OK(banyan_loaded_plan_run(loaded, buffers[run].input, buffers[run].output,
                                        cases[run].message_bytes, cases[run].dtype, stream));
    gpu_stream_wait(device, stream);
    CHECK_OK(banyan_loaded_plan_status(loaded));
    for (int run = 0; run < RUNS; run++) {
        case_check(&cases[run], &buffers[run], rank, run);
        case_give_back(&cases[run], &buffers[run]);
    }
    CHECK_OK(banyan_loaded_plan_close(loaded));
    banyan_plan_destroy(plan);
    gpu_stream_destroy(device, stream);
    banyan_executor_close(executor);
}

static void sizes_types_and_buffers_may_change_with_every_run(void **state)
{
    (void)state;
    uint64_t seed = random_seed();
    ranks_run(gpu_count() >= 4 ? 4 : 2, change_sizes, &seed);
}

#define COUNT 700

static void fill_words(void *device, int rank, int round, size_t count)
{
    int32_t *words = malloc(count * sizeof *words);
    for (size_t i = 0; i < count; i++)
        words[i] = (int32_t)(1000 * round + 10 * (int)i + rank);
    gpu_copy(device, words, count * sizeof *words);
    free(words);
}

struct call_buffers {
    DLDevice device;
    void *stream;
    banyan_comm *comm;
    char *input, *output;
};

static void check_sum(const struct call_buffers *b, int ranks, int round)
{
    int32_t *got = gpu_read(b->output, COUNT * 4);
    int sum_of_ranks = ranks * (ranks - 1) / 2;
    for (int i = 0; i < COUNT; i++)
        CHECK(got[i] == ranks * (1000 * round + 10 * i) + sum_of_ranks, "sum %d is %d", i, got[i]);
    free(got);
}

/* All-reduce, all-gather and broadcast: one for each use of the buffers. */
static void call_all(struct call_buffers *b, int rank, int ranks, int round)
{
    fill_words(b->input, rank, round, COUNT);
    gpu_poison(b->output, (size_t)ranks * COUNT * 4);
    CHECK_OK(banyan_comm_allreduce(b->comm, b->input, b->output, COUNT, BANYAN_I32, BANYAN_SUM,
                                   b->stream));
    gpu_stream_wait(b->device, b->stream);
    check_sum(b, ranks, round);
    CHECK_OK(banyan_comm_allgather(b->comm, b->input, b->output, COUNT, BANYAN_I32, b->stream));
    gpu_stream_wait(b->device, b->stream);
    int32_t *got = gpu_read(b->output, (size_t)ranks * COUNT * 4);
    for (int i = 0; i < ranks * COUNT; i++)
        CHECK(got[i] == 1000 * round + 10 * (i % COUNT) + i / COUNT, "gathered %d is %d", i,
              got[i]);
    free(got);
    gpu_poison(b->output, COUNT * 4);
    CHECK_OK(banyan_comm_broadcast(b->comm, b->input, b->output, COUNT, BANYAN_I32, ranks - 1,
                                   b->stream));
    gpu_stream_wait(b->device, b->stream);
    got = gpu_read(b->output, COUNT * 4);
    for (int i = 0; i < COUNT; i++)
        CHECK(got[i] == 1000 * round + 10 * i + ranks - 1, "element %d is %d", i, got[i]);
    free(got);
}

/* A graph keeps its plan, even if longer messages need others. */
static void call_in_graphs(banyan_world *world, void *context)
{
    (void)context;
    enum { MOST = 60000 };
    int rank = banyan_world_rank(world), ranks = banyan_world_size(world);
    struct call_buffers b = {.device = gpu_device_for(rank)};
    banyan_comm_options options = BANYAN_COMM_OPTIONS_INIT;
    void *memory;
    options.device = b.device;
    CHECK_OK(banyan_comm_create(world, &options, &b.comm));
    b.stream = gpu_stream_create(b.device);
    CHECK_OK(gpu_memory()->alloc(b.device.device_id, 2 * MOST * 4, &memory));
    gpu_fill(memory, 0, 2 * MOST * 4);
    b.input = memory;
    b.output = b.input + MOST * 4;
    gpu_capture_begin(b.device, b.stream);
    CHECK_OK(
        banyan_comm_allreduce(b.comm, b.input, b.output, COUNT, BANYAN_I32, BANYAN_SUM, b.stream));
    void *graph = gpu_capture_end(b.device, b.stream);
    for (int count = 10 * COUNT; count <= MOST; count += 20 * COUNT)
        CHECK_OK(banyan_comm_allreduce(b.comm, b.input, b.output, (size_t)count, BANYAN_I32,
                                       BANYAN_SUM, b.stream));
    gpu_stream_wait(b.device, b.stream);
    for (int round = 0; round < 5; round++) {
        fill_words(b.input, rank, round, COUNT);
        gpu_graph_launch(b.device, graph, b.stream);
        gpu_stream_wait(b.device, b.stream);
        CHECK_OK(banyan_comm_status(b.comm));
        check_sum(&b, ranks, round);
    }
    gpu_graph_destroy(b.device, graph);
    CHECK_OK(banyan_comm_destroy(b.comm));
    gpu_memory()->free(b.device.device_id, memory);
    gpu_stream_destroy(b.device, b.stream);
}

static void a_call_in_a_graph_keeps_its_plan(void **state)
{
    (void)state;
    ranks_run(2, call_in_graphs, NULL);
}

static void call_collectives(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world), ranks = banyan_world_size(world);
    size_t bytes = (size_t)ranks * COUNT * 4;
    struct call_buffers b = {.device = gpu_device_for(rank)};
    banyan_comm_options options = BANYAN_COMM_OPTIONS_INIT;
    banyan_memory *memory;
    void *ordinary;
    options.device = b.device;
    CHECK_OK(banyan_comm_create(world, &options, &b.comm));
    b.stream = gpu_stream_create(b.device);
    CHECK_OK(gpu_memory()->alloc(b.device.device_id, 2 * bytes, &ordinary));
    b.input = ordinary;
    b.output = b.input + bytes;
    for (int round = 0; round < 2; round++)
        call_all(&b, rank, ranks, round);
    CHECK_OK(banyan_memory_alloc_on(world, b.device, 2 * bytes, &memory));
    CHECK_OK(banyan_comm_register(b.comm, memory));
    b.input = banyan_memory_local(memory);
    b.output = b.input + bytes;
    for (int round = 2; round < 4; round++)
        call_all(&b, rank, ranks, round);
    CHECK_OK(banyan_comm_unregister(b.comm, memory));
    CHECK_OK(banyan_comm_destroy(b.comm));
    banyan_memory_free(memory);
    gpu_memory()->free(b.device.device_id, ordinary);
    gpu_stream_destroy(b.device, b.stream);
}

static void a_communicator_on_gpus_serves_calls_in_their_stream(void **state)
{
    (void)state;
    ranks_run(1, call_collectives, NULL);
    ranks_run_threads(2, call_collectives, NULL);
    ranks_run(gpu_count() >= 4 ? 4 : 2, call_collectives, NULL);
}

int main(void)
{
    gpu_count();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_whole_collective_is_right_at_any_size),
        cmocka_unit_test(every_built_in_algorithm_is_right),
        cmocka_unit_test(sizes_types_and_buffers_may_change_with_every_run),
        cmocka_unit_test(a_call_in_a_graph_keeps_its_plan),
        cmocka_unit_test(a_communicator_on_gpus_serves_calls_in_their_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
