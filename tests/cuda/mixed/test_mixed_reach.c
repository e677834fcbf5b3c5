/* The transport of mixed collectives to ranks of other nodes; all ranks choose one. Between
 * emulated GPUs, whose NVSHMEM can be made to lack features. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>

#include "cuda/gpu_mixed.h"

#define RANKS 2
#define LONG_ROW 100000 /* whole thread blocks put its tiles */

typedef struct reach_case {
    const char *nvshmem; /* EMULATED_NVSHMEM on rank 1 */
    const char *wishes[RANKS];
    const char *line;  /* log line on every rank; NULL: opening fails */
    const char *words; /* text of another log line, or of the error; NULL: no other line */
} reach_case;

static const char by_stores[] = "kernels store to ranks";
static const char by_kernels[] = "kernels put to ranks";
static const char by_host[] = "the host puts to ranks";

static const reach_case cases[] = {
    {"", {"", ""}, by_stores, NULL},
    {"", {"device", "device"}, by_kernels, NULL},
    {"", {"proxy", "proxy"}, by_host, NULL},
    {"apart", {"", ""}, by_kernels, NULL},
    {"apart,old",
     {"", ""},
     by_host,
     "rank 1: cuda: Banyan was built with NVSHMEM's device library "},
    {"apart,closed", {"", ""}, by_host, "rank 1: cuda: nvshmemx_cumodule_init gave 7 on device 1"},
    {"old", {"device", "device"}, NULL, "the host library is 3.0.0"},
    {"closed", {"device", "device"}, NULL, "rank 1: cuda: nvshmemx_cumodule_init gave 7"},
    {"", {"", "device"}, NULL, "is nothing on rank 0, and device on rank 1"},
    {"", {"device", "proxy"}, NULL, "is device on rank 0, and proxy on rank 1"},
    {"", {"", "stores"}, NULL, "rank 1: BANYAN_MIXED_NVSHMEM is neither device nor proxy"},
};

static char logged[4096];

static void keep_line(banyan_log_level level, const char *message, void *context)
{
    size_t used = strlen(logged);
    (void)level, (void)context;
    snprintf(logged + used, sizeof logged - used, "%s\n", message);
}

static void run_once(banyan_world *world, banyan_mixed_options options)
{
    mixed_case c;
    gpu_case_open(&c, world, options, 3 * LONG_ROW);
    for (int i = 0; i < 3; i++) {
        mixed_one one = {.op = BANYAN_MIXED_ALLREDUCE,
                         .mode = i % 2 ? BANYAN_MIXED_TWO_SHOT_NODES : BANYAN_MIXED_ONE_SHOT,
                         .rows = 3,
                         .row_elems = i < 2 ? 5000 : LONG_ROW};
        case_run(&c, &one);
    }
    gpu_case_close(&c);
}

static void reach(banyan_world *world, void *context)
{
    static const grid_sizes grid = {2, 1, 1, 2, 1};
    const reach_case *wanted = context;
    int rank = banyan_world_rank(world);
    banyan_mixed_options options = options_of(&grid, BANYAN_F32);
    banyan_mixed *mixed;
    options.device = gpu_device_for(rank);
    setenv("EMULATED_NVSHMEM", rank == 1 ? wanted->nvshmem : "", 1);
    setenv("BANYAN_MIXED_NVSHMEM", wanted->wishes[rank], 1);
    banyan_log_set(keep_line, NULL);
    if (!wanted->line) {
        CHECK_FAILS(banyan_mixed_open(world, &options, &mixed), BANYAN_ERR_NVSHMEM, wanted->words);
        return;
    }
    run_once(world, options);
    CHECK(strstr(logged, wanted->line), "%s", logged);
    CHECK(!wanted->words || strstr(logged, wanted->words), "%s", logged);
}

static void ranks_agree_on_the_way_of_messages(void **state)
{
    (void)state;
    setenv("BANYAN_LOG", "info", 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        ranks_run(RANKS, reach, (void *)(uintptr_t)&cases[i]);
}

static void open_stuck(int rank, int count, const banyan_unique_id *id, void *context)
{
    static const grid_sizes grid = {2, 1, 1, 2, 1};
    banyan_world *world = ranks_open_world(rank, count, id, UINT64_C(2000000000));
    banyan_mixed_options options = options_of(&grid, BANYAN_F32);
    banyan_mixed *mixed;
    (void)context;
    options.device = gpu_device_for(rank);
    setenv("EMULATED_NVSHMEM", rank == 1 ? "stuck" : "", 1);
    setenv("BANYAN_MIXED_NVSHMEM", "device", 1);
    CHECK(banyan_mixed_open(world, &options, &mixed) != BANYAN_OK);
    CHECK(rank != 0 || strstr(banyan_last_error(), "rank 1"), "%s", banyan_last_error());
    _exit(0);
}

static void a_start_that_does_not_come_back_has_a_deadline(void **state)
{
    int statuses[RANKS];
    (void)state;
    ranks_fork(RANKS, open_stuck, NULL, statuses);
    for (int rank = 0; rank < RANKS; rank++)
        assert_int_equal(statuses[rank], 0);
}

static _Thread_local bool lacks_threads;

/* Also replaces the module's: it uses the symbols that this program exports. */
BANYAN_API int pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                              void *(*run)(void *), void *argument)
{
    __typeof__(&pthread_create) next;
    *(void **)&next = dlsym(RTLD_NEXT, "pthread_create");
    return lacks_threads ? EAGAIN : next(thread, attributes, run, argument);
}

/* NVSHMEM is initialized already, so only the image needs the missing thread. */
static void start_without_thread(banyan_world *world, void *context)
{
    static const grid_sizes grid = {2, 1, 1, 2, 1};
    banyan_mixed_options options = options_of(&grid, BANYAN_F32);
    banyan_mixed *mixed;
    (void)context;
    options.device = gpu_device_for(banyan_world_rank(world));
    setenv("BANYAN_MIXED_NVSHMEM", "proxy", 1);
    run_once(world, options);
    setenv("BANYAN_MIXED_NVSHMEM", "device", 1);
    CHECK_OK(banyan_mixed_open_empty(world, &options, &mixed));
    CHECK_OK(banyan_mixed_init_virtual_memory(mixed));
    lacks_threads = banyan_world_rank(world) == 1;
    CHECK_FAILS(banyan_mixed_init_nvshmem(mixed), BANYAN_ERR_NVSHMEM,
                "rank 1: cuda: no thread for nvshmemx_cumodule_init");
    lacks_threads = false;
    CHECK_OK(banyan_mixed_init_nvshmem(mixed));
    CHECK_OK(banyan_mixed_close(mixed));
    run_once(world, options);
}

static void a_start_that_lacked_a_thread_is_tried_again(void **state)
{
    (void)state;
    ranks_run(RANKS, start_without_thread, NULL);
}

int main(void)
{
    if (gpu_count() < RANKS || !gpu_is_emulated()) {
        printf("skipped: what NVSHMEM lacks is told to the emulated one\n");
        return 77;
    }
    setenv("BANYAN_NVSHMEM", BANYAN_EMULATED_MODULES "/libnvshmem_host.so.3", 1);
    setenv("BANYAN_NCCL", "/nonexistent", 1); /* an installed NCCL would need a real driver */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_agree_on_the_way_of_messages),
        cmocka_unit_test(a_start_that_does_not_come_back_has_a_deadline),
        cmocka_unit_test(a_start_that_lacked_a_thread_is_tried_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
