/* The MXFP8 transform. Values travel as one tensor, blocks as two: elements and scales, which count
 * from the box's start. */
#include <stdlib.h>
#include <string.h>

#include "core/containers.h"
#include "core/error.h"
#include "reshard/run/convert.h"
#include "reshard/transform/mxfp8_box.h"
#include "reshard/transform/object.h"

/* State of one of this rank's local tensors. */
struct mxfp8_tensor {
    char *name;
    bool bound, dense;
    DLTensor scales; /* its shape and strides are below */
    int64_t shape[BANYAN_MAX_DIMS], strides[BANYAN_MAX_DIMS];
    uint64_t cleared_in; /* run that last zeroed the scales */
    uint64_t counted_in; /* run that last accounted for the pending values */
    mxfp8_pending
        *pending; /* set once slices have cut blocks; kept, since schedules point into it */
    mxfp8_memory elements; /* whole tensor, the destination of the pending values */
    mxfp8_scales pending_scales;
};

struct mxfp8_transform {
    transform_object object;
    banyan_mxfp8_options options;
    ARRAY(struct mxfp8_tensor) tensors;
    hash_map by_name;
    uint64_t run;
};

enum { PART_ELEMENTS, PART_SCALES, PART_COUNT };

static bool is_e4m3(DLDataType dtype)
{
    return banyan_dtype_equal(dtype, BANYAN_F8_E4M3);
}

/* Type of the values on the other side of a conversion. */
static DLDataType values_dtype(const banyan_transfer *transfer)
{
    if (!is_e4m3(transfer->destination_dtype))
        return transfer->destination_dtype;
    return transfer->stage > 0 ? transfer->origin_dtype : transfer->source_dtype;
}

/* How a transfer is converted. */
enum mxfp8_way {
    QUANTIZED_BY_SENDER,
    QUANTIZED_BY_RECEIVER,
    READ_BY_SENDER,
    READ_BY_RECEIVER,
    BLOCKS_PASSED_ON, /* inside a node, from one tensor in MXFP8 to another */
    VALUES_PASSED_ON /* the same, of blocks that both ranks quantize when the run has all of them */
};

static enum mxfp8_way way_of(const struct mxfp8_transform *mxfp8, const banyan_transfer *transfer)
{
    banyan_transform_side side = mxfp8->options.side;
    if (!is_e4m3(transfer->destination_dtype))
        return side == BANYAN_TRANSFORM_AT_RECEIVER ? READ_BY_RECEIVER : READ_BY_SENDER;
    if (transfer->stage > 0)
        return transfer->whole_blocks ? BLOCKS_PASSED_ON : VALUES_PASSED_ON;
    bool at_sender =
        side == BANYAN_TRANSFORM_AT_SENDER || (side == BANYAN_TRANSFORM_SIDE_DEFAULT &&
                                               transfer->whole_blocks && transfer->between_nodes);
    return at_sender ? QUANTIZED_BY_SENDER : QUANTIZED_BY_RECEIVER;
}

static bool mxfp8_should(void *context, const banyan_transfer *transfer)
{
    const struct mxfp8_transform *mxfp8 = context;
    bool types_fit = convert_is_float(values_dtype(transfer)) &&
                     (is_e4m3(transfer->destination_dtype) || is_e4m3(transfer->source_dtype));
    if (!types_fit || !transform_accepts(&mxfp8->object, transfer->name))
        return false;
    return !mxfp8->options.accepts ||
           mxfp8->options.accepts(mxfp8->options.accepts_context, transfer);
}

static struct mxfp8_tensor *find_tensor(const struct mxfp8_transform *mxfp8, const char *name)
{
    uint64_t i;
    return map_get_string(&mxfp8->by_name, name, &i) ? &mxfp8->tensors.data[i] : NULL;
}

/* Find the scales that are bound to a tensor. */
static banyan_status bound_scales(const struct mxfp8_transform *mxfp8,
                                  const struct mxfp8_tensor *tensor, const DLTensor *whole,
                                  mxfp8_scales *scales)
{
    DLTensor bound = tensor->scales;
    bound.shape = (int64_t *)tensor->shape;
    bound.strides = tensor->dense ? NULL : (int64_t *)tensor->strides;
    return mxfp8_scales_of(mxfp8->options.layout, tensor->name, whole->ndim, whole->shape, &bound,
                           scales);
}

