#include "plan/json/read.h"
#include "plan/op.h"

static banyan_status read_local(plan_reader *reader, const json_t *object, plan_operand *operand)
{
    uint64_t own = (uint64_t)reader->rank, rank = own;
    RETURN_IF_FAILED(read_u64_maybe(reader, object, "rank", 0, UINT64_MAX, &rank));
    if (rank != own)
        return json_path_fail(&reader->path, "is of rank %llu: a rank has its own buffers only",
                              (unsigned long long)rank);
    operand->place = PLAN_LOCAL;
    return read_buffer(reader, object, "type", &operand->buffer);
}

static banyan_status read_reference(plan_reader *reader, const json_t *object, const char *key,
                                    plan_place place, plan_operand *operand)
{
    uint64_t number;
    operand->place = place;
    RETURN_IF_FAILED(json_member_u64(&reader->path, object, key, 0, UINT32_MAX, &number));
    operand->reference = (uint32_t)number;
    return BANYAN_OK;
}

static banyan_status read_operand(plan_reader *reader, const json_t *object, plan_operand *operand)
{
    bool remote = json_object_get(object, "buffer_id");
    bool group = json_object_get(object, "switch_channel_id");
    bool local = json_object_get(object, "type") && !remote && !group;
    if (remote == group && !local)
        return json_path_fail(
            &reader->path, "has to have one of \"type\", \"buffer_id\" and \"switch_channel_id\"");
    if (local)
        RETURN_IF_FAILED(read_local(reader, object, operand));
    else if (remote)
        RETURN_IF_FAILED(read_reference(reader, object, "buffer_id", PLAN_REMOTE, operand));
    else
        RETURN_IF_FAILED(read_reference(reader, object, "switch_channel_id", PLAN_GROUP, operand));
    RETURN_IF_FAILED(
        json_member_u64(&reader->path, object, "index", 0, INT64_MAX, &operand->index));
    return json_member_u64(&reader->path, object, "size", 0, INT64_MAX, &operand->size);
}

static banyan_status read_operands(plan_reader *reader, const json_t *object, const char *key,
                                   plan_operand **operands, uint32_t *count)
{
    json_list list;
    RETURN_IF_FAILED(json_list_maybe(&reader->path, object, key, &list));
    if (!list.array)
        return BANYAN_OK;
    RETURN_IF_FAILED(read_count(reader, list.array, count));
    *operands = plan_take(reader->plan, *count, sizeof **operands);
    if (!*operands)
        return BANYAN_ERR_NO_MEMORY;
    while (json_list_next(&list)) {
        RETURN_IF_FAILED(read_operand(reader, list.entry, &(*operands)[list.i]));
    }
    return BANYAN_OK;
}

static banyan_status read_op_read_list(plan_reader *reader, const json_t *object, const char *key,
                                       uint32_t **numbers, uint32_t *count)
{
    const json_t *array = json_object_get(object, key);
    if (!array)
        return BANYAN_OK;
    *numbers = plan_take(reader->plan, json_array_size(array), sizeof **numbers);
    if (!*numbers)
        return BANYAN_ERR_NO_MEMORY;
    return read_numbers(reader, object, key, UINT32_MAX, *numbers, count);
}

static banyan_status read_u32(plan_reader *reader, const json_t *object, const char *key,
                              uint32_t *value)
{
    uint64_t number;
    RETURN_IF_FAILED(json_member_u64(&reader->path, object, key, 0, UINT32_MAX, &number));
    *value = (uint32_t)number;
    return BANYAN_OK;
}

/* Read the thread block's share of an operation that a group performs together. */
static banyan_status read_op_read_share(plan_reader *reader, const json_t *object, plan_op *op)
{
    json_t *share;
    if (!json_object_get(object, "tbg_info"))
        return BANYAN_OK;
    RETURN_IF_FAILED(json_member(&reader->path, object, "tbg_info", JSON_OBJECT, &share));
    size_t mark = json_path_key(&reader->path, "tbg_info");
    RETURN_IF_FAILED(read_u32(reader, share, "tb_id", &op->group_index));
    RETURN_IF_FAILED(read_u32(reader, share, "tbg_size", &op->group_size));
    if (op->group_size == 0)
        return json_path_fail(&reader->path, "is a group of no thread blocks");
    json_path_pop(&reader->path, mark);
    return BANYAN_OK;
}

