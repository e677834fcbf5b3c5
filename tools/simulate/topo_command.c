#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <banyan/simulate.h>

#include "cli/command_set.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "simulate/topo_probe.h"

static int fail(const char *who)
{
    fprintf(stderr, "%s: %s\n", who, banyan_last_error());
    return 1;
}

/* ---- list ---- */

static int list_command(int argc, char **argv)
{
    const option_table table = {"banyan topo list", "", "List the topologies that Banyan ships.\n",
                                NULL, 0};
    options_result result = options_parse_only(&table, argc, argv);
    if (result != OPTIONS_OK)
        return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    printf("%-16s%12s  %s\n", "name", "processors", "what it is");
    for (size_t i = 0; banyan_topology_shipped(i); i++) {
        banyan_topology *topology;
        if (banyan_topology_read(banyan_topology_shipped(i), &topology) != BANYAN_OK)
            return fail(table.command);
        banyan_topology_info info = banyan_topology_describe(topology);
        printf("%-16s%12d  %s\n", info.name, info.processors, info.about);
        banyan_topology_destroy(topology);
    }
    return 0;
}

/* ---- show ---- */

static banyan_status print_json(const banyan_topology *topology)
{
    char *text;
    banyan_status status = banyan_topology_print(topology, &text);
    if (status != BANYAN_OK)
        return status;
    printf("%s\n", text);
    free(text);
    return BANYAN_OK;
}

static int show(const char *who, const char *name, bool json)
{
    banyan_topology *topology;
    int code = 0;
    if (banyan_topology_read(name, &topology) != BANYAN_OK)
        return fail(who);
    banyan_topology_info info = banyan_topology_describe(topology);
    if (!json)
        printf("%s: %s\n%d processors, %d switch%s, %zu links\n", info.name, info.about,
               info.processors, info.switches, info.switches == 1 ? "" : "es", info.links);
    else if (print_json(topology) != BANYAN_OK)
        code = fail(who);
    banyan_topology_destroy(topology);
    return code;
}

static int show_command(int argc, char **argv)
{
    bool json = false;
    const option_entry entries[] = {
        {"json", '\0', OPTION_FLAG, &json, NULL,
         "print the whole file, to edit and pass to `banyan simulate`", 0, 0},
    };
    const option_table table = {
        "banyan topo show", "FILE|NAME [--json]",
        "Show the numbers of processors, switches and links of a topology.\n", entries,
        sizeof entries / sizeof entries[0]};
    const char *name;
    options_result result =
        options_parse_one(&table, argc, argv, "which topology: FILE or NAME", &name);
    return result == OPTIONS_OK ? show(table.command, name, json) : options_exit_code(result);
}

/* ---- all of them ---- */

static const command_entry subcommands[] = {
    {"list", "", "list the topologies that Banyan ships", list_command},
    {"show", "FILE|NAME", "show the processors, switches and links of a topology", show_command},
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