/* Find the tensor of the task's local side, and its scales. */
static banyan_status task_tensor(const struct mxfp8_transform *mxfp8,
                                 const banyan_transform_task *task, struct mxfp8_tensor **tensor,
                                 mxfp8_scales *scales)
{
    struct mxfp8_tensor *found = find_tensor(mxfp8, task->local_name);
    if (!found || !found->bound)
        return error_set(BANYAN_ERR_NOT_FOUND,
                         "no scales are bound to local tensor %s, which holds MXFP8 of tensor %s "
                         "(banyan_mxfp8_bind_scales)",
                         task->local_name, task->transfer->name);
    RETURN_IF_FAILED(bound_scales(mxfp8, found, task->whole, scales));
    *tensor = found;
    return BANYAN_OK;
}

/* Zero a destination's scales once per run. A run writes all of them: blocks of padding alone,
 * which no task brings, get zeros, as their elements do. */
static void clear_once(const struct mxfp8_transform *mxfp8, struct mxfp8_tensor *tensor,
                       const mxfp8_scales *scales)
{
    if (tensor->cleared_in != mxfp8->run)
        mxfp8_scales_clear(scales);
    tensor->cleared_in = mxfp8->run;
}

/* Find a task's tensor at the destination, and zero its scales. */
static banyan_status landing_tensor(const struct mxfp8_transform *mxfp8,
                                    const banyan_transform_task *task, struct mxfp8_tensor **tensor,
                                    mxfp8_scales *scales)
{
    RETURN_IF_FAILED(task_tensor(mxfp8, task, tensor, scales));
    clear_once(mxfp8, *tensor, scales);
    return BANYAN_OK;
}

/* Allocate the values or elements of the task's box in scratch memory. */
static banyan_status scratch_elements(const banyan_transform_task *task, DLDataType dtype,
                                      banyan_transform_scratch *scratch, DLTensor *part)
{
    return scratch_tensor(scratch, dtype, task->local->ndim, task->local->shape, part);
}

static banyan_status scratch_scales(const banyan_transform_task *task,
                                    banyan_transform_scratch *scratch, DLTensor *part)
{
    int64_t shape[BANYAN_MAX_DIMS];
    int ndim;
    RETURN_IF_FAILED(banyan_mxfp8_scales_shape(BANYAN_MXFP8_PLAIN, task->local->ndim,
                                               task->local->shape, &ndim, shape));
    return scratch_tensor(scratch, BANYAN_F8_E8M0, ndim, shape, part);
}

static banyan_status scratch_blocks(const banyan_transform_task *task,
                                    banyan_transform_scratch *scratch, DLTensor *parts)
{
    RETURN_IF_FAILED(scratch_elements(task, BANYAN_F8_E4M3, scratch, &parts[PART_ELEMENTS]));
    return scratch_scales(task, scratch, &parts[PART_SCALES]);
}

static banyan_status wire_scales(const banyan_transform_task *task, const DLTensor *part,
                                 mxfp8_scales *scales)
{
    return mxfp8_scales_of(BANYAN_MXFP8_PLAIN, task->local_name, task->local->ndim,
                           task->local->shape, part, scales);
}

/* Allocate the memory that assembles the task's tensor, in the source's type. */
static banyan_status have_pending(const struct mxfp8_transform *mxfp8, struct mxfp8_tensor *tensor,
                                  const banyan_transform_task *task,
                                  banyan_transform_scratch *scratch)
{
    const DLTensor *whole = task->whole;
    DLDataType dtype = values_dtype(task->transfer);
    uint64_t bytes;
    if (!mxfp8_pending_bytes(dtype, whole->ndim, whole->shape, &bytes))
        return error_no_memory(SIZE_MAX, task->local_name);
    if (tensor->pending && !mxfp8_pending_fits(tensor->pending, dtype, whole->ndim, whole->shape)) {
        mxfp8_pending_destroy(tensor->pending);
        tensor->pending = NULL;
    }
    if (tensor->counted_in != mxfp8->run)
        RETURN_IF_FAILED(banyan_transform_scratch_keep(scratch, task->local_name, bytes));
    tensor->counted_in = mxfp8->run;
    if (tensor->pending)
        return BANYAN_OK;
    return mxfp8_pending_create(task->local_name, dtype, whole->ndim, whole->shape,
                                &tensor->pending);
}

