/* Properties of every program, tested on random ones. */
#include "program/interpret.h"
#include "program/passes.h"
#include "program/random_program.h"

enum { PROGRAMS = 300 };

typedef struct stages {
    banyan_plan *plans[8];
    const char *passes[8];
    int count;
} stages;

static void keep_stage(void *context, const char *pass, const banyan_plan *plan)
{
    stages *all = context;
    CHECK_OK(plan_clone(plan, &all->plans[all->count]));
    all->passes[all->count++] = pass;
}

static stages random_stages(uint64_t seed, int instances)
{
    stages all = {0};
    banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
    options.fuse_more = seed % 2;
    options.instances = instances;
    options.dump = keep_stage;
    options.dump_context = &all;
    banyan_plan_destroy(compile_random(seed, instances > 1 ? 1 : 2, &options));
    return all;
}

static void free_stages(stages *all)
{
    for (int i = 0; i < all->count; i++)
        banyan_plan_destroy(all->plans[i]);
}

static const banyan_plan *stage_named(const stages *all, const char *pass)
{
    for (int i = 0; i < all->count; i++) {
        if (strcmp(all->passes[i], pass) == 0)
            return all->plans[i];
    }
    CHECK(false, "no pass %s", pass);
    return NULL;
}

static void for_random_programs(int instances, void (*check)(uint64_t seed, const stages *all))
{
    for (uint64_t i = 0; i < PROGRAMS; i++) {
        uint64_t seed = random_seed() + i;
        stages all = random_stages(seed, instances);
        check(seed, &all);
        free_stages(&all);
    }
}

static void check_again(const banyan_plan *plan, ops_rewrite pass)
{
    banyan_plan *again = run_pass(pass, plan);
    check_same(plan, again);
    banyan_plan_destroy(again);
}

static void check_idempotent(uint64_t seed, const stages *all)
{
    if (seed % 2)
        check_again(stage_named(all, "more"), pass_more);
    check_again(stage_named(all, "fuse"), pass_fuse);
    check_again(stage_named(all, "sync"), pass_sync);
    check_again(stage_named(all, "dependencies"), pass_dependencies);
    if (seed % 2)
        check_again(stage_named(all, "idle"), pass_idle);
}

/* The passes then run thread block by thread block, not one after another. */
static void check_at_once(uint64_t seed, const stages *all)
{
    banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
    options.fuse_more = seed % 2;
    banyan_plan *at_once = compile_random(seed, 2, &options);
    check_same(all->plans[all->count - 1], at_once);
    banyan_plan_destroy(at_once);
}

static void passes_at_once_equal_passes_one_after_another(void **state)
{
    (void)state;
    for_random_programs(1, check_at_once);
}

static void passes_are_idempotent(void **state)
{
    (void)state;
    for_random_programs(1, check_idempotent);
}

typedef struct instance_of {
    uint64_t instance, instances;
} instance_of;

static uint64_t mix(uint64_t a, uint64_t b)
{
    random_state random = random_from(a * UINT64_C(0x9E3779B97F4A7C15) + b);
    return random_next(&random);
}

/* The initial value of one instance's chunk, by its position among all instances' chunks. */
static uint64_t first_value(void *context, int rank, plan_buffer buffer, uint64_t chunk)
{
    const instance_of *of = context;
    uint64_t own = of->instance == UINT64_MAX ? chunk / of->instances : chunk;
    uint64_t instance = of->instance == UINT64_MAX ? chunk % of->instances : of->instance;
    return mix(mix(mix((uint64_t)rank, (uint64_t)buffer), own), instance);
}

static interpreted run_plan(const banyan_plan *plan, uint64_t seed, instance_of of)
{
    random_state random = random_from(seed);
    interpreted run = interpreted_begin(plan, first_value, &of);
    interpret(&run, &random);
    return run;
}

