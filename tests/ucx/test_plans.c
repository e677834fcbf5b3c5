/* Plans between two to four network namespaces: those of MSCCL++'s programs for several nodes,
 * every built-in algorithm for several nodes, in random orders too. Plans that map memory of
 * another node are refused. */
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/deadline.h"
#include "execute/collective_check.h"
#include "support/plans.h"
#include "support/ucx.h"

static banyan_plan *read_plan(const char *name)
{
    char path[512];
    banyan_plan *plan;
    snprintf(path, sizeof path, "%s/%s", plans_dir(), name);
    CHECK_OK(banyan_plan_read(path, &plan));
    return plan;
}

static void set_networks(int count)
{
    char text[8];
    snprintf(text, sizeof text, "%d", count);
    setenv("BANYAN_TEST_NETWORK", text, 1);
}

static uint64_t message_of(const banyan_plan *plan, uint64_t elems, size_t elem_bytes)
{
    banyan_plan_info info = banyan_plan_describe(plan);
    bool blocks = info.collective == BANYAN_REDUCESCATTER || info.collective == BANYAN_ALLTOALL;
    return elems * elem_bytes * (blocks ? (uint64_t)info.ranks : 1);
}

static void run_at_sizes(banyan_world *world, const banyan_plan *plan, uint64_t seed)
{
    static const uint64_t sizes[] = {1, 7, 1000, 30001};
    banyan_executor_options options = BANYAN_EXECUTOR_OPTIONS_INIT;
    banyan_executor *executor;
    options.shuffle_seed = seed;
    options.workers = seed % 2 ? 2 : 1;
    CHECK_OK(banyan_executor_open(world, &options, &executor));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        collective_case c = {.plan = plan,
                             .dtype = dtypes[(i + seed) % DTYPES],
                             .symmetric = (i + seed) % 2 == 0,
                             .apart = !banyan_plan_describe(plan).in_place,
                             .runs = 4};
        c.message_bytes = message_of(plan, sizes[i], banyan_dtype_bytes(c.dtype));
        case_run(world, executor, &c);
    }
    banyan_executor_close(executor);
}

static void run_held(banyan_world *world, void *context)
{
    banyan_plan *plan = read_plan(context);
    for (uint64_t seed = 0; seed <= 3; seed++)
        run_at_sizes(world, plan, seed);
    banyan_plan_destroy(plan);
}

static void plans_of_mscclpp_for_several_nodes_are_right(void **state)
{
    (void)state;
    set_networks(2);
    ranks_run(8, run_held, (void *)"multi_node_allgather_8.json");
    ranks_run(4, run_held, (void *)"multi_node_allgather_tbg_4.json");
    ranks_run(8, run_held, (void *)"multi_node_reducescatter_pkt_8.json");
}

static void run_algorithms(banyan_world *world, void *context)
{
    (void)context;
    banyan_algorithm_info info;
    uint64_t seed = 0;
    for (size_t i = 0; banyan_algorithm_at(i, &info) == BANYAN_OK; i++) {
        bool hierarchical = strstr(info.name, "hierarchical");
        if (!hierarchical && !strstr(info.name, "port"))
            continue;
        banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
        banyan_plan *plan;
        params.ranks = banyan_world_size(world);
        params.ranks_per_node = params.ranks / banyan_world_node_count(world);
        params.root = params.ranks - 1;
        params.instances = 1 + (int)(i % 2);
        CHECK_OK(banyan_algorithm_compile(info.name, &params, &plan));
        if (params.ranks < 8) /* which take long */
            run_at_sizes(world, plan, 0);
        run_at_sizes(world, plan, ++seed);
        banyan_plan_destroy(plan);
    }
    CHECK(seed >= 15, "%d algorithms", (int)seed);
}

static void every_algorithm_for_several_nodes_is_right(void **state)
{
    (void)state;
    set_networks(2);
    ranks_run(4, run_algorithms, NULL);
    ranks_run(2, run_algorithms, NULL);
    set_networks(3);
    ranks_run(6, run_algorithms, NULL);
    set_networks(4);
    ranks_run(8, run_algorithms, NULL);
}

static void refuse(banyan_world *world, void *context)
{
    (void)context;
    banyan_executor *executor;
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    banyan_loaded_plan *loaded;
    banyan_plan *plan;
    options.max_message_bytes = 4096;
    params.ranks = 4;
    CHECK_OK(banyan_executor_open(world, NULL, &executor));
    CHECK_OK(banyan_algorithm_compile("allreduce_ring", &params, &plan));
    CHECK_FAILS(banyan_loaded_plan_open(executor, plan, &options, &loaded), BANYAN_ERR_UNSUPPORTED,
                "memory channel 1 of rank 0 joins it with rank 3, which is on another node");
    banyan_plan_destroy(plan);
    CHECK_OK(banyan_algorithm_compile("allreduce_switch", &params, &plan));
    CHECK_FAILS(banyan_loaded_plan_open(executor, plan, &options, &loaded), BANYAN_ERR_UNSUPPORTED,
                "on another node; memory and switch channels join ranks of one node");
    banyan_plan_destroy(plan);
    banyan_executor_close(executor);
}

