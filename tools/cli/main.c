#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <banyan/core.h>

#include "cli/commands.h"
#include "cli/complete.h"
#include "cli/files.h"

static const command_entry commands[] = {
    {"launch", "", "start the ranks of a program on this machine", launch_command},
    {"world", "", "show the ranks of a job, and how they reach each other", world_command},
    {"reshard", "", "move a model between parallel layouts", reshard_command},
    {"publish", "", "publish a folder of checkpoints as versions", publish_command},
    {"subscribe", "", "write the versions of a publication into folders", subscribe_command},
    {"diff", "", "list what changed between two checkpoints", diff_command},
    {"layout", "", "write, check and show layout files", layout_command},
    {"rules", "", "list, show and check the rules that split and pack models", rules_command},
    {"run", "", "run a plan, check its results and time it", run_command},
    {"algo", "", "list the built-in algorithms and print their plans", algo_command},
    {"tune", "", "measure which algorithms are fastest on this machine", tune_command},
    {"check", "", "prove that plans are sound, or report what is wrong with them", check_command},
    {"plan", "", "show, draw and compare plans, and count their traffic", plan_command},
    {"simulate", "", "predict the time of a plan or a reshard on a machine", simulate_command},
    {"topo", "", "list, show and measure machines for simulate", topo_command},
    {"compat", "", "run programs of other systems", compat_command},
    {"mixed", "", "run the mixed collectives of a grid, check and time them", mixed_command},
    {"bench", "", "measure transfers between GPUs, beside NCCL", bench_command},
    {"plan-scale", "", "measure what planning costs a rank of a large world", plan_scale_command},
};

static const command_set banyan = {
    .command = "banyan",
    .usage = "COMMAND [options]",
    .about = "",
    .more = "  banyan -V, or --version, prints the version.\n",
    .entries = commands,
    .count = sizeof commands / sizeof commands[0],
};

static int main_run(int argc, char **argv)
{
    if (argc > 1 && (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0)) {
        printf("banyan %s\n", banyan_version());
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "__complete") == 0) {
        complete_begin();
        return command_set_run(&banyan, argc - 1, argv + 1);
    }
    return command_set_run(&banyan, argc, argv);
}

int main(int argc, char **argv)
{
    int code = main_run(argc, argv);
    if (out_file_flush_stdout())
        return code;
    fprintf(stderr, "banyan: cannot write to stdout: %s\n", strerror(errno));
    return code ? code : 1;
}
