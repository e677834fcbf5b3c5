/* Measures every valid mode of every valid operation, size by size. */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "memory/device.h"
#include "mixed/grid.h"
#include "mixed/modes.h"
#include "mixed/through_collectives.h"
#include "mixed/tuning/autotune.h"
#include "mixed/tuning/measure.h"
#include "world/control.h"

#define LEAST_BYTES (UINT64_C(1) << 10)
/* On the host, longer messages take long, and the order of the modes does not change. */
#define HOST_MOST_BYTES (UINT64_C(4) << 20)

/* Value of every byte: an ordinary number in every type. Writing it allocates the pages. */
#define FILLING 0x3c

/* The current measurement. */
struct trial {
    banyan_mixed *mixed;
    banyan_mixed_op op;
    void *input, *output;
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
static void tuning_run_make_tensors(const struct trial *trial, uint64_t bytes,
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

static banyan_status begin_modes(const struct trial *trial, struct size_trial *size)
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

/* Measure one size in all modes, in turn. */
static banyan_status measure_size(const struct trial *trial, uint64_t bytes, timings *made)
{
    struct size_trial size;
    tuning_run_make_tensors(trial, bytes, &size);
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

static banyan_status measure_op(const struct trial *trial, timings *made)
{
    uint64_t most = most_bytes(trial->mixed);
    for (uint64_t bytes = LEAST_BYTES; bytes <= most; bytes *= 2)
        RETURN_IF_FAILED(measure_size(trial, bytes, made));
    return BANYAN_OK;
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

static banyan_status tuning_run_measure_all(struct trial *trial)
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

static banyan_status buffer_alloc(DLDevice device, size_t bytes, void **buffer)
{
    const memory_device_ops *ops;
    if (device_is_host(device)) {
        *buffer = malloc(bytes);
        if (!*buffer)
            return error_no_memory(bytes, "what autotuning runs with");
        memset(*buffer, FILLING, bytes);
        return BANYAN_OK;
    }
    RETURN_IF_FAILED(memory_device_find(device.device_type, &ops));
    RETURN_IF_FAILED(ops->alloc(device.device_id, bytes, buffer));
    return ops->fill(*buffer, FILLING, bytes);
}

static void buffer_free(DLDevice device, void *buffer)
{
    const memory_device_ops *ops;
    if (device_is_host(device))
        free(buffer);
    else if (buffer && memory_device_find(device.device_type, &ops) == BANYAN_OK)
        ops->free(device.device_id, buffer);
}

banyan_status banyan_mixed_run_autotune(banyan_mixed *mixed)
{
    RETURN_IF_NULL(mixed);
    if (!mixed->has_memory)
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d: mixed collectives are tuned before their memory is there "
                         "(banyan_mixed_init_virtual_memory)",
                         mixed->rank);
    RETURN_IF_FAILED(mixed_check_awake(mixed));
    CONTROL_CALL_WITHIN(mixed->world, __func__, mixed->timeout);
    DLDevice device = mixed->setup.device;
    size_t bytes = most_bytes(mixed) * (uint64_t)mixed->setup.grid.dp;
    struct trial trial = {.mixed = mixed};
    banyan_status status = control_enter(mixed->world);
    if (status != BANYAN_OK)
        return mixed_stop_groups(mixed, status);
    status = buffer_alloc(device, bytes, &trial.input);
    if (status == BANYAN_OK)
        status = buffer_alloc(device, bytes, &trial.output);
    status = control_agree(mixed->world, status);
    if (status == BANYAN_OK)
        status = tuning_run_measure_all(&trial);
    buffer_free(device, trial.output);
    buffer_free(device, trial.input);
    return status == BANYAN_OK ? BANYAN_OK : mixed_stop_groups(mixed, status);
}
