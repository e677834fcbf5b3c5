/* A fault that only one message size shows is found without a given size: one of each class of
 * equivalent sizes is checked. */
#include <inttypes.h>

#include "plan/plan.h"
#include "support/test.h"

#include <banyan/check.h>
#include <banyan/collective.h>
#include <banyan/program.h>

enum { UNIT = 64 };

static bool is_sound(const banyan_plan *plan, const uint64_t *sizes, size_t count)
{
    banyan_check_options options = BANYAN_CHECK_OPTIONS_INIT;
    banyan_check_report *report = NULL;
    options.message_bytes = sizes;
    options.message_count = count;
    options.warnings = false;
    CHECK_OK(banyan_plan_check(plan, &options, &report));
    bool sound = banyan_check_report_is_sound(report);
    banyan_check_report_destroy(report);
    return sound;
}

/* Sizes up to a few units for each rank, of whole elements of 4 bytes. */
static void check_all_sizes(const banyan_plan *plan, const char *name, int *found)
{
    if (!is_sound(plan, NULL, 0)) {
        (*found)++;
        return;
    }
    uint64_t parts = banyan_plan_describe(plan).message_parts;
    for (uint64_t elems = 1; elems <= 5 * UNIT / 4; elems += elems < 10 ? 1 : 5) {
        uint64_t bytes = 4 * parts * elems;
        CHECK(is_sound(plan, &bytes, 1), "%s is called sound, and is not at %" PRIu64 " bytes",
              name, bytes);
    }
}

/* Drop the number-th operation, counting loops' operations as well, from its list. */
static bool drop_op(banyan_plan *plan, uint32_t number)
{
    for (int r = 0; r < plan->rank_count; r++) {
        for (uint32_t b = 0; b < plan->ranks[r].block_count; b++) {
            plan_thread_block *block = &plan->ranks[r].blocks[b];
            for (uint32_t i = 0; i < block->op_count; i++) {
                plan_op *op = &block->ops[i];
                bool is_loop = op->kind == PLAN_PIPELINE;
                plan_op *ops = is_loop ? op->ops : block->ops;
                uint32_t *count = is_loop ? &op->op_count : &block->op_count;
                uint32_t first = is_loop ? 0 : i, all = is_loop ? *count : 1;
                if (number >= all) {
                    number -= all;
                    continue;
                }
                uint32_t at = first + number;
                memmove(&ops[at], &ops[at + 1], (--*count - at) * sizeof *ops);
                return true;
            }
        }
    }
    return false;
}

static void check_damaged(const char *name, int ranks)
{
    int found = 0;
    uint32_t number = 0;
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    params.ranks = ranks;
    params.instances = 1;
    params.unit_bytes = UNIT;
    params.shift = 1;
    for (;; number++) {
        banyan_plan *plan, *clone;
        CHECK_OK(banyan_algorithm_compile(name, &params, &plan));
        CHECK_OK(plan_clone(plan, &clone));
        banyan_plan_destroy(plan);
        bool dropped = drop_op(clone, number);
        if (dropped)
            check_all_sizes(clone, name, &found);
        banyan_plan_destroy(clone);
        if (!dropped)
            break;
    }
    printf("%s of %d ranks: %d of %u operations are needed\n", name, ranks, found, number);
    CHECK(found > 0, "%s", name);
}

static void an_error_at_one_size_is_found_without_naming_the_size(void **state)
{
    (void)state;
    static const char *const names[] = {"allreduce_pipelined", "allgather_pipelined",
                                        "alltoall_pipelined",  "broadcast_pipelined",
                                        "sendrecv_pipelined",  "allreduce_twoshot"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        check_damaged(names[i], 2);
}

/* Rank 1 waits for the first unit only, and reads all of them: correct with one unit, a race with
 * more. The loop is the only one, of the only thread block. */
static void a_loop_is_checked_with_several_iterations(void **state)
{
    (void)state;
    banyan_collective collective = {.kind = BANYAN_CUSTOM, .input_chunks = 1, .output_chunks = 1};
    banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
    banyan_program *program;
    banyan_plan *plan;
    options.buffer_alignment = 4;
    CHECK_OK(banyan_program_create("units", &collective, 2, &options, &program));
    banyan_program_memory_channel *to = banyan_program_memory_channel_create(program, 1, 0);
    banyan_program_memory_channel *back = banyan_program_memory_channel_create(program, 0, 1);
    banyan_chunk scratch = banyan_program_scratch(program, 1, 1);
    banyan_program_memory_signal(back, 0, BANYAN_SYNC_BOTH);
    banyan_program_memory_wait(to, 0, BANYAN_SYNC_BOTH);
    banyan_program_loop_begin(program, UNIT, 1);
    banyan_program_memory_put(to, scratch, banyan_program_input(program, 0, 0, 1), BANYAN_TB(0));
    banyan_program_memory_signal(to, 0, BANYAN_SYNC_BOTH);
    banyan_program_loop_end(program);
    banyan_program_memory_wait(back, 0, BANYAN_SYNC_BOTH);
    banyan_program_copy(program, 1, banyan_program_output(program, 1, 0, 1), scratch, BANYAN_TB(0));
    CHECK_OK(banyan_program_compile(program, &plan));
    banyan_program_destroy(program);
    const uint64_t one_unit[] = {4, UNIT - 4, UNIT}, two_units[] = {UNIT + 4};
    CHECK(is_sound(plan, one_unit, 3), "not even with one unit");
    CHECK(!is_sound(plan, two_units, 1), "sound with two units");
    CHECK(!is_sound(plan, NULL, 0), "called sound");
    banyan_plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_loop_is_checked_with_several_iterations),
        cmocka_unit_test(an_error_at_one_size_is_found_without_naming_the_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
