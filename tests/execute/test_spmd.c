/* Plans whose thread blocks all do the same operations. */
#include "support/test.h"

#include <banyan/collective.h>
#include <banyan/program.h>

#include "execute/load/spmd.h"

static bool is_spmd(const char *name, int ranks, int instances)
{
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    banyan_plan *plan;
    params.ranks = ranks;
    params.instances = instances;
    assert_int_equal(banyan_algorithm_compile(name, &params, &plan), BANYAN_OK);
    bool spmd = plan_is_spmd(plan);
    banyan_plan_destroy(plan);
    return spmd;
}

static void algorithms_of_port_channels_are_spmd(void **state)
{
    static const char *const names[] = {"allgather_ports",         "reducescatter_ports",
                                        "allreduce_ports",         "allgather_ports_scratch",
                                        "allreduce_ports_scratch", "alltoall_ports",
                                        "alltoall_ports_scratch"};
    (void)state;
    for (int i = 0; i < 7; i++) {
        for (int ranks = 2; ranks <= 5; ranks++)
            assert_true(is_spmd(names[i], ranks, ranks));
    }
}

static void ranks_and_thread_blocks_that_differ_are_found(void **state)
{
    (void)state;
    assert_false(is_spmd("broadcast_direct", 3, 1));
    assert_false(is_spmd("allreduce_pipelined", 3, 1));
}

/* Rank 0 exchanges chunks with each of the others, by one thread block for each. */
static void ranks_with_more_thread_blocks_are_found(void **state)
{
    (void)state;
    banyan_collective collective = {.kind = BANYAN_CUSTOM, .input_chunks = 2, .output_chunks = 2};
    banyan_program *program;
    banyan_plan *plan;
    assert_int_equal(banyan_program_create("star", &collective, 3, NULL, &program), BANYAN_OK);
    for (int peer = 1; peer < 3; peer++) {
        for (int i = 0; i < 2; i++) {
            int rank = i == 0 ? 0 : peer, to = i == 0 ? peer : 0, block = i == 0 ? peer - 1 : 0;
            uint64_t chunk = (uint64_t)peer - 1;
            banyan_program_port_channel *way =
                banyan_program_port_channel_create(program, to, rank);
            banyan_program_port_put_with_signal(
                way, banyan_program_output(program, to, chunk, chunk + 1),
                banyan_program_input(program, rank, chunk, chunk + 1), block);
            banyan_program_port_wait(way, block, BANYAN_SYNC_BOTH);
        }
    }
    if (banyan_program_compile(program, &plan) != BANYAN_OK)
        fail_msg("%s", banyan_last_error());
    banyan_program_destroy(program);
    assert_int_equal(plan->ranks[0].block_count, 2);
    assert_int_equal(plan->ranks[1].block_count, 1);
    assert_false(plan_is_spmd(plan));
    banyan_plan_destroy(plan);
}

/* Each rank puts twice through one port channel and once through another. */
static banyan_plan *make_puts(bool turned)
{
    banyan_collective collective = {.kind = BANYAN_CUSTOM, .input_chunks = 3, .output_chunks = 3};
    banyan_program *program;
    banyan_plan *plan;
    assert_int_equal(banyan_program_create("puts", &collective, 2, NULL, &program), BANYAN_OK);
    banyan_program_port_channel *ways[2][2];
    for (int i = 0; i < 4; i++)
        ways[i / 2][i % 2] = banyan_program_port_channel_create(program, 1 - i / 2, i / 2);
    for (int rank = 0; rank < 2; rank++) {
        int second = turned && rank == 1 ? 1 : 0;
        const int order[] = {0, second, 1 - second};
        for (int i = 0; i < 3; i++)
            banyan_program_port_put_with_signal(
                ways[rank][order[i]],
                banyan_program_output(program, 1 - rank, (uint64_t)i, (uint64_t)i + 1),
                banyan_program_input(program, rank, (uint64_t)i, (uint64_t)i + 1), 0);
        for (int i = 0; i < 3; i++)
            banyan_program_port_wait(ways[rank][i / 2], 0, BANYAN_SYNC_BOTH);
    }
    if (banyan_program_compile(program, &plan) != BANYAN_OK)
        fail_msg("%s", banyan_last_error());
    banyan_program_destroy(program);
    return plan;
}

static void channels_in_another_order_are_found(void **state)
{
    (void)state;
    for (int turned = 0; turned < 2; turned++) {
        banyan_plan *plan = make_puts(turned);
        assert_int_equal(plan_is_spmd(plan), !turned);
        banyan_plan_destroy(plan);
    }
}

/* Each of three ranks puts to the next one and then to the one after: data from a rank arrive at
 * the operation where this rank puts to the other. */
static void a_channel_has_its_mirror_where_the_peer_puts(void **state)
{
    (void)state;
    for (int instances = 1; instances <= 2; instances++) {
        banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
        banyan_plan *plan;
        params.ranks = 3;
        params.instances = instances;
        assert_int_equal(banyan_algorithm_compile("allgather_ports_scratch", &params, &plan),
                         BANYAN_OK);
        for (int rank = 0; rank < 3; rank++) {
            const plan_rank *of = &plan->ranks[rank];
            for (uint32_t i = 0; i < of->channel_count[PLAN_PORT]; i++) {
                uint32_t mirror, back;
                assert_true(plan_mirror(plan, rank, i, &mirror));
                assert_true(plan_mirror(plan, rank, mirror, &back));
                assert_int_not_equal(of->peers[PLAN_PORT][mirror], of->peers[PLAN_PORT][i]);
                assert_int_equal(back, i);
            }
        }
        banyan_plan_destroy(plan);
    }
}

static void a_channel_without_puts_has_no_mirror(void **state)
{
    (void)state;
    banyan_collective collective = {.kind = BANYAN_CUSTOM, .input_chunks = 1, .output_chunks = 1};
    banyan_program *program;
    banyan_plan *plan;
    uint32_t mirror;
    assert_int_equal(banyan_program_create("none", &collective, 2, NULL, &program), BANYAN_OK);
    for (int rank = 0; rank < 2; rank++)
        (void)banyan_program_port_channel_create(program, 1 - rank, rank);
    if (banyan_program_compile(program, &plan) != BANYAN_OK)
        fail_msg("%s", banyan_last_error());
    banyan_program_destroy(program);
    for (uint32_t i = 0; i < plan->ranks[0].channel_count[PLAN_PORT]; i++)
        assert_false(plan_mirror(plan, 0, i, &mirror));
    banyan_plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(algorithms_of_port_channels_are_spmd),
        cmocka_unit_test(ranks_and_thread_blocks_that_differ_are_found),
        cmocka_unit_test(ranks_with_more_thread_blocks_are_found),
        cmocka_unit_test(a_channel_has_its_mirror_where_the_peer_puts),
        cmocka_unit_test(a_channel_without_puts_has_no_mirror),
        cmocka_unit_test(channels_in_another_order_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
