#include "reshard/run/tensors.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "copy/strided/strided.h"
#include "core/containers.h"
#include "core/error.h"
#include "memory/device.h"
#include "memory/symmetric/pages.h"
#include "reshard/layout/box.h"
#include "world/control.h"

#define TENSOR_ALIGNMENT 256
#define STATE_BITS 2

struct banyan_tensors {
    uint64_t id;
    size_t count;
    DLTensor *tensors;
    int64_t *dims;          /* shapes and strides of all tensors */
    _Atomic uint64_t state; /* version << STATE_BITS | state, so that one load reads both */
    banyan_memory *memory;  /* symmetric memory, */
    void *mapped;           /* or ordinary memory, */
    size_t mapped_bytes;
    const memory_device_ops *ops; /* or a device's: the operations of `mapped` */
    bool is_swappable;            /* of banyan_tensors_alloc_swappable */
    device_swappable *swappable;  /* NULL: no tensor has elements */
    char *shadow;                 /* NULL: there is none */
    DLDevice device;
};

static banyan_status set_create(size_t count, banyan_tensors **set)
{
    static _Atomic uint64_t last_id;
    banyan_tensors *made = alloc_zeroed(1, sizeof *made, "a tensor set");
    RETURN_IF_NO_MEMORY(made);
    made->tensors = calloc(count + 1, sizeof *made->tensors);
    made->dims = calloc(count + 1, 2 * BANYAN_MAX_DIMS * sizeof *made->dims);
    if (!made->tensors || !made->dims) {
        banyan_tensors_destroy(made);
        return error_no_memory(count * sizeof *made->tensors, "a tensor set");
    }
    made->id = atomic_fetch_add(&last_id, 1) + 1;
    made->count = count;
    *set = made;
    return BANYAN_OK;
}

/* Fill in the i-th tensor, with its own shape and strides (NULL: dense). */
static DLTensor *set_add(banyan_tensors *set, size_t i, DLDataType dtype, int ndim,
                         const int64_t *shape, const int64_t *strides)
{
    int64_t *own = set->dims + i * 2 * BANYAN_MAX_DIMS, dense = 1;
    DLTensor *tensor = &set->tensors[i];
    *tensor = (DLTensor){.device = {kDLCPU, 0}, .ndim = ndim, .dtype = dtype, .shape = own};
    tensor->strides = own + BANYAN_MAX_DIMS;
    for (int d = ndim - 1; d >= 0; d--) {
        tensor->shape[d] = shape[d];
        tensor->strides[d] = strides ? strides[d] : dense;
        dense *= shape[d] > 0 ? shape[d] : 1;
    }
    return tensor;
}

static banyan_status tensors_check_tensor(const DLTensor *tensor, const banyan_local_tensor *needed,
                                          bool any_dtype)
{
    char theirs[BOX_TEXT_BYTES], ours[BOX_TEXT_BYTES];
    bool same = tensor->ndim == needed->ndim;
    for (int d = 0; d < needed->ndim && same; d++)
        same = tensor->shape && tensor->shape[d] == needed->shape[d];
    if (!same)
        return error_set(BANYAN_ERR_INVALID, "tensor \"%s\" has shape %s, its layout says %s",
                         needed->name,
                         tensor->ndim < 0 || tensor->ndim > BANYAN_MAX_DIMS || !tensor->shape
                             ? "?"
                             : shape_format(tensor->ndim, tensor->shape, theirs, sizeof theirs),
                         shape_format(needed->ndim, needed->shape, ours, sizeof ours));
    if (!any_dtype && !banyan_dtype_equal(tensor->dtype, needed->dtype))
        return error_set(BANYAN_ERR_INVALID, "tensor \"%s\" has type %s, its layout says %s",
                         needed->name, banyan_dtype_name(tensor->dtype),
                         banyan_dtype_name(needed->dtype));
    strided_view view;
    if (!device_is_host(tensor->device) && tensor->device.device_type != kDLCUDAHost &&
        tensor->device.device_type != kDLCUDA)
        return error_set(BANYAN_ERR_INVALID,
                         "tensor \"%s\" lies on device type %d, neither in host memory nor on a "
                         "GPU",
                         needed->name, (int)tensor->device.device_type);
    if (strided_view_anywhere(tensor, &view) != BANYAN_OK)
        return error_set(BANYAN_ERR_INVALID, "tensor \"%s\": %s", needed->name,
                         banyan_last_error());
    return BANYAN_OK;
}

