/* The casting transform. One tensor travels, in the type of the end that does not cast. */
#include <stdlib.h>

#include "core/error.h"
#include "core/options.h"
#include "reshard/run/convert.h"
#include "reshard/transform/object.h"

struct cast_transform {
    transform_object object;
    banyan_transform_side side;
    name_filter names;
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
           name_filter_accepts(&cast->names, transfer->name);
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

static void cast_destroy(transform_object *object)
{
    struct cast_transform *cast = (struct cast_transform *)object;
    name_filter_free(&cast->names);
    free(cast);
}

banyan_status banyan_cast_create(const banyan_cast_options *options, banyan_transform **transform)
{
    banyan_cast_options taken = BANYAN_CAST_OPTIONS_INIT;
    RETURN_IF_FAILED(options_take(options, "BANYAN_CAST_OPTIONS_INIT", &taken, sizeof taken));
    struct cast_transform *cast = calloc(1, sizeof *cast);
    if (!cast)
        return error_no_memory(sizeof *cast, "a casting transform");
    banyan_status status = name_filter_copy(taken.names, taken.name_count, &cast->names);
    if (status != BANYAN_OK) {
        free(cast);
        return status;
    }
    cast->side = taken.side;
    cast->object = (transform_object){.table = {.size = sizeof(banyan_transform),
                                                .name = "cast",
                                                .context = cast,
                                                .should_transform = cast_should,
                                                .prepare_send = cast_prepare_send,
                                                .prepare_recv = cast_prepare_recv,
                                                .finalize_recv = cast_finalize_recv},
                                      .destroy = cast_destroy};
    *transform = &cast->object.table;
    return BANYAN_OK;
}
