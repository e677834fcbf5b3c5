#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "launch/gpus.h"
#include "run/measure.h"
#include "run/run_job.h"

/* Without --iters a size runs for about this time, within these numbers of runs. */
#define TIME_SECONDS 0.05
/* Minimum length of a round: its ranks do not begin at quite the same time. */
#define ROUND_SECONDS 0.002
#define ITERS_FIRST 3
#define ITERS_MOST 2000
/* Rounds within this factor of the fastest, and how many of them confirm it. */
#define CLOSE 1.04
#define CLOSE_ROUNDS 4

/* Contents of an output before a checked run; each turn has another value, since one might be right
 * by chance. */
static const int poisons[RUN_TURNS] = {0xa5, 0x5a};

/* A rank's result for its output. */
struct run_found {
    run_wrong wrong;
    uint64_t checked;
};

struct rank_run {
    const run_job *job;
    int rank, ranks;
    banyan_world *world;
    banyan_executor *executor;
    DLDevice device;
    banyan_memory *memories[2]; /* of input and output; the first of both in place */
    char *ordinary[2];          /* on the host; on GPUs, images of device memory */
    char *input, *output;       /* where the longest message's begin */
    banyan_loaded_plan *loaded;
    struct run_found *all_found; /* of every rank */
    double *all_seconds;
};

static banyan_status run_rank_take_ordinary(struct rank_run *run, int which, uint64_t bytes)
{
    run->ordinary[which] = aligned_alloc(4096, (size_t)(bytes / 4096 + 1) * 4096);
    return run->ordinary[which]
               ? BANYAN_OK
               : banyan_error_set(BANYAN_ERR_NO_MEMORY, "rank %d: out of memory for %llu bytes",
                                  run->rank, (unsigned long long)bytes);
}

/* On GPUs, ordinary memory is memory that is not announced to the plan. */
static banyan_status run_rank_take_memory(struct rank_run *run, int which, uint64_t bytes,
                                          char **start)
{
    bool on_gpus = run->job->on_gpus;
    if (on_gpus || run->job->ordinary_memory)
        RETURN_IF_FAILED(run_rank_take_ordinary(run, which, bytes));
    *start = run->ordinary[which];
    if (!on_gpus && run->job->ordinary_memory)
        return BANYAN_OK;
    RETURN_IF_FAILED(
        banyan_memory_alloc_on(run->world, run->device, (size_t)bytes, &run->memories[which]));
    *start = banyan_memory_local(run->memories[which]);
    return BANYAN_OK;
}

static banyan_status run_rank_take_buffers(struct rank_run *run)
{
    const run_job *job = run->job;
    uint64_t longest = job->sizes[job->size_count - 1].bytes;
    RETURN_IF_FAILED(run_rank_take_memory(run, 0, longest, &run->input));
    run->output = run->input;
    if (!job->in_place)
        RETURN_IF_FAILED(run_rank_take_memory(run, 1, longest, &run->output));
    return BANYAN_OK;
}

/* A size's input and output: in place the shorter is the rank's block of the longer. */
struct buffers {
    char *input, *output;
    uint64_t input_bytes, output_bytes;
};

static banyan_status find_buffers(const struct rank_run *run, const run_size *size,
                                  struct buffers *found)
{
    const run_job *job = run->job;
    *found = (struct buffers){.input = run->input, .output = run->output};
    RETURN_IF_FAILED(banyan_plan_sizes(job->plan, run->rank, size->message_bytes,
                                       &found->input_bytes, &found->output_bytes));
    if (job->in_place && job->info.collective == BANYAN_ALLGATHER)
        found->input += (uint64_t)run->rank * found->input_bytes;
    if (job->in_place && job->info.collective == BANYAN_REDUCESCATTER)
        found->output += (uint64_t)run->rank * found->output_bytes;
    return BANYAN_OK;
}

static banyan_status run_rank_load(struct rank_run *run)
{
    const run_job *job = run->job;
    banyan_executor_options how = BANYAN_EXECUTOR_OPTIONS_INIT;
    how.workers = job->workers;
    how.device = run->device;
    how.shuffle_seed = (uint64_t)job->shuffle;
    RETURN_IF_FAILED(banyan_executor_open(run->world, &how, &run->executor));
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    options.max_message_bytes = job->sizes[job->size_count - 1].message_bytes;
    if (!job->ordinary_memory) {
        options.input = run->memories[0];
        options.output = run->memories[job->in_place ? 0 : 1];
    }
    return banyan_loaded_plan_open(run->executor, job->plan, &options, &run->loaded);
}

