/* banyan bench: figures with their limits and peers, from one run. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "launch.h"
#include "options.h"

/* The benchmark's program needs CUDA's runtime, which this one does without. */
static bool find_program(char *path, size_t bytes)
{
    ssize_t length = readlink("/proc/self/exe", path, bytes - 1);
    if (length < 0)
        return false;
    path[length] = '\0';
    char *slash = strrchr(path, '/');
    snprintf(slash + 1, bytes - (size_t)(slash + 1 - path), "gpu_bench");
    return access(path, X_OK) == 0;
}

static int run_on_gpus(const option_table *table, int ranks, char **rest, int count)
{
    char path[PATH_MAX];
    if (!find_program(path, sizeof path))
        return options_refuse(table, "this build has no %s: it was made without nvcc", path);
    char **program = calloc((size_t)count + 2, sizeof *program);
    if (!program)
        return options_refuse(table, "out of memory");
    program[0] = path;
    memcpy(program + 1, rest, (size_t)count * sizeof *program);
    launch_job job = {.who = "banyan bench", .count = ranks, .program = program};
    int code = launch_run(&job);
    free(program);
    return code;
}

int bench_command(int argc, char **argv)
{
    bool gpu = false;
    int ranks = 4;
    const option_entry entries[] = {
        {"gpu", '\0', OPTION_FLAG, &gpu, NULL, "collectives between GPUs, beside NCCL's", 0, 0},
        {"ranks", 'n', OPTION_COUNT, &ranks, "N", "a GPU each (4)", 2, 8},
    };
    const option_table table = {"banyan bench",
                                "--gpu [-n N] [-- [--size 1K:1G] [--json FILE] [COLLECTIVE …]]",
                                "Measure, and print every figure beside the machine's limit and a "
                                "peer's from the same run.\n"
                                "What the host's processes reach: make bench.\n",
                                entries, sizeof(entries) / sizeof(entries[0])};
    int rest;
    options_result result = options_parse(&table, argc, argv, &rest);
    if (result != OPTIONS_OK)
        return options_exit_code(result);
    if (!gpu)
        return options_refuse(&table, "say what to measure: --gpu");
    return run_on_gpus(&table, ranks, argv + rest, argc - rest);
}