/* Return the place of the task's box in that memory. */
static banyan_status pending_part(const struct mxfp8_transform *mxfp8, struct mxfp8_tensor *tensor,
                                  const banyan_transform_task *task, const mxfp8_scales *scales,
                                  banyan_transform_scratch *scratch, DLTensor *part)
{
    RETURN_IF_FAILED(have_pending(mxfp8, tensor, task, scratch));
    DLDataType dtype = values_dtype(task->transfer);
    mxfp8_memory_of(task->whole, &tensor->elements);
    tensor->pending_scales = *scales;
    size_t ndim = (size_t)task->local->ndim;
    int64_t *dims = banyan_transform_scratch_take(scratch, 2 * ndim * sizeof *dims);
    RETURN_IF_NO_MEMORY(dims);
    banyan_box box;
    mxfp8_memory memory;
    mxfp8_task_box(task, &box);
    mxfp8_pending_memory(tensor->pending, &box, &memory);
    for (size_t g = 0; g < ndim; g++) {
        dims[g] = task->local->shape[g];
        int d = task->dim_map[g];
        dims[ndim + g] =
            d == BANYAN_NO_DIM ? 0 : memory.stride[d] / (int64_t)banyan_dtype_bytes(dtype);
    }
    *part = (DLTensor){.data = memory.data,
                       .device = {kDLCPU, 0},
                       .ndim = task->local->ndim,
                       .dtype = dtype,
                       .shape = dims,
                       .strides = dims + ndim};
    return BANYAN_OK;
}

static banyan_status send_quantized(const struct mxfp8_transform *mxfp8,
                                    const banyan_transform_task *task,
                                    banyan_transform_scratch *scratch, DLTensor *parts)
{
    banyan_box box;
    mxfp8_memory from, to;
    mxfp8_scales scales;
    RETURN_IF_FAILED(scratch_blocks(task, scratch, parts));
    RETURN_IF_FAILED(wire_scales(task, &parts[PART_SCALES], &scales));
    mxfp8_task_wire_box(task, &box);
    mxfp8_memory_of(task->local, &from);
    mxfp8_memory_of(&parts[PART_ELEMENTS], &to);
    mxfp8_box_quantize(mxfp8->options.rule, &box, &from, &to, &scales);
    return BANYAN_OK;
}

static banyan_status mxfp8_create_send_blocks(const struct mxfp8_transform *mxfp8,
                                              const banyan_transform_task *task,
                                              banyan_transform_scratch *scratch, DLTensor *parts)
{
    struct mxfp8_tensor *tensor;
    mxfp8_scales scales;
    banyan_box box;
    mxfp8_memory to;
    RETURN_IF_FAILED(mxfp8_task_require_whole_blocks(task));
    RETURN_IF_FAILED(task_tensor(mxfp8, task, &tensor, &scales));
    RETURN_IF_FAILED(scratch_scales(task, scratch, &parts[PART_SCALES]));
    mxfp8_task_box(task, &box);
    mxfp8_task_memory(task, &parts[PART_SCALES], &to);
    mxfp8_box_scales_read(&box, &scales, &to);
    return BANYAN_OK;
}

/* The values of blocks that are cut, at either end: they lie in the memory that assembles the
 * tensor. */
static banyan_status pending_values(const struct mxfp8_transform *mxfp8,
                                    const banyan_transform_task *task,
                                    banyan_transform_scratch *scratch, DLTensor *part)
{
    struct mxfp8_tensor *tensor;
    mxfp8_scales scales;
    RETURN_IF_FAILED(task_tensor(mxfp8, task, &tensor, &scales));
    return pending_part(mxfp8, tensor, task, &scales, scratch, part);
}

static banyan_status send_read(const struct mxfp8_transform *mxfp8,
                               const banyan_transform_task *task, banyan_transform_scratch *scratch,
                               DLTensor *part)
{
    struct mxfp8_tensor *tensor;
    mxfp8_scales scales;
    banyan_box box;
    mxfp8_memory from, to;
    RETURN_IF_FAILED(task_tensor(mxfp8, task, &tensor, &scales));
    RETURN_IF_FAILED(scratch_elements(task, task->transfer->destination_dtype, scratch, part));
    mxfp8_task_box(task, &box);
    mxfp8_task_memory(task, task->local, &from);
    mxfp8_task_memory(task, part, &to);
    mxfp8_box_dequantize(&box, &from, &scales, &to);
    return BANYAN_OK;
}