/* Mark local tensors that hold persistent buffers: their type is the source's. */
static bool *persistent_tensors(const banyan_layout *layout)
{
    bool *persistent = calloc(banyan_layout_tensor_count(layout) + 1, sizeof *persistent);
    if (!persistent) {
        error_no_memory(banyan_layout_tensor_count(layout), "a tensor set");
        return NULL;
    }
    for (size_t i = 0; i < banyan_layout_piece_count(layout); i++) {
        const banyan_piece *piece = banyan_layout_piece(layout, i);
        if (piece->flags & BANYAN_PIECE_PERSISTENT_BUFFER)
            persistent[piece->tensor] = true;
    }
    return persistent;
}

banyan_status banyan_tensors_create(const banyan_layout *layout, const DLTensor *tensors,
                                    size_t count, banyan_tensors **set)
{
    if (!layout || (!tensors && count > 0) || !set)
        return error_set(BANYAN_ERR_INVALID, "a tensor set needs a layout, tensors and a place");
    RETURN_IF_FAILED(banyan_layout_check(layout));
    if (count != banyan_layout_tensor_count(layout))
        return error_set(BANYAN_ERR_INVALID, "%zu tensors for a layout of %zu", count,
                         banyan_layout_tensor_count(layout));
    bool *persistent = persistent_tensors(layout);
    RETURN_IF_NO_MEMORY(persistent);
    banyan_tensors *made = NULL;
    banyan_status status = set_create(count, &made);
    for (size_t i = 0; i < count && status == BANYAN_OK; i++) {
        status = tensors_check_tensor(&tensors[i], banyan_layout_tensor(layout, i), persistent[i]);
        if (status != BANYAN_OK)
            break;
        DLTensor *own = set_add(made, i, tensors[i].dtype, tensors[i].ndim, tensors[i].shape,
                                tensors[i].strides);
        own->device = tensors[i].device;
        if (tensors[i].data)
            own->data = (char *)tensors[i].data + tensors[i].byte_offset;
    }
    free(persistent);
    if (status != BANYAN_OK) {
        banyan_tensors_destroy(made);
        return status;
    }
    *set = made;
    return BANYAN_OK;
}

static banyan_status tensors_alloc_on_device(banyan_tensors *set, size_t bytes)
{
    const memory_device_ops *ops;
    RETURN_IF_FAILED(memory_device_find(set->device.device_type, &ops));
    RETURN_IF_FAILED(ops->open(set->device.device_id));
    RETURN_IF_FAILED(set->is_swappable ? ops->swappable_create(set->device.device_id, bytes,
                                                               &set->swappable, &set->mapped)
                                       : ops->alloc(set->device.device_id, bytes, &set->mapped));
    set->mapped_bytes = bytes;
    set->ops = ops;
    return ops->fill(set->mapped, 0, bytes);
}

static banyan_status alloc_ordinary(banyan_tensors *set, size_t bytes)
{
    if (bytes == 0)
        return BANYAN_OK;
    if (!device_is_host(set->device))
        return tensors_alloc_on_device(set, bytes);
    RETURN_IF_FAILED(memory_check_machine(bytes, "memory for tensors"));
    void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED)
        return errno == ENOMEM ? error_no_memory(bytes, "a tensor set")
                               : error_set_errno("cannot map %zu bytes for a tensor set", bytes);
    madvise(mapped, bytes, MADV_HUGEPAGE);
    set->mapped = mapped;
    set->mapped_bytes = bytes;
    return BANYAN_OK;
}

/* Compute the tensor's aligned size. False when it exceeds any memory. */
static bool aligned_bytes(const DLTensor *tensor, uint64_t *bytes)
{
    if (!shape_bytes(tensor->ndim, tensor->shape, banyan_dtype_bytes(tensor->dtype), bytes))
        return false;
    *bytes = (*bytes + TENSOR_ALIGNMENT - 1) / TENSOR_ALIGNMENT * TENSOR_ALIGNMENT;
    return true;
}

