/* Code shared by the examples: the number of ranks from the command line, the plan to the standard
 * output. */
#ifndef EXAMPLES_EMIT_H
#define EXAMPLES_EMIT_H

#include <stdio.h>
#include <stdlib.h>

#include <banyan/plan.h>
#include <banyan/program.h>

/* More than enough for a picture; the library has no such limit. */
enum { MOST_RANKS = 64 };

static inline int ranks_asked_for(int argc, char **argv)
{
    int ranks = argc > 1 ? atoi(argv[1]) : 4;
    if (ranks >= 2 && ranks <= MOST_RANKS)
        return ranks;
    fprintf(stderr, "usage: %s RANKS, 2 to %d\n", argv[0], MOST_RANKS);
    exit(2);
}

static inline banyan_program *begin(const char *name, banyan_collective collective, int ranks,
                                    const banyan_program_options *options)
{
    banyan_program *program;
    if (banyan_program_create(name, &collective, ranks, options, &program) == BANYAN_OK)
        return program;
    fprintf(stderr, "%s\n", banyan_last_error());
    exit(1);
}

/* Compile the program and print its plan. Returns what main returns. */
static inline int emit(banyan_program *program)
{
    banyan_plan *plan = NULL;
    char *text = NULL;
    int result = 0;
    if (banyan_program_compile(program, &plan) != BANYAN_OK ||
        banyan_plan_print(plan, &text, NULL) != BANYAN_OK) {
        fprintf(stderr, "%s\n", banyan_last_error());
        result = 1;
    } else if (puts(text) == EOF) {
        result = 1;
    }
    free(text);
    banyan_plan_destroy(plan);
    banyan_program_destroy(program);
    return result;
}

#endif
