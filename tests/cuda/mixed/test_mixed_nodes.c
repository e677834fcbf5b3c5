/* Mixed collectives between nodes: one machine, split into several nodes. Every grid of 4 ranks,
 * every valid operation and mode, by stores, by puts of kernels and by puts of the host. */
#include <dlfcn.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda/gpu_mixed.h"

#define MOST_ELEMS 20000
#define MAX_BYTES (1 << 14) /* longer calls need several launches */

static const char nvshmem_way[] = "BANYAN_MIXED_NVSHMEM";

static bool has_nvshmem(void)
{
    const char *library = getenv("BANYAN_NVSHMEM");
    return library && access(library, R_OK) == 0;
}

static banyan_mixed_options options_for(banyan_world *world, const grid_sizes *sizes,
                                        DLDataType dtype)
{
    banyan_mixed_options options = options_of(sizes, dtype);
    options.device = gpu_device_for(banyan_world_rank(world));
    options.max_bytes = MAX_BYTES;
    return options;
}

static void enter(mixed_case *c, banyan_world *world, const grid_sizes *sizes, DLDataType dtype)
{
    gpu_case_open(c, world, options_for(world, sizes, dtype), MOST_ELEMS);
}

struct plan_of_test {
    uint64_t seed;
    int calls;
};

/* The modes of GPUs between nodes are those that are useful in the grid. */
static void check_modes(const mixed_case *c, banyan_mixed_op op)
{
    banyan_mixed_mode modes[BANYAN_MIXED_MODES];
    size_t count;
    bool has[BANYAN_MIXED_MODES] = {false};
    CHECK_OK(banyan_mixed_valid_modes(c->mixed, op, modes, BANYAN_MIXED_MODES, &count));
    for (size_t i = 0; i < count; i++)
        has[modes[i]] = true;
    CHECK(has[BANYAN_MIXED_ONE_SHOT]);
    CHECK(has[BANYAN_MIXED_TWO_SHOT] == (c->grid.local_tp > 1));
    CHECK(has[BANYAN_MIXED_TWO_SHOT_NODES] == (c->grid.inter_tp > 1));
}

/* Run each fused mode of each operation, at sizes of less than a unit, one unit, and several
 * launches. */
static void run_fused(mixed_case *c)
{
    static const uint64_t sizes[][2] = {{1, 1}, {1, 8}, {3, 7}, {5, 1000}, {16, 1024}, {7, 2801}};
    banyan_mixed_op ops[BANYAN_MIXED_OPS];
    size_t count;
    CHECK_OK(banyan_mixed_valid_ops(c->mixed, ops, BANYAN_MIXED_OPS, &count));
    for (size_t i = 0; i < count; i++) {
        check_modes(c, ops[i]);
        for (int mode = BANYAN_MIXED_ONE_SHOT; mode <= BANYAN_MIXED_TWO_SHOT_NODES; mode++) {
            if ((mode == BANYAN_MIXED_TWO_SHOT && c->grid.local_tp == 1) ||
                (mode == BANYAN_MIXED_TWO_SHOT_NODES && c->grid.inter_tp == 1))
                continue;
            for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
                mixed_one one = {.op = ops[i],
                                 .mode = (banyan_mixed_mode)mode,
                                 .kind = s % 2 ? DATA_RANDOM : DATA_WHOLE,
                                 .rows = sizes[s][0],
                                 .row_elems = sizes[s][1]};
                case_run(c, &one);
                case_check_bits(c, &one);
            }
        }
    }
}

static void run_grids(banyan_world *world, void *context)
{
    const struct plan_of_test *test = context;
    grid_sizes grids[32];
    random_state random = random_from(test->seed);
    int ranks = banyan_world_size(world), count = grids_of(ranks, grids, 32);
    for (int i = 0; i < count; i++) {
        mixed_case c;
        bool drawn = ranks < 8 || random_between(&random, 0, 3) == 0;
        if (grids[i].nodes == 1 || !drawn)
            continue;
        enter(&c, world, &grids[i], draw_dtype(&random));
        run_fused(&c);
        for (int n = 0; n < test->calls; n++) {
            mixed_one one = draw_call(&c, &random, MOST_ELEMS);
            case_run(&c, &one);
        }
        gpu_case_close(&c);
    }
}

