/* The programs for a device's module: every index lies in its array, for every plan, and
 * reductions read sources where they arrive if possible. */
#include "support/test.h"

#include "execute/device/program.h"

#define BYTES 4992

static banyan_loaded_plan *load(banyan_executor *executor, const char *name, int ranks,
                                int instances)
{
    banyan_plan *plan;
    banyan_loaded_plan *loaded;
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    params.ranks = ranks;
    params.instances = instances;
    params.unit_bytes = 256;
    CHECK_OK(banyan_algorithm_compile(name, &params, &plan));
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    options.max_message_bytes = BYTES;
    CHECK_OK(banyan_loaded_plan_open(executor, plan, &options, &loaded));
    banyan_plan_destroy(plan);
    return loaded;
}

static const specialized_plan *first_specialized(banyan_loaded_plan *loaded)
{
    static _Thread_local float input[BYTES / 4], output[BYTES];
    CHECK_OK(banyan_loaded_plan_run(loaded, input, output, BYTES, BANYAN_F32, NULL));
    return loaded->specialized.data[0];
}

static void check_words(const engine_program *program, const engine_block *block,
                        const engine_step *s)
{
    uint64_t each = 1 + (uint64_t)s->source_count + s->destination_count;
    uint64_t begin = s->words, end = s->words + s->piece_count * each;
    if (s->in_loop) {
        const engine_step *loop = s;
        while (loop->kind != STEP_LOOP)
            loop--;
        end = program->words[s->words + loop->iterations];
        for (uint32_t i = 0; i < loop->iterations; i++)
            CHECK((program->words[begin + i + 1] - program->words[begin + i]) % each == 0, "%u", i);
    }
    CHECK(begin >= block->first_word && end <= block->first_word + block->word_count,
          "words [%llu, %llu)", (unsigned long long)begin, (unsigned long long)end);
}

static void check_step(const banyan_loaded_plan *loaded, const engine_program *program,
                       const engine_block *block, const engine_step *s)
{
    uint32_t operands = (uint32_t)s->source_count + s->destination_count;
    const plan_rank *rank = &loaded->plan->ranks[loaded->executor->rank];
    uint32_t channels = rank->channel_count[PLAN_MEMORY] + rank->channel_count[PLAN_PORT];
    bool semaphores = s->kind == STEP_ACQUIRE || s->kind == STEP_RELEASE;
    for (uint32_t i = 0; i < s->end_count; i++)
        CHECK(program->ends[s->ends + i] < (semaphores ? rank->semaphore_count : channels), "%u",
              program->ends[s->ends + i]);
    for (uint32_t i = 0; i < operands; i++)
        CHECK((program->operands[s->operands + i] & ~ENGINE_PACKETS) <
                  (uint32_t)loaded->executor->ranks * PLAN_BUFFERS,
              "operand %u", i);
    CHECK(s->operands + operands <= block->first_operand + block->operand_count, "operands");
    CHECK(s->ends + s->end_count <= block->first_end + block->end_count, "ends");
    CHECK(s->jump <= block->step_count, "a jump to %u", s->jump);
    if (operands > 0)
        check_words(program, block, s);
}

static void check_all(banyan_world *world, void *context)
{
    (void)context;
    banyan_executor *executor;
    banyan_algorithm_info info;
    CHECK_OK(banyan_executor_open(world, NULL, &executor));
    for (size_t n = 0; banyan_algorithm_at(n, &info) == BANYAN_OK; n++) {
        banyan_loaded_plan *loaded = load(executor, info.name, banyan_world_size(world), 2);
        const specialized_plan *of = first_specialized(loaded);
        engine_arrays arrays;
        engine_program program;
        CHECK_OK(engine_program_make(loaded, of, 0, &arrays, &program));
        CHECK(program.block_count == of->block_count, "%u blocks", program.block_count);
        for (uint32_t b = 0; b < program.block_count; b++) {
            const engine_block *block = &program.blocks[b];
            CHECK(block->step_count == of->blocks[b].steps.count, "%u steps", block->step_count);
            for (uint32_t i = 0; i < block->step_count; i++)
                check_step(loaded, &program, block, &program.steps[block->first_step + i]);
        }
        engine_arrays_free(&arrays);
        CHECK_OK(banyan_loaded_plan_close(loaded));
    }
    banyan_executor_close(executor);
}

static void every_index_lies_in_its_array(void **state)
{
    (void)state;
    ranks_run_threads(3, check_all, NULL);
}

static uint32_t count_kind(const engine_program *program, step_kind kind)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < program->step_count; i++)
        count += program->steps[i].kind == kind;
    return count;
}

/* Ranks 0 and 1 have their own data first in any case. */
static void check_fused(banyan_world *world, void *context)
{
    (void)context;
    enum { INSTANCES = 3 };
    banyan_executor *executor;
    CHECK_OK(banyan_executor_open(world, NULL, &executor));
    banyan_loaded_plan *loaded =
        load(executor, "allreduce_packets", banyan_world_size(world), INSTANCES);
    engine_arrays arrays;
    engine_program program;
    CHECK_OK(engine_program_make(loaded, first_specialized(loaded), 0, &arrays, &program));
    CHECK(count_kind(&program, STEP_UNPACK) == 0, "unpacked first");
    uint32_t fused = 0;
    for (uint32_t i = 0; i < program.step_count; i++) {
        const engine_step *s = &program.steps[i];
        fused += s->kind == STEP_COMBINE && (program.operands[s->operands] & ENGINE_PACKETS);
    }
    uint32_t expected = banyan_world_rank(world) >= 2 ? INSTANCES : 0;
    CHECK(fused == expected, "rank %d: %u reductions begin with packets", banyan_world_rank(world),
          fused);
    engine_arrays_free(&arrays);
    CHECK_OK(banyan_loaded_plan_close(loaded));
    banyan_executor_close(executor);
}

static void sums_in_the_order_of_ranks_are_one_step(void **state)
{
    (void)state;
    ranks_run_threads(4, check_fused, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_index_lies_in_its_array),
        cmocka_unit_test(sums_in_the_order_of_ranks_are_one_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
