#include "copy/service/queue.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "copy/strided/strided.h"
#include "memory/device.h"

/* True for a tensor to receive into that has stride 0. Reading an element many times is a
 * broadcast; writing one many times is a mistake. */
static bool writes_an_element_twice(const DLTensor *tensor)
{
    for (int i = 0; i < tensor->ndim && tensor->strides; i++)
        if (tensor->strides[i] == 0 && tensor->shape[i] > 1)
            return true;
    return false;
}

/* Return the option that opens a service for tensors of this place. */
static const char *option_for(DLDevice device, char text[64])
{
    char place[DEVICE_TEXT_BYTES];
    if (device_is_host(device))
        return "open it without banyan_copy_options.device";
    snprintf(text, 64, "open it with banyan_copy_options.device = %s",
             device_format(device, place));
    return text;
}

static bool queue_same_place(DLDevice a, DLDevice b)
{
    return device_is_host(a) ? device_is_host(b)
                             : a.device_type == b.device_type && a.device_id == b.device_id;
}

/* Treat page-locked host memory as ordinary host memory. */
static DLDevice queue_as_host(DLDevice device)
{
    return device.device_type == kDLCUDAHost ? BANYAN_HOST : device;
}

static banyan_status queue_fail_place(const void *address, const char *verb, DLDevice found,
                                      DLDevice device)
{
    char there[DEVICE_TEXT_BYTES], here[DEVICE_TEXT_BYTES], option[64];
    return error_set(BANYAN_ERR_INVALID,
                     "the tensor at %p %s in %s, and the service moves tensors in %s: %s", address,
                     verb, device_format(found, there), device_format(device, here),
                     option_for(found, option));
}

static banyan_status check_lies_on(const void *address, DLDevice device)
{
    DLDevice found;
    RETURN_IF_FAILED(banyan_memory_locate(address, &found));
    /* The host can read and write managed memory too. */
    if (queue_same_place(queue_as_host(found), device) ||
        (device_is_host(device) && found.device_type != kDLCUDA))
        return BANYAN_OK;
    return queue_fail_place(address, "lies", found, device);
}

/* Check the tensor's declared place, and the place that the device's driver reports for both its
 * ends. */
static banyan_status check_place(const DLTensor *tensor, const strided_view *view, DLDevice device)
{
    if (!queue_same_place(queue_as_host(tensor->device), device))
        return queue_fail_place(tensor->data, "is said to lie", tensor->device, device);
    char *low;
    size_t bytes;
    strided_view_span(view, &low, &bytes);
    if (bytes == 0)
        return BANYAN_OK;
    RETURN_IF_FAILED(check_lies_on(low, device));
    return device_is_host(device) ? BANYAN_OK : check_lies_on(low + bytes - 1, device);
}

/* Check that blocks of a tensor are whole, and lie along its last dimension. */
static banyan_status queue_check_blocks(const banyan_copy_op *op, bool is_send)
{
    const DLTensor *tensor = &op->tensor;
    bool is_scales = !is_send && (op->flags & BANYAN_COPY_OP_SCALES);
    if (!is_send && banyan_dtype_bytes(tensor->dtype) != 1)
        return error_set(BANYAN_ERR_INVALID, "MXFP8's elements and scales are bytes, not %s",
                         banyan_dtype_name(tensor->dtype));
    if (is_scales || (tensor->ndim > 0 && tensor->shape[tensor->ndim - 1] % STRIDED_BLOCK == 0))
        return BANYAN_OK;
    return error_set(BANYAN_ERR_INVALID,
                     "a tensor to quantize has %" PRId64
                     " elements along its last dimension: no whole blocks of %d",
                     tensor->ndim > 0 ? tensor->shape[tensor->ndim - 1] : 1, STRIDED_BLOCK);
}