/* Chunk c of `one` against chunk c · instances + instance of `all`. */
static void compare_runs(uint64_t seed, const char *pass, const interpreted *one,
                         const interpreted *all, instance_of of)
{
    for (int rank = 0; rank < RANKS; rank++) {
        for (int buffer = PLAN_INPUT; buffer <= PLAN_OUTPUT; buffer++) {
            for (uint64_t chunk = 0; chunk < one->plan->ranks[rank].chunks[buffer]; chunk++) {
                uint64_t at = chunk * of.instances + of.instance;
                CHECK(one->ranks[rank].cells[buffer][chunk].value ==
                          all->ranks[rank].cells[buffer][at].value,
                      "TEST_SEED=%" PRIu64 ": %s: rank %d, %s %" PRIu64, seed, pass, rank,
                      plan_buffer_name((plan_buffer)buffer), chunk);
            }
        }
    }
}

static void check_results(uint64_t seed, const stages *all)
{
    instance_of only = {0, 1};
    interpreted written = run_plan(all->plans[0], seed, only);
    for (int i = 1; i < all->count; i++) {
        interpreted made = run_plan(all->plans[i], seed + 1, only);
        compare_runs(seed, all->passes[i], &written, &made, only);
        interpreted_end(&made);
    }
    interpreted_end(&written);
}

static void compiling_changes_no_result(void **state)
{
    (void)state;
    for_random_programs(1, check_results);
}

static void check_instances(uint64_t seed, const stages *all)
{
    enum { INSTANCES = 3 };
    instance_of every = {UINT64_MAX, INSTANCES};
    interpreted replicated = run_plan(stage_named(all, "instances"), seed, every);
    for (uint64_t i = 0; i < INSTANCES; i++) {
        instance_of one = {i, INSTANCES};
        interpreted written = run_plan(all->plans[0], seed + i, one);
        compare_runs(seed, "instances", &written, &replicated, one);
        interpreted_end(&written);
    }
    interpreted_end(&replicated);
}

static void every_instance_follows_the_program(void **state)
{
    (void)state;
    for_random_programs(3, check_instances);
}

enum { BUFFERS = RANKS * PLAN_BUFFERS };

/* Chunk by chunk, the use of all ranks' memory. */
typedef struct footprint {
    bool read[BUFFERS][1024], written[BUFFERS][1024];
} footprint;

static void mark(const banyan_plan *plan, int rank, const plan_thread_block *block,
                 const plan_op *op, const plan_operand *operand, bool marks[][1024])
{
    plan_buffer buffer = plan_operand_where(plan, rank, block, op, operand).buffer;
    const int *ranks;
    int room, count = plan_operand_ranks(plan, rank, block, op, operand, &ranks, &room);
    CHECK(operand->index + operand->size <= 1024, "chunk %" PRIu64, operand->index);
    for (int r = 0; r < count; r++) {
        for (uint64_t i = 0; i < operand->size; i++)
            marks[ranks[r] * PLAN_BUFFERS + buffer][operand->index + i] = true;
    }
}

static void add_footprint(const banyan_plan *plan, int rank, const plan_thread_block *block,
                          const plan_op *op, footprint *sum)
{
    for (uint32_t i = 0; i < op->op_count; i++)
        add_footprint(plan, rank, block, &op->ops[i], sum);
    for (uint32_t i = 0; i < op->source_count; i++) {
        bool by_flag = op->kind == PLAN_UNPACK_PACKET || op->kind == PLAN_READ_PUT_PACKET;
        if (!by_flag)
            mark(plan, rank, block, op, &op->sources[i], sum->read);
    }
    for (uint32_t i = 0; i < op->destination_count; i++) {
        if (!plan_destination_is_packets(op, i))
            mark(plan, rank, block, op, &op->destinations[i], sum->written);
    }
}

static bool depend(const footprint *before, const footprint *after)
{
    for (int b = 0; b < BUFFERS; b++) {
        for (int c = 0; c < 1024; c++) {
            bool used = before->read[b][c] || before->written[b][c];
            if ((before->written[b][c] && after->read[b][c]) || (used && after->written[b][c]))
                return true;
        }
    }
    return false;
}