static void run_all(const char *way, int ranks)
{
    struct plan_of_test test = {random_seed(), gpu_is_emulated() ? 12 : 40};
    setenv(nvshmem_way, way, 1);
    ranks_run(ranks, run_grids, &test);
}

static void run_worlds(const char *way)
{
    int most = gpu_count() < 4 ? 2 : gpu_count() < 8 ? 4 : 8;
    for (int ranks = gpu_worlds_are_cheap() ? 2 : most; ranks <= most; ranks += ranks < 4 ? 1 : 4)
        run_all(way, ranks);
}

static void stores_carry_every_operation_and_mode(void **state)
{
    (void)state;
    run_worlds("");
}

static void puts_of_the_host_carry_every_operation_and_mode(void **state)
{
    (void)state;
    run_worlds("proxy");
}

static const grid_sizes two_nodes = {2, 1, 1, 2, 1};

static void open_by_puts(int rank, int count, const banyan_unique_id *id, void *context)
{
    banyan_world *world = ranks_open_world(rank, count, id, UINT64_C(60000000000));
    banyan_mixed_options options = options_for(world, &two_nodes, BANYAN_F32);
    banyan_mixed *mixed;
    (void)context;
    if (banyan_mixed_open(world, &options, &mixed) != BANYAN_OK) {
        fprintf(stderr, "%s\n", banyan_last_error());
        _exit(77);
    }
    banyan_mixed_close(mixed);
    banyan_world_close(world);
}

/* False if the module was built without NVSHMEM's device library. */
static bool has_device_puts(void)
{
    static int answer = -1;
    int statuses[2];
    if (answer < 0) {
        setenv(nvshmem_way, "device", 1);
        ranks_fork(2, open_by_puts, NULL, statuses);
        answer = statuses[0] == 0;
        assert_true(answer || !gpu_is_emulated());
    }
    return answer;
}

static void puts_of_kernels_carry_every_operation_and_mode(void **state)
{
    (void)state;
    if (!has_device_puts())
        skip();
    run_worlds("device");
}

static void run_calls(banyan_world *world, void *context)
{
    static const grid_sizes grid = {2, 2, 1, 1, 2};
    const struct plan_of_test *test = context;
    random_state random = random_from(test->seed);
    mixed_case c;
    enter(&c, world, &grid, BANYAN_BF16);
    for (int n = 0; n < test->calls; n++) {
        mixed_one one = draw_call(&c, &random, 2000);
        case_run(&c, &one);
    }
    gpu_case_close(&c);
}

static void a_thousand_puts_of_kernels_follow_each_other(void **state)
{
    struct plan_of_test test = {random_seed(), 1000};
    (void)state;
    if (gpu_count() < 4 || !has_device_puts())
        skip();
    setenv(nvshmem_way, "device", 1);
    ranks_run(4, run_calls, &test);
}

/* Capture the first call of a mode, including all its initialization. */
static void replay_graphs(banyan_world *world, void *context)
{
    static const grid_sizes grid = {2, 1, 1, 2, 1};
    banyan_mixed_mode modes[BANYAN_MIXED_MODES];
    size_t count;
    mixed_case c;
    (void)context;
    enter(&c, world, &grid, BANYAN_BF16);
    CHECK_OK(banyan_mixed_valid_modes(c.mixed, BANYAN_MIXED_ALLREDUCE, modes, BANYAN_MIXED_MODES,
                                      &count));
    CHECK(count >= 3);
    for (size_t i = 0; i < count; i++) {
        mixed_one one = {
            .op = BANYAN_MIXED_ALLREDUCE, .mode = modes[i], .rows = 3, .row_elems = 5000};
        void *graph = gpu_case_capture(&c, &one);
        for (int round = 0; round < 5; round++)
            gpu_case_replay(&c, &one, graph);
        gpu_graph_destroy(c.device, graph);
    }
    gpu_case_close(&c);
}

