/* Instances: the whole program several times, each on its own chunks. */
#include "program/passes.h"

static banyan_plan *replicate(program_writer write, int instances, banyan_replication policy)
{
    banyan_plan *plan = plan_written(2, 8, write), *made;
    CHECK_OK(pass_instances(plan, instances, policy, &made));
    banyan_plan_destroy(plan);
    return made;
}

static void everything(banyan_program *program)
{
    banyan_program_semaphore *semaphore = banyan_program_semaphore_create(program, 0, 7);
    banyan_program_memory_channel *first = banyan_program_memory_channel_create(program, 1, 0);
    banyan_program_memory_channel *second = banyan_program_memory_channel_create(program, 1, 0);
    banyan_program_switch_channel *both =
        banyan_program_switch_channel_create(program, (const int[]){0, 1}, 2, BANYAN_OUTPUT);
    banyan_program_memory_channel_create(program, 0, 1);
    banyan_program_memory_channel_create(program, 0, 1);
    banyan_program_scratch(program, 0, 3);
    banyan_program_memory_put(second, OUT(1, 3, 5), IN(0, 1, 3), BANYAN_TB(1));
    banyan_program_memory_signal(first, 1, BANYAN_SYNC_NONE);
    banyan_program_semaphore_acquire(semaphore, 1, BANYAN_SYNC_NONE);
    banyan_program_barrier(program, 0, (const int[]){0, 1}, 2);
    banyan_program_loop_begin(program, 64, 2);
    banyan_program_switch_broadcast(both, 0, IN(0, 2, 3), 4, 1, 1);
    banyan_program_loop_end(program);
}

static void instances_are_interleaved(void **state)
{
    (void)state;
    banyan_plan *made = replicate(everything, 2, BANYAN_INTERLEAVED);
    const plan_rank *rank = &made->ranks[0];
    assert_int_equal(rank->block_count, 4);
    assert_int_equal(rank->chunks[PLAN_INPUT], 16);
    assert_int_equal(rank->chunks[PLAN_OUTPUT], 16);
    assert_int_equal(rank->chunks[PLAN_SCRATCH], 6);
    assert_int_equal(rank->channel_count[PLAN_MEMORY], 4);
    assert_int_equal(rank->channel_count[PLAN_SWITCH], 2);
    assert_int_equal(rank->semaphore_count, 2);
    assert_int_equal(rank->semaphores[1], 7);
    check_block(made, 0, 0, "barrier 0 of 2 thread blocks");
    check_block(made, 0, 1, "barrier 1 of 2 thread blocks");
    check_block(made, 0, 2,
                "put memory i[2..4) -> o[6..8)@1\n"
                "signal memory channel 0 to 1\n"
                "sem_acquire semaphore 0\n"
                "barrier 0 of 2 thread blocks\n"
                "pipeline over 2 chunks in units of 64 bytes {\n"
                "gstore i[4] -> o[8]@{0,1} by switch channel 0\n}");
    check_block(made, 0, 3,
                "put memory i[4..6) -> o[8..10)@1\n"
                "signal memory channel 1 to 1\n"
                "sem_acquire semaphore 1\n"
                "barrier 1 of 2 thread blocks\n"
                "pipeline over 2 chunks in units of 64 bytes {\n"
                "gstore i[5] -> o[9]@{0,1} by switch channel 1\n}");
    CHECK_OK(plan_check_indices(made, "made"));
    banyan_plan_destroy(made);
}

static void instances_that_are_not_replicated_share_chunks(void **state)
{
    (void)state;
    banyan_plan *made = replicate(everything, 2, BANYAN_NOT_REPLICATED);
    assert_int_equal(made->ranks[0].chunks[PLAN_INPUT], 8);
    assert_int_equal(made->ranks[0].block_count, 4);
    check_block(made, 0, 3,
                "put memory i[1..3) -> o[3..5)@1\n"
                "signal memory channel 1 to 1\n"
                "sem_acquire semaphore 1\n"
                "barrier 1 of 2 thread blocks\n"
                "pipeline over 2 chunks in units of 64 bytes {\n"
                "gstore i[2] -> o[4]@{0,1} by switch channel 1\n}");
    CHECK_OK(plan_check_indices(made, "made"));
    banyan_plan_destroy(made);
}

