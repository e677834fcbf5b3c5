/* Runs a call: checks the arguments, with BANYAN_CHECK_CALLS=1 also that all ranks make the same
 * call, chooses the mode, and queues it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/deadline.h"
#include "core/error.h"
#include "mixed/modes.h"
#include "mixed/through_collectives.h"
#include "world/control.h"

/* Limit for buffers, so that sums and small multiples cannot overflow. */
#define BYTES_MAX (UINT64_C(1) << 60)

/* One of the two tensors of a call. */
typedef struct side {
    const banyan_mixed *mixed;
    banyan_mixed_op op;
    const char *name; /* "input" */
    const DLTensor *tensor;
} side;

/* "rank 2: allreduce_allgather's input": the start of a message. */
typedef struct subject {
    char text[96];
} subject;

static subject subject_of(const side *of)
{
    subject made;
    snprintf(made.text, sizeof made.text, "rank %d: %s's %s", of->mixed->rank,
             banyan_mixed_op_name(of->op), of->name);
    return made;
}

static banyan_status check_type(const side *of)
{
    DLDataType dtype = of->tensor->dtype, wanted = of->mixed->setup.dtype;
    if (banyan_dtype_equal(dtype, wanted))
        return BANYAN_OK;
    return error_set(BANYAN_ERR_INVALID,
                     "%s is of %s (code %d, %d bits × %d), and the mixed collectives of %s",
                     subject_of(of).text, banyan_dtype_name(dtype), dtype.code, dtype.bits,
                     dtype.lanes, banyan_dtype_name(wanted));
}

static const char *device_text(DLDevice device, char *text, size_t bytes)
{
    if (device_is_host(device))
        return "the host";
    if (device.device_type == kDLCUDA)
        snprintf(text, bytes, "GPU %d", (int)device.device_id);
    else
        snprintf(text, bytes, "device %d of type %d", (int)device.device_id,
                 (int)device.device_type);
    return text;
}

static bool is_same_device(DLDevice a, DLDevice b)
{
    return (device_is_host(a) && device_is_host(b)) ||
           (a.device_type == b.device_type && a.device_id == b.device_id);
}

/* Page-locked host memory counts as ordinary memory. */
static DLDevice mixed_run_as_host(DLDevice device)
{
    return device.device_type == kDLCUDAHost ? BANYAN_HOST : device;
}

static banyan_status mixed_run_check_device(const side *of)
{
    DLDevice wanted = of->mixed->setup.device, said = mixed_run_as_host(of->tensor->device), lies;
    char there[48], here[48];
    if (!is_same_device(said, wanted))
        return error_set(BANYAN_ERR_INVALID,
                         "%s is said to be on %s, and the mixed collectives "
                         "are on %s (banyan_mixed_options.device)",
                         subject_of(of).text, device_text(said, there, sizeof there),
                         device_text(wanted, here, sizeof here));
    if (!of->tensor->data)
        return error_set(BANYAN_ERR_INVALID, "%s has no data", subject_of(of).text);
    RETURN_IF_FAILED(banyan_memory_locate(of->tensor->data, &lies));
    if (!is_same_device(mixed_run_as_host(lies), wanted))
        return error_set(BANYAN_ERR_INVALID,
                         "%s, at %p, lies on %s, and the mixed collectives are on %s "
                         "(banyan_mixed_options.device)",
                         subject_of(of).text, of->tensor->data,
                         device_text(lies, there, sizeof there),
                         device_text(wanted, here, sizeof here));
    return BANYAN_OK;
}

/* Check that rows are contiguous. The stride of an extent of 1 is ignored. */
static banyan_status check_dense(const side *of)
{
    const DLTensor *tensor = of->tensor;
    int64_t stride = 1;
    for (int i = tensor->ndim; tensor->strides && i-- > 0;) {
        if (tensor->shape[i] != 1 && tensor->strides[i] != stride)
            return error_set(BANYAN_ERR_INVALID,
                             "%s is not dense: dimension %d has stride %" PRId64 " instead of "
                             "%" PRId64,
                             subject_of(of).text, i, tensor->strides[i], stride);
        stride *= tensor->shape[i];
    }
    return BANYAN_OK;
}

