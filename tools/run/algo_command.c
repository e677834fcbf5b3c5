#include "cli/commands.h"

#include <stdio.h>
#include <stdlib.h>

#include <banyan/collective.h>
#include <jansson.h>

#include "cli/files.h"
#include "cli/options.h"
#include "run/plan_adapt.h"

#define WHO "banyan algo"
#define LIST_WHO WHO " list"
#define EMIT_WHO WHO " emit"

static void algo_command_print_table(void)
{
    banyan_algorithm_info info;
    printf("%-28s %-14s %-8s %s\n", "name", "collective", "reaches", "what it does");
    for (size_t i = 0; banyan_algorithm_at(i, &info) == BANYAN_OK; i++)
        printf("%-28s %-14s %-8s %s\n", info.name, banyan_collective_kind_name(info.collective),
               info.reaches_peers_buffers ? "buffers" : "scratch", info.about);
}

static int algo_command_print_json(void)
{
    banyan_algorithm_info info;
    json_t *array = json_array();
    for (size_t i = 0; banyan_algorithm_at(i, &info) == BANYAN_OK; i++)
        json_array_append_new(
            array, json_pack("{s:s, s:s, s:s, s:b}", "name", info.name, "collective",
                             banyan_collective_kind_name(info.collective), "about", info.about,
                             "reaches_peers_buffers", (int)info.reaches_peers_buffers));
    if (json_print(array) == BANYAN_OK)
        return 0;
    fprintf(stderr, LIST_WHO ": %s\n", banyan_last_error());
    return 1;
}

static int algo_command_list(int argc, char **argv)
{
    bool json = false;
    const option_entry entries[] = {
        {"json", '\0', OPTION_FLAG, &json, NULL, "print one JSON array instead of a table", 0, 0},
    };
    const option_table table = {
        LIST_WHO, "[--json]",
        "List the built-in algorithms. Algorithms that access buffers of peers (\"buffers\")\n"
        "work in place in symmetric memory, and ordinary memory is staged for them. With the\n"
        "others (\"scratch\"), peers access scratch only.\n",
        entries, sizeof(entries) / sizeof(entries[0])};
    options_result result = options_parse_only(&table, argc, argv);
    if (result != OPTIONS_OK)
        return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    if (json)
        return algo_command_print_json();
    algo_command_print_table();
    return 0;
}

struct emission {
    const char *name, *op, *out, *executor;
    banyan_algorithm_params params;
};

static int compile_and_write(const struct emission *wanted)
{
    banyan_plan *plan = NULL;
    banyan_plan_executor executor;
    banyan_status status = banyan_plan_executor_parse(wanted->executor, &executor);
    if (status == BANYAN_OK)
        status = plan_file_compile(wanted->name, &wanted->params, &plan);
    if (status == BANYAN_OK && executor != BANYAN_EXECUTOR_BANYAN)
        status = plan_adapt(&plan, executor);
    if (status == BANYAN_OK)
        status = plan_emit(plan, wanted->out);
    if (status != BANYAN_OK)
        fprintf(stderr, EMIT_WHO ": %s\n", banyan_last_error());
    banyan_plan_destroy(plan);
    return status == BANYAN_OK ? 0 : 1;
}

static int algo_command_emit(int argc, char **argv)
{
    struct emission wanted = {
        .op = "sum", .executor = "banyan", .params = BANYAN_ALGORITHM_PARAMS_INIT};
    banyan_algorithm_params *params = &wanted.params;
    params->ranks = 0;
    params->shift = 1;
    const option_entry entries[] = {
        {"ranks", 'n', OPTION_COUNT, &params->ranks, "N", "number of ranks", 1, BANYAN_MAX_RANKS},
        {"ranks-per-node", '\0', OPTION_COUNT, &params->ranks_per_node, "N",
         "ranks in a node, for hierarchical algorithms (all)", 1, BANYAN_MAX_RANKS},
        {"in-place", '\0', OPTION_FLAG, &params->in_place, NULL, "input and output share memory", 0,
         0},
        {"op", '\0', OPTION_CHOICE, &wanted.op, "sum|min|max|prod", "reduction of elements (sum)",
         0, 0},
        {"root", '\0', OPTION_COUNT, &params->root, "RANK", "root of broadcast and reduce (0)", 0,
         BANYAN_MAX_RANKS},
        {"shift", '\0', OPTION_COUNT, &params->shift, "N",
         "send-recv: rank r sends to rank r + N (1)", 1, BANYAN_MAX_RANKS},
        {"instances", '\0', OPTION_COUNT, &params->instances, "N",
         "number of instances (the algorithm's default)", 1, 1024},
        {"unit", '\0', OPTION_BYTES, &params->unit_bytes, "BYTES",
         "unit of pipelined loops (the algorithm's default)", 0, 0},
        {"executor", '\0', OPTION_CHOICE, &wanted.executor, "banyan|mscclpp",
         "executor that shall run the plan: mscclpp proves it by that one's rules (banyan)", 0, 0},
        {"out", 'o', OPTION_TEXT, &wanted.out, "FILE", "output file (-: stdout)", 0, 0},
    };
    const option_table table = {
        EMIT_WHO, "ALGORITHM -n RANKS [options]",
        "Compile a built-in algorithm and print its plan, for banyan run and banyan plan.\n"
        "banyan algo list prints the names.\n",
        entries, sizeof(entries) / sizeof(entries[0])};
    RETURN_UNLESS_PARSED(options_parse_one(
        &table, argc, argv, "which algorithm: NAME, as banyan algo list has it", &wanted.name));
    if (params->ranks == 0)
        return options_refuse(&table, "--ranks N is missing");
    if (banyan_reduce_op_parse(wanted.op, &params->op) != BANYAN_OK)
        return options_refuse(&table, "%s", banyan_last_error());
    return compile_and_write(&wanted);
}

int algo_command(int argc, char **argv)
{
    static const command_entry subcommands[] = {
        {"list", "", "list the built-in algorithms", algo_command_list},
        {"emit", "ALGORITHM -n RANKS", "print the plan of an algorithm, as JSON",
         algo_command_emit},
    };
    static const command_set set = {
        .command = WHO,
        .usage = "list|emit ...",
        .about = "",
        .more = "",
        .entries = subcommands,
        .count = sizeof subcommands / sizeof subcommands[0],
    };
    return command_set_run(&set, argc, argv);
}
