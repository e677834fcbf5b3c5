/* The pipeline between GPUs: with any strides and any number of rounds, every element arrives with
 * its newest value, and nothing else changes. A late or dead partner ends a run. */
#include "cuda/gpu_pipeline.h"

/* Services of all kinds, one after another: starting ranks takes longer than all of them. */
static void move_in_many_ways(banyan_world *world, void *context)
{
    uint64_t seed = *(const uint64_t *)context;
    plan_of_test tests[] = {
        {.most_elems = 20000},
        {.most_elems = 20000, .slot_bytes = 16384},
        {.most_elems = 20000, .slot_bytes = 5000, .optimal_rounds = true},
        {.most_elems = 5000, .slot_bytes = 20000, .ids = TRAFFIC_BY_ORDER, .graph = true},
    };
    for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
        tests[i].seed = seed + i;
        tests[i].backend = "pipeline";
        move_traffic(world, &tests[i]);
    }
}

static void every_element_arrives_the_newest_one(void **state)
{
    (void)state;
    for (int ranks = gpu_is_emulated() ? 1 : 4; ranks <= 4; ranks++) {
        uint64_t seed = random_seed() + 10 * (uint64_t)ranks;
        ranks_run(ranks, move_in_many_ways, &seed);
    }
}

static void ranks_may_be_threads_and_share_a_gpu(void **state)
{
    (void)state;
    plan_of_test test = {.seed = random_seed() + 100,
                         .backend = "pipeline",
                         .slot_bytes = 10000,
                         .most_elems = 5000};
    if (gpu_is_emulated())
        ranks_run_threads(3, move_traffic, &test);
    test.one_gpu = true;
    ranks_run_threads(4, move_traffic, &test);
}

static void a_late_partner_ends_a_run(void **state)
{
    (void)state;
    gpu_pipeline_test_late(NULL);
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
                BANYAN_ERR_NOT_FOUND, "there are peer, ucx, nvshmem");
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

static void wrong_options_are_refused(void **state)
{
    (void)state;
    if (!gpu_pipeline_leaves_out())
        ranks_run(2, refuse, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_arrives_the_newest_one),
        cmocka_unit_test(ranks_may_be_threads_and_share_a_gpu),
        cmocka_unit_test(a_late_partner_ends_a_run),
        cmocka_unit_test(a_dead_partner_ends_runs_at_once),
        cmocka_unit_test(wrong_options_are_refused),
    };
    /* For ranks that share a GPU as threads: a wait in a device queue must not block the work it
     * waits for. */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    gpu_pipeline_begin();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