static void graphs_may_hold_them(void **state)
{
    (void)state;
    setenv(nvshmem_way, "", 1);
    if (gpu_worlds_are_cheap())
        ranks_run(2, replay_graphs, NULL);
    setenv(nvshmem_way, "proxy", 1);
    ranks_run(2, replay_graphs, NULL);
    if (has_device_puts()) {
        setenv(nvshmem_way, "device", 1);
        ranks_run(2, replay_graphs, NULL);
    }
}

/* Real GPUs and NVSHMEM take seconds to open, which counts towards this deadline. */
static uint64_t short_ns(void)
{
    return gpu_is_emulated() ? UINT64_C(2500000000) : UINT64_C(12000000000);
}

static void be_late(int rank, int count, const banyan_unique_id *id, void *context)
{
    static const grid_sizes grid = {2, 1, 1, 2, 1};
    mixed_case c;
    mixed_one one = {
        .op = BANYAN_MIXED_ALLREDUCE, .mode = BANYAN_MIXED_ONE_SHOT, .rows = 3, .row_elems = 50};
    banyan_world *world = ranks_open_world(rank, count, id, short_ns());
    (void)context;
    enter(&c, world, &grid, BANYAN_F32);
    case_run(&c, &one);
    CHECK_OK(banyan_world_barrier(world));
    if (rank == 1) {
        usleep((useconds_t)(short_ns() / 1000 + 1000000));
        _exit(0);
    }
    case_fill(&c, &one);
    CHECK_OK(case_call(&c, &one));
    gpu_stream_wait(c.device, c.stream);
    CHECK_FAILS(banyan_mixed_status(c.mixed), BANYAN_ERR_TIMEOUT, "for rank 1 in allreduce");
    CHECK_FAILS(case_call(&c, &one), BANYAN_ERR_TIMEOUT, "(one_shot)");
    banyan_mixed_close(c.mixed);
    banyan_world_close(world);
}

static void die(int rank, int count, const banyan_unique_id *id, void *context)
{
    static const grid_sizes grid = {2, 1, 1, 2, 1};
    mixed_case c;
    mixed_one one = {.op = BANYAN_MIXED_ALLREDUCE,
                     .mode = BANYAN_MIXED_TWO_SHOT_NODES,
                     .rows = 3,
                     .row_elems = 50};
    banyan_world *world = ranks_open_world(rank, count, id, UINT64_C(30000000000));
    (void)context;
    enter(&c, world, &grid, BANYAN_F32);
    case_run(&c, &one);
    CHECK_OK(banyan_world_barrier(world));
    if (rank == 1)
        raise(SIGKILL);
    gpu_case_lose_peer(&c, &one);
    banyan_mixed_close(c.mixed);
    banyan_world_close(world);
}

static void a_late_or_dead_peer_is_named(void **state)
{
    static const char *const ways[] = {"proxy", "device", ""};
    int statuses[2];
    (void)state;
    for (int way = 0; way < 3; way++) {
        if (strcmp(ways[way], "device") == 0 && !has_device_puts())
            continue;
        setenv(nvshmem_way, ways[way], 1);
        ranks_fork(2, be_late, NULL, statuses);
        assert_int_equal(statuses[0], 0);
        assert_int_equal(statuses[1], 0);
        ranks_fork(2, die, NULL, statuses);
        assert_int_equal(statuses[0], 0);
    }
}

static void check_no_fused_mode(const banyan_mixed *mixed)
{
    banyan_mixed_mode modes[BANYAN_MIXED_MODES];
    size_t count;
    CHECK_OK(
        banyan_mixed_valid_modes(mixed, BANYAN_MIXED_ALLREDUCE, modes, BANYAN_MIXED_MODES, &count));
    for (size_t i = 0; i < count; i++)
        CHECK(modes[i] > BANYAN_MIXED_TWO_SHOT_NODES_MULTICAST);
}

