/* Positions in plans, their tokens and barriers, and the order in which a cursor visits operations.
 */
#include "support/test.h"

#include <banyan/program.h>

#include "plan/stepper.h"

static banyan_plan *compiled(banyan_program *program)
{
    banyan_plan *plan;
    CHECK_OK(banyan_program_compile(program, &plan));
    banyan_program_destroy(program);
    return plan;
}

static banyan_program *begun(int ranks)
{
    const banyan_collective custom = {.kind = BANYAN_CUSTOM, .input_chunks = 2, .output_chunks = 2};
    banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
    options.fuse = options.auto_sync = false;
    banyan_program *program;
    CHECK_OK(banyan_program_create("stepped", &custom, ranks, &options, &program));
    return program;
}

/* Rank 0: a loop of two copies, then a copy. Rank 1 has nothing; rank 2 has a copy in its thread
 * block 1. */
static banyan_plan *loop_plan(void)
{
    banyan_program *program = begun(3);
    banyan_chunk in = banyan_program_input(program, 0, 0, 1);
    banyan_program_loop_begin(program, 32, 1);
    banyan_program_copy(program, 0, banyan_program_output(program, 0, 0, 1), in, BANYAN_TB(0));
    banyan_program_copy(program, 0, banyan_program_output(program, 0, 1, 2), in, BANYAN_TB(0));
    banyan_program_loop_end(program);
    banyan_program_copy(program, 0, banyan_program_output(program, 0, 0, 1), in, BANYAN_TB(0));
    banyan_program_copy(program, 2, banyan_program_output(program, 2, 0, 1),
                        banyan_program_input(program, 2, 0, 1), BANYAN_TB(1));
    return compiled(program);
}

static void cursor_visits_loops_before_their_bodies(void **state)
{
    (void)state;
    banyan_plan *plan = loop_plan();
    const plan_thread_block *first = plan->ranks[0].blocks, *last = &plan->ranks[2].blocks[1];
    const plan_op *expected[] = {&first->ops[0], &first->ops[0].ops[0], &first->ops[0].ops[1],
                                 &first->ops[1], &last->ops[0]};
    plan_cursor at = {.plan = plan};
    for (int i = 0; i < 5; i++) {
        CHECK(plan_cursor_next(&at) && at.op == expected[i], "operation %d", i);
        CHECK(at.loop == (i == 1 || i == 2 ? &first->ops[0] : NULL), "operation %d", i);
    }
    CHECK(at.rank == 2 && at.number == 1 && at.at == 0 && !plan_cursor_next(&at));
    banyan_plan_destroy(plan);
}

/* A message of `bytes` makes the loop step through them in units of 32. */
static void check_positions(uint64_t bytes, uint64_t iterations)
{
    banyan_plan *plan = loop_plan();
    plan_geometry geometry;
    plan_stepper stepper;
    CHECK_OK(plan_geometry_make(plan, bytes, 1, &geometry));
    CHECK_OK(plan_stepper_make(plan, &geometry, &stepper));
    CHECK(stepper.block_count == 3, "%u", stepper.block_count);
    plan_position *by = &stepper.blocks[0];
    for (int turn = 0; turn < 2; turn++) {
        for (uint64_t i = 0; i < iterations; i++) {
            for (uint32_t k = 0; k < 2; k++) {
                CHECK(plan_position_settle(&stepper, by) && by->iteration == i && by->inner == k);
                CHECK(plan_position_op(by) == &by->block->ops[0].ops[k]);
                plan_position_next(by);
            }
        }
        CHECK(plan_position_settle(&stepper, by) && !plan_position_loop(by) && by->at == 1);
        plan_position_next(by);
        CHECK(!plan_position_settle(&stepper, by) && plan_position_ended(by));
        plan_position_reset(by);
    }
    plan_stepper_free(&stepper);
    banyan_plan_destroy(plan);
}