/* `made` is `given` with a nop before each operation that depends on one since the last nop. */
static void check_nops(const banyan_plan *plan, int rank, const plan_thread_block *block,
                       const plan_op *given, uint32_t count, const plan_op *made,
                       uint32_t made_count)
{
    footprint since = {0};
    uint32_t at = 0;
    for (uint32_t i = 0; i < count; i++) {
        footprint own = {0};
        if (given[i].kind == PLAN_NOP || given[i].kind == PLAN_BARRIER)
            since = own;
        else
            add_footprint(plan, rank, block, &given[i], &own);
        if (depend(&since, &own)) {
            CHECK(at < made_count && made[at].kind == PLAN_NOP, "no nop before operation %u", i);
            at++;
            since = (footprint){0};
        }
        add_footprint(plan, rank, block, &given[i], &since);
        CHECK(at < made_count && made[at].kind == given[i].kind, "operation %u is another", i);
        if (given[i].kind == PLAN_PIPELINE)
            check_nops(plan, rank, block, given[i].ops, given[i].op_count, made[at].ops,
                       made[at].op_count);
        at++;
    }
    CHECK(at == made_count, "%u operations too many", made_count - at);
}

static void check_dependencies(uint64_t seed, const stages *all)
{
    (void)seed;
    const banyan_plan *given = stage_named(all, "sync"), *made = stage_named(all, "dependencies");
    for (int rank = 0; rank < RANKS; rank++) {
        for (uint32_t b = 0; b < given->ranks[rank].block_count; b++) {
            const plan_thread_block *from = &given->ranks[rank].blocks[b];
            const plan_thread_block *to = &made->ranks[rank].blocks[b];
            check_nops(given, rank, from, from->ops, from->op_count, to->ops, to->op_count);
        }
    }
}

static void exactly_the_missing_nops_are_inserted(void **state)
{
    (void)state;
    for_random_programs(1, check_dependencies);
}

/* Adapted plans move data in scratch to other chunks, so all of it begins alike. */
static uint64_t value_outside_scratch(void *context, int rank, plan_buffer buffer, uint64_t chunk)
{
    return buffer == PLAN_SCRATCH ? 0 : first_value(context, rank, buffer, chunk);
}

static void compare_adapted(uint64_t seed, const banyan_plan *plan, const banyan_plan *adapted)
{
    instance_of only = {0, 1};
    random_state random = random_from(seed);
    interpreted before = interpreted_begin(plan, value_outside_scratch, &only);
    interpreted after = interpreted_begin(adapted, value_outside_scratch, &only);
    interpret(&before, &random);
    interpret(&after, &random);
    compare_runs(seed, "adapted", &before, &after, only);
    interpreted_end(&before);
    interpreted_end(&after);
}

static void plans_adapted_to_an_executor_give_the_same_results(void **state)
{
    (void)state;
    int adapted_count = 0;
    for (uint64_t seed = random_seed(); seed < random_seed() + PROGRAMS; seed++) {
        banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
        options.double_scratch = seed % 2;
        banyan_plan *compiled = compile_random_rounds(seed, 2, 2, &options), *plan, *adapted;
        CHECK_OK(plan_clone(compiled, &plan));
        for (plan_cursor at = {.plan = plan}; plan_cursor_next(&at);)
            ((plan_op *)(uintptr_t)at.op)->reduce_op = BANYAN_SUM; /* all that it can reduce by */
        if (banyan_plan_adapt(plan, BANYAN_EXECUTOR_MSCCLPP, &adapted) == BANYAN_OK) {
            compare_adapted(seed, plan, adapted);
            banyan_plan_destroy(adapted);
            adapted_count++;
        }
        banyan_plan_destroy(plan);
        banyan_plan_destroy(compiled);
    }
    CHECK(adapted_count > PROGRAMS / 10, "%d", adapted_count);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passes_at_once_equal_passes_one_after_another),
        cmocka_unit_test(passes_are_idempotent),
        cmocka_unit_test(compiling_changes_no_result),
        cmocka_unit_test(every_instance_follows_the_program),
        cmocka_unit_test(exactly_the_missing_nops_are_inserted),
        cmocka_unit_test(plans_adapted_to_an_executor_give_the_same_results),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