static void open_without_library(banyan_world *world, void *context)
{
    static const grid_sizes grid = {2, 1, 1, 2, 1};
    banyan_mixed_options options = options_for(world, &grid, BANYAN_BF16);
    banyan_mixed *mixed;
    (void)context;
    CHECK_FAILS(banyan_mixed_open(world, &options, &mixed), BANYAN_ERR_NVSHMEM, "no NVSHMEM 3");
    CHECK_OK(banyan_mixed_open_empty(world, &options, &mixed));
    CHECK_OK(banyan_mixed_init_virtual_memory(mixed));
    CHECK_FAILS(banyan_mixed_init_nvshmem(mixed), BANYAN_ERR_NVSHMEM, "no NVSHMEM 3");
    check_no_fused_mode(mixed);
    CHECK_OK(banyan_mixed_close(mixed));
}

static void without_nvshmem_its_modes_are_not_valid(void **state)
{
    (void)state;
    char *before = strdup(getenv("BANYAN_NVSHMEM"));
    setenv("BANYAN_NVSHMEM", "/nonexistent/libnvshmem_host.so.3", 1);
    ranks_run(2, open_without_library, NULL);
    setenv("BANYAN_NVSHMEM", before, 1);
    free(before);
}

/* The second context uses NVSHMEM as the first one initialized it: of its threads, only the one
 * for puts enters the device. */
static void shut_thread_out(banyan_world *world, void *context)
{
    static const grid_sizes grid = {2, 1, 1, 2, 1};
    banyan_mixed_options options = options_for(world, &grid, BANYAN_BF16);
    mixed_case c;
    banyan_mixed *mixed;
    (void)context;
    enter(&c, world, &grid, BANYAN_BF16);
    gpu_case_close(&c);
    if (banyan_world_rank(world) == 1)
        setenv("BANYAN_EMULATED_ENTRY", "main", 1);
    CHECK_FAILS(banyan_mixed_open(world, &options, &mixed), BANYAN_ERR_NVSHMEM,
                "a thread for NVSHMEM's puts: cuda: cuCtxPushCurrent");
    CHECK_OK(banyan_mixed_open_empty(world, &options, &mixed));
    CHECK_OK(banyan_mixed_init_virtual_memory(mixed));
    CHECK_FAILS(banyan_mixed_init_nvshmem(mixed), BANYAN_ERR_NVSHMEM,
                "rank 1: a thread for NVSHMEM's puts");
    check_no_fused_mode(mixed);
    CHECK_OK(banyan_mixed_close(mixed));
    unsetenv("BANYAN_EMULATED_ENTRY");
    enter(&c, world, &grid, BANYAN_BF16);
    run_fused(&c);
    gpu_case_close(&c);
}

static void a_proxy_that_cannot_enter_its_device_says_so(void **state)
{
    (void)state;
    if (!gpu_is_emulated())
        skip(); /* a real device admits every thread */
    setenv(nvshmem_way, "proxy", 1);
    ranks_run(2, shut_thread_out, NULL);
}

/* Like the CUDA runtime in a program: leave its context current in the thread. */
static void enter_device(DLDevice device)
{
    void *context;
    int (*retain)(void **, int) =
        (int (*)(void **, int))gpu_driver_function("cuDevicePrimaryCtxRetain");
    int (*push)(void *) = (int (*)(void *))gpu_driver_function("cuCtxPushCurrent");
    CHECK(retain && push);
    CHECK(retain(&context, device.device_id) == 0 && push(context) == 0);
}

#define NVSHMEM_VERSION(bytes) ((1 << 16) + (bytes)) /* of a struct's first version */