static banyan_status mxfp8_prepare_send(void *context, const banyan_transform_task *task,
                                        banyan_transform_scratch *scratch, DLTensor *parts,
                                        int *part_count)
{
    const struct mxfp8_transform *mxfp8 = context;
    DLTensor made[PART_COUNT] = {*task->local};
    int count = 1;
    switch (way_of(mxfp8, task->transfer)) {
    case QUANTIZED_BY_SENDER:
        count = PART_COUNT;
        RETURN_IF_FAILED(send_quantized(mxfp8, task, scratch, made));
        break;
    case QUANTIZED_BY_RECEIVER:
        break;
    case READ_BY_SENDER:
        RETURN_IF_FAILED(send_read(mxfp8, task, scratch, made));
        break;
    case READ_BY_RECEIVER:
    case BLOCKS_PASSED_ON:
        count = PART_COUNT;
        RETURN_IF_FAILED(mxfp8_create_send_blocks(mxfp8, task, scratch, made));
        break;
    case VALUES_PASSED_ON:
        RETURN_IF_FAILED(pending_values(mxfp8, task, scratch, made));
        break;
    }
    memcpy(parts, made, sizeof made[0] * (size_t)count);
    *part_count = count;
    return BANYAN_OK;
}

static banyan_status receive_quantized(const struct mxfp8_transform *mxfp8,
                                       const banyan_transform_task *task,
                                       banyan_transform_scratch *scratch, DLTensor *parts)
{
    struct mxfp8_tensor *tensor;
    mxfp8_scales scales;
    RETURN_IF_FAILED(mxfp8_task_require_whole_blocks(task));
    RETURN_IF_FAILED(task_tensor(mxfp8, task, &tensor, &scales));
    return scratch_scales(task, scratch, &parts[PART_SCALES]);
}

static banyan_status receive_values(const struct mxfp8_transform *mxfp8,
                                    const banyan_transform_task *task,
                                    banyan_transform_scratch *scratch, DLTensor *part)
{
    struct mxfp8_tensor *tensor;
    mxfp8_scales scales;
    int64_t block;
    if (mxfp8_task_cuts_block(task, &block))
        return pending_values(mxfp8, task, scratch, part);
    RETURN_IF_FAILED(task_tensor(mxfp8, task, &tensor, &scales));
    return scratch_elements(task, task->transfer->source_dtype, scratch, part);
}

static banyan_status mxfp8_prepare_recv(void *context, const banyan_transform_task *task,
                                        banyan_transform_scratch *scratch, DLTensor *parts,
                                        int *part_count)
{
    const struct mxfp8_transform *mxfp8 = context;
    DLTensor made[PART_COUNT] = {*task->local};
    int count = 1;
    switch (way_of(mxfp8, task->transfer)) {
    case QUANTIZED_BY_SENDER:
    case BLOCKS_PASSED_ON:
        count = PART_COUNT;
        RETURN_IF_FAILED(receive_quantized(mxfp8, task, scratch, made));
        break;
    case QUANTIZED_BY_RECEIVER:
    case VALUES_PASSED_ON:
        RETURN_IF_FAILED(receive_values(mxfp8, task, scratch, made));
        break;
    case READ_BY_SENDER:
        break;
    case READ_BY_RECEIVER:
        count = PART_COUNT;
        RETURN_IF_FAILED(scratch_blocks(task, scratch, made));
        break;
    }
    memcpy(parts, made, sizeof made[0] * (size_t)count);
    *part_count = count;
    return BANYAN_OK;
}

static banyan_status finish_values(const struct mxfp8_transform *mxfp8,
                                   const banyan_transform_task *task, const DLTensor *part)
{
    struct mxfp8_tensor *tensor;
    mxfp8_scales scales;
    banyan_box box;
    mxfp8_memory from, to;
    int64_t block;
    RETURN_IF_FAILED(landing_tensor(mxfp8, task, &tensor, &scales));
    mxfp8_task_box(task, &box);
    if (mxfp8_task_cuts_block(task, &block)) {
        mxfp8_pending_mark(tensor->pending, &box);
        return BANYAN_OK;
    }
    mxfp8_task_memory(task, part, &from);
    mxfp8_task_memory(task, task->local, &to);
    mxfp8_box_quantize(mxfp8->options.rule, &box, &from, &to, &scales);
    return BANYAN_OK;
}