static banyan_status check_cast(const banyan_copy_backend *backend, const banyan_copy_op *op,
                                bool is_send)
{
    if (!(backend->capabilities & BANYAN_COPY_CASTS))
        return error_set(BANYAN_ERR_UNSUPPORTED, "backend %s does not cast elements",
                         backend->name);
    if (op->flags & BANYAN_COPY_OP_MXFP8)
        RETURN_IF_FAILED(queue_check_blocks(op, is_send));
    if (!is_send && (op->flags & BANYAN_COPY_OP_MXFP8))
        return BANYAN_OK;
    if (strided_format_of(op->tensor.dtype) == STRIDED_BYTES)
        return error_set(BANYAN_ERR_INVALID, "%s is not cast; F32, F16 and BF16 are",
                         banyan_dtype_name(op->tensor.dtype));
    return BANYAN_OK;
}

static banyan_status queue_check_tensor(const banyan_copy_backend *backend, DLDevice device,
                                        const banyan_copy_op *op, bool is_send)
{
    strided_view view;
    RETURN_IF_FAILED(strided_view_anywhere(&op->tensor, &view));
    RETURN_IF_FAILED(check_place(&op->tensor, &view, device));
    if (device_is_host(device))
        RETURN_IF_FAILED(strided_view_of(&op->tensor, &view));
    if (op->flags & (BANYAN_COPY_OP_CAST | BANYAN_COPY_OP_MXFP8))
        RETURN_IF_FAILED(check_cast(backend, op, is_send));
    if (!is_send && view.elems > 0 && writes_an_element_twice(&op->tensor))
        return error_set(BANYAN_ERR_INVALID,
                         "a tensor to receive into has stride 0: elements would be written twice");
    if (!(backend->capabilities & BANYAN_COPY_STRIDED) && !strided_view_is_dense(&view))
        return error_set(BANYAN_ERR_INVALID, "backend %s accepts dense tensors only",
                         backend->name);
    return BANYAN_OK;
}

static banyan_status check_op(const banyan_copy_backend *backend, const banyan_world *world,
                              DLDevice device, const banyan_copy_op *op, bool is_send)
{
    int rank = banyan_world_rank(world), size = banyan_world_size(world);
    const char *verb = is_send ? "send to" : "receive from";
    char task[64] = "without an id";
    if (op->task_id != BANYAN_TASK_ID_NONE)
        snprintf(task, sizeof task, "%" PRIu64 ", part %" PRIu32, op->task_id, op->part);
    if (op->peer < 0 || op->peer >= size)
        return error_set(BANYAN_ERR_INVALID, "%s: rank %d: %s rank %d, task %s: the world has %d",
                         backend->name, rank, verb, op->peer, task, size);
    banyan_status status = queue_check_tensor(backend, device, op, is_send);
    if (status == BANYAN_OK)
        return BANYAN_OK;
    return error_set(status, "%s: rank %d: %s rank %d, task %s: %s", backend->name, rank, verb,
                     op->peer, task, banyan_last_error());
}

banyan_status copy_queue_add(copy_queue *queue, const banyan_copy_backend *backend,
                             const banyan_world *world, DLDevice device, const banyan_copy_op *op,
                             bool is_send)
{
    RETURN_IF_FAILED(check_op(backend, world, device, op, is_send));
    copy_op_list *list = is_send ? &queue->sends : &queue->recvs;
    banyan_copy_op kept = *op;
    size_t bytes = (size_t)op->tensor.ndim * sizeof(int64_t);
    if (bytes > 0) {
        int64_t *shape = arena_take(&queue->shapes, 2 * bytes);
        RETURN_IF_NO_MEMORY(shape);
        memcpy(shape, op->tensor.shape, bytes);
        kept.tensor.shape = shape;
        if (op->tensor.strides) {
            kept.tensor.strides = shape + op->tensor.ndim;
            memcpy(kept.tensor.strides, op->tensor.strides, bytes);
        }
    }
    return array_push(list, kept) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

void copy_queue_free(copy_queue *queue)
{
    array_free(&queue->sends);
    array_free(&queue->recvs);
    arena_free(&queue->shapes);
    *queue = (copy_queue){0};
}