/* Describe dense tensors without memory, and count the bytes that they need. */
static banyan_status describe_dense(const banyan_local_tensor *tensors, size_t count,
                                    banyan_tensors **set, uint64_t *bytes)
{
    banyan_tensors *made;
    RETURN_IF_FAILED(set_create(count, &made));
    uint64_t total = 0, more;
    for (size_t i = 0; i < count; i++) {
        const banyan_local_tensor *tensor = &tensors[i];
        if (!aligned_bytes(set_add(made, i, tensor->dtype, tensor->ndim, tensor->shape, NULL),
                           &more) ||
            __builtin_add_overflow(total, more, &total) || total > INT64_MAX) {
            banyan_tensors_destroy(made);
            return error_set(BANYAN_ERR_NO_MEMORY, "no memory can hold the tensors up to \"%s\"",
                             tensor->name);
        }
    }
    *set = made;
    *bytes = total;
    return BANYAN_OK;
}

static void place_dense(banyan_tensors *set, char *memory)
{
    for (size_t i = 0; i < set->count; i++) {
        uint64_t bytes = 0;
        aligned_bytes(&set->tensors[i], &bytes);
        set->tensors[i].data = memory;
        set->tensors[i].device = device_is_host(set->device) ? BANYAN_HOST : set->device;
        memory += bytes;
    }
}

/* Allocate a set. `mine` is this rank's status so far; the tensors lie in one array.
 * `is_swappable`: on a device, without a world. */
static banyan_status alloc_set(banyan_status mine, const banyan_local_tensor *tensors, size_t count,
                               banyan_world *world, DLDevice device, bool is_swappable,
                               banyan_tensors **set)
{
    banyan_tensors *made = NULL;
    uint64_t bytes = 0;
    banyan_status status = mine == BANYAN_OK ? describe_dense(tensors, count, &made, &bytes) : mine;
    if (world)
        status = control_agree(world, status);
    if (status == BANYAN_OK) {
        made->device = device;
        made->is_swappable = is_swappable;
        status = world ? banyan_memory_alloc_on(world, device, (size_t)bytes, &made->memory)
                       : alloc_ordinary(made, (size_t)bytes);
    }
    if (status != BANYAN_OK) {
        banyan_tensors_destroy(made);
        return status;
    }
    place_dense(made, world ? banyan_memory_local(made->memory) : made->mapped);
    *set = made;
    return BANYAN_OK;
}

banyan_status banyan_tensors_alloc(const banyan_layout *layout, banyan_world *world,
                                   banyan_tensors **set)
{
    CONTROL_ENTER(world);
    return banyan_tensors_alloc_on(layout, world, BANYAN_HOST, set);
}

static banyan_status alloc_of_layout(const banyan_layout *layout, banyan_world *world,
                                     DLDevice device, bool is_swappable, banyan_tensors **set)
{
    banyan_status mine = layout ? banyan_layout_check(layout) : BANYAN_OK;
    size_t count = layout && mine == BANYAN_OK ? banyan_layout_tensor_count(layout) : 0;
    return alloc_set(mine, count > 0 ? banyan_layout_tensor(layout, 0) : NULL, count, world, device,
                     is_swappable, set);
}

banyan_status banyan_tensors_alloc_on(const banyan_layout *layout, banyan_world *world,
                                      DLDevice device, banyan_tensors **set)
{
    CONTROL_ENTER(world);
    return alloc_of_layout(layout, world, device, false, set);
}

banyan_status banyan_tensors_alloc_swappable(const banyan_layout *layout, DLDevice device,
                                             banyan_tensors **set)
{
    if (!layout || !set)
        return error_set(BANYAN_ERR_INVALID, "a tensor set needs a layout and a place");
    if (device_is_host(device))
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "tensors in host memory cannot be swapped: only those of a GPU");
    return alloc_of_layout(layout, NULL, device, true, set);
}