static banyan_status run_rank_prepare(struct rank_run *run)
{
    RETURN_IF_FAILED(banyan_world_open(NULL, &run->world));
    run->ranks = banyan_world_size(run->world);
    if (run->job->on_gpus)
        RETURN_IF_FAILED(gpus_choose("banyan run", run->world, &run->device));
    run->all_found = calloc((size_t)run->ranks, sizeof *run->all_found);
    run->all_seconds = calloc((size_t)run->ranks, sizeof *run->all_seconds);
    if (!run->all_found || !run->all_seconds)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory for %d ranks", run->ranks);
    RETURN_IF_FAILED(run_rank_take_buffers(run));
    /* Threads that serve this one start on its processor at that time, while the plan is loaded. */
    int local_rank = banyan_world_local_rank(run->world);
    int local_size = banyan_world_local_size(run->world);
    bool elsewhere = bound_leaves_room(local_size);
    if (run->job->bound && !elsewhere)
        bound_to_processor(local_rank, local_size);
    RETURN_IF_FAILED(run_rank_load(run));
    if (run->job->bound && elsewhere)
        bound_to_processor(local_rank, local_size);
    return BANYAN_OK;
}

static banyan_status run_once(const struct rank_run *run, const run_size *size,
                              const struct buffers *with)
{
    RETURN_IF_FAILED(banyan_loaded_plan_run(run->loaded, with->input, with->output,
                                            size->message_bytes, run->job->data.dtype, NULL));
    return banyan_loaded_plan_wait(run->loaded);
}

/* Return where the host reads, or prepares, a buffer's contents. */
static char *image_of(const struct rank_run *run, const char *at)
{
    if (!run->job->on_gpus)
        return (char *)at;
    bool in_input = run->job->in_place ||
                    (at >= run->input && at < run->input + banyan_memory_bytes(run->memories[0]));
    return in_input ? run->ordinary[0] + (at - run->input) : run->ordinary[1] + (at - run->output);
}

static banyan_status run_rank_bring(const struct rank_run *run, char *to, uint64_t bytes)
{
    return run->job->on_gpus ? banyan_memory_copy(to, image_of(run, to), (size_t)bytes) : BANYAN_OK;
}

/* Fill the buffers; in place, only memory outside the input stays poisoned. */
static banyan_status run_rank_fill(const struct rank_run *run, const struct buffers *with,
                                   unsigned turn)
{
    const run_data *data = &run->job->data;
    if (with->output_bytes > 0)
        memset(image_of(run, with->output), poisons[turn], with->output_bytes);
    RETURN_IF_FAILED(run_rank_bring(run, with->output, with->output_bytes));
    run_data_fill(data, run->rank, turn, image_of(run, with->input),
                  with->input_bytes / data->elem_bytes);
    return run_rank_bring(run, with->input, with->input_bytes);
}

static banyan_status run_rank_compare(const struct rank_run *run, const run_size *size,
                                      const struct buffers *with, unsigned turn,
                                      struct run_found *found)
{
    banyan_plan_result *parts;
    size_t count;
    banyan_reduce_op op;
    char *output = image_of(run, with->output);
    if (run->job->on_gpus)
        RETURN_IF_FAILED(banyan_memory_copy(output, with->output, (size_t)with->output_bytes));
    RETURN_IF_FAILED(
        banyan_plan_expected(run->job->plan, run->rank, size->message_bytes, &parts, &count, &op));
    run_data_check(&run->job->data, turn, parts, count, output, &found->wrong, &found->checked);
    free(parts);
    return BANYAN_OK;
}

/* Gather results; rank 0 notes them for all. */
static banyan_status gather_found(const struct rank_run *run, run_size *size, unsigned turn,
                                  const struct run_found *mine)
{
    RETURN_IF_FAILED(banyan_world_allgather(run->world, mine, sizeof *mine, run->all_found));
    for (int r = 0; r < run->ranks && run->rank == 0; r++) {
        const struct run_found *its = &run->all_found[r];
        if (size->wrong == 0 && its->wrong.count > 0) {
            size->wrong_rank = r;
            size->wrong_turn = turn;
            size->first = its->wrong;
        }
        size->wrong += its->wrong.count;
        size->checked += its->checked;
    }
    return BANYAN_OK;
}

/* Check a turn. No rank touches its buffers while another may still be in a run that reads them. */
static banyan_status check_turn(const struct rank_run *run, run_size *size,
                                const struct buffers *with, unsigned turn)
{
    RETURN_IF_FAILED(banyan_world_barrier(run->world));
    RETURN_IF_FAILED(run_rank_fill(run, with, turn));
    RETURN_IF_FAILED(banyan_world_barrier(run->world));
    RETURN_IF_FAILED(run_once(run, size, with));
    if (!run->job->data.said)
        return BANYAN_OK;
    struct run_found found = {0};
    RETURN_IF_FAILED(run_rank_compare(run, size, with, turn, &found));
    return gather_found(run, size, turn, &found);
}

/* Measure the seconds of a run on the slowest rank, equal on all ranks. */
static banyan_status time_runs(const struct rank_run *run, const run_size *size,
                               const struct buffers *with, int iters, double *seconds)
{
    uint64_t ns;
    RETURN_IF_FAILED(banyan_loaded_plan_time(run->loaded, with->input, with->output,
                                             size->message_bytes, run->job->data.dtype,
                                             (uint32_t)iters, &ns));
    double mine = (double)ns / 1e9 / iters;
    RETURN_IF_FAILED(banyan_world_allgather(run->world, &mine, sizeof mine, run->all_seconds));
    *seconds = 0;
    for (int r = 0; r < run->ranks; r++)
        *seconds = run->all_seconds[r] > *seconds ? run->all_seconds[r] : *seconds;
    return BANYAN_OK;
}

