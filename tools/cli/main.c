#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <banyan/core.h>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/out_file.h"

static const struct command {
    const char *name;
    const char *about;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"launch", "start the ranks of a program on this machine", launch_command},
    {"reshard", "move a model between parallel layouts", reshard_command},
    {"layout", "write, check and show layout files", layout_command},
    {"rules", "list, show and check the rules that split and pack models", rules_command},
    {"run", "run a plan, check its results and time it", run_command},
    {"algo", "list the built-in algorithms and print their plans", algo_command},
    {"tune", "measure which algorithms are fastest on this machine", tune_command},
    {"check", "prove that a plan is sound, or report what is wrong with it", check_command},
    {"plan", "show, draw and compare plans, and count their traffic", plan_command},
    {"simulate", "predict the time of a plan or a reshard on a machine", simulate_command},
    {"topo", "list, show and measure machines for simulate", topo_command},
    {"mixed", "run the mixed collectives of a grid, check and time them", mixed_command},
    {"bench", "measure transfers between GPUs, beside NCCL", bench_command},
    {"plan-scale", "measure what planning costs a rank of a large world", plan_scale_command},
};

#define COMMAND_COUNT (sizeof(commands) / sizeof(commands[0]))

static void print_help(FILE *to)
{
    fprintf(to, "usage: banyan COMMAND [options]\n\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        fprintf(to, "  %-16s %s\n", commands[i].name, commands[i].about);
    fprintf(to, "\n  banyan COMMAND --help shows the options of a command.\n"
                "  banyan --version prints the version.\n");
}

static int run(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : NULL;
    if (!name) {
        print_help(stderr);
        return EXIT_USAGE;
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_help(stdout);
        return 0;
    }
    if (strcmp(name, "--version") == 0) {
        printf("banyan %s\n", banyan_version());
        return 0;
    }
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(commands[i].name, name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    }
    fprintf(stderr, "banyan: there is no command \"%s\"; banyan --help lists them\n", name);
    return EXIT_USAGE;
}

int main(int argc, char **argv)
{
    int code = run(argc, argv);
    if (out_file_flush_stdout())
        return code;
    fprintf(stderr, "banyan: cannot write to stdout: %s\n", strerror(errno));
    return code ? code : 1;
}
