/* Times calls in batches, which alternate with those of other calls, so that temporary load slows
 * all of them: one call, or every valid mode of every valid operation, size by size. */
#include <inttypes.h>
#include <stdio.h>

#include "core/deadline.h"
#include "core/error.h"
#include "memory/device.h"
#include "mixed/grid.h"
#include "mixed/modes.h"
#include "mixed/through_collectives.h"
#include "mixed/tuning/autotune.h"
#include "world/control.h"

/* The fastest of several batches counts. On the host, other load only adds time, and short batches
 * often avoid it. A device repeats a batch and takes the median; but a graph of short calls may be
 * slower than another graph of equal calls, by a tenth, in every repetition. */
#define BATCH_NS 500000 /* approximate duration of a batch */
#define TIMES_MOST 40   /* calls in a batch */
#define BATCHES_LEAST 5
#define BATCHES_MOST 10
#define ALL_NS 10000000 /* duration of all batches, unless the least number takes longer */
#define GRAPHS_MOST 3   /* batches on a device, for calls shorter than GRAPHS_NS */
#define GRAPHS_NS 20000

/* The caller sets the first fields; the tensors must remain valid. */
typedef struct measurement {
    banyan_mixed *mixed;
    banyan_mixed_op op;
    banyan_mixed_mode mode;
    const DLTensor *input, *output;
    uint32_t times;    /* calls in a batch */
    int batches;       /* batches that are worth their time */
    uint64_t least_ns; /* per call, on the slowest rank, in the fastest batch so far */
} measurement;

static banyan_status tuning_measure_queue(void *context, void *stream)
{
    const measurement *of = context;
    return banyan_mixed_run(of->mixed, of->op, of->input, of->output, of->mode, stream);
}

/* Time calls that are complete when they return. */
static banyan_status measure_here(measurement *of, uint32_t times, uint64_t *ns)
{
    RETURN_IF_FAILED(tuning_measure_queue(of, NULL));
    uint64_t began_ns = time_now_ns();
    for (uint32_t i = 0; i < times; i++)
        RETURN_IF_FAILED(tuning_measure_queue(of, NULL));
    *ns = (time_now_ns() - began_ns) / times;
    return BANYAN_OK;
}

/* The time of the slowest rank. */
static banyan_status time_batch(measurement *of, uint32_t times, uint64_t *ns)
{
    banyan_mixed *mixed = of->mixed;
    uint64_t mine = 0;
    banyan_status status =
        mixed->ops->measure
            ? mixed->ops->measure(mixed->engine, tuning_measure_queue, of, times, &mine)
            : measure_here(of, times, &mine);
    RETURN_IF_FAILED(control_agree(mixed->world, status));
    return control_max(mixed->world, mine, ns);
}

static uint64_t tuning_measure_between(uint64_t number, uint64_t least, uint64_t most)
{
    return number < least ? least : number > most ? most : number;
}

/* Record a batch; no call takes 0 ns. */
static void take_time(measurement *of, uint64_t ns)
{
    of->least_ns = tuning_measure_between(ns, 1, of->least_ns);
    of->times = (uint32_t)tuning_measure_between(BATCH_NS / of->least_ns, 1, TIMES_MOST);
}

static int batches_for(const measurement *of)
{
    if (of->mixed->ops->measure)
        return of->least_ns < GRAPHS_NS ? GRAPHS_MOST : 1;
    return (int)tuning_measure_between(ALL_NS / ((of->times + 1) * of->least_ns), BATCHES_LEAST,
                                       BATCHES_MOST);
}

static banyan_status measure_batch(measurement *of)
{
    uint64_t ns;
    RETURN_IF_FAILED(time_batch(of, of->times, &ns));
    take_time(of, ns);
    return BANYAN_OK;
}

/* Check the call, open everything it needs, and determine the number of calls in a batch.
 * Collective. */
static banyan_status measure_begin(measurement *of)
{
    banyan_mixed *mixed = of->mixed;
    mixed_call checked;
    RETURN_IF_FAILED(control_agree(
        mixed->world, mixed_check_call(mixed, of->op, of->input, of->output, of->mode, &checked)));
    if (mode_is_nccl(of->mode)) /* nothing can be opened during a capture */
        RETURN_IF_FAILED(collectives_start_nccl(mixed, of->mode));
    /* The first calls open and load things and find peers asleep, so a second batch measures the
     * time. */
    of->times = 1;
    of->least_ns = UINT64_MAX;
    for (int i = 0; i < (mixed->ops->measure ? 1 : 2); i++)
        RETURN_IF_FAILED(measure_batch(of));
    of->batches = batches_for(of);
    of->least_ns = UINT64_MAX;
    return BANYAN_OK;
}

