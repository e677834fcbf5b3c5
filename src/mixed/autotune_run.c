/* Measuring: every valid mode of every valid operation, size by size. */
#include <stdlib.h>
#include <string.h>

#include "core/deadline.h"
#include "core/error.h"
#include "core/log.h"
#include "memory/device.h"
#include "mixed/autotune.h"
#include "mixed/grid.h"
#include "mixed/modes.h"
#include "mixed/through_collectives.h"
#include "world/control.h"

#define LEAST_BYTES (UINT64_C(1) << 10)
/* No larger size begins after so long with an operation. */
#define GPU_OP_NS (2 * NS_PER_S)
#define HOST_OP_NS (NS_PER_S / 2)
#define HOPELESS 4 /* times as slow as the best; the mode is not tried for more bytes */

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

/* One size in all modes that are still worth it, `alive`. */
static banyan_status measure_size(const struct trial *trial, uint64_t bytes, bool *alive,
                                  timings *made)
{
    size_t begin = made->count;
    uint64_t best = UINT64_MAX;
    for (int mode = BANYAN_MIXED_AUTO + 1; mode < BANYAN_MIXED_MODES; mode++) {
        uint64_t ns;
        if (!alive[mode])
            continue;
        RETURN_IF_FAILED(measure(trial, bytes, (banyan_mixed_mode)mode, &ns));
        if (!array_push(
                made, (banyan_mixed_timing){trial->op, bytes, (banyan_mixed_mode)mode, ns, false}))
            return BANYAN_ERR_NO_MEMORY;
        best = ns < best ? ns : best;
    }
    for (size_t i = begin; i < made->count; i++)
        alive[made->data[i].mode] = made->data[i].ns / HOPELESS < best;
    return BANYAN_OK;
}

/* Whether there is time for more is rank 0's to say, since all must agree. */
static banyan_status has_time(banyan_world *world, uint64_t end_ns, bool *has)
{
    uint64_t left = banyan_world_rank(world) == 0 && time_now_ns() < end_ns;
    RETURN_IF_FAILED(control_max(world, left, &left));
    *has = left;
    return BANYAN_OK;
}

static banyan_status measure_op(const struct trial *trial, timings *made)
{
    banyan_mixed *mixed = trial->mixed;
    bool alive[BANYAN_MIXED_MODES] = {false}, more = true;
    char reason[MODE_REASON_BYTES];
    for (int mode = BANYAN_MIXED_AUTO + 1; mode < BANYAN_MIXED_MODES; mode++)
        alive[mode] =
            mode_is_valid(mixed, trial->op, (banyan_mixed_mode)mode, reason, sizeof reason);
    uint64_t end_ns = time_now_ns() + (mixed_is_host(mixed) ? HOST_OP_NS : GPU_OP_NS);
    for (uint64_t bytes = LEAST_BYTES; bytes <= mixed->setup.max_bytes && more; bytes *= 2) {
        RETURN_IF_FAILED(measure_size(trial, bytes, alive, made));
        RETURN_IF_FAILED(has_time(mixed->world, end_ns, &more));
    }
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
    if (!mixed || !mixed->has_memory)
        return error_set(BANYAN_ERR_INVALID, "mixed collectives are tuned before their memory is "
                                             "there (banyan_mixed_init_virtual_memory)");
    RETURN_IF_FAILED(mixed_check_awake(mixed));
    CONTROL_CALL(mixed->world, __func__);
    DLDevice device = mixed->setup.device;
    size_t bytes = mixed->setup.max_bytes * (uint64_t)mixed->setup.grid.dp;
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
