#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include <banyan/check.h>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/plan_file.h"
#include "layout/check_reshard.h"

#define WHO "banyan check"

typedef struct arguments {
    uint64_t size;
    bool json, no_warnings, reshard;
    int max_findings, max_steps; /* max_steps 0: not given */
} arguments;

/* 2 when the file is no plan, or none that can be checked. */
static int fail(void)
{
    fprintf(stderr, WHO ": %s\n", banyan_last_error());
    return EXIT_USAGE;
}

static int print_report(const banyan_check_report *report, const char *path, bool json)
{
    char *text;
    if (banyan_check_report_print(report, path, json, &text) != BANYAN_OK)
        return fail();
    printf("%s%s", text, json ? "\n" : "");
    free(text);
    return banyan_check_report_is_sound(report) ? 0 : 1;
}

static int check(const char *path, const arguments *given)
{
    banyan_plan *plan;
    banyan_check_report *report;
    banyan_check_options options = BANYAN_CHECK_OPTIONS_INIT;
    options.warnings = !given->no_warnings;
    options.max_findings = (size_t)given->max_findings;
    if (given->max_steps > 0)
        options.max_steps = (uint64_t)given->max_steps;
    if (given->size > 0) {
        options.message_bytes = &given->size;
        options.message_count = 1;
    }
    if (plan_file_read(path, &plan) != BANYAN_OK)
        return fail();
    int code;
    if (banyan_plan_check(plan, &options, &report) == BANYAN_OK) {
        code = print_report(report, path, given->json);
        banyan_check_report_destroy(report);
    } else {
        code = fail();
    }
    banyan_plan_destroy(plan);
    return code;
}

int check_command(int argc, char **argv)
{
    arguments given = {.max_findings = 100};
    const option_entry entries[] = {
        {"size", 's', OPTION_BYTES, &given.size, "BYTES",
         "check this message size, such as 64K (one size of every class)", 0, 0},
        {"max-findings", '\0', OPTION_COUNT, &given.max_findings, "N",
         "limit on the findings of each rule (100)", 1, 1000000},
        {"max-steps", '\0', OPTION_COUNT, &given.max_steps, "N",
         "limit on the loop steps of all sizes together (1048576)", 1, INT_MAX},
        {"no-warnings", '\0', OPTION_FLAG, &given.no_warnings, NULL, "report errors only", 0, 0},
        {"json", '\0', OPTION_FLAG, &given.json, NULL, "print one JSON object", 0, 0},
        {"reshard", '\0', OPTION_FLAG, &given.reshard, NULL,
         "check cases of banyan reshard verify: their transfers and Banyan's", 0, 0},
    };
    const option_table table = {
        WHO, "PLAN.json [options] | --reshard CASE.json…",
        "Prove that a plan is sound, or report each fault and its place. A sound plan cannot\n"
        "deadlock, has no race and computes the right result, for every message size and any\n"
        "number of runs on the same buffers. docs/check.md defines the memory model. Exit code:\n"
        "0 if the plan is sound, 1 with findings, 2 if the file is not a plan or cannot be\n"
        "checked. Use - as PLAN.json to read stdin.\n",
        entries, sizeof entries / sizeof entries[0]};
    int rest;
    options_result result = options_parse_anywhere(&table, argc, argv, &rest);
    if (result != OPTIONS_OK)
        return options_exit_code(result);
    if (given.reshard && (rest == argc || given.size > 0))
        return options_refuse(&table, rest == argc ? "say which cases: CASE.json…"
                                                   : "--reshard does not go with --size");
    if (given.reshard)
        return check_reshard_cases(argv + rest, argc - rest, given.json);
    if (rest + 1 != argc)
        return options_refuse(&table, "say which plan, one at a time: PLAN.json");
    return check(argv[rest], &given);
}