/* Initialize NVSHMEM like a program that uses it directly. */
static void start_nvshmem(banyan_world *world, int rank, int ranks)
{
    struct {
        int version;
        char inside[124];
    } id = {NVSHMEM_VERSION(128), {0}};
    struct {
        int version;
        void *communicator;
        int args_version, pad, id_args_version;
        char inside[116];
    } attributes = {.version = NVSHMEM_VERSION(144),
                    .args_version = NVSHMEM_VERSION(128),
                    .id_args_version = NVSHMEM_VERSION(24)};
    _Static_assert(sizeof id == 128 && sizeof attributes == 144, "NVSHMEM 3's");
    enter_device(gpu_device_for(banyan_world_rank(world)));
    void *library = dlopen(getenv("BANYAN_NVSHMEM"), RTLD_NOW);
    CHECK(library != NULL, "%s", dlerror());
    int (*get)(void *) = (int (*)(void *))dlsym(library, "nvshmemx_get_uniqueid");
    int (*set)(int, int, const void *, void *) =
        (int (*)(int, int, const void *, void *))dlsym(library, "nvshmemx_set_attr_uniqueid_args");
    int (*start)(unsigned, void *) =
        (int (*)(unsigned, void *))dlsym(library, "nvshmemx_hostlib_init_attr");
    CHECK(get && set && start);
    setenv("NVSHMEM_DISABLE_NVLS", "1", 1);
    setenv("NVSHMEM_REMOTE_TRANSPORT", "none", 1);
    setenv("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", "lo", 1);
    if (banyan_world_rank(world) == 0)
        CHECK(get(&id) == 0);
    CHECK_OK(banyan_world_broadcast(world, &id, sizeof id, 0));
    int was_set = set(rank, ranks, &id, &attributes), started = start(1u << 3, &attributes);
    CHECK(was_set == 0 && started == 0, "%d and %d", was_set, started);
}

static void find_it_started(banyan_world *world, void *context)
{
    static const grid_sizes grid = {2, 1, 1, 2, 1};
    int rank = banyan_world_rank(world), turned = *(const bool *)context;
    banyan_mixed_options options = options_for(world, &grid, BANYAN_BF16);
    mixed_case c;
    options.should_init_nvshmem = false;
    CHECK_FAILS(banyan_mixed_open(world, &options, &c.mixed), BANYAN_ERR_NVSHMEM,
                "and NVSHMEM is not initialised");
    start_nvshmem(world, turned ? 1 - rank : rank, 2);
    if (turned) {
        CHECK_FAILS(banyan_mixed_open(world, &options, &c.mixed), BANYAN_ERR_NVSHMEM,
                    "as rank 1 of 2, and this is rank 0 of 2");
        return;
    }
    gpu_case_open(&c, world, options, MOST_ELEMS);
    run_fused(&c);
    gpu_case_close(&c);
}

static void an_nvshmem_that_is_there_is_verified(void **state)
{
    (void)state;
    setenv(nvshmem_way, "", 1);
    for (int turned = 0; turned < 2; turned++)
        ranks_run(2, find_it_started, &(bool){turned != 0});
}

static void refuse_threads(banyan_world *world, void *context)
{
    static const grid_sizes grid = {2, 1, 1, 2, 1};
    banyan_mixed_options options = options_for(world, &grid, BANYAN_BF16);
    banyan_mixed *mixed;
    (void)context;
    CHECK_FAILS(banyan_mixed_open(world, &options, &mixed), BANYAN_ERR_NVSHMEM, "are one process");
}

static void ranks_that_are_threads_are_refused(void **state)
{
    (void)state;
    ranks_run_threads(2, refuse_threads, NULL);
}

int main(void)
{
    setenv("BANYAN_EMULATED_DEVICES", "8", 1);
    int count = gpu_count();
    if (gpu_is_emulated()) {
        setenv("BANYAN_NVSHMEM", BANYAN_EMULATED_MODULES "/libnvshmem_host.so.3", 1);
        setenv("BANYAN_NCCL", "/nonexistent", 1); /* an installed NCCL would need a real driver */
    }
    if (!has_nvshmem() || count < 2) {
        printf("skipped: BANYAN_NVSHMEM names no library, or there is one GPU\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stores_carry_every_operation_and_mode),
        cmocka_unit_test(puts_of_kernels_carry_every_operation_and_mode),
        cmocka_unit_test(a_thousand_puts_of_kernels_follow_each_other),
        cmocka_unit_test(puts_of_the_host_carry_every_operation_and_mode),
        cmocka_unit_test(graphs_may_hold_them),
        cmocka_unit_test(a_late_or_dead_peer_is_named),
        cmocka_unit_test(without_nvshmem_its_modes_are_not_valid),
        cmocka_unit_test(a_proxy_that_cannot_enter_its_device_says_so),
        cmocka_unit_test(an_nvshmem_that_is_there_is_verified),
        cmocka_unit_test(ranks_that_are_threads_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