static banyan_status read_reduction(plan_reader *reader, const json_t *object, plan_op *op)
{
    const char *name;
    if (!plan_op_reduces(op->kind) || !json_object_get(object, "reduce_op"))
        return BANYAN_OK;
    RETURN_IF_FAILED(json_member_string(&reader->path, object, "reduce_op", &name));
    if (banyan_reduce_op_parse(name, &op->reduce_op) == BANYAN_OK && op->reduce_op != BANYAN_AVG)
        return BANYAN_OK;
    json_path_key(&reader->path, "reduce_op");
    return json_path_fail(&reader->path, "is \"%s\": sum, min, max and prod are possible", name);
}

static banyan_status read_loop(plan_reader *reader, const json_t *object, plan_op *op)
{
    json_t *context;
    RETURN_IF_FAILED(json_member(&reader->path, object, "iter_context", JSON_OBJECT, &context));
    size_t mark = json_path_key(&reader->path, "iter_context");
    RETURN_IF_FAILED(
        json_member_u64(&reader->path, context, "unit_size", 0, UINT64_MAX, &op->unit_bytes));
    RETURN_IF_FAILED(
        json_member_u64(&reader->path, context, "num_chunks", 0, INT64_MAX, &op->loop_chunks));
    json_path_pop(&reader->path, mark);
    return read_ops(reader, object, true, &op->ops, &op->op_count);
}

static banyan_status read_op_read_kind(plan_reader *reader, const json_t *object, bool in_loop,
                                       plan_op_kind *kind)
{
    const char *name;
    RETURN_IF_FAILED(json_member_string(&reader->path, object, "name", &name));
    size_t mark = json_path_key(&reader->path, "name");
    if (!plan_op_parse(name, kind))
        return json_path_fail(&reader->path, "is \"%s\", which is not an operation", name);
    if (*kind == PLAN_PIPELINE && in_loop)
        return json_path_fail(&reader->path, "is \"pipeline\": pipelines do not nest");
    json_path_pop(&reader->path, mark);
    return BANYAN_OK;
}

static banyan_status read_op(plan_reader *reader, const json_t *object, bool in_loop, plan_op *op)
{
    uint64_t line = 0;
    RETURN_IF_FAILED(read_op_read_kind(reader, object, in_loop, &op->kind));
    RETURN_IF_FAILED(read_u64_maybe(reader, object, "line", 0, UINT32_MAX, &line));
    op->line = (uint32_t)line;
    const plan_op_form *form = plan_op_form_of(op->kind);
    if (form->channel_types)
        RETURN_IF_FAILED(read_channel_type(reader, object, "channel_type", &op->channel_type));
    RETURN_IF_FAILED(read_operands(reader, object, "src_buff", &op->sources, &op->source_count));
    RETURN_IF_FAILED(
        read_operands(reader, object, "dst_buff", &op->destinations, &op->destination_count));
    if (form->channels != PLAN_CHANNELS_UNUSED)
        RETURN_IF_FAILED(
            read_op_read_list(reader, object, "channel_ids", &op->channels, &op->channel_count));
    RETURN_IF_FAILED(read_op_read_share(reader, object, op));
    RETURN_IF_FAILED(read_reduction(reader, object, op));
    switch (op->kind) {
    case PLAN_SEM_ACQUIRE:
    case PLAN_SEM_RELEASE:
        return read_op_read_list(reader, object, "semaphore_ids", &op->semaphores,
                                 &op->semaphore_count);
    case PLAN_BARRIER:
        RETURN_IF_FAILED(read_u32(reader, object, "barrier_id", &op->barrier));
        return read_u32(reader, object, "num_threadblocks", &op->barrier_members);
    case PLAN_PIPELINE:
        return read_loop(reader, object, op);
    default:
        return BANYAN_OK;
    }
}

banyan_status read_ops(plan_reader *reader, const json_t *object, bool in_loop, plan_op **ops,
                       uint32_t *count)
{
    json_list list;
    RETURN_IF_FAILED(json_list_begin(&reader->path, object, "ops", &list));
    RETURN_IF_FAILED(read_count(reader, list.array, count));
    *ops = plan_take(reader->plan, *count, sizeof **ops);
    if (!*ops)
        return BANYAN_ERR_NO_MEMORY;
    while (json_list_next(&list))
        RETURN_IF_FAILED(read_op(reader, list.entry, in_loop, &(*ops)[list.i]));
    return BANYAN_OK;
}