static int iters_for(double seconds, int rounds)
{
    int least = rounds > 1 ? 1 : ITERS_FIRST;
    double round_s = fmax(TIME_SECONDS / rounds, ROUND_SECONDS);
    double fit = seconds > 0 ? round_s / seconds : ITERS_MOST;
    return fit < least ? least : fit > ITERS_MOST ? ITERS_MOST : (int)fit;
}

/* With a limit, rounds also end when the fastest time was repeated several times. */
static bool is_enough(const run_job *job, double spent, int close)
{
    return job->rounds_s > 0 && (spent > job->rounds_s || close >= CLOSE_ROUNDS);
}

static banyan_status time_size(const struct rank_run *run, run_size *size,
                               const struct buffers *with)
{
    const run_job *job = run->job;
    int iters = job->iters > 0 ? job->iters : ITERS_FIRST, close = 0;
    double seconds = INFINITY, fastest = INFINITY, spent = 0;
    if (job->iters == 0)
        RETURN_IF_FAILED(time_runs(run, size, with, iters, &seconds));
    /* All ranks know equal times, so they continue and end together. */
    for (int i = 0; i < job->rounds && !is_enough(job, spent, close); i++) {
        if (job->iters == 0)
            iters = iters_for(fmin(fastest, seconds), job->rounds);
        RETURN_IF_FAILED(time_runs(run, size, with, iters, &seconds));
        close = seconds < fastest / CLOSE ? 1 : close + (seconds < fastest * CLOSE);
        fastest = fmin(fastest, seconds);
        spent += iters * seconds;
    }
    if (run->rank == 0) {
        size->iters = iters;
        size->seconds = fastest;
    }
    return BANYAN_OK;
}

static banyan_status run_size_whole(const struct rank_run *run, run_size *size)
{
    struct buffers with;
    RETURN_IF_FAILED(find_buffers(run, size, &with));
    unsigned turns = run->job->data.said ? RUN_TURNS : 1;
    for (unsigned turn = 0; turn < turns; turn++) {
        RETURN_IF_FAILED(check_turn(run, size, &with, turn));
        if (turn == 0)
            RETURN_IF_FAILED(time_size(run, size, &with));
    }
    if (run->rank == 0 && !run->job->json)
        run_report_size(run->job, size);
    return BANYAN_OK;
}

/* Try all sizes before the first line is printed, to find refusals early. The shortest messages,
 * which run next, are specialized last. */
static banyan_status try_sizes(const struct rank_run *run)
{
    for (size_t i = run->job->size_count; i-- > 0;) {
        const run_size *size = &run->job->sizes[i];
        struct buffers with;
        RETURN_IF_FAILED(find_buffers(run, size, &with));
        RETURN_IF_FAILED(run_once(run, size, &with));
    }
    return BANYAN_OK;
}

/* One more run of each size is recorded. */
static banyan_status run_rank_trace(const struct rank_run *run)
{
    RETURN_IF_FAILED(banyan_executor_trace_begin(run->executor));
    for (size_t i = 0; i < run->job->size_count; i++) {
        const run_size *size = &run->job->sizes[i];
        struct buffers with;
        RETURN_IF_FAILED(find_buffers(run, size, &with));
        RETURN_IF_FAILED(banyan_world_barrier(run->world));
        RETURN_IF_FAILED(run_once(run, size, &with));
    }
    return banyan_executor_trace_write(run->executor, run->job->trace_path);
}

static banyan_status run_rank_run_all(struct rank_run *run)
{
    const run_job *job = run->job;
    RETURN_IF_FAILED(run_rank_prepare(run));
    if (!job->json)
        RETURN_IF_FAILED(try_sizes(run));
    if (run->rank == 0 && !job->json)
        run_report_head(job);
    for (size_t i = 0; i < job->size_count; i++)
        RETURN_IF_FAILED(run_size_whole(run, &job->sizes[i]));
    return job->trace_path ? run_rank_trace(run) : BANYAN_OK;
}

/* Collective. After a failure the process ends without the collective releases. */
static banyan_status close_all(struct rank_run *run)
{
    RETURN_IF_FAILED(banyan_loaded_plan_close(run->loaded));
    banyan_executor_close(run->executor);
    for (int i = 0; i < 2; i++) {
        banyan_memory_free(run->memories[i]);
        free(run->ordinary[i]);
    }
    free(run->all_found);
    free(run->all_seconds);
    return banyan_world_close(run->world);
}

int run_rank(int rank, void *context)
{
    const run_job *job = context;
    struct rank_run run = {.job = job, .rank = rank};
    banyan_status status = run_rank_run_all(&run);
    if (status == BANYAN_OK)
        status = close_all(&run);
    if (status != BANYAN_OK)
        failure_note(job->failed, rank, status);
    return status == BANYAN_OK ? 0 : 1;
}