static banyan_status mixed_run_check_shape(const side *of, uint64_t *row_elems)
{
    const DLTensor *tensor = of->tensor;
    if (tensor->ndim < 2)
        return error_set(BANYAN_ERR_INVALID,
                         "%s has %d dimensions; it must have two or more, of which the first "
                         "counts rows",
                         subject_of(of).text, tensor->ndim);
    if (!tensor->shape)
        return error_set(BANYAN_ERR_INVALID, "%s has no shape", subject_of(of).text);
    uint64_t elems = 1, bytes = banyan_dtype_bytes(of->mixed->setup.dtype);
    for (int i = 0; i < tensor->ndim; i++) {
        if (tensor->shape[i] < (i == 0 ? 1 : 0))
            return error_set(BANYAN_ERR_INVALID, "%s has extent %" PRId64 " in dimension %d",
                             subject_of(of).text, tensor->shape[i], i);
        if (__builtin_mul_overflow(bytes, (uint64_t)tensor->shape[i], &bytes) || bytes > BYTES_MAX)
            return error_set(BANYAN_ERR_INVALID, "%s has more than 2^60 bytes",
                             subject_of(of).text);
        if (i > 0)
            elems *= (uint64_t)tensor->shape[i];
    }
    *row_elems = elems;
    return BANYAN_OK;
}

static char *start_of(const DLTensor *tensor)
{
    return (char *)tensor->data + tensor->byte_offset;
}

/* Check the alignment to the element's size: a device faults on other addresses. */
static banyan_status check_aligned(const side *of)
{
    size_t elem_bytes = banyan_dtype_bytes(of->mixed->setup.dtype);
    if ((uintptr_t)start_of(of->tensor) % elem_bytes == 0)
        return BANYAN_OK;
    return error_set(BANYAN_ERR_INVALID,
                     "%s begins at %p, which is not a multiple of the %zu bytes of an element",
                     subject_of(of).text, (void *)start_of(of->tensor), elem_bytes);
}

static banyan_status check_side(const side *of, uint64_t *row_elems)
{
    if (!of->tensor)
        return error_set(BANYAN_ERR_INVALID, "%s is NULL", subject_of(of).text);
    RETURN_IF_FAILED(mixed_run_check_shape(of, row_elems));
    RETURN_IF_FAILED(check_type(of));
    if (*row_elems == 0)
        return BANYAN_OK; /* an empty tensor has no address */
    RETURN_IF_FAILED(check_dense(of));
    RETURN_IF_FAILED(mixed_run_check_device(of));
    return check_aligned(of);
}

static banyan_status mixed_run_check_rows(const side *input, const side *output, uint64_t *rows)
{
    int dp = input->mixed->setup.grid.dp;
    uint64_t in = (uint64_t)input->tensor->shape[0];
    if (mixed_input_elems(input->op, 1, dp) > 1 && in % (uint64_t)dp != 0)
        return error_set(BANYAN_ERR_INVALID, "%s has %" PRIu64 " rows, which dp %d does not divide",
                         subject_of(input).text, in, dp);
    uint64_t b = in / mixed_input_elems(input->op, 1, dp), out;
    if (__builtin_mul_overflow(b, mixed_output_elems(input->op, 1, dp), &out))
        return error_set(BANYAN_ERR_INVALID,
                         "%s has %" PRIu64 " rows, whose output for dp %d would have 2^64 or more",
                         subject_of(input).text, in, dp);
    if ((uint64_t)output->tensor->shape[0] != out)
        return error_set(BANYAN_ERR_INVALID,
                         "%s has %" PRId64 " rows; for an input of %" PRIu64 " and dp %d it must "
                         "have %" PRIu64,
                         subject_of(output).text, output->tensor->shape[0], in, dp, out);
    *rows = b;
    return BANYAN_OK;
}

static banyan_status check_equal_shapes(const side *input, const side *output)
{
    const DLTensor *in = input->tensor, *out = output->tensor;
    if (in->ndim != out->ndim)
        return error_set(BANYAN_ERR_INVALID, "%s has %d dimensions, and the input %d",
                         subject_of(output).text, out->ndim, in->ndim);
    for (int i = 1; i < in->ndim; i++) {
        if (in->shape[i] != out->shape[i])
            return error_set(BANYAN_ERR_INVALID,
                             "%s has extent %" PRId64 " in dimension %d, and the input %" PRId64,
                             subject_of(output).text, out->shape[i], i, in->shape[i]);
    }
    return BANYAN_OK;
}

static banyan_status mixed_run_check_overlap(const side *output, const mixed_call *call)
{
    const banyan_mixed *mixed = output->mixed;
    uint64_t elem_bytes = banyan_dtype_bytes(mixed->setup.dtype);
    int dp = mixed->setup.grid.dp;
    uint64_t in_bytes = mixed_input_elems(call->op, call->elems, dp) * elem_bytes;
    uint64_t out_bytes = mixed_output_elems(call->op, call->elems, dp) * elem_bytes;
    const char *in = call->input, *out = call->output;
    bool in_place = in == out && call->op == BANYAN_MIXED_ALLREDUCE;
    if (in_place || in >= out + out_bytes || out >= in + in_bytes)
        return BANYAN_OK;
    return error_set(
        BANYAN_ERR_INVALID, "%s [%p, +%" PRIu64 ") overlaps the input [%p, +%" PRIu64 ")%s",
        subject_of(output).text, (const void *)out, out_bytes, (const void *)in, in_bytes,
        call->op == BANYAN_MIXED_ALLREDUCE ? ", but is not the same memory" : "");
}