banyan_status banyan_mixed_measure(banyan_mixed *mixed, banyan_mixed_op op, const DLTensor *input,
                                   const DLTensor *output, banyan_mixed_mode mode, uint64_t *ns)
{
    RETURN_IF_NULL(mixed);
    if (!mixed->has_memory)
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d: a mixed collective is measured before its memory is allocated "
                         "(banyan_mixed_init_virtual_memory)",
                         mixed->rank);
    RETURN_IF_FAILED(mixed_check_awake(mixed));
    CONTROL_CALL_WITHIN(mixed->world, __func__, mixed->timeout);
    measurement of = {.mixed = mixed, .op = op, .mode = mode, .input = input, .output = output};
    banyan_status status = control_enter(mixed->world);
    if (status == BANYAN_OK)
        status = control_agree(mixed->world, ns ? BANYAN_OK : error_null(__func__, "ns"));
    if (status == BANYAN_OK)
        status = measure_begin(&of);
    for (int i = 0; i < of.batches && status == BANYAN_OK; i++)
        status = measure_batch(&of);
    if (status != BANYAN_OK)
        return mixed_stop_groups(mixed, status);
    *ns = of.least_ns;
    return BANYAN_OK;
}

#define LEAST_BYTES (UINT64_C(1) << 10)
/* On the host, longer messages take long, and the order of the modes does not change. */
#define HOST_MOST_BYTES (UINT64_C(4) << 20)

/* Value of every byte: an ordinary number in every type. */
#define FILLING 0x3c

/* The current measurement. */
struct tuning_trial {
    banyan_mixed *mixed;
    banyan_mixed_op op;
    void *input, *output;
    int sizes, all_sizes; /* measured so far, and of all operations */
};

typedef ARRAY(banyan_mixed_timing) timings;

/* The tensors of one size, and the measurements with them, one for each valid mode. */
struct size_trial {
    int64_t in[2], out[2];
    DLTensor input, output;
    measurement of[BANYAN_MIXED_MODES];
    int count;
};

/* Make tensors of b rows with `bytes` in total. */
static void tuning_make_tensors(const struct tuning_trial *trial, uint64_t bytes,
                                struct size_trial *size)
{
    const mixed_engine_setup *setup = &trial->mixed->setup;
    int64_t elems = (int64_t)(bytes / banyan_dtype_bytes(setup->dtype));
    size->in[0] = (int64_t)mixed_input_elems(trial->op, 1, setup->grid.dp);
    size->out[0] = (int64_t)mixed_output_elems(trial->op, 1, setup->grid.dp);
    size->in[1] = size->out[1] = elems;
    size->input = (DLTensor){.data = trial->input,
                             .device = setup->device,
                             .ndim = 2,
                             .dtype = setup->dtype,
                             .shape = size->in};
    size->output = size->input;
    size->output.data = trial->output;
    size->output.shape = size->out;
}

static banyan_status begin_modes(const struct tuning_trial *trial, struct size_trial *size)
{
    char reason[MODE_REASON_BYTES];
    size->count = 0;
    for (int mode = BANYAN_MIXED_AUTO + 1; mode < BANYAN_MIXED_MODES; mode++) {
        if (!mode_is_valid(trial->mixed, trial->op, (banyan_mixed_mode)mode, reason, sizeof reason))
            continue;
        measurement *of = &size->of[size->count++];
        *of = (measurement){.mixed = trial->mixed,
                            .op = trial->op,
                            .mode = (banyan_mixed_mode)mode,
                            .input = &size->input,
                            .output = &size->output};
        RETURN_IF_FAILED(measure_begin(of));
    }
    return BANYAN_OK;
}

static banyan_status keep_times(const struct size_trial *size, uint64_t bytes, timings *made)
{
    for (int i = 0; i < size->count; i++) {
        const measurement *of = &size->of[i];
        if (!array_push(made, (banyan_mixed_timing){of->op, bytes, of->mode, of->least_ns, false}))
            return BANYAN_ERR_NO_MEMORY;
    }
    return BANYAN_OK;
}

static int most_batches(const struct size_trial *size)
{
    int most = 0;
    for (int i = 0; i < size->count; i++)
        most = size->of[i].batches > most ? size->of[i].batches : most;
    return most;
}

static void report_progress(struct tuning_trial *trial, uint64_t bytes)
{
    const banyan_mixed_options *options = &trial->mixed->options;
    char what[80];
    if (options->progress && trial->mixed->rank == 0) {
        snprintf(what, sizeof what, "%s of %" PRIu64 " bytes", banyan_mixed_op_name(trial->op),
                 bytes);
        options->progress(options->context, what, (double)trial->sizes / trial->all_sizes);
    }
    trial->sizes++;
}

