/* banyan bench: figures with their limits and peers, from one run. */
#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/python.h"
#include "launch/launch.h"

#define TORCH_SECONDS 120.0

/* Find a file of the benchmark: beside this program, as the build has it, or where it is installed.
 * This program needs no CUDA runtime itself. */
static bool find_part(const char *name, char *path, size_t bytes)
{
    static const char *const folders[] = {"", BANYAN_LIBEXEC_FROM_BIN "/"};
    char own[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
    if (length < 0)
        return false;
    own[length] = '\0';
    *strrchr(own, '/') = '\0';
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        int needed = snprintf(path, bytes, "%s/%s%s", own, folders[i], name);
        if (needed >= 0 && (size_t)needed < bytes && access(path, R_OK) == 0)
            return true;
    }
    return false;
}

/* The output file of the benchmark, or a temporary one. */
typedef struct bench_figures {
    const char *path;
    char own[32];
} bench_figures;

static bool figures_open(bench_figures *made, char **rest, int count)
{
    for (int i = 0; i + 1 < count; i++)
        if (strcmp(rest[i], "--json") == 0)
            made->path = rest[i + 1];
    if (made->path)
        return true;
    snprintf(made->own, sizeof made->own, "/tmp/banyan-bench-XXXXXX");
    int file = mkstemp(made->own);
    if (file < 0)
        return false;
    close(file);
    made->path = made->own;
    return true;
}

/* Run PyTorch in its own processes, after Banyan's. It prints what it lacks. If it does not end, or
 * fails, the launcher prints a message, and this run does not fail. */
static void run_torch(int ranks, const char *path)
{
    char script[PATH_MAX], store[PATH_MAX];
    if (!find_part("gpu_torch_symmetric.py", script, sizeof script))
        return;
    setenv("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1", 1);
    char *program[] = {(char *)(uintptr_t)python_name(), script, (char *)(uintptr_t)path, NULL};
    launch_job job = {.who = "banyan bench: PyTorch",
                      .count = ranks,
                      .program = program,
                      .timeout_s = TORCH_SECONDS};
    launch_run(&job);
    if ((size_t)snprintf(store, sizeof store, "%s.store", path) < sizeof store)
        unlink(store);
}

static int run_on_gpus(const option_table *table, int ranks, char **rest, int count)
{
    char path[PATH_MAX];
    bench_figures file = {0};
    if (!find_part("gpu_bench", path, sizeof path))
        return options_refuse(
            table,
            "there is no %s: `make build` makes it where nvcc is, `make install` installs it",
            path);
    char **program = calloc((size_t)count + 4, sizeof *program);
    if (!program || !figures_open(&file, rest, count)) {
        free(program);
        return options_refuse(table, "no file for its figures: %s", strerror(errno));
    }
    program[0] = path;
    program[1] = (char *)(uintptr_t) "--json";
    program[2] = (char *)(uintptr_t)file.path;
    memcpy(program + 3, rest, (size_t)count * sizeof *program);
    launch_job job = {.who = "banyan bench", .count = ranks, .program = program};
    int code = launch_run(&job);
    if (code == 0)
        run_torch(ranks, file.path);
    if (file.own[0])
        unlink(file.own);
    free(program);
    return code;
}

int bench_command(int argc, char **argv)
{
    bool gpu = false;
    int ranks = 4;
    const option_entry entries[] = {
        {"gpu", '\0', OPTION_FLAG, &gpu, NULL, "measure transfers between GPUs", 0, 0},
        {"ranks", 'n', OPTION_COUNT, &ranks, "N",
         "number of ranks; they share GPUs if there are fewer (4)", 1, 8},
    };
    const option_table table = {
        "banyan bench", "--gpu [-n N] [-- [--size 1K:1G] [--json FILE] [--way WAY] [WHAT …]]",
        "Measure transfers, and print every figure beside the machine's limit and a peer's\n"
        "figure from the same run, on this machine. For processes of the host, use make\n"
        "bench; for several machines, banyan run, tune and mixed under a launcher. WHAT is\n"
        "allreduce, allgather, reducescatter, alltoall, fixed, copies, casts, kernels, many,\n"
        "memory, reshard or mixed (all); kernels also with one rank. WAY, for copies, is\n"
        "direct, nccl, pipeline/peer or pipeline/nvshmem (all).\n",
        entries, sizeof(entries) / sizeof(entries[0])};
    int rest;
    options_result result = options_parse(&table, argc, argv, &rest);
    if (result != OPTIONS_OK)
        return options_exit_code(result);
    if (!gpu)
        return options_refuse(&table, "say what to measure: --gpu");
    return run_on_gpus(&table, ranks, argv + rest, argc - rest);
}
