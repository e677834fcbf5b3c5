#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <banyan/simulate.h>

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

static void print_help(FILE *to)
{
    fprintf(to, "usage: banyan topo list|show|probe ...\n\n"
                "  list            list the topologies that Banyan ships\n"
                "  show FILE|NAME  show the size of a topology\n"
                "  probe           measure this machine and write its topology\n\n"
                "  banyan topo show --help, and so on, shows the options.\n");
}

int topo_command(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        print_help(stdout);
        return 0;
    }
    if (strcmp(name, "list") == 0)
        return list_command(argc - 1, argv + 1);
    if (strcmp(name, "show") == 0)
        return show_command(argc - 1, argv + 1);
    if (strcmp(name, "probe") == 0)
        return topo_probe_command(argc - 1, argv + 1);
    if (name[0])
        fprintf(stderr, "banyan topo: there is no command \"%s\"\n", name);
    print_help(stderr);
    return EXIT_USAGE;
}
