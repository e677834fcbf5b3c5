#include "reshard/layout/value_map.h"

#include <math.h>
#include <string.h>

#include "core/error.h"
#include "reshard/run/convert.h"
#include "reshard/transform/object.h"

/* Compute in double, so that the float is the nearest one to the true value. */
static void negative_exp(float *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        values[i] = -(float)exp((double)values[i]);
}

static const struct value_map {
    uint32_t flag;
    const char *name;
    convert_values_fn compute;
} value_maps[] = {{BANYAN_PIECE_NEGATIVE_EXP, "negative_exp", negative_exp}};

#define VALUE_MAP_COUNT (sizeof value_maps / sizeof *value_maps)

const char *value_map_name(uint32_t flags)
{
    for (size_t i = 0; i < VALUE_MAP_COUNT; i++)
        if (flags & value_maps[i].flag)
            return value_maps[i].name;
    return NULL;
}

uint32_t value_map_find(const char *name)
{
    for (size_t i = 0; i < VALUE_MAP_COUNT; i++)
        if (strcmp(value_maps[i].name, name) == 0)
            return value_maps[i].flag;
    return 0;
}

banyan_status value_map_read(json_path *path, const json_t *piece, uint32_t *flags)
{
    const char *name;
    if (!json_object_get(piece, "map"))
        return BANYAN_OK;
    RETURN_IF_FAILED(json_member_string(path, piece, "map", &name));
    uint32_t flag = value_map_find(name);
    if (flag == 0)
        return json_path_fail(path, "has unknown map \"%.80s\": there is %s", name,
                              VALUE_MAP_NAMES);
    *flags |= flag;
    return BANYAN_OK;
}

bool value_map_between(uint32_t from, uint32_t to, uint32_t *flag)
{
    from &= VALUE_MAPS;
    to &= VALUE_MAPS;
    *flag = from == to ? 0 : to;
    return from == to || from == 0;
}

banyan_status value_map_apply(uint32_t flag, const DLTensor *destination, const DLTensor *source)
{
    const struct value_map *found = value_maps;
    while (found->flag != flag)
        found++;
    return convert_tensor_through(destination, source, found->compute);
}

static bool value_map_should(void *context, const banyan_transfer *transfer)
{
    (void)context;
    return transfer->value_map != 0;
}

static banyan_status value_map_prepare_send(void *context, const banyan_transform_task *task,
                                            banyan_transform_scratch *scratch, DLTensor *parts,
                                            int *part_count)
{
    (void)context;
    (void)scratch;
    parts[0] = *task->local;
    *part_count = 1;
    return BANYAN_OK;
}

static banyan_status value_map_prepare_recv(void *context, const banyan_transform_task *task,
                                            banyan_transform_scratch *scratch, DLTensor *parts,
                                            int *part_count)
{
    (void)context;
    *part_count = 1;
    return scratch_tensor(scratch, task->transfer->source_dtype, task->local->ndim,
                          task->local->shape, &parts[0]);
}

static banyan_status value_map_finalize_recv(void *context, const banyan_transform_task *task,
                                             const DLTensor *parts, int part_count)
{
    (void)context;
    (void)part_count;
    return value_map_apply(task->transfer->value_map, task->local, &parts[0]);
}

const banyan_transform *value_map_transform(void)
{
    static const banyan_transform transform = {.size = sizeof transform,
                                               .name = "value map",
                                               .should_transform = value_map_should,
                                               .prepare_send = value_map_prepare_send,
                                               .prepare_recv = value_map_prepare_recv,
                                               .finalize_recv = value_map_finalize_recv};
    return &transform;
}
