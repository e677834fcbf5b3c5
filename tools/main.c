#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <banyan/core.h>

#include "commands.h"
#include "options.h"
#include "out_file.h"

static const struct command {
    const char *name;
    const char *about;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"launch", "start the ranks of a program on this machine", launch_command},
    {"reshard", "move a model between parallel layouts", reshard_command},
    {"layout", "write, check and show the files that layouts are kept in", layout_command},
    {"rules", "how models are cut and packed for engines: list, show, check", rules_command},
    {"run", "run a plan of a collective, check it and time it", run_command},
    {"algo", "the built-in collective algorithms and their plans", algo_command},
    {"tune", "find out which algorithms are fastest on this machine", tune_command},
    {"check", "prove a plan of a collective, or say what is wrong with it", check_command},
    {"plan", "show, draw and compare plans, count what they move", plan_command},
    {"simulate", "predict how long a plan takes on a machine", simulate_command},
    {"topo", "the machines that plans are simulated on", topo_command},
    {"mixed", "run a grid's mixed collectives, check them and time them", mixed_command},
    {"bench", "measure collectives between GPUs beside NCCL's", bench_command},
    {"plan-scale", "what planning costs a rank of a large world", plan_scale_command},
};

#define COMMAND_COUNT (sizeof(commands) / sizeof(commands[0]))

static void print_help(FILE *to)
{
    fprintf(to, "usage: banyan COMMAND [options]\n\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        fprintf(to, "  %-16s %s\n", commands[i].name, commands[i].about);
    fprintf(to, "\n  banyan COMMAND --help says more; banyan --version prints the version.\n");
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