static void memory_of_another_node_is_refused_when_a_plan_is_loaded(void **state)
{
    (void)state;
    set_networks(2);
    ranks_run(4, refuse, NULL);
}

#define CHUNKS 80

/* Rank 1 puts every second chunk into rank 0's output: more of them than can be redirected. Then
 * rank 0 overwrites those of the second half, or reads all: `reads` copies each to the next. */
static banyan_plan *changing_plan(bool reads)
{
    banyan_collective of = {.kind = BANYAN_CUSTOM, .input_chunks = CHUNKS, .output_chunks = CHUNKS};
    banyan_program *program;
    banyan_plan *plan;
    CHECK_OK(banyan_program_create("changing", &of, 2, NULL, &program));
    banyan_program_port_channel *begun = banyan_program_port_channel_create(program, 1, 0);
    banyan_program_port_channel *put = banyan_program_port_channel_create(program, 0, 1);
    banyan_program_port_signal(begun, 0, BANYAN_SYNC_BOTH);
    banyan_program_port_wait(put, 0, BANYAN_SYNC_BOTH);
    for (uint64_t i = 0; i < CHUNKS; i += 2)
        banyan_program_port_put(put, banyan_program_output(program, 0, i, i + 1),
                                banyan_program_input(program, 1, i, i + 1), 0);
    banyan_program_port_signal(put, 0, BANYAN_SYNC_BOTH);
    banyan_program_port_flush(put, 0, BANYAN_SYNC_BOTH);
    banyan_program_port_wait(begun, 0, BANYAN_SYNC_BOTH);
    for (uint64_t i = reads ? 0 : CHUNKS / 2; i < CHUNKS; i += 2)
        banyan_program_copy(program, 0, banyan_program_output(program, 0, i + reads, i + reads + 1),
                            reads ? banyan_program_output(program, 0, i, i + 1)
                                  : banyan_program_input(program, 0, i, i + 1),
                            BANYAN_TB(0));
    CHECK_OK(banyan_program_compile(program, &plan));
    banyan_program_destroy(program);
    return plan;
}

/* Return the value of a byte of rank 0's output, which 0xee fills before. */
static int changed_byte(int run, uint64_t chunk, bool reads)
{
    if (chunk % 2 == 1)
        return reads ? 10 * run + 1 : 0xee;
    return 10 * run + (reads || chunk < CHUNKS / 2);
}

#define CHANGED_BYTES ((size_t)400000)

static void change_output(banyan_world *world, void *context)
{
    bool reads = *(const bool *)context;
    int rank = banyan_world_rank(world);
    banyan_plan *plan = changing_plan(reads);
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    banyan_loaded_plan *loaded;
    banyan_executor *executor;
    options.max_message_bytes = CHANGED_BYTES;
    CHECK_OK(banyan_executor_open(world, NULL, &executor));
    CHECK_OK(banyan_loaded_plan_open(executor, plan, &options, &loaded));
    unsigned char *input = malloc(CHANGED_BYTES), *output = malloc(CHANGED_BYTES);
    for (int run = 0; run < 3; run++) {
        memset(input, 10 * run + rank, CHANGED_BYTES);
        memset(output, 0xee, CHANGED_BYTES);
        CHECK_OK(banyan_loaded_plan_run(loaded, input, output, CHANGED_BYTES, BANYAN_U8, NULL));
        for (size_t i = 0; i < CHANGED_BYTES && rank == 0; i++) {
            int wanted = changed_byte(run, i / (CHANGED_BYTES / CHUNKS), reads);
            CHECK(output[i] == wanted, "run %d: byte %zu is %d, not %d", run, i, output[i], wanted);
        }
    }
    free(input);
    free(output);
    banyan_loaded_plan_close(loaded);
    banyan_executor_close(executor);
    banyan_plan_destroy(plan);
}

static void outputs_that_are_read_or_overwritten_are_right(void **state)
{
    (void)state;
    set_networks(2);
    for (int reads = 0; reads < 2; reads++)
        ranks_run(2, change_output, &(bool){reads});
}

