#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <banyan/plan.h>
#include <jansson.h>

#include "cli/commands.h"
#include "cli/files.h"
#include "cli/options.h"
#include "cli/text.h"
#include "draw/plan_view.h"
#include "run/plan_adapt.h"

/* Differences of two plans that are listed individually. */
#define DIFFERENCES_TOLD 100

#define WHICH_PLAN "which plan: PLAN.json"
#define DEFAULT_SIZE (UINT64_C(1) << 20)

static int plan_command_show(const char *who, const char *path, int rank)
{
    banyan_plan *plan;
    char *text;
    int code = 0;
    if (plan_file_read(path, &plan) != BANYAN_OK)
        return text_fail(who);
    if (banyan_plan_list(plan, rank, &text) == BANYAN_OK) {
        fputs(text, stdout);
        free(text);
    } else {
        code = text_fail(who);
    }
    banyan_plan_destroy(plan);
    return code;
}

static int plan_command_show_command(int argc, char **argv)
{
    int rank = -1;
    const option_entry entries[] = {
        {"rank", 'r', OPTION_COUNT, &rank, "N", "list this rank alone (all)", 0,
         BANYAN_MAX_RANKS - 1},
    };
    const option_table table = {
        "banyan plan show", "PLAN.json [--rank N]",
        "List the operations of a plan by rank and thread block. i, o and s are the input,\n"
        "output and scratch of the rank; @ marks those of another rank. Numbers in brackets are\n"
        "chunks. docs/plans.md explains the names of operations, such as res and ppkt.\n",
        entries, sizeof entries / sizeof entries[0]};
    const char *path;
    RETURN_UNLESS_PARSED(options_parse_one(&table, argc, argv, WHICH_PLAN, &path));
    return plan_command_show(table.command, path, rank);
}

static banyan_status print_differences_json(const char *text, size_t count)
{
    json_t *lines = json_array();
    for (const char *line = text, *end; (end = strchr(line, '\n')); line = end + 1)
        json_array_append_new(lines, json_stringn(line, (size_t)(end - line)));
    return json_print(json_pack("{s:b, s:I, s:o}", "equal", count == 0, "count", (json_int_t)count,
                                "differences", lines));
}

static int print_differences(const char *who, const banyan_plan *a, const banyan_plan *b, bool json)
{
    char *text;
    size_t count;
    if (banyan_plan_diff(a, b, json ? SIZE_MAX : DIFFERENCES_TOLD, &text, &count) != BANYAN_OK)
        return text_fail(who);
    banyan_status status = BANYAN_OK;
    if (json)
        status = print_differences_json(text, count);
    else
        fputs(text, stdout);
    if (!json && count > DIFFERENCES_TOLD)
        printf("and %zu more\n", count - DIFFERENCES_TOLD);
    free(text);
    if (status != BANYAN_OK)
        return text_fail(who);
    return count > 0;
}

static int plan_command_diff(const char *who, char **paths, bool json)
{
    banyan_plan *a, *b;
    if (plan_file_read(paths[0], &a) != BANYAN_OK) {
        text_fail(who);
        return EXIT_USAGE;
    }
    int code = EXIT_USAGE;
    if (plan_file_read(paths[1], &b) == BANYAN_OK) {
        code = print_differences(who, a, b, json);
        banyan_plan_destroy(b);
    } else {
        text_fail(who);
    }
    banyan_plan_destroy(a);
    return code;
}

static int plan_diff_command(int argc, char **argv)
{
    bool json = false;
    const option_entry entries[] = {
        {"json", '\0', OPTION_FLAG, &json, NULL, "print one JSON object", 0, 0},
    };
    const option_table table = {
        "banyan plan diff", "A.json B.json [--json]",
        "List the differences of two plans, one on each line, with the value of A first. Without\n"
        "--json, at most 100 are listed. Exit code: 0 if the plans are equal, 1 if they differ, 2\n"
        "if one cannot be read.\n",
        entries, sizeof entries / sizeof entries[0]};
    int rest;
    RETURN_UNLESS_PARSED(options_parse_anywhere(&table, argc, argv, &rest));
    if (argc - rest != 2)
        return options_refuse(&table, "wants 2 plans, %d given", argc - rest);
    return plan_command_diff(table.command, argv + rest, json);
}

static void print_bytes(const char *what, uint64_t bytes)
{
    char text[TEXT_NUMBER_BYTES], cell[TEXT_NUMBER_BYTES];
    printf("%-22s%s\n", what, text_right(text_bytes(bytes, text), 12, cell));
}

static void print_count(const char *what, uint64_t count)
{
    char text[TEXT_NUMBER_BYTES];
    printf("%-22s%12s\n", what, text_count(count, text));
}

