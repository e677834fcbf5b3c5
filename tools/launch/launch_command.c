#include "cli/commands.h"

#include "cli/options.h"
#include "launch/launch.h"

int launch_command(int argc, char **argv)
{
    launch_job job = {.who = "banyan launch"};
    const option_entry entries[] = {
        {"ranks", 'n', OPTION_COUNT, &job.count, "N", "number of ranks to start", 1,
         LAUNCH_MAX_RANKS},
        {"tag-output", '\0', OPTION_FLAG, &job.tag_output, NULL,
         "begin every line with \"[rank] \"", 0, 0},
        {"timeout", '\0', OPTION_SECONDS, &job.timeout_s, "SECONDS",
         "end the job after this time (exit code 124)", 0, 0},
        {"grace", '\0', OPTION_SECONDS, &job.grace_s, "SECONDS",
         "time from SIGTERM to SIGKILL when ranks are ended (5)", 0, 0},
    };
    const option_table table = {
        "banyan launch", "-n N [options] [--] program [arguments]",
        "Start N ranks of a program on this machine. When a rank fails, the others are ended,\n"
        "and the exit code is that of the rank, or 128 + signal if a signal killed it. SIGINT,\n"
        "SIGTERM and similar signals are passed to the ranks; a second one ends them. Rank 0\n"
        "has stdin.\n",
        entries, sizeof(entries) / sizeof(entries[0])};
    int rest;
    options_result result = options_parse(&table, argc, argv, &rest);
    if (result != OPTIONS_OK)
        return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    if (job.count == 0)
        return options_refuse(&table, "say how many ranks to start: -n N");
    if (rest == argc)
        return options_refuse(&table, "say which program to run, behind the options");
    job.program = argv + rest;
    return launch_run(&job);
}