static banyan_status finish_quantized(const struct mxfp8_transform *mxfp8,
                                      const banyan_transform_task *task, const DLTensor *part)
{
    struct mxfp8_tensor *tensor;
    mxfp8_scales scales;
    banyan_box box;
    mxfp8_memory from;
    RETURN_IF_FAILED(landing_tensor(mxfp8, task, &tensor, &scales));
    mxfp8_task_box(task, &box);
    mxfp8_task_memory(task, part, &from);
    mxfp8_box_scales_write(&box, &scales, &from);
    return BANYAN_OK;
}

static banyan_status finish_blocks(const banyan_transform_task *task, const DLTensor *parts)
{
    mxfp8_scales scales;
    banyan_box box;
    mxfp8_memory from, to;
    RETURN_IF_FAILED(wire_scales(task, &parts[PART_SCALES], &scales));
    mxfp8_task_wire_box(task, &box);
    mxfp8_memory_of(&parts[PART_ELEMENTS], &from);
    mxfp8_memory_of(task->local, &to);
    mxfp8_box_dequantize(&box, &from, &scales, &to);
    return BANYAN_OK;
}

static banyan_status mxfp8_finalize_recv(void *context, const banyan_transform_task *task,
                                         const DLTensor *parts, int part_count)
{
    const struct mxfp8_transform *mxfp8 = context;
    (void)part_count;
    switch (way_of(mxfp8, task->transfer)) {
    case QUANTIZED_BY_SENDER:
    case BLOCKS_PASSED_ON:
        return finish_quantized(mxfp8, task, &parts[PART_SCALES]);
    case QUANTIZED_BY_RECEIVER:
    case VALUES_PASSED_ON:
        return finish_values(mxfp8, task, &parts[0]);
    case READ_BY_SENDER:
        return BANYAN_OK;
    case READ_BY_RECEIVER:
        return finish_blocks(task, parts);
    }
    return BANYAN_OK;
}

uint64_t mxfp8_wire_bytes(const banyan_transform *transform, const banyan_transfer *transfer)
{
    const banyan_box *box = &transfer->box;
    uint64_t elems = banyan_box_elems(box);
    enum mxfp8_way way = way_of(transform->context, transfer);
    if (way == QUANTIZED_BY_RECEIVER || way == READ_BY_SENDER || way == VALUES_PASSED_ON)
        return elems * banyan_dtype_bytes(values_dtype(transfer));
    uint64_t row = box->ndim > 0 ? (uint64_t)box->extent[box->ndim - 1] : 1;
    return elems + elems / row * (uint64_t)mxfp8_blocks((int64_t)row);
}

/* Discard values that the previous run received, also when it failed half-way. */
static banyan_status mxfp8_begin(void *context)
{
    struct mxfp8_transform *mxfp8 = context;
    mxfp8->run++;
    for (size_t i = 0; i < mxfp8->tensors.count; i++) {
        if (mxfp8->tensors.data[i].pending)
            mxfp8_pending_reset(mxfp8->tensors.data[i].pending);
    }
    return BANYAN_OK;
}

static banyan_status mxfp8_finish_padding(void *context, const char *local_name,
                                          const DLTensor *whole)
{
    const struct mxfp8_transform *mxfp8 = context;
    struct mxfp8_tensor *tensor = find_tensor(mxfp8, local_name);
    mxfp8_scales scales;
    if (!tensor || !tensor->bound || !is_e4m3(whole->dtype))
        return BANYAN_OK;
    RETURN_IF_FAILED(bound_scales(mxfp8, tensor, whole, &scales));
    clear_once(mxfp8, tensor, &scales);
    return BANYAN_OK;
}

static banyan_status mxfp8_finish(void *context)
{
    struct mxfp8_transform *mxfp8 = context;
    for (size_t i = 0; i < mxfp8->tensors.count; i++) {
        const struct mxfp8_tensor *tensor = &mxfp8->tensors.data[i];
        if (tensor->pending)
            mxfp8_pending_quantize(tensor->pending, mxfp8->options.rule, &tensor->elements,
                                   &tensor->pending_scales);
    }
    return BANYAN_OK;
}

bool transform_is_mxfp8(const banyan_transform *transform)
{
    return transform && transform->prepare_send == mxfp8_prepare_send;
}

banyan_mxfp8_rule mxfp8_rule_of(const banyan_transform *transform)
{
    return ((const struct mxfp8_transform *)transform->context)->options.rule;
}

