/* Common code of tests of the compiler's passes: a program before the passes, and lists of
 * operations as text. */
#ifndef TESTS_PROGRAM_PASSES_H
#define TESTS_PROGRAM_PASSES_H

#include <inttypes.h>

#include "core/text/text.h"
#include "plan/op.h"
#include "plan/plan.h"
#include "program/compile/pass.h"
#include "support/test.h"

/* Chunks of the current program, which is always called `program`. */
#define IN(rank, start, stop) banyan_program_input(program, (rank), (start), (stop))
#define OUT(rank, start, stop) banyan_program_output(program, (rank), (start), (stop))
#define CHUNKS(...) ((const banyan_chunk[]){__VA_ARGS__})

/* Begin a program of `ranks` ranks with `chunks` chunks in input and output. */
static inline banyan_program *program_begin(int ranks, uint64_t chunks,
                                            const banyan_program_options *options)
{
    banyan_collective collective = {
        .kind = BANYAN_CUSTOM, .input_chunks = chunks, .output_chunks = chunks};
    banyan_program *program;
    CHECK_OK(banyan_program_create("test", &collective, ranks, options, &program));
    return program;
}

static inline banyan_program *
program_dumping(int ranks, uint64_t chunks, void (*dump)(void *, const char *, const banyan_plan *),
                void *context)
{
    banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
    options.dump = dump;
    options.dump_context = context;
    return program_begin(ranks, chunks, &options);
}

static inline void keep_written(void *context, const char *pass, const banyan_plan *plan)
{
    banyan_plan **kept = context;
    if (strcmp(pass, "program") == 0)
        CHECK_OK(plan_clone(plan, kept));
}

typedef void (*program_writer)(banyan_program *program);

/* Return the plan before the first pass. The program need not be valid: one end of a channel is
 * enough. */
static inline banyan_plan *plan_written(int ranks, uint64_t chunks, program_writer write)
{
    banyan_plan *kept = NULL, *compiled = NULL;
    banyan_program *program = program_dumping(ranks, chunks, keep_written, &kept);
    write(program);
    banyan_status status = banyan_program_compile(program, &compiled);
    CHECK(kept, "%s: %s", banyan_status_name(status), banyan_last_error());
    banyan_plan_destroy(compiled);
    banyan_program_destroy(program);
    return kept;
}

static inline void add_ops(bytes_writer *text, const banyan_plan *plan, int rank,
                           const plan_thread_block *block, const plan_op *ops, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        text_add(text, i > 0 ? "\n" : "");
        op_text_add(text, plan, rank, block, &ops[i]);
        if (ops[i].kind == PLAN_PIPELINE) {
            text_add(text, " {\n");
            add_ops(text, plan, rank, block, ops[i].ops, ops[i].op_count);
            text_add(text, "\n}");
        }
    }
}

/* One line per operation. The caller frees it. */
static inline char *block_text(const banyan_plan *plan, int rank, uint32_t number)
{
    bytes_writer text = {0};
    char *finished;
    CHECK(number < plan->ranks[rank].block_count, "rank %d has no thread block %u", rank, number);
    const plan_thread_block *block = &plan->ranks[rank].blocks[number];
    add_ops(&text, plan, rank, block, block->ops, block->op_count);
    CHECK_OK(text_finish(&text, &finished, NULL));
    return finished;
}

static inline void check_block(const banyan_plan *plan, int rank, uint32_t number,
                               const char *expected)
{
    char *text = block_text(plan, rank, number);
    CHECK(strcmp(text, expected) == 0, "rank %d, thread block %u is\n%s\ninstead of\n%s", rank,
          number, text, expected);
    free(text);
}

static inline void check_same(const banyan_plan *a, const banyan_plan *b)
{
    char *text;
    size_t differences;
    CHECK_OK(banyan_plan_diff(a, b, 10, &text, &differences));
    CHECK(differences == 0, "%zu differences:\n%s", differences, text);
    free(text);
}

static inline banyan_plan *run_pass(ops_rewrite pass, const banyan_plan *plan)
{
    banyan_plan *made;
    CHECK_OK(ops_rewrite_all(plan, &pass, 1, &made));
    return made;
}

/* Check the pass's result for the program's first rank's first thread block. The pass does not
 * modify its argument, and finds nothing to do a second time. */
typedef struct pass_case {
    const char *name;
    program_writer write;
    const char *before, *after; /* `before` NULL: not compared */
} pass_case;

static inline void check_pass_case(const pass_case *of, ops_rewrite pass)
{
    banyan_plan *plan = plan_written(3, 8, of->write), *made, *again;
    if (of->before)
        check_block(plan, 0, 0, of->before);
    char *before = block_text(plan, 0, 0);
    made = run_pass(pass, plan);
    check_block(plan, 0, 0, before);
    check_block(made, 0, 0, of->after);
    again = run_pass(pass, made);
    check_same(made, again);
    free(before);
    banyan_plan_destroy(plan);
    banyan_plan_destroy(made);
    banyan_plan_destroy(again);
}

/* One test for each case, all run by `test`, which finds its case in its state. */
static inline int run_pass_cases(const char *group, pass_case *cases, size_t count,
                                 void (*test)(void **state))
{
    struct CMUnitTest *tests = calloc(count, sizeof *tests);
    CHECK(tests, "out of memory");
    for (size_t i = 0; i < count; i++)
        tests[i] = (struct CMUnitTest){
            .name = cases[i].name, .test_func = test, .initial_state = &cases[i]};
    int failed = _cmocka_run_group_tests(group, tests, count, NULL, NULL);
    free(tests);
    return failed;
}

#endif
