/* Plans whose thread blocks may run their operations in lock-step. */
#include "support/test.h"

#include <banyan/collective.h>
#include <banyan/program.h>

#include "execute/load/spmd.h"

static bool is_in_step(banyan_plan *plan)
{
    bool in_step;
    assert_true(plan_is_spmd(plan));
    assert_int_equal(plan_runs_in_lock_step(plan, &in_step), BANYAN_OK);
    banyan_plan_destroy(plan);
    return in_step;
}

static void algorithms_of_port_channels_go_in_step(void **state)
{
    static const char *const names[] = {"allgather_ports",         "reducescatter_ports",
                                        "allreduce_ports",         "allgather_ports_scratch",
                                        "allreduce_ports_scratch", "alltoall_ports",
                                        "alltoall_ports_scratch"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        for (int ranks = 2; ranks <= 5; ranks++) {
            banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
            banyan_plan *plan;
            params.ranks = ranks;
            params.instances = ranks;
            assert_int_equal(banyan_algorithm_compile(names[i], &params, &plan), BANYAN_OK);
            assert_true(is_in_step(plan));
        }
    }
}

/* Two thread blocks put, wait, put and wait. Late: the first one waits for the other thread
 * block's second put. */
static banyan_plan *make_puts(bool late)
{
    banyan_collective collective = {.kind = BANYAN_CUSTOM, .input_chunks = 4, .output_chunks = 4};
    banyan_program *program;
    banyan_plan *plan;
    assert_int_equal(banyan_program_create("puts", &collective, 2, NULL, &program), BANYAN_OK);
    banyan_program_port_channel *ways[2][4];
    for (int i = 0; i < 8; i++)
        ways[i / 4][i % 4] = banyan_program_port_channel_create(program, 1 - i / 4, i / 4);
    for (int rank = 0; rank < 2; rank++) {
        const int waits[2][2] = {{late ? 3 : 0, 1}, {2, late ? 0 : 3}};
        for (int block = 0; block < 2; block++) {
            for (int i = 0; i < 2; i++) {
                int way = 2 * block + i;
                banyan_program_port_put_with_signal(
                    ways[rank][way],
                    banyan_program_output(program, 1 - rank, (uint64_t)way, (uint64_t)way + 1),
                    banyan_program_input(program, rank, (uint64_t)way, (uint64_t)way + 1), block);
                banyan_program_port_wait(ways[rank][waits[block][i]], block, BANYAN_SYNC_BOTH);
            }
        }
    }
    if (banyan_program_compile(program, &plan) != BANYAN_OK)
        fail_msg("%s", banyan_last_error());
    banyan_program_destroy(program);
    return plan;
}

static void waits_for_later_signals_are_found(void **state)
{
    (void)state;
    assert_true(is_in_step(make_puts(false)));
    assert_false(is_in_step(make_puts(true)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(algorithms_of_port_channels_go_in_step),
        cmocka_unit_test(waits_for_later_signals_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