/* Channel k from a to b and channel k from b to a are still each other's ends. */
static void pairs_of_channels_stay_pairs(void **state)
{
    (void)state;
    banyan_plan *made = replicate(everything, 3, BANYAN_INTERLEAVED);
    for (uint32_t channel = 0; channel < 6; channel++) {
        int peer;
        uint32_t paired;
        assert_true(plan_channel_pair(made, 0, PLAN_MEMORY, channel, &peer, &paired));
        assert_int_equal(peer, 1);
        assert_int_equal(paired, channel);
    }
    banyan_plan_destroy(made);
}

static void all_packets(banyan_program *program)
{
    banyan_chunk s = banyan_program_scratch(program, 0, 4);
    banyan_program_reduce_packets(program, 0, IN(0, 0, 1),
                                  CHUNKS(banyan_program_slice(program, s, 1, 2)), 1,
                                  BANYAN_IN_SOURCE, BANYAN_SUM, BANYAN_TB(0));
    banyan_program_copy_packets(program, 0, banyan_program_slice(program, s, 3, 4), IN(0, 0, 1),
                                BANYAN_TB(0));
}

/* Every operand of a fused operation, packets included, moves to its instance's chunks. */
static void fused_operations_are_replicated_whole(void **state)
{
    (void)state;
    banyan_plan *plan = plan_written(1, 8, all_packets), *fused, *made;
    fused = run_pass(pass_fuse, plan);
    CHECK_OK(pass_instances(fused, 2, BANYAN_INTERLEAVED, &made));
    check_block(made, 0, 1, "recpkt sum i[1], s[3] -> i[1], s[7]");
    banyan_plan_destroy(plan);
    banyan_plan_destroy(fused);
    banyan_plan_destroy(made);
}

static void more_than_can_be_counted_is_refused(void **state)
{
    (void)state;
    banyan_collective huge = {
        .kind = BANYAN_CUSTOM, .input_chunks = UINT64_MAX / 2, .output_chunks = 1};
    banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
    options.instances = 3;
    banyan_program *program;
    banyan_plan *plan;
    CHECK_OK(banyan_program_create("huge", &huge, 1, &options, &program));
    CHECK_FAILS(banyan_program_compile(program, &plan), BANYAN_ERR_INVALID, "3 instances");
    banyan_program_destroy(program);
}

/* A custom collective's result is one of the instances' chunks. */
static void the_expected_result_is_replicated(void **state)
{
    (void)state;
    const banyan_contribution from[] = {{0, 1}, {1, 0}};
    const banyan_expected_chunk expected[] = {{1, 0, from, 2}};
    banyan_collective custom = {.kind = BANYAN_CUSTOM,
                                .input_chunks = 2,
                                .output_chunks = 1,
                                .expected = expected,
                                .expected_count = 1,
                                .expected_op = BANYAN_MAX};
    banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
    options.instances = 3;
    banyan_program *program;
    banyan_plan *plan;
    CHECK_OK(banyan_program_create("custom", &custom, 2, &options, &program));
    CHECK_OK(banyan_program_compile(program, &plan));
    for (uint64_t chunk = 0; chunk < 3; chunk++) {
        plan_contribution room[2];
        plan_expected holds;
        banyan_reduce_op op;
        assert_false(plan_expected_of(plan, 0, chunk, room, &holds, &op));
        assert_true(plan_expected_of(plan, 1, chunk, room, &holds, &op));
        assert_int_equal(op, BANYAN_MAX);
        assert_int_equal(holds.count, 2);
        assert_int_equal(holds.contributions[0].rank, 0);
        assert_int_equal(holds.contributions[0].chunk, 3 + chunk);
        assert_int_equal(holds.contributions[1].rank, 1);
        assert_int_equal(holds.contributions[1].chunk, chunk);
    }
    banyan_plan_destroy(plan);
    banyan_program_destroy(program);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(instances_are_interleaved),
        cmocka_unit_test(instances_that_are_not_replicated_share_chunks),
        cmocka_unit_test(pairs_of_channels_stay_pairs),
        cmocka_unit_test(fused_operations_are_replicated_whole),
        cmocka_unit_test(more_than_can_be_counted_is_refused),
        cmocka_unit_test(the_expected_result_is_replicated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
