#include "cli/commands.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "cli/files.h"
#include "cli/message.h"
#include "cli/options.h"
#include "cli/text.h"
#include "core/status.h"
#include "launch/forked.h"
#include "run/run_job.h"

#define WHO "banyan run"
#define DTYPE_DEFAULT "f32"

struct run_arguments {
    run_job job;
    const char *memory;
    bool apart, no_check;
    uint64_t range[2];
    int step_factor;
};

/* Per rule; banyan check reports all findings. */
#define FINDINGS_MOST 3

static void run_command_print_findings(const banyan_check_report *report, const char *path)
{
    char *text;
    if (banyan_check_report_print(report, path, false, &text) != BANYAN_OK) {
        fprintf(stderr, WHO ": %s\n", banyan_last_error());
        return;
    }
    fprintf(stderr,
            WHO
            ": the plan is not sound, and was not run (banyan check reports more; --no-check runs "
            "it all the same):\n%s",
            text);
    free(text);
}

/* Return false, after printing the findings, when the plan is not sound or cannot be checked. */
static bool run_command_check(const banyan_plan *plan, const char *path)
{
    banyan_check_options options = BANYAN_CHECK_OPTIONS_INIT;
    banyan_check_report *report;
    options.warnings = false;
    options.max_findings = FINDINGS_MOST;
    if (banyan_plan_check(plan, &options, &report) != BANYAN_OK) {
        fprintf(stderr, WHO ": the plan cannot be checked (--no-check runs it all the same): %s\n",
                banyan_last_error());
        return false;
    }
    bool sound = banyan_check_report_is_sound(report);
    if (!sound)
        run_command_print_findings(report, path);
    banyan_check_report_destroy(report);
    return sound;
}

static banyan_status run_command_make_sizes(const struct run_arguments *given, run_job *job)
{
    message fitting[MESSAGES_MOST];
    RETURN_IF_FAILED(message_fit_range(job->plan, job->data.elem_bytes, given->range[0],
                                       given->range[1], given->step_factor, fitting,
                                       &job->size_count));
    for (size_t i = 0; i < job->size_count; i++)
        job->sizes[i] = (run_size){.message_bytes = fitting[i].message_bytes,
                                   .bytes = fitting[i].bytes,
                                   .in_bounds = fitting[i].in_bounds};
    return BANYAN_OK;
}

/* Print wrong elements; returns 1 if there are any. */
static int run_command_print_wrong(const run_job *job)
{
    char text[RUN_WRONG_BYTES];
    for (size_t i = 0; i < job->size_count; i++) {
        if (job->sizes[i].wrong == 0)
            continue;
        fprintf(stderr, WHO ": %s\n", run_report_wrong(job, &job->sizes[i], text));
        return 1;
    }
    return 0;
}

static int run_command_run_ranks(run_job *job)
{
    int code = job_run(WHO, job->info.ranks, run_rank, job, job->failed);
    if (code != 0 || job_place_find().rank > 0)
        return code;
    if (!job->json)
        run_report_end(job);
    else if (run_report_json(job) != BANYAN_OK)
        code = text_fail(WHO);
    return run_command_print_wrong(job) ? 1 : code;
}

static int run_with_failure(const struct run_arguments *given, run_job *job)
{
    size_t bytes = MESSAGES_MOST * sizeof *job->sizes;
    void *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int code = 1;
    job->failed = failure_create();
    if (shared != MAP_FAILED && job->failed) {
        job->sizes = shared;
        code = run_command_make_sizes(given, job) == BANYAN_OK ? run_command_run_ranks(job)
                                                               : text_fail(WHO);
    } else {
        fprintf(stderr, WHO ": out of memory\n");
    }
    failure_destroy(job->failed);
    if (shared != MAP_FAILED)
        munmap(shared, bytes);
    return code;
}

/* Read the plan before any rank starts, so that an error of plan or type is printed once. */
static banyan_status read_plan(run_job *job, banyan_plan **plan)
{
    DLDataType dtype;
    RETURN_IF_FAILED(banyan_dtype_parse(job->dtype_name, &dtype));
    RETURN_IF_FAILED(plan_file_read(job->path, plan));
    RETURN_IF_FAILED(run_data_make(*plan, dtype, &job->data));
    job->plan = *plan;
    job->info = banyan_plan_describe(*plan);
    return BANYAN_OK;
}

