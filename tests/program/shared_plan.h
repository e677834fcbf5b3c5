/* Compares a program with the plan that MSCCL++'s language makes of its own version. */
#ifndef TESTS_PROGRAM_SHARED_PLAN_H
#define TESTS_PROGRAM_SHARED_PLAN_H

#include <unistd.h>

#include "support/test.h"

#define SHARED_PLANS BANYAN_SOURCE_DIR "/../shared/plans/"

typedef struct shared_case {
    const char *file; /* without folder and ".json" */
    const char *name; /* of the program */
    int ranks;
    banyan_collective collective;
    /* Set the options that differ from the defaults, before the program is created. */
    void (*choose)(banyan_program_options *options);
    void (*write)(banyan_program *program, int ranks);
} shared_case;

/* A collective that defines only the sizes of its buffers. */
#define TEST_BUFFERS(inputs, outputs)                                                              \
    {                                                                                              \
        .kind = BANYAN_CUSTOM, .name = "test", .input_chunks = (inputs),                           \
        .output_chunks = (outputs)                                                                 \
    }

static inline void choose_ll(banyan_program_options *options)
{
    options->protocol = BANYAN_LL;
}

/* Chunks of the current program, which is always called `program`. */
#define IN(rank, start, stop) banyan_program_input(program, (rank), (start), (stop))
#define OUT(rank, start, stop) banyan_program_output(program, (rank), (start), (stop))
#define CHUNKS(...) ((const banyan_chunk[]){__VA_ARGS__})

static inline banyan_plan *compile_case(const shared_case *of)
{
    banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
    if (of->choose)
        of->choose(&options);
    banyan_program *program;
    banyan_plan *plan;
    CHECK_OK(banyan_program_create(of->name, &of->collective, of->ranks, &options, &program));
    of->write(program, of->ranks);
    CHECK_OK(banyan_program_compile(program, &plan));
    banyan_program_destroy(program);
    return plan;
}

static inline void compare_with_shared(void **state)
{
    const shared_case *of = *state;
    char path[512];
    snprintf(path, sizeof path, SHARED_PLANS "%s.json", of->file);
    if (access(path, R_OK) != 0) {
        print_message("skipped: %s is not there\n", path);
        skip();
    }
    banyan_plan *theirs, *ours = compile_case(of);
    CHECK_OK(banyan_plan_read(path, &theirs));
    char *text;
    size_t differences;
    CHECK_OK(banyan_plan_diff(ours, theirs, 20, &text, &differences));
    CHECK(differences == 0, "%s: %zu differences\n%s", of->file, differences, text);
    free(text);
    banyan_plan_destroy(ours);
    banyan_plan_destroy(theirs);
}

/* One test for each case, named after its file. */
static inline int run_shared_cases(const char *group, shared_case *cases, size_t count)
{
    struct CMUnitTest *tests = calloc(count, sizeof *tests);
    CHECK(tests, "out of memory");
    for (size_t i = 0; i < count; i++)
        tests[i] = (struct CMUnitTest){
            .name = cases[i].file, .test_func = compare_with_shared, .initial_state = &cases[i]};
    int failed = _cmocka_run_group_tests(group, tests, count, NULL, NULL);
    free(tests);
    return failed;
}

#endif
