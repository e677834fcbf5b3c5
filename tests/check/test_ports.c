/* Port channels' queues are bounded, but cause no circular wait: a proxy waits for no peer. */
#include "check/two_ranks.h"
#include "plan/plan.h"

#define IN_CHUNK LOCAL_CHUNK("i", 0)
#define SWAPPED "[[[[1,0]]],[[[0,0]]]]"
#define PORT_PUT MOVE_BY("put", "port", IN_CHUNK, REMOTE_CHUNK(1, 0))

/* More than a queue's capacity. */
#define SIGNALS 500
#define ELEMS 64
#define RUNS 3

/* Replace the operation by several equal ones. */
static void repeat(banyan_plan *plan, plan_thread_block *block, uint32_t at, uint32_t times)
{
    plan_op *ops = plan_take(plan, block->op_count + times - 1, sizeof *ops);
    memcpy(ops, block->ops, at * sizeof *ops);
    for (uint32_t i = 0; i < times; i++)
        ops[at + i] = block->ops[at];
    memcpy(&ops[at + times], &block->ops[at + 1], (block->op_count - at - 1) * sizeof *ops);
    block->ops = ops;
    block->op_count += times - 1;
}

/* Both ranks put, give `signals` signals by the port before they wait, and take `waits`. */
static banyan_plan *make_plan(uint32_t signals, uint32_t waits)
{
    const char *ops = EXCHANGE_RELAXED
        "," PORT_PUT
        "," ON("signal", "port") "," ON("flush", "port") "," ON("wait", "port") "," NOP;
    two_ranks made = {.ops = {{ops}, {ops}}, .expected = SWAPPED};
    banyan_plan *plan = plan_of(&made), *clone;
    CHECK_OK(plan_clone(plan, &clone));
    banyan_plan_destroy(plan);
    for (int r = 0; r < 2; r++) {
        plan_thread_block *block = &clone->ranks[r].blocks[0];
        CHECK(block->ops[5].kind == PLAN_SIGNAL && block->ops[7].kind == PLAN_WAIT);
        repeat(clone, block, 7, waits);
        repeat(clone, block, 5, signals);
    }
    return clone;
}

static void run_plan(banyan_world *world, void *context)
{
    int rank = banyan_world_rank(world);
    for (uint64_t seed = 0; seed < 4; seed++) {
        banyan_executor_options how = BANYAN_EXECUTOR_OPTIONS_INIT;
        banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
        banyan_executor *executor;
        banyan_loaded_plan *loaded;
        uint32_t input[ELEMS], output[ELEMS];
        how.shuffle_seed = seed;
        options.max_message_bytes = sizeof input;
        CHECK_OK(banyan_executor_open(world, &how, &executor));
        CHECK_OK(banyan_loaded_plan_open(executor, context, &options, &loaded));
        for (uint32_t run = 0; run < RUNS; run++) {
            for (uint32_t i = 0; i < ELEMS; i++)
                input[i] = (run * 2 + (uint32_t)rank) * ELEMS + i;
            memset(output, 0xa5, sizeof output);
            CHECK_OK(banyan_loaded_plan_run(loaded, input, output, sizeof input,
                                            (DLDataType){kDLUInt, 32, 1}, NULL));
            for (uint32_t i = 0; i < ELEMS; i++)
                CHECK(output[i] == (run * 2 + 1 - (uint32_t)rank) * ELEMS + i, "element %u", i);
        }
        CHECK_OK(banyan_loaded_plan_close(loaded));
        banyan_executor_close(executor);
    }
}

static void check_plan(const banyan_plan *plan, bool sound)
{
    banyan_check_report *report;
    CHECK_OK(banyan_plan_check(plan, NULL, &report));
    CHECK(banyan_check_report_is_sound(report) == sound);
    if (!sound)
        finding_of(report, BANYAN_CHECK_DEADLOCK);
    banyan_check_report_destroy(report);
}

static void two_ranks_that_fill_their_queues_before_they_listen_go_on(void **state)
{
    (void)state;
    banyan_plan *plan = make_plan(SIGNALS, SIGNALS);
    check_plan(plan, true);
    ranks_run(2, run_plan, plan);
    banyan_plan_destroy(plan);
}

static void a_wait_for_a_missing_post_never_ends_with_any_queue(void **state)
{
    (void)state;
    banyan_plan *plan = make_plan(SIGNALS, SIGNALS + 1);
    check_plan(plan, false);
    banyan_plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_ranks_that_fill_their_queues_before_they_listen_go_on),
        cmocka_unit_test(a_wait_for_a_missing_post_never_ends_with_any_queue),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