static void print_stats(const banyan_plan_info *info, uint64_t message,
                        const banyan_plan_stats *stats)
{
    printf("%s: %s of %d ranks\n", info->name, info->collective_name, info->ranks);
    print_bytes("message", message);
    print_bytes("input", stats->input_bytes);
    print_bytes("output", stats->output_bytes);
    print_bytes("scratch", stats->scratch_bytes);
    print_count("operations", info->operations);
    print_count("thread blocks", (uint64_t)info->thread_blocks);
    print_count("signals", stats->signals);
    if (stats->critical_hops > 0)
        print_count("critical path, hops", stats->critical_hops);
    print_bytes("written locally", stats->local_bytes);
    for (size_t i = 0; i < stats->link_count; i++) {
        char what[64];
        snprintf(what, sizeof what, "%d -> %d", stats->links[i].source,
                 stats->links[i].destination);
        print_bytes(what, stats->links[i].bytes);
    }
}

static int plan_command_print_json(const char *who, const banyan_plan_info *info, uint64_t message,
                                   const banyan_plan_stats *stats)
{
    json_t *links = json_array();
    for (size_t i = 0; i < stats->link_count; i++) {
        const banyan_plan_link *link = &stats->links[i];
        json_array_append_new(links,
                              json_pack("{s:i, s:i, s:I}", "source", link->source, "destination",
                                        link->destination, "bytes", (json_int_t)link->bytes));
    }
    json_t *object = json_pack(
        "{s:s, s:s, s:i, s:I, s:I, s:I, s:I, s:I, s:i, s:I, s:I, s:I, s:o}", "name", info->name,
        "collective", info->collective_name, "ranks", info->ranks, "message_bytes",
        (json_int_t)message, "input_bytes", (json_int_t)stats->input_bytes, "output_bytes",
        (json_int_t)stats->output_bytes, "scratch_bytes", (json_int_t)stats->scratch_bytes,
        "operations", (json_int_t)info->operations, "thread_blocks", info->thread_blocks, "signals",
        (json_int_t)stats->signals, "critical_hops", (json_int_t)stats->critical_hops,
        "local_bytes", (json_int_t)stats->local_bytes, "links", links);
    return json_print(object) == BANYAN_OK ? 0 : text_fail(who);
}

/* Round the default up to a size that the plan can be cut into; a plan from elsewhere may require
 * an absurdly large one. */
static uint64_t choose_size(const banyan_plan_info *info, uint64_t given)
{
    uint64_t parts = info->message_parts;
    if (given > 0)
        return given;
    if (parts == 0 || parts > DEFAULT_SIZE)
        return 0;
    return (DEFAULT_SIZE + parts - 1) / parts * parts;
}

static int plan_command_stats(const char *who, const char *path, uint64_t size, bool json)
{
    banyan_plan *plan;
    banyan_plan_stats found;
    int code = 0;
    if (plan_file_read(path, &plan) != BANYAN_OK)
        return text_fail(who);
    banyan_plan_info info = banyan_plan_describe(plan);
    uint64_t message = choose_size(&info, size);
    if (banyan_plan_measure(plan, message, &found) != BANYAN_OK) {
        code = text_fail(who);
    } else {
        if (json)
            code = plan_command_print_json(who, &info, message, &found);
        else
            print_stats(&info, message, &found);
        free(found.links);
    }
    banyan_plan_destroy(plan);
    return code;
}

static int stats_command(int argc, char **argv)
{
    uint64_t size = 0;
    bool json = false;
    const option_entry entries[] = {
        {"size", 's', OPTION_BYTES, &size, "BYTES",
         "message size: a rank's input, such as 64K (1M)", 0, 0},
        {"json", '\0', OPTION_FLAG, &json, NULL, "print one JSON object", 0, 0},
    };
    const option_table table = {
        "banyan plan stats", "PLAN.json [--size 1M] [--json]",
        "Count the traffic of a plan by link, for a message of this size. Packets count with\n"
        "their flags. Hops are the dependent messages between ranks on the critical path. They\n"
        "are omitted if no rank waits for another, or if a wait never ends.\n",
        entries, sizeof entries / sizeof entries[0]};
    const char *path;
    RETURN_UNLESS_PARSED(options_parse_one(&table, argc, argv, WHICH_PLAN, &path));
    return plan_command_stats(table.command, path, size, json);
}

static const command_entry subcommands[] = {
    {"show", "PLAN.json", "list its operations by rank and thread block",
     plan_command_show_command},
    {"diff", "A.json B.json", "list the differences", plan_diff_command},
    {"stats", "PLAN.json", "count its traffic and its hops", stats_command},
    {"adapt", "PLAN.json", "make a plan for MSCCL++'s executor, as JSON", plan_adapt_command},
    {"view", "PLAN.json", "draw it, as a page for a browser or a figure", plan_view_command},
};

int plan_command(int argc, char **argv)
{
    static const command_set set = {
        .command = "banyan plan",
        .usage = "show|diff|stats|adapt|view ...",
        .about = "",
        .more = "  Use - as PLAN.json to read stdin.\n",
        .entries = subcommands,
        .count = sizeof subcommands / sizeof subcommands[0],
    };
    return command_set_run(&set, argc, argv);
}
