/* Measuring: every valid mode of every valid operation, size by size. */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/log.h"
#include "memory/device.h"
#include "mixed/autotune.h"
#include "mixed/grid.h"
#include "mixed/modes.h"
#include "mixed/through_collectives.h"
#include "world/control.h"

#define LEAST_BYTES (UINT64_C(1) << 10)
/* On the host longer messages take their time, and the modes keep their order. */
#define HOST_MOST_BYTES (UINT64_C(4) << 20)

/* What is measured now. */
struct trial {
    banyan_mixed *mixed;
    banyan_mixed_op op;
    void *input, *output;
};

/* With b rows of `bytes` in all. */
static banyan_status measure(const struct trial *trial, uint64_t bytes, banyan_mixed_mode mode,
                             uint64_t *ns)
{
    const mixed_engine_setup *setup = &trial->mixed->setup;
    uint64_t elems = bytes / banyan_dtype_bytes(setup->dtype);
    int dp = setup->grid.dp;
    int64_t in[] = {(int64_t)mixed_input_elems(trial->op, 1, dp), (int64_t)elems};
    int64_t out[] = {(int64_t)mixed_output_elems(trial->op, 1, dp), (int64_t)elems};
    DLTensor input = {.data = trial->input,
                      .device = setup->device,
                      .ndim = 2,
                      .dtype = setup->dtype,
                      .shape = in};
    DLTensor output = input;
    output.data = trial->output;
    output.shape = out;
    return banyan_mixed_measure(trial->mixed, trial->op, &input, &output, mode, ns);
}

/* ---- sizes ---- */

typedef ARRAY(banyan_mixed_timing) timings;

/* One size in all modes. */
static banyan_status measure_size(const struct trial *trial, uint64_t bytes, timings *made)
{
    char reason[MODE_REASON_BYTES];
    for (int mode = BANYAN_MIXED_AUTO + 1; mode < BANYAN_MIXED_MODES; mode++) {
        uint64_t ns;
        if (!mode_is_valid(trial->mixed, trial->op, (banyan_mixed_mode)mode, reason, sizeof reason))
            continue;
        RETURN_IF_FAILED(measure(trial, bytes, (banyan_mixed_mode)mode, &ns));
        bool kept = array_push(
            made, (banyan_mixed_timing){trial->op, bytes, (banyan_mixed_mode)mode, ns, false});
        RETURN_IF_FAILED(
            control_agree(trial->mixed->world, kept ? BANYAN_OK : BANYAN_ERR_NO_MEMORY));
    }
    return BANYAN_OK;
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

/* A library that is there and does not start has no valid modes; the others are measured. */
static banyan_status try_nccl(banyan_mixed *mixed)
{
    if (!mixed->has_nccl)
        return BANYAN_OK;
    banyan_status status = collectives_open_nccl(mixed);
    if (status == BANYAN_OK)
        return BANYAN_OK;
    RETURN_IF_FAILED(control_check(mixed->setup.worlds[MIXED_WORLD]));
    log_info("mixed collectives do without NCCL: %s", banyan_last_error());
    mixed->has_nccl = false;
    return BANYAN_OK;
}

static banyan_status measure_all(struct trial *trial)
{
    timings made = {0};
    banyan_status status = try_nccl(trial->mixed);
    for (int op = 0; op < BANYAN_MIXED_OPS && status == BANYAN_OK; op++) {
        trial->op = (banyan_mixed_op)op;
        if (grid_allows(&trial->mixed->setup.grid, trial->op))
            status = measure_op(trial, &made);
    }
    if (status == BANYAN_OK)
        status = autotune_take(trial->mixed, made.data, made.count);
    array_free(&made);
    return control_agree(trial->mixed->world, status);
}

/* ---- buffers ---- */

static banyan_status buffer_alloc(DLDevice device, size_t bytes, void **buffer)
{
    const memory_device_ops *ops;
    if (device_is_host(device)) {
        *buffer = calloc(1, bytes);
        return *buffer ? BANYAN_OK : error_no_memory(bytes, "what autotuning runs with");
    }
    RETURN_IF_FAILED(memory_device_find(device.device_type, &ops));
    RETURN_IF_FAILED(ops->alloc(device.device_id, bytes, buffer));
    return ops->fill(*buffer, 0, bytes);
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
    CONTROL_CALL(mixed->world, __func__);
    DLDevice device = mixed->setup.device;
    size_t bytes = most_bytes(mixed) * (uint64_t)mixed->setup.grid.dp;
    struct trial trial = {.mixed = mixed};
    banyan_status status = buffer_alloc(device, bytes, &trial.input);
    if (status == BANYAN_OK)
        status = buffer_alloc(device, bytes, &trial.output);
    status = control_agree(mixed->world, status);
    if (status == BANYAN_OK)
        status = measure_all(&trial);
    buffer_free(device, trial.output);
    buffer_free(device, trial.input);
    return status;
}
