/* Every kind of operation does its work on every byte, and touches no other. */
#include "execute/operation_programs.h"

static void run(banyan_world *world, void *context)
{
    run_program(world, context);
}

static void every_program_is_run_right(void **state)
{
    (void)state;
    for (size_t i = 0; i < PROGRAMS; i++) {
        for (int way = 0; way < WAYS; way++) {
            struct operation_run one = {i, way, way == FUSED ? 2 : 1, random_seed(), BANYAN_HOST};
            ranks_run_threads(programs[i].ranks, run, &one);
        }
    }
}

static void note_kinds(const plan_op *ops, uint32_t count, bool *seen)
{
    for (uint32_t i = 0; i < count; i++) {
        seen[ops[i].kind] = true;
        note_kinds(ops[i].ops, ops[i].op_count, seen);
    }
}

static void every_kind_of_operation_is_among_them(void **state)
{
    (void)state;
    bool seen[PLAN_OP_KINDS] = {false};
    for (size_t i = 0; i < PROGRAMS; i++) {
        for (int way = 0; way < WAYS; way++) {
            banyan_plan *plan = compile(i, way);
            for (uint32_t b = 0; b < plan->ranks[0].block_count; b++)
                note_kinds(plan->ranks[0].blocks[b].ops, plan->ranks[0].blocks[b].op_count, seen);
            banyan_plan_destroy(plan);
        }
    }
    for (int kind = 0; kind < PLAN_OP_KINDS; kind++)
        CHECK(seen[kind], "no program has %s", plan_op_name((plan_op_kind)kind));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_operation_is_among_them),
        cmocka_unit_test(every_program_is_run_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
