#include "plan/json/read.h"
#include "plan/op.h"

/* Count the channels of each type in the entries: an upper bound, since some may be refused later.
 */
static void count_numbers(const json_t *entries, const char *type_key, const char *numbers_key,
                          size_t counts[PLAN_CHANNEL_TYPES])
{
    for (size_t i = 0; i < json_array_size(entries); i++) {
        const json_t *entry = json_array_get(entries, i);
        const char *name = json_string_value(json_object_get(entry, type_key));
        plan_channel_type type;
        if (name && plan_channel_parse(name, &type))
            counts[type] += json_array_size(json_object_get(entry, numbers_key));
    }
}

static banyan_status read_references(plan_reader *reader, const json_t *object,
                                     const char *list_key, const char *type_key,
                                     const char *numbers_key, uint32_t **lists, uint32_t *counts)
{
    json_list list;
    size_t room[PLAN_CHANNEL_TYPES] = {0};
    RETURN_IF_FAILED(json_list_maybe(&reader->path, object, list_key, &list));
    count_numbers(list.array, type_key, numbers_key, room);
    for (int type = 0; type < PLAN_CHANNEL_TYPES; type++) {
        lists[type] = plan_take(reader->plan, room[type], sizeof *lists[type]);
        if (!lists[type])
            return BANYAN_ERR_NO_MEMORY;
    }
    while (json_list_next(&list)) {
        plan_channel_type type;
        RETURN_IF_FAILED(read_channel_type(reader, list.entry, type_key, &type));
        RETURN_IF_FAILED(
            read_numbers(reader, list.entry, numbers_key, UINT32_MAX, lists[type], &counts[type]));
    }
    return BANYAN_OK;
}

static banyan_status read_rank_read_block(plan_reader *reader, const json_t *object,
                                          uint32_t number, plan_thread_block *block)
{
    uint64_t id;
    RETURN_IF_FAILED(json_member_u64(&reader->path, object, "id", 0, UINT64_MAX, &id));
    if (id != number)
        return json_path_fail(&reader->path,
                              "has the id %llu: thread blocks stand in order, and %u is missing",
                              (unsigned long long)id, number);
    block->id = number;
    RETURN_IF_FAILED(read_references(reader, object, "channels", "channel_type", "channel_ids",
                                     block->channels, block->channel_count));
    RETURN_IF_FAILED(read_references(reader, object, "remote_buffer_refs", "access_channel_type",
                                     "remote_buffer_ids", block->remote_buffers,
                                     block->remote_buffer_count));
    return read_ops(reader, object, false, &block->ops, &block->op_count);
}

static banyan_status read_blocks(plan_reader *reader, const json_t *object, plan_rank *rank)
{
    json_list list;
    RETURN_IF_FAILED(json_list_begin(&reader->path, object, "threadblocks", &list));
    RETURN_IF_FAILED(read_count(reader, list.array, &rank->block_count));
    rank->blocks = plan_take(reader->plan, rank->block_count, sizeof *rank->blocks);
    if (!rank->blocks)
        return BANYAN_ERR_NO_MEMORY;
    while (json_list_next(&list)) {
        RETURN_IF_FAILED(
            read_rank_read_block(reader, list.entry, (uint32_t)list.i, &rank->blocks[list.i]));
    }
    return BANYAN_OK;
}

static banyan_status read_rank_read_ranks(plan_reader *reader, const json_t *object,
                                          const char *key, int *ranks, uint32_t *count)
{
    return read_numbers(reader, object, key, (uint32_t)reader->plan->rank_count - 1,
                        (uint32_t *)ranks, count);
}

static banyan_status read_rank_read_group(plan_reader *reader, const json_t *group,
                                          plan_switch *read)
{
    uint32_t count = 0;
    read->ranks = plan_take(reader->plan, json_array_size(json_object_get(group, "ranks")),
                            sizeof *read->ranks);
    if (!read->ranks)
        return BANYAN_ERR_NO_MEMORY;
    RETURN_IF_FAILED(read_rank_read_ranks(reader, group, "ranks", read->ranks, &count));
    uint64_t size = count;
    RETURN_IF_FAILED(read_u64_maybe(reader, group, "size", 0, UINT64_MAX, &size));
    if (size != count)
        return json_path_fail(&reader->path, "has the size %llu and %u ranks",
                              (unsigned long long)size, count);
    read->rank_count = (int)count;
    return BANYAN_OK;
}

static banyan_status read_groups(plan_reader *reader, const json_t *entry, plan_rank *rank)
{
    json_list list;
    plan_buffer buffer;
    RETURN_IF_FAILED(read_buffer(reader, entry, "buffer_type", &buffer));
    RETURN_IF_FAILED(json_list_begin(&reader->path, entry, "rank_groups", &list));
    while (json_list_next(&list)) {
        plan_switch *read = &rank->switches[rank->channel_count[PLAN_SWITCH]];
        read->buffer = buffer;
        RETURN_IF_FAILED(read_rank_read_group(reader, list.entry, read));
        rank->channel_count[PLAN_SWITCH]++;
    }
    return BANYAN_OK;
}

