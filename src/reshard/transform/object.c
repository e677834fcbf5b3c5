#include "reshard/transform/object.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "reshard/run/convert.h"

banyan_status transform_create(size_t bytes, const banyan_transform *table,
                               const char *const *globs, size_t glob_count,
                               void (*clear)(transform_object *object), void **made)
{
    transform_object *object = alloc_zeroed(1, bytes, "a transform");
    RETURN_IF_NO_MEMORY(object);
    object->table = *table;
    object->table.context = object;
    object->globs = alloc_zeroed(glob_count, sizeof *object->globs, "a transform's names");
    while (object->globs && object->glob_count < glob_count &&
           (object->globs[object->glob_count] = strdup(globs[object->glob_count])))
        object->glob_count++;
    if (!object->globs || object->glob_count < glob_count) {
        banyan_transform_destroy(&object->table);
        return error_no_memory(bytes, "a transform's names");
    }
    object->clear = clear;
    *made = object;
    return BANYAN_OK;
}

void banyan_transform_destroy(banyan_transform *transform)
{
    transform_object *object = (transform_object *)transform;
    if (!object)
        return;
    if (object->clear)
        object->clear(object);
    for (size_t i = 0; i < object->glob_count; i++)
        free(object->globs[i]);
    free(object->globs);
    free(object);
}

bool transform_accepts(const transform_object *object, const char *name)
{
    for (size_t i = 0; i < object->glob_count; i++) {
        if (fnmatch(object->globs[i], name, 0) == 0)
            return true;
    }
    return object->glob_count == 0;
}

banyan_status scratch_tensor(banyan_transform_scratch *scratch, DLDataType dtype, int ndim,
                             const int64_t *shape, DLTensor *tensor)
{
    size_t elems = 1, bytes = banyan_dtype_bytes(dtype), dims = (size_t)ndim * sizeof *shape;
    for (int d = 0; d < ndim; d++) {
        if (__builtin_mul_overflow(elems, (size_t)shape[d], &elems))
            return error_no_memory(SIZE_MAX, "a transform's scratch");
    }
    if (__builtin_mul_overflow(bytes, elems, &bytes))
        return error_no_memory(SIZE_MAX, "a transform's scratch");
    void *data = banyan_transform_scratch_take(scratch, bytes);
    int64_t *own_shape = data ? banyan_transform_scratch_take(scratch, dims) : NULL;
    RETURN_IF_NO_MEMORY(own_shape);
    for (int d = 0; d < ndim; d++)
        own_shape[d] = shape[d];
    *tensor = (DLTensor){
        .data = data, .device = {kDLCPU, 0}, .ndim = ndim, .dtype = dtype, .shape = own_shape};
    return BANYAN_OK;
}

#define SCRATCH_ALIGNMENT 64

void *banyan_transform_scratch_take(banyan_transform_scratch *scratch, size_t bytes)
{
    if (scratch->arena) {
        void *taken = run_memory_take(scratch->arena, bytes);
        scratch->bytes += taken ? run_memory_rounded(bytes) : 0;
        return taken;
    }
    if (bytes > SIZE_MAX - SCRATCH_ALIGNMENT || !array_reserve(&scratch->blocks, 1)) {
        error_no_memory(bytes, "a transform's scratch");
        return NULL;
    }
    size_t rounded = bytes > 0 ? run_memory_rounded(bytes) : SCRATCH_ALIGNMENT;
    void *block = aligned_alloc(SCRATCH_ALIGNMENT, rounded);
    if (!block) {
        error_no_memory(bytes, "a transform's scratch");
        return NULL;
    }
    scratch->blocks.data[scratch->blocks.count++] = block;
    scratch->bytes += rounded;
    return block;
}

banyan_status banyan_transform_scratch_keep(banyan_transform_scratch *scratch, const char *what,
                                            uint64_t bytes)
{
    if (scratch->arena)
        return BANYAN_OK;
    if (bytes > UINT64_MAX - scratch->kept_bytes)
        return error_no_memory(SIZE_MAX, what);
    uint64_t all = scratch->kept_bytes + bytes;
    if (scratch->max_kept_bytes > 0 && all > scratch->max_kept_bytes)
        return error_set(BANYAN_ERR_INVALID,
                         "tensor %s is assembled in %" PRIu64 " bytes, %" PRIu64
                         " with other tensors: max_staging_bytes is %" PRIu64,
                         what, bytes, all, scratch->max_kept_bytes);
    scratch->kept_bytes = all;
    return BANYAN_OK;
}