static void tokens_are_taken_in_order(void **state)
{
    (void)state;
    plan_counter counter = {.initial = 1};
    plan_event latest = {0};
    for (uint64_t round = 0; round < 3; round++) {
        if (round == 0)
            CHECK(plan_counter_take(&counter, &latest) && latest.when == 0);
        CHECK(!plan_counter_take(&counter, &latest));
        for (uint64_t i = 1; i <= 3; i++)
            CHECK(plan_counter_give(&counter, (plan_event){10 * round + i, (uint32_t)i}));
        for (uint64_t i = 1; i <= 3; i++) {
            CHECK(plan_counter_take(&counter, &latest));
            CHECK(latest.when == 10 * round + i && latest.step == i);
        }
    }
    CHECK(plan_counter_give(&counter, (plan_event){5, 0}) && plan_counter_take(&counter, &latest));
    CHECK(latest.when == 23, "%llu", (unsigned long long)latest.when);
    CHECK(counter.events.count == 1, "taken tokens are kept");
    array_free(&counter.events);
}

/* Rank 0: thread blocks 0 and 1 have a barrier after block 1 has waited for rank 1's signal. */
static void waits_name_the_block_that_helps(void **state)
{
    (void)state;
    banyan_program *program = begun(2);
    banyan_program_memory_channel *there = banyan_program_memory_channel_create(program, 1, 0);
    banyan_program_memory_channel *back = banyan_program_memory_channel_create(program, 0, 1);
    banyan_program_semaphore *semaphore = banyan_program_semaphore_create(program, 0, 0);
    banyan_program_memory_wait(there, 1, BANYAN_SYNC_NONE);
    banyan_program_barrier(program, 0, (const int[]){0, 1}, 2);
    banyan_program_semaphore_acquire(semaphore, 0, BANYAN_SYNC_NONE);
    banyan_program_memory_signal(back, 0, BANYAN_SYNC_NONE);
    banyan_plan *plan = compiled(program);
    plan_geometry geometry;
    plan_stepper stepper;
    plan_event latest = {0};
    char text[PLAN_WANT_BYTES];
    CHECK_OK(plan_geometry_make(plan, 64, 1, &geometry));
    CHECK_OK(plan_stepper_make(plan, &geometry, &stepper));
    plan_position *first = &stepper.blocks[0], *second = &stepper.blocks[1];
    CHECK(plan_position_settle(&stepper, first) && plan_position_settle(&stepper, second) &&
          plan_position_settle(&stepper, &stepper.blocks[2]));
    CHECK(plan_op_takes(plan_position_op(second)) == 1 &&
          !plan_stepper_take(&stepper, second, &latest));
    plan_stepper_describe(&stepper, second, text);
    CHECK(strcmp(text, "a signal of rank 1 on memory channel 0") == 0, "%s", text);
    CHECK(plan_stepper_helper(&stepper, second) == 2);
    plan_barrier *at =
        &stepper.barriers.data[plan_stepper_barrier(&stepper, first, plan_position_op(first))];
    CHECK(!plan_barrier_arrive(at, first, (plan_event){7, 1}) && !plan_barrier_pass(at, first));
    CHECK(plan_stepper_helper(&stepper, first) == 1);
    const plan_op *signal = plan_position_op(&stepper.blocks[2]);
    uint32_t to = plan_stepper_given(&stepper, &stepper.blocks[2], signal, 0);
    CHECK(plan_op_gives(signal) == 1 &&
          to == plan_stepper_taken(&stepper, second, plan_position_op(second), 0));
    CHECK(plan_counter_give(&stepper.counters[to], (plan_event){9, 2}));
    CHECK(plan_stepper_take(&stepper, second, &latest) && latest.when == 9 && latest.step == 2);
    plan_position_next(second);
    CHECK(plan_position_settle(&stepper, second));
    CHECK(plan_barrier_arrive(at, second, (plan_event){3, 3}) && plan_barrier_pass(at, second));
    CHECK(plan_barrier_pass(at, first) && !first->arrived && at->last.when == 7);
    plan_position_next(first);
    CHECK(plan_position_settle(&stepper, first) && !plan_stepper_take(&stepper, first, &latest));
    plan_stepper_describe(&stepper, first, text);
    CHECK(strcmp(text, "a release of semaphore 0") == 0, "%s", text);
    CHECK(plan_stepper_helper(&stepper, first) == PLAN_NONE);
    plan_stepper_free(&stepper);
    banyan_plan_destroy(plan);
}

static void positions_go_through_loops_and_pass_empty_ones(void **state)
{
    (void)state;
    check_positions(128, 2);
    check_positions(0, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cursor_visits_loops_before_their_bodies),
        cmocka_unit_test(positions_go_through_loops_and_pass_empty_ones),
        cmocka_unit_test(tokens_are_taken_in_order),
        cmocka_unit_test(waits_name_the_block_that_helps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
