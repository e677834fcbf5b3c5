/* Random programs in which all ranks synchronize between rounds: the checker finds nothing between
 * thread blocks.
 *
 * Within one round, a program may access others' memory with two consecutive operations: the
 * compiler separates these, except for posts to a port, which are asynchronous. And it may read
 * bytes that no operation wrote. */
#include "core/threads/sanitizer.h"
#include "program/random_program.h"

/* The thread sanitizer has little to check with one thread. */
#ifdef SANITIZER_THREAD
#define PROGRAMS 12
#else
#define PROGRAMS 60
#endif

static bool is_expected(const banyan_check_finding *one)
{
    bool by_port = one->rule == BANYAN_CHECK_RACE && strstr(one->message, "port channel") &&
                   one->places[0].rank == one->places[1].rank &&
                   one->places[0].thread_block == one->places[1].thread_block;
    return by_port || one->caller_only || banyan_check_rule_is_warning(one->rule) ||
           one->rule == BANYAN_CHECK_UNINITIALISED || one->rule == BANYAN_CHECK_INPUT_WRITTEN;
}

static void nothing_is_found_between_blocks_that_meet(void **state)
{
    (void)state;
    uint64_t first = random_seed();
    for (uint64_t seed = first; seed < first + PROGRAMS; seed++) {
        banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
        banyan_check_report *report;
        options.fuse = seed % 3 != 0;
        options.fuse_more = seed % 2;
        options.instances = seed % 5 == 0 ? 2 : 1;
        banyan_plan *plan = compile_random(seed, options.instances > 1 ? 1 : 2, &options);
        CHECK_OK(banyan_plan_check(plan, NULL, &report));
        CHECK(banyan_check_report_count(report) > 0);
        for (size_t i = 0; i < banyan_check_report_count(report); i++) {
            const banyan_check_finding *one = banyan_check_report_finding(report, i);
            CHECK(is_expected(one), "seed %llu: %s: %s", (unsigned long long)seed,
                  banyan_check_rule_name(one->rule), one->message);
        }
        banyan_check_report_destroy(report);
        banyan_plan_destroy(plan);
    }
}

/* A block that no longer waits for the others continues, and collides. */
static void barriers_that_one_block_leaves_out_are_found(void **state)
{
    (void)state;
    uint64_t first = random_seed();
    int found = 0;
    for (uint64_t seed = first; seed < first + PROGRAMS / 2; seed++) {
        banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
        banyan_check_report *report;
        banyan_plan *plan = compile_random(seed, 1, &options), *damaged;
        CHECK_OK(plan_clone(plan, &damaged));
        plan_thread_block *block = &damaged->ranks[1].blocks[0];
        for (uint32_t i = 0; i < block->op_count; i++) {
            if (block->ops[i].kind == PLAN_WAIT)
                block->ops[i] = (plan_op){.kind = PLAN_NOP};
        }
        CHECK_OK(banyan_plan_check(damaged, NULL, &report));
        bool all_expected = true;
        for (size_t i = 0; i < banyan_check_report_count(report); i++)
            all_expected &= is_expected(banyan_check_report_finding(report, i));
        found += !all_expected;
        banyan_check_report_destroy(report);
        banyan_plan_destroy(damaged);
        banyan_plan_destroy(plan);
    }
    printf("found in %d of %d programs\n", found, PROGRAMS / 2);
    CHECK(found > 0);
}

/* MSCCL++'s executor only adds. */
static void only_add(banyan_plan *plan)
{
    for (plan_cursor at = {.plan = plan}; plan_cursor_next(&at);)
        ((plan_op *)(uintptr_t)at.op)->reduce_op = BANYAN_SUM;
    plan->expected_op = BANYAN_SUM;
}

static void only_expected_is_found(const banyan_plan *plan, banyan_plan_executor executor,
                                   uint64_t seed)
{
    banyan_check_options options = BANYAN_CHECK_OPTIONS_INIT;
    banyan_check_report *report;
    options.executor = executor;
    options.warnings = false;
    CHECK_OK(banyan_plan_check(plan, &options, &report));
    for (size_t i = 0; i < banyan_check_report_count(report); i++) {
        const banyan_check_finding *one = banyan_check_report_finding(report, i);
        CHECK(is_expected(one), "seed %llu, executor %s: %s: %s", (unsigned long long)seed,
              banyan_plan_executor_name(executor), banyan_check_rule_name(one->rule), one->message);
    }
    banyan_check_report_destroy(report);
}

/* Joined, divided and ordered anew for MSCCL++'s executor, a program does what it did. */
static void nothing_more_is_found_in_adapted_programs(void **state)
{
    (void)state;
    uint64_t first = random_seed();
    int adapted_count = 0;
    for (uint64_t seed = first; seed < first + 4 * PROGRAMS; seed++) {
        banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
        options.fuse = seed % 3 != 0;
        options.double_scratch = seed % 2;
        banyan_plan *compiled = compile_random_rounds(seed, 2, 2, &options), *plan, *adapted;
        CHECK_OK(plan_clone(compiled, &plan));
        only_add(plan);
        banyan_status status = banyan_plan_adapt(plan, BANYAN_EXECUTOR_MSCCLPP, &adapted);
        CHECK(status == BANYAN_OK || status == BANYAN_ERR_UNSUPPORTED, "%s", banyan_last_error());
        if (status == BANYAN_OK) {
            only_expected_is_found(adapted, BANYAN_EXECUTOR_BANYAN, seed);
            only_expected_is_found(adapted, BANYAN_EXECUTOR_MSCCLPP, seed);
            banyan_plan_destroy(adapted);
            adapted_count++;
        }
        banyan_plan_destroy(plan);
        banyan_plan_destroy(compiled);
    }
    printf("%d of %d programs can be adapted\n", adapted_count, 4 * PROGRAMS);
    CHECK(adapted_count > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_found_between_blocks_that_meet),
        cmocka_unit_test(barriers_that_one_block_leaves_out_are_found),
        cmocka_unit_test(nothing_more_is_found_in_adapted_programs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