static void short_memory(banyan_world *world, void *context)
{
    (void)context;
    bool is_last = banyan_world_rank(world) == 1;
    banyan_executor *executor;
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    banyan_loaded_plan *loaded;
    banyan_plan *plan;
    banyan_memory *memory;
    params.ranks = 2;
    params.ranks_per_node = 1;
    options.max_message_bytes = 4096;
    CHECK_OK(banyan_memory_alloc(world, is_last ? 4096 : 8192, &memory));
    options.output = memory;
    CHECK_OK(banyan_executor_open(world, NULL, &executor));
    CHECK_OK(banyan_algorithm_compile("allgather_ports", &params, &plan));
    CHECK_OK(banyan_loaded_plan_open(executor, plan, &options, &loaded));
    char input[4096] = {0};
    CHECK_FAILS(
        banyan_loaded_plan_run(loaded, input, banyan_memory_local(memory), 4096, BANYAN_F32, NULL),
        BANYAN_ERR_INVALID,
        is_last ? "does not lie in the symmetric memory"
                : "beyond rank 1's 4096 bytes of symmetric memory");
    (void)banyan_loaded_plan_close(loaded);
    banyan_plan_destroy(plan);
    banyan_executor_close(executor);
    banyan_memory_free(memory);
}

static void memory_that_is_too_short_on_another_node_is_named(void **state)
{
    (void)state;
    set_networks(2);
    ranks_run(2, short_memory, NULL);
}

/* Programs that keep the calling thread's processor busy. */
#define HOGS 16
/* How late the loss of a rank may be reported beside them. */
#define REPORTED_NS (3 * NS_PER_S)

static void keep_to_one_processor(void)
{
    cpu_set_t allowed, one;
    int first = 0;
    CHECK(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
    while (!CPU_ISSET(first, &allowed))
        first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
}

static void hogs_start(pid_t hogs[HOGS])
{
    for (int i = 0; i < HOGS; i++) {
        hogs[i] = fork();
        CHECK(hogs[i] >= 0);
        if (hogs[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (volatile uint64_t spin = 0;; spin = spin + 1)
                continue;
        }
    }
}

static void hogs_stop(const pid_t hogs[HOGS])
{
    for (int i = 0; i < HOGS; i++)
        kill(hogs[i], SIGKILL);
    for (int i = 0; i < HOGS; i++)
        CHECK(waitpid(hogs[i], NULL, 0) == hogs[i]);
}

static void wait_beside_hogs(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    banyan_world *world = ranks_open_world(rank, count, id, 0);
    banyan_executor *executor;
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    banyan_loaded_plan *loaded;
    banyan_plan *plan;
    float values[2] = {0}, sums[2];
    params.ranks = 2;
    params.ranks_per_node = 1;
    options.max_message_bytes = sizeof values;
    CHECK_OK(banyan_executor_open(world, NULL, &executor));
    CHECK_OK(banyan_algorithm_compile("allreduce_hierarchical_leaders", &params, &plan));
    CHECK_OK(banyan_loaded_plan_open(executor, plan, &options, &loaded));
    CHECK_OK(banyan_loaded_plan_run(loaded, values, sums, sizeof values, BANYAN_F32, NULL));
    if (rank == 1) {
        raise(SIGKILL);
        return;
    }
    pid_t hogs[HOGS];
    keep_to_one_processor();
    hogs_start(hogs);
    uint64_t begun_ns = time_now_ns();
    CHECK_FAILS(banyan_loaded_plan_run(loaded, values, sums, sizeof values, BANYAN_F32, NULL),
                BANYAN_ERR_PEER_LOST, "rank 1");
    uint64_t took_ns = time_now_ns() - begun_ns;
    hogs_stop(hogs);
    CHECK(took_ns < REPORTED_NS, "%.1f s", (double)took_ns / 1e9);
    (void)banyan_loaded_plan_close(loaded);
    banyan_plan_destroy(plan);
    banyan_executor_close(executor);
    (void)banyan_world_close(world);
}

static void a_lost_rank_is_reported_beside_busy_programs(void **state)
{
    (void)state;
    set_networks(2);
    ranks_fork_and_lose_one(wait_beside_hogs, NULL);
}

int main(void)
{
    if (!ucx_is_there())
        return 77;
    setenv("UCX_TLS", "tcp", 1); /* shared memory would reach across the namespaces */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_of_another_node_is_refused_when_a_plan_is_loaded),
        cmocka_unit_test(memory_that_is_too_short_on_another_node_is_named),
        cmocka_unit_test(outputs_that_are_read_or_overwritten_are_right),
        cmocka_unit_test(a_lost_rank_is_reported_beside_busy_programs),
        cmocka_unit_test(every_algorithm_for_several_nodes_is_right),
        cmocka_unit_test(plans_of_mscclpp_for_several_nodes_are_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