static int run_command_run(struct run_arguments *given)
{
    run_job *job = &given->job;
    banyan_plan *plan = NULL;
    int code = 1;
    job->ordinary_memory = given->memory && strcmp(given->memory, "ordinary") == 0;
    if (job->trace_path && !out_file_possible(job->trace_path)) {
        fprintf(stderr, WHO ": cannot write %s: %s\n", job->trace_path, strerror(errno));
        return code;
    }
    if (read_plan(job, &plan) == BANYAN_OK) {
        job->in_place = job->info.in_place && !given->apart;
        if (given->no_check || run_command_check(plan, job->path))
            code = run_with_failure(given, job);
    } else {
        fprintf(stderr, WHO ": %s\n", banyan_last_error());
    }
    banyan_plan_destroy(plan);
    return code;
}

int run_command(int argc, char **argv)
{
    struct run_arguments given = {.job = {.dtype_name = DTYPE_DEFAULT, .workers = 1, .rounds = 1},
                                  .range = {UINT64_C(1) << 10, UINT64_C(64) << 20},
                                  .step_factor = 2};
    run_job *job = &given.job;
    const option_entry entries[] = {
        {"size", 's', OPTION_BYTES_RANGE, given.range, "LOW:HIGH",
         "bytes of the longer of input and output (1K:64M)", 0, 0},
        {"step-factor", '\0', OPTION_COUNT, &given.step_factor, "N",
         "factor from one size to the next (2)", 2, 1 << 20},
        {"dtype", 'd', OPTION_TEXT, &job->dtype_name, "TYPE",
         "f32, f16, bf16, f8_e4m3, f8_e5m2, i32, u32, i64 or u8 (f32)", 0, 0},
        {"iters", '\0', OPTION_COUNT, &job->iters, "N",
         "timed runs of a size in a round (as many as take 50 ms)", 1, 1000000},
        {"rounds", '\0', OPTION_COUNT, &job->rounds, "N",
         "timed rounds of a size; the fastest counts (1)", 1, 1000000},
        {"gpu", '\0', OPTION_FLAG, &job->on_gpus, NULL,
         "run on GPUs; ranks share them if there are fewer", 0, 0},
        {"bind", '\0', OPTION_FLAG, &job->bound, NULL,
         "bind each rank to its own processor, if there are enough", 0, 0},
        {"memory", '\0', OPTION_CHOICE, &given.memory, "symmetric|ordinary",
         "memory of inputs and outputs (symmetric)", 0, 0},
        {"out-of-place", '\0', OPTION_FLAG, &given.apart, NULL,
         "run an in-place plan with separate input and output", 0, 0},
        {"workers", '\0', OPTION_COUNT, &job->workers, "N",
         "threads of a rank that run its thread blocks (1)", 1, 1024},
        {"shuffle", '\0', OPTION_COUNT, &job->shuffle, "SEED",
         "run in a random order that the memory model of plans allows, to test the plan", 1,
         INT_MAX},
        {"trace", '\0', OPTION_FILE, &job->trace_path, "FILE",
         "record one more run of each size, for Perfetto and banyan plan view", 0, 0},
        {"no-check", '\0', OPTION_FLAG, &given.no_check, NULL,
         "run the plan even if banyan check has findings", 0, 0},
        {"json", '\0', OPTION_FLAG, &job->json, NULL, "print one JSON object instead of a table", 0,
         0},
    };
    const option_table table = {
        WHO, "PLAN.json [options]",
        "Check a plan as banyan check does, run it between as many processes of this machine as\n"
        "it has ranks, check every element of every output, and time it. Inputs are values\n"
        "derived from rank and position whose reductions are exact in any order. Two runs are\n"
        "checked, with different data, and outputs are poisoned before each. Exit code 1 if the\n"
        "plan is not sound, or if an element is wrong; the first wrong element is reported. A\n"
        "plan of a custom collective without an expected result is run and timed, but its\n"
        "output is not checked.\n\n"
        "Sizes are rounded down to sizes that the plan can divide into whole elements. A plan\n"
        "also runs outside its message bounds; a ~ marks such sizes. The time is the mean of a\n"
        "run on the slowest rank, in the fastest round. algbw is size / time. busbw is algbw\n"
        "times 2(n-1)/n for all-reduce, and (n-1)/n for all-gather, reduce-scatter and\n"
        "all-to-all, as in nccl-tests. On GPUs, the runs of a round are one CUDA graph, timed\n"
        "by the GPU, and ordinary memory is staged by the plan. Use - as PLAN.json to read\n"
        "stdin.\n",
        entries, sizeof(entries) / sizeof(entries[0])};
    RETURN_UNLESS_PARSED(
        options_parse_one(&table, argc, argv, "which plan: PLAN.json", &job->path));
    if (job->on_gpus && (job->shuffle || job->workers > 1))
        return options_refuse(&table, "%s is for plans on the host",
                              job->shuffle ? "--shuffle" : "--workers");
    return run_command_run(&given);
}