/* Count the switch channels in the entries: an upper bound. */
static size_t count_groups(const json_t *entries)
{
    size_t count = 0;
    for (size_t i = 0; i < json_array_size(entries); i++)
        count += json_array_size(json_object_get(json_array_get(entries, i), "rank_groups"));
    return count;
}

static banyan_status read_rank_make_room(plan_reader *reader, const json_t *entries,
                                         plan_rank *rank)
{
    size_t room[PLAN_CHANNEL_TYPES] = {0};
    count_numbers(entries, "channel_type", "connected_to", room);
    for (int type = PLAN_MEMORY; type <= PLAN_PORT; type++) {
        rank->peers[type] = plan_take(reader->plan, room[type], sizeof *rank->peers[type]);
        if (!rank->peers[type])
            return BANYAN_ERR_NO_MEMORY;
    }
    rank->switches = plan_take(reader->plan, count_groups(entries), sizeof *rank->switches);
    return rank->switches ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

static banyan_status read_channels(plan_reader *reader, const json_t *object, plan_rank *rank)
{
    json_list list;
    RETURN_IF_FAILED(json_list_maybe(&reader->path, object, "channels", &list));
    RETURN_IF_FAILED(read_rank_make_room(reader, list.array, rank));
    while (json_list_next(&list)) {
        plan_channel_type type;
        RETURN_IF_FAILED(read_channel_type(reader, list.entry, "channel_type", &type));
        if (type == PLAN_NO_CHANNEL)
            return json_path_fail(&reader->path, "is a channel of the type \"none\"");
        if (type == PLAN_SWITCH)
            RETURN_IF_FAILED(read_groups(reader, list.entry, rank));
        else
            RETURN_IF_FAILED(read_rank_read_ranks(reader, list.entry, "connected_to",
                                                  rank->peers[type], &rank->channel_count[type]));
    }
    return BANYAN_OK;
}

static banyan_status read_access(plan_reader *reader, const json_t *entry, unsigned *access)
{
    json_list list;
    RETURN_IF_FAILED(json_list_begin(&reader->path, entry, "access_channel_types", &list));
    while (json_list_next(&list)) {
        const char *name = json_string_value(list.entry);
        plan_channel_type type;
        if (!name || !plan_channel_parse(name, &type) || type == PLAN_NO_CHANNEL)
            return json_path_fail(&reader->path, "is none of memory, port and switch");
        *access |= PLAN_BIT(type);
    }
    return BANYAN_OK;
}

static banyan_status read_remote_buffer(plan_reader *reader, const json_t *entry,
                                        plan_remote_buffer *read)
{
    uint64_t rank;
    RETURN_IF_FAILED(json_member_u64(&reader->path, entry, "rank", 0,
                                     (uint64_t)reader->plan->rank_count - 1, &rank));
    read->rank = (int)rank;
    RETURN_IF_FAILED(read_buffer(reader, entry, "type", &read->buffer));
    return read_access(reader, entry, &read->access);
}

static banyan_status read_remote_buffers(plan_reader *reader, const json_t *object, plan_rank *rank)
{
    json_list list;
    RETURN_IF_FAILED(json_list_maybe(&reader->path, object, "remote_buffers", &list));
    RETURN_IF_FAILED(read_count(reader, list.array, &rank->remote_buffer_count));
    rank->remote_buffers =
        plan_take(reader->plan, rank->remote_buffer_count, sizeof *rank->remote_buffers);
    if (!rank->remote_buffers)
        return BANYAN_ERR_NO_MEMORY;
    while (json_list_next(&list)) {
        RETURN_IF_FAILED(read_remote_buffer(reader, list.entry, &rank->remote_buffers[list.i]));
    }
    return BANYAN_OK;
}

static banyan_status read_semaphores(plan_reader *reader, const json_t *object, plan_rank *rank)
{
    json_list list;
    RETURN_IF_FAILED(json_list_maybe(&reader->path, object, "semaphores", &list));
    RETURN_IF_FAILED(read_count(reader, list.array, &rank->semaphore_count));
    rank->semaphores = plan_take(reader->plan, rank->semaphore_count, sizeof *rank->semaphores);
    if (!rank->semaphores)
        return BANYAN_ERR_NO_MEMORY;
    while (json_list_next(&list)) {
        RETURN_IF_FAILED(json_member_u64(&reader->path, list.entry, "init_value", 0, INT64_MAX,
                                         &rank->semaphores[list.i]));
    }
    return BANYAN_OK;
}

banyan_status read_rank(plan_reader *reader, const json_t *object, plan_rank *rank)
{
    json_path *path = &reader->path;
    RETURN_IF_FAILED(
        json_member_u64(path, object, "input_chunks", 0, INT64_MAX, &rank->chunks[PLAN_INPUT]));
    RETURN_IF_FAILED(
        json_member_u64(path, object, "output_chunks", 0, INT64_MAX, &rank->chunks[PLAN_OUTPUT]));
    RETURN_IF_FAILED(
        json_member_u64(path, object, "scratch_chunks", 0, INT64_MAX, &rank->chunks[PLAN_SCRATCH]));
    RETURN_IF_FAILED(read_channels(reader, object, rank));
    RETURN_IF_FAILED(read_remote_buffers(reader, object, rank));
    RETURN_IF_FAILED(read_semaphores(reader, object, rank));
    return read_blocks(reader, object, rank);
}