banyan_status tensors_open_shadow(banyan_tensors *set, ptrdiff_t *shift)
{
    void *shadow;
    if (set->count > 0 && !set->is_swappable)
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "a shadow needs tensors of banyan_tensors_alloc_swappable, and these are "
                         "of another allocation");
    if (set->shadow)
        return error_set(BANYAN_ERR_INVALID, "the tensors have a shadow of another subscription");
    if (!set->swappable) {
        *shift = 0;
        return BANYAN_OK;
    }
    RETURN_IF_FAILED(set->ops->swappable_double(set->swappable, &shadow));
    set->shadow = shadow;
    *shift = set->shadow - (char *)set->mapped;
    return BANYAN_OK;
}

void tensors_close_shadow(banyan_tensors *set)
{
    if (set->shadow)
        set->ops->swappable_undouble(set->swappable);
    set->shadow = NULL;
}

banyan_status tensors_copy_to_shadow(const banyan_tensors *set)
{
    return set->shadow ? set->ops->copy(set->shadow, set->mapped, set->mapped_bytes) : BANYAN_OK;
}

banyan_status tensors_swap_shadow(banyan_tensors *set)
{
    return set->shadow ? set->ops->swappable_swap(set->swappable) : BANYAN_OK;
}

banyan_status banyan_tensors_alloc_planned(const banyan_reshard_plan *plan, banyan_world *world,
                                           banyan_tensors **set)
{
    return banyan_tensors_alloc_planned_on(plan, world, BANYAN_HOST, set);
}

banyan_status banyan_tensors_alloc_planned_on(const banyan_reshard_plan *plan, banyan_world *world,
                                              DLDevice device, banyan_tensors **set)
{
    CONTROL_ENTER(world);
    size_t count = banyan_reshard_plan_tensor_count(plan);
    return alloc_set(BANYAN_OK, banyan_reshard_plan_tensor(plan, 0), count, world, device, false,
                     set);
}

void banyan_tensors_destroy(banyan_tensors *set)
{
    if (!set)
        return;
    banyan_memory_free(set->memory);
    if (set->swappable)
        set->ops->swappable_free(set->swappable);
    else if (set->ops)
        set->ops->free(set->device.device_id, set->mapped);
    else if (set->mapped)
        munmap(set->mapped, set->mapped_bytes);
    free(set->tensors);
    free(set->dims);
    free(set);
}

size_t banyan_tensors_count(const banyan_tensors *set)
{
    return set->count;
}

const DLTensor *banyan_tensors_get(const banyan_tensors *set, size_t i)
{
    return i < set->count ? &set->tensors[i] : NULL;
}

uint64_t tensors_id(const banyan_tensors *set)
{
    return set->id;
}

banyan_tensors_state banyan_tensors_get_state(const banyan_tensors *set)
{
    uint64_t state = atomic_load_explicit(&set->state, memory_order_acquire);
    return (banyan_tensors_state)(state & ((1 << STATE_BITS) - 1));
}

uint64_t banyan_tensors_version(const banyan_tensors *set)
{
    return atomic_load_explicit(&set->state, memory_order_acquire) >> STATE_BITS;
}

void tensors_set_torn(banyan_tensors *set)
{
    uint64_t version = banyan_tensors_version(set);
    atomic_store_explicit(&set->state, version << STATE_BITS | BANYAN_TENSORS_TORN,
                          memory_order_release);
}

void tensors_set_back(banyan_tensors *set, banyan_tensors_state state)
{
    uint64_t version = banyan_tensors_version(set);
    atomic_store_explicit(&set->state, version << STATE_BITS | (uint64_t)state,
                          memory_order_release);
}

void tensors_set_whole(banyan_tensors *set, uint64_t version)
{
    atomic_store_explicit(&set->state, version << STATE_BITS | BANYAN_TENSORS_WHOLE,
                          memory_order_release);
}

banyan_status tensors_check(const banyan_tensors *set, const banyan_layout *layout,
                            const char *side)
{
    size_t count = banyan_layout_tensor_count(layout);
    size_t have = set ? set->count : 0;
    if (have != count)
        return error_set(BANYAN_ERR_INVALID, "the %s has %zu tensors, its plan %zu", side, have,
                         count);
    for (size_t i = 0; i < count; i++)
        RETURN_IF_FAILED(
            tensors_check_tensor(&set->tensors[i], banyan_layout_tensor(layout, i), false));
    return BANYAN_OK;
}
