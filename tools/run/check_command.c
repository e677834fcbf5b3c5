#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include <banyan/check.h>
#include <banyan/reshard.h>
#include <jansson.h>

#include "cli/commands.h"
#include "cli/files.h"
#include "cli/options.h"

#define WHO "banyan check"

typedef struct check_arguments {
    uint64_t size;
    bool json, no_warnings, reshard;
    int max_findings, max_steps, ranks_per_node; /* 0: not given */
    const char *executor;
} check_arguments;

/* Check a plan and set `*text` to the report, to be freed. Returns the exit code; `*text` is NULL,
 * with the error set, if the file is not a plan or cannot be checked. */
static int check_plan(const char *path, const check_arguments *given, char **text)
{
    banyan_plan *plan;
    banyan_check_report *report;
    int code = EXIT_USAGE;
    banyan_check_options options = BANYAN_CHECK_OPTIONS_INIT;
    options.warnings = !given->no_warnings;
    options.max_findings = (size_t)given->max_findings;
    if (given->max_steps > 0)
        options.max_steps = (uint64_t)given->max_steps;
    if (given->size > 0) {
        options.message_bytes = &given->size;
        options.message_count = 1;
    }
    *text = NULL;
    if (banyan_plan_executor_parse(given->executor, &options.executor) != BANYAN_OK ||
        plan_file_read(path, &plan) != BANYAN_OK)
        return code;
    if (banyan_plan_check(plan, &options, &report) == BANYAN_OK) {
        if (banyan_check_report_print(report, path, given->json, text) == BANYAN_OK)
            code = banyan_check_report_is_sound(report) ? 0 : 1;
        banyan_check_report_destroy(report);
    }
    banyan_plan_destroy(plan);
    return code;
}

/* Check a case of banyan reshard verify in the same way: its own transfers, and Banyan's plan. */
static int check_command_case(const char *path, const check_arguments *given, char **text)
{
    banyan_megatron_case *loaded;
    banyan_reshard_report *report;
    int code = EXIT_USAGE;
    *text = NULL;
    if (banyan_megatron_case_load(path, &loaded) != BANYAN_OK)
        return code;
    if (banyan_reshard_case_check(loaded, NULL, given->ranks_per_node, 0, &report) == BANYAN_OK) {
        if (banyan_reshard_report_print(report, path, given->json, text) == BANYAN_OK)
            code = banyan_reshard_report_count(report) == 0 ? 0 : 1;
        banyan_reshard_report_destroy(report);
    }
    banyan_megatron_case_destroy(loaded);
    return code;
}

/* Return the entry of a file that cannot be checked, for a list of reports. */
static json_t *error_json(const check_arguments *given, const char *path)
{
    return json_pack("{s:s, s:s}", given->reshard ? "case" : "plan", path, "error",
                     banyan_last_error());
}

/* Returns the worst exit code. A single file gives an object in JSON, several give a list. */
static int check_command_check_all(const check_arguments *given, char **paths, int count)
{
    json_t *list = given->json ? json_array() : NULL;
    int worst = 0;
    for (int i = 0; i < count; i++) {
        char *text;
        int code = given->reshard ? check_command_case(paths[i], given, &text)
                                  : check_plan(paths[i], given, &text);
        if (!text)
            fprintf(stderr, WHO ": %s\n", banyan_last_error());
        else if (!given->json)
            fputs(text, stdout);
        if (given->json && (text || count > 1))
            json_array_append_new(list,
                                  text ? json_loads(text, 0, NULL) : error_json(given, paths[i]));
        free(text);
        fflush(stdout);
        worst = code > worst ? code : worst;
    }
    json_t *whole = count > 1 ? json_incref(list) : json_incref(json_array_get(list, 0));
    json_decref(list);
    if (whole && json_print(whole) != BANYAN_OK) {
        fprintf(stderr, WHO ": %s\n", banyan_last_error());
        return EXIT_USAGE;
    }
    return worst;
}

int check_command(int argc, char **argv)
{
    check_arguments given = {.max_findings = 100, .executor = "banyan"};
    const option_entry entries[] = {
        {"size", 's', OPTION_BYTES, &given.size, "BYTES",
         "check this message size, such as 64K (one size of every class)", 0, 0},
        {"max-findings", '\0', OPTION_COUNT, &given.max_findings, "N",
         "limit on the findings of each rule (100)", 1, 1000000},
        {"max-steps", '\0', OPTION_COUNT, &given.max_steps, "N",
         "limit on the loop steps of all sizes together (1048576)", 1, INT_MAX},
        {"executor", '\0', OPTION_CHOICE, &given.executor, "banyan|mscclpp",
         "prove by the rules of this executor (banyan)", 0, 0},
        {"no-warnings", '\0', OPTION_FLAG, &given.no_warnings, NULL, "report errors only", 0, 0},
        {"json", '\0', OPTION_FLAG, &given.json, NULL,
         "print one JSON object, or a list if there are several files", 0, 0},
        {"reshard", '\0', OPTION_FLAG, &given.reshard, NULL,
         "check cases of banyan reshard verify: their transfers and Banyan's", 0, 0},
        {"ranks-per-node", '\0', OPTION_COUNT, &given.ranks_per_node, "N",
         "with --reshard: plan for nodes of N ranks, in rank order (one node)", 1,
         BANYAN_MAX_RANKS},
    };
    const option_table table = {
        WHO, "PLAN.json… [options] | --reshard CASE.json…",
        "Prove that plans are sound, or report each fault and its place. A sound plan cannot\n"
        "deadlock, has no race and computes the right result, for every message size and any\n"
        "number of runs on the same buffers. The report names the lines of the program if the\n"
        "plan has them. docs/check.md explains the report, and docs/internals/memory-model.md\n"
        "the order of accesses that the proof assumes. With --executor mscclpp the proof is\n"
        "for MSCCL++'s executor (docs/mscclpp.md). Exit code: 0 if all plans are sound, 1\n"
        "with findings, 2 if a file is not a plan or cannot be checked. Use - as PLAN.json to\n"
        "read stdin.\n",
        entries, sizeof entries / sizeof entries[0]};
    int rest;
    RETURN_UNLESS_PARSED(options_parse_anywhere(&table, argc, argv, &rest));
    if (rest == argc)
        return options_refuse(&table, given.reshard ? "say which cases: CASE.json…"
                                                    : "say which plans: PLAN.json…");
    if (given.reshard && given.size > 0)
        return options_refuse(&table, "--reshard does not go with --size");
    if (!given.reshard && given.ranks_per_node > 0)
        return options_refuse(&table, "--ranks-per-node needs --reshard");
    return check_command_check_all(&given, argv + rest, argc - rest);
}