banyan_mxfp8_layout mxfp8_scales_layout_of(const banyan_transform *transform)
{
    return ((const struct mxfp8_transform *)transform->context)->options.layout;
}

bool mxfp8_is_bound(const banyan_transform *transform, const char *local_name)
{
    const struct mxfp8_tensor *tensor = find_tensor(transform->context, local_name);
    return tensor && tensor->bound;
}

banyan_status mxfp8_scales_of_task(const banyan_transform *transform,
                                   const banyan_transform_task *task, struct mxfp8_scales *scales,
                                   DLDevice *device)
{
    struct mxfp8_tensor *tensor;
    RETURN_IF_FAILED(task_tensor(transform->context, task, &tensor, scales));
    *device = tensor->scales.device;
    return BANYAN_OK;
}

static void mxfp8_clear(transform_object *object)
{
    struct mxfp8_transform *mxfp8 = (struct mxfp8_transform *)object;
    for (size_t i = 0; i < mxfp8->tensors.count; i++) {
        mxfp8_pending_destroy(mxfp8->tensors.data[i].pending);
        free(mxfp8->tensors.data[i].name);
    }
    array_free(&mxfp8->tensors);
    map_free(&mxfp8->by_name);
}

banyan_status banyan_mxfp8_create(const banyan_mxfp8_options *options, banyan_transform **transform)
{
    banyan_mxfp8_options taken = BANYAN_MXFP8_OPTIONS_INIT;
    RETURN_IF_FAILED(options_take(options, "BANYAN_MXFP8_OPTIONS_INIT", &taken, sizeof taken));
    static const banyan_transform table = {.size = sizeof(banyan_transform),
                                           .name = "mxfp8",
                                           .should_transform = mxfp8_should,
                                           .begin = mxfp8_begin,
                                           .prepare_send = mxfp8_prepare_send,
                                           .prepare_recv = mxfp8_prepare_recv,
                                           .finalize_recv = mxfp8_finalize_recv,
                                           .finish = mxfp8_finish,
                                           .finish_padding = mxfp8_finish_padding};
    void *made;
    RETURN_IF_FAILED(transform_create(sizeof(struct mxfp8_transform), &table, taken.names,
                                      taken.name_count, mxfp8_clear, &made));
    struct mxfp8_transform *mxfp8 = made;
    mxfp8->options = taken;
    *transform = &mxfp8->object.table;
    return BANYAN_OK;
}

static banyan_status mxfp8_create_add_tensor(struct mxfp8_transform *mxfp8, const char *name,
                                             struct mxfp8_tensor **tensor)
{
    char *copy = strdup(name);
    if (!copy)
        return error_no_memory(strlen(name) + 1, "a tensor's name");
    struct mxfp8_tensor added = {.name = copy, .cleared_in = UINT64_MAX, .counted_in = UINT64_MAX};
    if (!array_reserve(&mxfp8->tensors, 1) ||
        !map_put_string(&mxfp8->by_name, copy, mxfp8->tensors.count)) {
        free(copy);
        return BANYAN_ERR_NO_MEMORY;
    }
    *tensor = &mxfp8->tensors.data[mxfp8->tensors.count++];
    **tensor = added;
    return BANYAN_OK;
}

banyan_status banyan_mxfp8_bind_scales(banyan_transform *transform, const char *name,
                                       const DLTensor *scales)
{
    if (transform->prepare_send != mxfp8_prepare_send)
        return error_set(BANYAN_ERR_INVALID, "transform %s has no scales to bind for tensor %s",
                         transform->name, name);
    if (scales && (scales->ndim < 0 || scales->ndim > BANYAN_MAX_DIMS))
        return error_set(BANYAN_ERR_INVALID, "the scales of %s have %d dimensions", name,
                         scales->ndim);
    struct mxfp8_transform *mxfp8 = transform->context;
    struct mxfp8_tensor *tensor = find_tensor(mxfp8, name);
    if (!tensor)
        RETURN_IF_FAILED(mxfp8_create_add_tensor(mxfp8, name, &tensor));
    tensor->bound = scales != NULL;
    if (!scales)
        return BANYAN_OK;
    tensor->scales = *scales;
    tensor->dense = !scales->strides;
    tensor->cleared_in = UINT64_MAX;
    for (int d = 0; d < scales->ndim; d++) {
        tensor->shape[d] = scales->shape[d];
        tensor->strides[d] = scales->strides ? scales->strides[d] : 0;
    }
    return BANYAN_OK;
}