static banyan_status check_tensors(const side *input, const side *output, mixed_call *call)
{
    uint64_t row_elems, output_row_elems, rows = 0;
    RETURN_IF_FAILED(check_side(input, &row_elems));
    RETURN_IF_FAILED(check_side(output, &output_row_elems));
    RETURN_IF_FAILED(check_equal_shapes(input, output));
    RETURN_IF_FAILED(mixed_run_check_rows(input, output, &rows));
    call->elems = rows * row_elems;
    call->input = start_of(input->tensor);
    call->output = start_of(output->tensor);
    return call->elems > 0 ? mixed_run_check_overlap(output, call) : BANYAN_OK;
}

banyan_status mixed_check_call(banyan_mixed *mixed, banyan_mixed_op op, const DLTensor *input,
                               const DLTensor *output, banyan_mixed_mode mode, mixed_call *call)
{
    side from = {mixed, op, "input", input}, to = {mixed, op, "output", output};
    *call = (mixed_call){.op = op, .mode = mode};
    RETURN_IF_FAILED(op_check(mixed, op));
    if (mode != BANYAN_MIXED_AUTO)
        RETURN_IF_FAILED(mode_check(mixed, op, mode));
    return check_tensors(&from, &to, call);
}

/* A call in the form that ranks exchange. */
typedef struct mixed_signature {
    uint64_t elems;
    uint32_t op, mode, in_place;
    uint32_t unused; /* explicit padding, so that all bytes are set */
} mixed_signature;

banyan_status mixed_check_calls_begin(banyan_mixed *mixed)
{
    const char *said = getenv("BANYAN_CHECK_CALLS");
    uint8_t checks = said && strcmp(said, "1") == 0;
    RETURN_IF_FAILED(banyan_world_broadcast(mixed->world, &checks, sizeof checks, 0));
    mixed->checks_calls = checks;
    return BANYAN_OK;
}

static void check_calls_describe(const banyan_mixed *mixed, const mixed_signature *of, char *text,
                                 size_t bytes)
{
    snprintf(text, bytes, "%s (%s) of %" PRIu64 " elements of %s in b rows%s",
             banyan_mixed_op_name((banyan_mixed_op)of->op),
             banyan_mixed_mode_name((banyan_mixed_mode)of->mode), of->elems,
             banyan_dtype_name(mixed->setup.dtype), of->in_place ? ", in place" : "");
}

static banyan_status check_calls_compare(const banyan_mixed *mixed, const mixed_signature *all)
{
    char first[192], other[192];
    for (int rank = 1; rank < mixed->ranks; rank++) {
        if (memcmp(&all[rank], &all[0], sizeof *all) == 0)
            continue;
        check_calls_describe(mixed, &all[0], first, sizeof first);
        check_calls_describe(mixed, &all[rank], other, sizeof other);
        return error_set(BANYAN_ERR_MISMATCH, "rank 0 calls %s, but rank %d calls %s", first, rank,
                         other);
    }
    return BANYAN_OK;
}

/* Check that all ranks make this call, before anything moves. `checked` is the result of a rank's
 * check of its own arguments; all ranks receive its error. MISMATCH, with the difference in the
 * message. Collective. */
static banyan_status check_call_of_all(banyan_mixed *mixed, const mixed_call *mine,
                                       banyan_status checked)
{
    banyan_world *world = mixed->setup.worlds[MIXED_WORLD];
    mixed_signature own = {mine->elems, (uint32_t)mine->op, (uint32_t)mine->mode,
                           mine->elems > 0 && mine->input == mine->output, 0};
    void *all;
    RETURN_IF_FAILED(control_enter(world));
    banyan_status status =
        control_gather(world, checked, &own, sizeof own, "a comparison of calls", &all);
    if (status == BANYAN_OK)
        status = control_fail_together(world, check_calls_compare(mixed, all));
    free(all);
    return status;
}

static banyan_status fail_late(const banyan_mixed *mixed, const device_report *report)
{
    banyan_world *world = mixed->setup.worlds[MIXED_WORLD];
    char own[CONTROL_RANK_BYTES], late[CONTROL_LATE_BYTES];
    int rank = device_report_rank(report);
    control_device_late(world, rank, late, sizeof late);
    return error_set(BANYAN_ERR_TIMEOUT,
                     "%s waited %.1f s for rank %d in %s (%s)%s; %s" TIMEOUT_SETS,
                     control_own_name(world, own), (double)report->waited_ns / 1e9, rank,
                     banyan_mixed_op_name(mixed_report_op(report)),
                     banyan_mixed_mode_name(mixed_report_mode(report)), late,
                     timeout_name(mixed->timeout.option));
}