void transform_scratch_release(banyan_transform_scratch *scratch)
{
    for (size_t i = 0; i < scratch->blocks.count; i++)
        free(scratch->blocks.data[i]);
    array_free(&scratch->blocks);
    scratch->bytes = 0;
}

/* The casting transform. One tensor travels, in the type of the end that does not cast. */

struct cast_transform {
    transform_object object;
    banyan_transform_side side;
};

static bool cast_at_sender(const struct cast_transform *cast, const banyan_transfer *transfer)
{
    if (cast->side != BANYAN_TRANSFORM_SIDE_DEFAULT)
        return cast->side == BANYAN_TRANSFORM_AT_SENDER;
    return banyan_dtype_bytes(transfer->destination_dtype) <
           banyan_dtype_bytes(transfer->source_dtype);
}

static bool cast_should(void *context, const banyan_transfer *transfer)
{
    const struct cast_transform *cast = context;
    return convert_is_float(transfer->source_dtype) &&
           convert_is_float(transfer->destination_dtype) &&
           !banyan_dtype_equal(transfer->source_dtype, transfer->destination_dtype) &&
           transform_accepts(&cast->object, transfer->name);
}

static banyan_status cast_prepare_send(void *context, const banyan_transform_task *task,
                                       banyan_transform_scratch *scratch, DLTensor *parts,
                                       int *part_count)
{
    const DLTensor *local = task->local;
    DLTensor part = *local;
    if (cast_at_sender(context, task->transfer)) {
        RETURN_IF_FAILED(scratch_tensor(scratch, task->transfer->destination_dtype, local->ndim,
                                        local->shape, &part));
        RETURN_IF_FAILED(convert_tensor(&part, local));
    }
    parts[0] = part;
    *part_count = 1;
    return BANYAN_OK;
}

static banyan_status cast_prepare_recv(void *context, const banyan_transform_task *task,
                                       banyan_transform_scratch *scratch, DLTensor *parts,
                                       int *part_count)
{
    const DLTensor *local = task->local;
    DLTensor part = *local;
    if (!cast_at_sender(context, task->transfer))
        RETURN_IF_FAILED(scratch_tensor(scratch, task->transfer->source_dtype, local->ndim,
                                        local->shape, &part));
    parts[0] = part;
    *part_count = 1;
    return BANYAN_OK;
}

static banyan_status cast_finalize_recv(void *context, const banyan_transform_task *task,
                                        const DLTensor *parts, int part_count)
{
    (void)part_count;
    if (cast_at_sender(context, task->transfer))
        return BANYAN_OK;
    return convert_tensor(task->local, &parts[0]);
}

bool transform_is_cast(const banyan_transform *transform)
{
    return transform && transform->prepare_send == cast_prepare_send;
}

uint64_t cast_wire_bytes(const banyan_transform *transform, const banyan_transfer *transfer)
{
    return cast_at_sender(transform->context, transfer)
               ? banyan_box_elems(&transfer->box) * banyan_dtype_bytes(transfer->destination_dtype)
               : transfer->bytes;
}

banyan_status banyan_cast_create(const banyan_cast_options *options, banyan_transform **transform)
{
    banyan_cast_options taken = BANYAN_CAST_OPTIONS_INIT;
    RETURN_IF_FAILED(options_take(options, "BANYAN_CAST_OPTIONS_INIT", &taken, sizeof taken));
    static const banyan_transform table = {.size = sizeof(banyan_transform),
                                           .name = "cast",
                                           .should_transform = cast_should,
                                           .prepare_send = cast_prepare_send,
                                           .prepare_recv = cast_prepare_recv,
                                           .finalize_recv = cast_finalize_recv};
    void *made;
    RETURN_IF_FAILED(transform_create(sizeof(struct cast_transform), &table, taken.names,
                                      taken.name_count, NULL, &made));
    struct cast_transform *cast = made;
    cast->side = taken.side;
    *transform = &cast->object.table;
    return BANYAN_OK;
}
