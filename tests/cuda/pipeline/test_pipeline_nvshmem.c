/* The pipeline between GPUs over NVSHMEM, where it differs from test_pipeline.c. */
#include "cuda/gpu_pipeline.h"

static const char nvshmem[] = "nvshmem";

/* One GPU for each rank, as NVSHMEM requires; skipped without the library. */
static int nvshmem_ranks(int most)
{
    const char *library = getenv("BANYAN_NVSHMEM");
    if (!library || access(library, R_OK) != 0) {
        printf("skipped: BANYAN_NVSHMEM names no library\n");
        skip();
    }
    int ranks = gpu_count() < most ? gpu_count() : most;
    if (ranks < 2) {
        printf("skipped: there is one GPU\n");
        skip();
    }
    return ranks;
}

/* One initialization serves all services of a process, even two at once, and returned memory
 * serves the next service. */
static void open_again_and_again(banyan_world *world, void *context)
{
    plan_of_test test = {.backend = "pipeline", .transport = nvshmem, .most_elems = 20000};
    DLDevice device = gpu_device_for(banyan_world_rank(world));
    for (uint64_t round = 0; round < 3; round++) {
        test.slot_bytes = round == 1 ? 30000 : 8192;
        test.seed = *(const uint64_t *)context + round;
        banyan_copy_service *beside = open_on(world, device, &test);
        move_traffic(world, &test);
        banyan_copy_service_close(beside);
    }
}

static void puts_with_signals_carry_slots(void **state)
{
    (void)state;
    int most = nvshmem_ranks(4);
    for (int ranks = gpu_is_emulated() ? 2 : most; ranks <= most; ranks += 2) {
        uint64_t seed = random_seed() + 10 * (uint64_t)ranks;
        ranks_run(ranks, open_again_and_again, &seed);
    }
}

static void a_graph_puts_the_current_data_at_each_replay(void **state)
{
    (void)state;
    plan_of_test test = {.seed = random_seed() + 50,
                         .backend = "pipeline",
                         .transport = nvshmem,
                         .slot_bytes = 20000,
                         .most_elems = 5000,
                         .graph = true};
    ranks_run(nvshmem_ranks(3), move_traffic, &test);
}

static void a_late_or_dead_partner_ends_a_run(void **state)
{
    (void)state;
    int statuses[3], ranks = nvshmem_ranks(3);
    if (!gpu_pipeline_leaves_out())
        gpu_pipeline_test_late(nvshmem);
    time_t begun = time(NULL);
    ranks_fork(ranks, die, (void *)nvshmem, statuses);
    assert_int_equal(statuses[0], 0);
    if (ranks > 2)
        assert_int_equal(statuses[2], 0);
    assert_true(time(NULL) - begun < 30);
}

static void refuse_threads(banyan_world *world, void *context)
{
    (void)context;
    banyan_copy_service *service;
    banyan_copy_options options = BANYAN_COPY_OPTIONS_INIT;
    options.device = gpu_device_for(banyan_world_rank(world));
    options.transport = nvshmem;
    CHECK_FAILS(banyan_copy_service_open(world, "pipeline", &options, &service),
                BANYAN_ERR_UNSUPPORTED, "ranks 0 and 1 are one process");
}

static void wait_in_vain(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    banyan_world *world = ranks_open_world(rank, count, id, UINT64_C(1500000000));
    banyan_copy_service *service;
    banyan_copy_options options = BANYAN_COPY_OPTIONS_INIT;
    options.device = gpu_device_for(rank);
    options.transport = nvshmem;
    CHECK_FAILS(
        banyan_copy_service_open(world, "pipeline", &options, &service), BANYAN_ERR_TIMEOUT,
        "for nvshmemx_hostlib_init_attr to end, which does not say for which rank it waits");
    banyan_world_close(world);
}

static void calls_that_do_not_come_back_are_left(void **state)
{
    (void)state;
    int statuses[2];
    nvshmem_ranks(2);
    if (gpu_pipeline_leaves_out())
        return;
    ranks_run_threads(2, refuse_threads, NULL);
    setenv("EMULATED_NVSHMEM_ABSENT", "1", 1);
    ranks_fork(2, wait_in_vain, NULL, statuses);
    unsetenv("EMULATED_NVSHMEM_ABSENT");
    assert_int_equal(statuses[0], 0);
    assert_int_equal(statuses[1], 0);
}

/* The world goes on, and NVSHMEM is not used again. */
static void start_with_a_rank_that_fails(int rank, int count, const banyan_unique_id *id,
                                         void *context)
{
    (void)context;
    banyan_world *world = ranks_open_world(rank, count, id, 0);
    banyan_copy_service *service;
    banyan_copy_options options = BANYAN_COPY_OPTIONS_INIT;
    options.device = gpu_device_for(rank);
    options.transport = nvshmem;
    time_t begun = time(NULL);
    CHECK_FAILS(banyan_copy_service_open(world, "pipeline", &options, &service), BANYAN_ERR_SYSTEM,
                "rank 1: nvshmemx_hostlib_init_attr gave ");
    CHECK(time(NULL) - begun < 30, "the other ranks waited");
    CHECK_OK(banyan_world_barrier(world));
    CHECK_FAILS(banyan_copy_service_open(world, "pipeline", &options, &service),
                BANYAN_ERR_UNSUPPORTED, "an earlier call of NVSHMEM failed or did not return");
    CHECK_OK(banyan_world_close(world));
}

static void a_rank_whose_start_fails_ends_the_wait_of_the_others(void **state)
{
    (void)state;
    int statuses[3];
    nvshmem_ranks(3);
    if (gpu_pipeline_leaves_out())
        return;
    setenv("EMULATED_NVSHMEM_FAILS", "1", 1);
    ranks_fork(3, start_with_a_rank_that_fails, NULL, statuses);
    unsetenv("EMULATED_NVSHMEM_FAILS");
    for (int rank = 0; rank < 3; rank++)
        assert_int_equal(statuses[rank], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(puts_with_signals_carry_slots),
        cmocka_unit_test(a_graph_puts_the_current_data_at_each_replay),
        cmocka_unit_test(a_late_or_dead_partner_ends_a_run),
        cmocka_unit_test(calls_that_do_not_come_back_are_left),
        cmocka_unit_test(a_rank_whose_start_fails_ends_the_wait_of_the_others),
    };
    gpu_pipeline_begin();
    if (gpu_is_emulated())
        setenv("BANYAN_NVSHMEM", BANYAN_EMULATED_MODULES "/libnvshmem_host.so.3", 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
