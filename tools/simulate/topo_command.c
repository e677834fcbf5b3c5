#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <banyan/simulate.h>
#include <jansson.h>

#include "cli/commands.h"
#include "cli/files.h"
#include "cli/options.h"
#include "cli/text.h"

static int print_list(const char *who, json_t *list)
{
    if (!list)
        printf("%-16s%12s  %s\n", "name", "processors", "what it is");
    for (size_t i = 0; banyan_topology_shipped(i); i++) {
        banyan_topology *topology;
        if (banyan_topology_read(banyan_topology_shipped(i), &topology) != BANYAN_OK) {
            json_decref(list);
            return text_fail(who);
        }
        banyan_topology_info info = banyan_topology_describe(topology);
        if (list)
            json_array_append_new(list,
                                  json_pack("{s:s, s:s, s:i, s:i, s:I}", "name", info.name, "about",
                                            info.about, "processors", info.processors, "switches",
                                            info.switches, "links", (json_int_t)info.links));
        else
            printf("%-16s%12d  %s\n", info.name, info.processors, info.about);
        banyan_topology_destroy(topology);
    }
    return !list || json_print(list) == BANYAN_OK ? 0 : text_fail(who);
}

static int list_command(int argc, char **argv)
{
    bool json = false;
    const option_entry entries[] = {
        {"json", '\0', OPTION_FLAG, &json, NULL, "print one JSON array instead of a table", 0, 0},
    };
    const option_table table = {"banyan topo list", "[--json]",
                                "List the topologies that Banyan ships.\n", entries,
                                sizeof entries / sizeof entries[0]};
    RETURN_UNLESS_PARSED(options_parse_only(&table, argc, argv));
    return print_list(table.command, json ? json_array() : NULL);
}

/* Links that an entry of the file makes, each direction counted. */
static uint64_t count_links(const json_t *entry)
{
    const json_t *both_ways = json_object_get(entry, "both_ways"), *turns;
    uint64_t count = json_is_false(both_ways) ? 1 : 2;
    const char *variable;
    json_object_foreach(json_object_get(entry, "for"), variable, turns) count *=
        (uint64_t)json_integer_value(turns);
    return count;
}

/* "gpu{g} <-> nvswitch": a line for each entry of the file, not for each of a thousand links. */
static void print_links(const json_t *root)
{
    const json_t *entry;
    size_t i;
    printf("\n%8s%10s%12s  %s\n", "links", "GB/s", "latency", "between");
    json_array_foreach(json_object_get(root, "links"), i, entry)
    {
        char count[TEXT_NUMBER_BYTES];
        printf("%8s%10.1f%9.0f ns  %s %s %s\n", text_count(count_links(entry), count),
               json_number_value(json_object_get(entry, "bytes_per_s")) / 1e9,
               json_number_value(json_object_get(entry, "latency_ns")),
               json_string_value(json_object_get(entry, "from")),
               json_is_false(json_object_get(entry, "both_ways")) ? "->" : "<->",
               json_string_value(json_object_get(entry, "to")));
    }
}

static int topo_command_show(const char *who, const char *name, bool json)
{
    banyan_topology *topology;
    char *text = NULL;
    if (banyan_topology_read(name, &topology) != BANYAN_OK)
        return text_fail(who);
    banyan_topology_info info = banyan_topology_describe(topology);
    int code = banyan_topology_print(topology, &text) == BANYAN_OK ? 0 : text_fail(who);
    if (code == 0 && json) {
        puts(text);
    } else if (code == 0) {
        json_t *root = json_loads(text, 0, NULL);
        printf("%s: %s\n%d processors, %d switch%s, %zu links\n", info.name, info.about,
               info.processors, info.switches, info.switches == 1 ? "" : "es", info.links);
        print_links(root);
        json_decref(root);
    }
    free(text);
    banyan_topology_destroy(topology);
    return code;
}

static int topo_command_show_command(int argc, char **argv)
{
    bool json = false;
    const option_entry entries[] = {
        {"json", '\0', OPTION_FLAG, &json, NULL,
         "print the whole file, to edit and pass to `banyan simulate`", 0, 0},
    };
    const option_table table = {
        "banyan topo show", "TOPOLOGY [--json]",
        "Show the numbers of processors and switches of a topology, and its links: how many of a\n"
        "kind, each direction counted, and the bandwidth and latency of each.\n",
        entries, sizeof entries / sizeof entries[0]};
    const char *name;
    RETURN_UNLESS_PARSED(
        options_parse_one(&table, argc, argv, "which topology: FILE or NAME", &name));
    return topo_command_show(table.command, name, json);
}

static const command_entry subcommands[] = {
    {"list", "", "list the topologies that Banyan ships", list_command},
    {"show", "TOPOLOGY", "show the processors, switches and links of a topology",
     topo_command_show_command},
    {"probe", "", "measure this machine and write its topology", topo_probe_command},
};

int topo_command(int argc, char **argv)
{
    static const command_set set = {
        .command = "banyan topo",
        .usage = "list|show|probe ...",
        .about = "",
        .more = "",
        .entries = subcommands,
        .count = sizeof subcommands / sizeof subcommands[0],
    };
    return command_set_run(&set, argc, argv);
}