static void take_report(banyan_mixed *mixed)
{
    device_report report;
    mixed->ops->check(mixed->engine, &report);
    if (report.verdict == DEVICE_FINE)
        return;
    const char *op = banyan_mixed_op_name(mixed_report_op(&report));
    const char *mode = banyan_mixed_mode_name(mixed_report_mode(&report));
    int late = device_report_rank(&report);
    banyan_status status = BANYAN_OK;
    if (report.verdict == DEVICE_STOPPED)
        status = control_check(mixed->setup.worlds[MIXED_WORLD]);
    if (status != BANYAN_OK)
        status = error_set(status, "%s, while rank %d waited for rank %d in %s (%s)",
                           banyan_last_error(), mixed->rank, late, op, mode);
    else if (report.verdict == DEVICE_LATE)
        status = fail_late(mixed, &report);
    else
        status = error_set(BANYAN_ERR_ABORTED, "rank %d waited %.1f s for rank %d in %s (%s)",
                           mixed->rank, (double)report.waited_ns / 1e9, late, op, mode);
    mixed->failed = error_keep(status);
}

banyan_status banyan_mixed_status(banyan_mixed *mixed)
{
    RETURN_IF_NULL(mixed);
    banyan_world *all = mixed->setup.worlds[MIXED_WORLD]; /* NULL: suspended, in no world */
    if (mixed->failed.status == BANYAN_OK && all)
        take_report(mixed);
    if (mixed->failed.status != BANYAN_OK)
        return error_again(&mixed->failed);
    RETURN_IF_FAILED(collectives_status(mixed));
    return all ? control_check(all) : BANYAN_OK;
}

static banyan_status check_state(banyan_mixed *mixed)
{
    RETURN_IF_FAILED(mixed_check_awake(mixed));
    banyan_status status = banyan_mixed_status(mixed);
    return mixed->failed.status == BANYAN_OK
               ? control_fail_late_run(mixed->setup.worlds[MIXED_WORLD], status)
               : status;
}

/* Resolve AUTO. If NCCL does not start, choose among the other modes. */
static banyan_status choose_mode(banyan_mixed *mixed, mixed_call *call)
{
    uint64_t bytes = call->elems * banyan_dtype_bytes(mixed->setup.dtype);
    banyan_status status = banyan_mixed_select_autotune_mode(mixed, call->op, bytes, &call->mode);
    if (status == BANYAN_OK && mode_is_nccl(call->mode)) {
        status = collectives_start_nccl(mixed, call->mode);
        if (!mixed->has_nccl)
            status = banyan_mixed_select_autotune_mode(mixed, call->op, bytes, &call->mode);
    }
    return status == BANYAN_OK ? mode_check(mixed, call->op, call->mode) : status;
}

static banyan_status mixed_run_call(banyan_mixed *mixed, banyan_mixed_op op, const DLTensor *input,
                                    const DLTensor *output, banyan_mixed_mode mode, void *stream)
{
    mixed_call call = {.op = op, .mode = mode};
    banyan_status checked = BANYAN_OK;
    RETURN_IF_FAILED(check_state(mixed));
    if (mixed_is_host(mixed))
        checked = stream_check_none(stream, mixed->rank, "a mixed collective");
    if (checked == BANYAN_OK)
        checked = mixed_check_call(mixed, op, input, output, mode, &call);
    if (mixed->checks_calls)
        checked = check_call_of_all(mixed, &call, checked);
    RETURN_IF_FAILED(checked);
    if (call.elems == 0)
        return BANYAN_OK;
    if (mode == BANYAN_MIXED_AUTO)
        RETURN_IF_FAILED(choose_mode(mixed, &call));
    else if (mode_is_nccl(mode))
        RETURN_IF_FAILED(collectives_start_nccl(mixed, mode));
    mixed->latest = call.mode;
    banyan_status status = mode_is_fused(call.mode) ? mixed->ops->run(mixed->engine, &call, stream)
                                                    : through_collectives(mixed, &call, stream);
    return status == BANYAN_OK ? BANYAN_OK : mixed_stop_groups(mixed, status);
}

banyan_status banyan_mixed_run(banyan_mixed *mixed, banyan_mixed_op op, const DLTensor *input,
                               const DLTensor *output, banyan_mixed_mode mode, void *stream)
{
    RETURN_IF_NULL(mixed);
    CONTROL_CALL_WITHIN(mixed->setup.worlds[MIXED_WORLD], __func__, mixed->timeout);
    banyan_status status = mixed_run_call(mixed, op, input, output, mode, stream);
    return mixed_is_of_waits(status) ? mixed_stop_groups(mixed, status) : status;
}