/* Measure one size in all modes, in turn. */
static banyan_status measure_size(struct tuning_trial *trial, uint64_t bytes, timings *made)
{
    struct size_trial size;
    report_progress(trial, bytes);
    tuning_make_tensors(trial, bytes, &size);
    RETURN_IF_FAILED(begin_modes(trial, &size));
    int batches = most_batches(&size);
    for (int batch = 0; batch < batches; batch++) {
        for (int i = 0; i < size.count; i++) {
            if (batch < size.of[i].batches)
                RETURN_IF_FAILED(measure_batch(&size.of[i]));
        }
    }
    return control_agree(trial->mixed->world, keep_times(&size, bytes, made));
}

static uint64_t most_bytes(const banyan_mixed *mixed)
{
    uint64_t most = mixed->setup.max_bytes;
    return mixed_is_host(mixed) && most > HOST_MOST_BYTES ? HOST_MOST_BYTES : most;
}

static banyan_status measure_op(struct tuning_trial *trial, timings *made)
{
    uint64_t most = most_bytes(trial->mixed);
    for (uint64_t bytes = LEAST_BYTES; bytes <= most; bytes *= 2)
        RETURN_IF_FAILED(measure_size(trial, bytes, made));
    return BANYAN_OK;
}

static int tuning_count_sizes(const banyan_mixed *mixed)
{
    int count = 0;
    for (int op = 0; op < BANYAN_MIXED_OPS; op++)
        for (uint64_t bytes = LEAST_BYTES; bytes <= most_bytes(mixed); bytes *= 2)
            count += grid_allows(&mixed->setup.grid, (banyan_mixed_op)op);
    return count;
}

/* If NCCL is present but does not start, its modes become invalid, and the other modes are
 * measured. */
static banyan_status try_nccl(banyan_mixed *mixed)
{
    const banyan_mixed_grid *grid = &mixed->setup.grid;
    banyan_status status = BANYAN_OK;
    if (mixed->has_nccl)
        status = collectives_start_nccl(mixed, BANYAN_MIXED_SINGLE_NCCL);
    if (mixed->has_nccl && grid->tp > 1 && grid->dp > 1)
        status = collectives_start_nccl(mixed, BANYAN_MIXED_SEPARATE_NCCL);
    return status == BANYAN_OK ? BANYAN_OK : control_check(mixed->setup.worlds[MIXED_WORLD]);
}

static banyan_status tuning_measure_all(struct tuning_trial *trial)
{
    timings made = {0};
    banyan_status status = try_nccl(trial->mixed);
    for (int op = 0; op < BANYAN_MIXED_OPS && status == BANYAN_OK; op++) {
        trial->op = (banyan_mixed_op)op;
        if (grid_allows(&trial->mixed->setup.grid, trial->op))
            status = measure_op(trial, &made);
    }
    status = control_agree(trial->mixed->world, status);
    if (status == BANYAN_OK)
        status = autotune_take(trial->mixed, made.data, made.count);
    array_free(&made);
    return status;
}

banyan_status banyan_mixed_run_autotune(banyan_mixed *mixed)
{
    RETURN_IF_NULL(mixed);
    if (!mixed->has_memory)
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d: mixed collectives are tuned before their memory is allocated "
                         "(banyan_mixed_init_virtual_memory)",
                         mixed->rank);
    RETURN_IF_FAILED(mixed_check_awake(mixed));
    CONTROL_CALL_WITHIN(mixed->world, __func__, mixed->timeout);
    DLDevice device = mixed->setup.device;
    size_t bytes = most_bytes(mixed) * (uint64_t)mixed->setup.grid.dp;
    struct tuning_trial trial = {.mixed = mixed, .all_sizes = tuning_count_sizes(mixed)};
    banyan_status status = control_enter(mixed->world);
    if (status != BANYAN_OK)
        return mixed_stop_groups(mixed, status);
    status = memory_device_buffer(device, bytes, FILLING, &trial.input);
    if (status == BANYAN_OK)
        status = memory_device_buffer(device, bytes, FILLING, &trial.output);
    status = control_agree(mixed->world, status);
    if (status == BANYAN_OK)
        status = tuning_measure_all(&trial);
    memory_device_buffer_free(device, trial.output);
    memory_device_buffer_free(device, trial.input);
    return status == BANYAN_OK ? BANYAN_OK : mixed_stop_groups(mixed, status);
}
