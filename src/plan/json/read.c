#include "plan/json/read.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "core/text/json.h"

/* A file of this size has some ten million operations. */
#define FILE_BYTES_MAX ((size_t)4 << 30)

static banyan_status read_protocol(plan_reader *reader, const json_t *root)
{
    const char *name;
    RETURN_IF_FAILED(json_member_string(&reader->path, root, "protocol", &name));
    if (strcmp(name, "Simple") == 0)
        reader->plan->protocol = BANYAN_SIMPLE;
    else if (strcmp(name, "LL") == 0)
        reader->plan->protocol = BANYAN_LL;
    else
        return json_path_fail(&reader->path, "has the protocol \"%s\": Simple and LL are possible",
                              name);
    return BANYAN_OK;
}

static banyan_status read_names(plan_reader *reader, const json_t *root)
{
    banyan_plan *plan = reader->plan;
    const char *name, *collective;
    RETURN_IF_FAILED(json_member_string(&reader->path, root, "name", &name));
    RETURN_IF_FAILED(json_member_string(&reader->path, root, "collective", &collective));
    RETURN_IF_FAILED(read_text(reader, "name", name, &plan->name));
    RETURN_IF_FAILED(read_text(reader, "collective", collective, &plan->collective_name));
    if (banyan_collective_kind_parse(collective, &plan->collective) != BANYAN_OK)
        plan->collective = BANYAN_CUSTOM;
    return BANYAN_OK;
}

static banyan_status read_head(plan_reader *reader, const json_t *root)
{
    banyan_plan *plan = reader->plan;
    uint64_t threads = (uint64_t)plan->threads_per_block;
    RETURN_IF_FAILED(read_names(reader, root));
    RETURN_IF_FAILED(read_protocol(reader, root));
    RETURN_IF_FAILED(json_member_bool(&reader->path, root, "inplace", &plan->in_place));
    RETURN_IF_FAILED(read_bool_maybe(reader, root, "reuse_resources", &plan->reuse_resources));
    RETURN_IF_FAILED(
        read_bool_maybe(reader, root, "use_double_scratch_buffer", &plan->double_scratch));
    RETURN_IF_FAILED(read_u64_maybe(reader, root, "num_threads_per_block", 1, INT32_MAX, &threads));
    RETURN_IF_FAILED(
        read_u64_maybe(reader, root, "buffer_alignment", 0, UINT64_MAX, &plan->buffer_alignment));
    RETURN_IF_FAILED(
        read_u64_maybe(reader, root, "min_message_size", 0, UINT64_MAX, &plan->min_message_bytes));
    RETURN_IF_FAILED(
        read_u64_maybe(reader, root, "max_message_size", 0, UINT64_MAX, &plan->max_message_bytes));
    plan->threads_per_block = (int)threads;
    return BANYAN_OK;
}

static banyan_status read_tags(plan_reader *reader, const json_t *extras)
{
    banyan_plan *plan = reader->plan;
    json_t *tags = json_object_get(extras, "tags"), *value;
    const char *key;
    if (!tags)
        return BANYAN_OK;
    RETURN_IF_FAILED(json_member(&reader->path, extras, "tags", JSON_OBJECT, &tags));
    size_t mark = json_path_key(&reader->path, "tags");
    plan->tags = plan_take(plan, json_object_size(tags), sizeof *plan->tags);
    if (!plan->tags)
        return BANYAN_ERR_NO_MEMORY;
    json_object_foreach(tags, key, value)
    {
        const char *text;
        plan_tag *tag = &plan->tags[plan->tag_count++];
        RETURN_IF_FAILED(json_member_string(&reader->path, tags, key, &text));
        RETURN_IF_FAILED(read_text(reader, "key", key, &tag->key));
        RETURN_IF_FAILED(read_text(reader, "value", text, &tag->value));
    }
    json_path_pop(&reader->path, mark);
    return BANYAN_OK;
}

/* [["ring.c", 42], …] */
static banyan_status read_lines(plan_reader *reader, const json_t *extras)
{
    banyan_plan *plan = reader->plan;
    json_list list;
    RETURN_IF_FAILED(json_list_maybe(&reader->path, extras, "lines", &list));
    RETURN_IF_FAILED(read_count(reader, list.array, &plan->line_count));
    plan->lines = plan_take(plan, plan->line_count, sizeof *plan->lines);
    if (!plan->lines)
        return BANYAN_ERR_NO_MEMORY;
    while (json_list_next(&list)) {
        const json_t *line = json_array_get(list.entry, 1);
        const char *file = json_string_value(json_array_get(list.entry, 0));
        json_int_t number = json_integer_value(line);
        if (!file || !json_is_integer(line) || number < 0 || number > INT_MAX)
            return json_path_fail(&reader->path, "is not a list of a file and a line");
        plan->lines[list.i].line = (int)number;
        RETURN_IF_FAILED(read_text(reader, "file", file, &plan->lines[list.i].file));
    }
    return BANYAN_OK;
}

static banyan_status read_contribution(plan_reader *reader, const json_t *pair,
                                       plan_contribution *read)
{
    uint64_t rank;
    if (json_array_size(pair) != 2)
        return json_path_fail(&reader->path, "has to be a rank and one of its input chunks");
    RETURN_IF_FAILED(json_u64(&reader->path, json_array_get(pair, 0), 0,
                              (uint64_t)reader->plan->rank_count - 1, &rank));
    read->rank = (int)rank;
    return json_u64(&reader->path, json_array_get(pair, 1), 0, INT64_MAX, &read->chunk);
}

static banyan_status read_chunk(plan_reader *reader, json_t *pairs, plan_expected *read)
{
    if (json_is_null(pairs))
        return BANYAN_OK;
    if (!json_is_array(pairs))
        return json_path_fail(&reader->path, "has to be null or a list of contributions");
    plan_contribution *contributions =
        plan_take(reader->plan, json_array_size(pairs), sizeof *contributions);
    if (!contributions)
        return BANYAN_ERR_NO_MEMORY;
    for (json_list list = json_list_of(&reader->path, pairs); json_list_next(&list);)
        RETURN_IF_FAILED(read_contribution(reader, list.entry, &contributions[list.i]));
    *read = (plan_expected){contributions, json_array_size(pairs)};
    return BANYAN_OK;
}

/* Read one list per rank, as long as the rank has output chunks: a number alone never causes an
 * allocation. */
static banyan_status read_chunks(plan_reader *reader, json_t *chunks, int rank)
{
    uint64_t outputs = reader->plan->ranks[rank].chunks[PLAN_OUTPUT];
    if (json_is_null(chunks))
        return BANYAN_OK;
    if (!json_is_array(chunks) || json_array_size(chunks) != outputs)
        return json_path_fail(&reader->path, "has to be null or a list of the %llu output chunks",
                              (unsigned long long)outputs);
    plan_expected *read = plan_take(reader->plan, (size_t)outputs, sizeof *read);
    if (!read)
        return BANYAN_ERR_NO_MEMORY;
    for (json_list list = json_list_of(&reader->path, chunks); json_list_next(&list);)
        RETURN_IF_FAILED(read_chunk(reader, list.entry, &read[list.i]));
    reader->plan->expected[rank] = read;
    return BANYAN_OK;
}

static banyan_status read_expected(plan_reader *reader, const json_t *extras)
{
    banyan_plan *plan = reader->plan;
    json_list list;
    RETURN_IF_FAILED(json_list_maybe(&reader->path, extras, "expected", &list));
    if (!list.array)
        return BANYAN_OK;
    if (list.count != (size_t)plan->rank_count)
        return json_path_fail(&reader->path, "has %zu entries, and the plan has %d ranks",
                              list.count, plan->rank_count);
    plan->expected = plan_take(plan, (size_t)plan->rank_count, sizeof *plan->expected);
    if (!plan->expected)
        return BANYAN_ERR_NO_MEMORY;
    while (json_list_next(&list)) {
        RETURN_IF_FAILED(read_chunks(reader, list.entry, (int)list.i));
    }
    return BANYAN_OK;
}

static banyan_status read_expected_op(plan_reader *reader, const json_t *extras)
{
    const char *name;
    if (!json_object_get(extras, "reduce_op"))
        return BANYAN_OK;
    RETURN_IF_FAILED(json_member_string(&reader->path, extras, "reduce_op", &name));
    if (banyan_reduce_op_parse(name, &reader->plan->expected_op) == BANYAN_OK && reader->plan->expected_op != BANYAN_AVG)
        return BANYAN_OK;
    json_path_key(&reader->path, "reduce_op");
    return json_path_fail(&reader->path, "is \"%s\": sum, min, max and prod are possible", name);
}

/* Read the operations as MSCCL++'s executor does: it exchanges the places of a get, and counts the
 * channels of a flush by its destinations. */
static banyan_status read_as_mscclpp(plan_reader *reader)
{
    for (plan_cursor at = {.plan = reader->plan}; plan_cursor_next(&at);) {
        plan_op *op = (plan_op *)(uintptr_t)at.op;
        for (uint32_t i = 0; op->kind == PLAN_GET && i < op->source_count; i++) {
            if (i >= op->destination_count)
                return json_path_fail(&reader->path,
                                      "has a get of %u sources and %u destinations (rank %d)",
                                      op->source_count, op->destination_count, at.rank);
            uint64_t index = op->sources[i].index;
            op->sources[i].index = op->destinations[i].index;
            op->destinations[i].index = index;
        }
        if (op->kind == PLAN_FLUSH && op->destination_count != op->channel_count)
            return json_path_fail(&reader->path,
                                  "has a flush of %u channels with %u destinations (rank %d): "
                                  "MSCCL++'s executor takes as many",
                                  op->channel_count, op->destination_count, at.rank);
        if (op->kind == PLAN_FLUSH)
            op->destination_count = 0;
    }
    return BANYAN_OK;
}

static banyan_status read_executor(plan_reader *reader, const json_t *extras)
{
    const char *name;
    if (!json_object_get(extras, "executor"))
        return BANYAN_OK;
    RETURN_IF_FAILED(json_member_string(&reader->path, extras, "executor", &name));
    size_t mark = json_path_key(&reader->path, "executor");
    if (banyan_plan_executor_parse(name, &reader->plan->executor) != BANYAN_OK)
        return json_path_fail(&reader->path, "is \"%s\": banyan and mscclpp are possible", name);
    if (reader->plan->executor == BANYAN_EXECUTOR_MSCCLPP)
        RETURN_IF_FAILED(read_as_mscclpp(reader));
    json_path_pop(&reader->path, mark);
    return BANYAN_OK;
}

/* Read the members of the key "banyan". */
static banyan_status read_extras(plan_reader *reader, const json_t *root)
{
    banyan_plan *plan = reader->plan;
    json_t *extras;
    bool shifts = plan->collective == BANYAN_SENDRECV;
    uint64_t root_rank = 0, shift = shifts ? (uint64_t)(1 % plan->rank_count) : 0;
    uint64_t last = (uint64_t)plan->rank_count - 1;
    plan->shift = (int)shift;
    if (!json_object_get(root, "banyan"))
        return BANYAN_OK;
    RETURN_IF_FAILED(json_member(&reader->path, root, "banyan", JSON_OBJECT, &extras));
    size_t mark = json_path_key(&reader->path, "banyan");
    RETURN_IF_FAILED(read_u64_maybe(reader, extras, "root", 0, last, &root_rank));
    RETURN_IF_FAILED(read_u64_maybe(reader, extras, "shift", 0, last, &shift));
    RETURN_IF_FAILED(read_u64_maybe(reader, extras, "reused_scratch_bytes", 0, UINT64_MAX,
                                    &plan->reused_scratch_bytes));
    if (plan->collective == BANYAN_CUSTOM)
        RETURN_IF_FAILED(
            read_u64_maybe(reader, extras, "block_chunks", 1, INT64_MAX, &plan->block_chunks));
    RETURN_IF_FAILED(read_expected_op(reader, extras));
    RETURN_IF_FAILED(read_expected(reader, extras));
    RETURN_IF_FAILED(read_tags(reader, extras));
    RETURN_IF_FAILED(read_lines(reader, extras));
    RETURN_IF_FAILED(read_executor(reader, extras));
    plan->root = (int)root_rank;
    plan->shift = (int)shift;
    json_path_pop(&reader->path, mark);
    return BANYAN_OK;
}

static banyan_status json_read_ranks(plan_reader *reader, const json_t *root)
{
    json_list list;
    RETURN_IF_FAILED(json_list_begin(&reader->path, root, "gpus", &list));
    while (json_list_next(&list)) {
        uint64_t id;
        RETURN_IF_FAILED(json_member_u64(&reader->path, list.entry, "id", 0, UINT64_MAX, &id));
        if (id != list.i)
            return json_path_fail(&reader->path,
                                  "has the id %llu: ranks stand in order, and rank %zu is missing",
                                  (unsigned long long)id, list.i);
        reader->rank = (int)list.i;
        RETURN_IF_FAILED(read_rank(reader, list.entry, &reader->plan->ranks[list.i]));
    }
    return BANYAN_OK;
}

static banyan_status read_root(plan_reader *reader, const json_t *root, banyan_plan **plan)
{
    json_t *gpus;
    RETURN_IF_FAILED(json_member(&reader->path, root, "gpus", JSON_ARRAY, &gpus));
    size_t ranks = json_array_size(gpus);
    if (ranks < 1 || ranks > BANYAN_MAX_RANKS)
        return json_path_fail(&reader->path, "has %zu ranks in \"gpus\": 1 to %d are possible",
                              ranks, BANYAN_MAX_RANKS);
    reader->plan = plan_create((int)ranks);
    if (!reader->plan)
        return BANYAN_ERR_NO_MEMORY;
    banyan_status status = read_head(reader, root);
    if (status == BANYAN_OK)
        status = json_read_ranks(reader, root);
    if (status == BANYAN_OK)
        status = read_extras(reader, root);
    if (status == BANYAN_OK)
        status = plan_check_indices(reader->plan, reader->path.file);
    if (status != BANYAN_OK) {
        banyan_plan_destroy(reader->plan);
        return status;
    }
    *plan = reader->plan;
    return BANYAN_OK;
}

banyan_status banyan_plan_parse(const char *text, size_t bytes, const char *name,
                                banyan_plan **plan)
{
    json_t *root;
    RETURN_IF_FAILED(json_parse_as(JSON_PLAN, name, text, bytes, &root));
    plan_reader reader = {.path = {.file = name}};
    banyan_status status = json_is_object(root) ? read_root(&reader, root, plan)
                                                : json_path_fail(&reader.path, "is not an object");
    json_decref(root);
    return status;
}

banyan_status banyan_plan_read(const char *path, banyan_plan **plan)
{
    char *text;
    size_t bytes;
    RETURN_IF_FAILED(file_read(path, FILE_BYTES_MAX, &text, &bytes));
    banyan_status status = banyan_plan_parse(text, bytes, path, plan);
    free(text);
    return status;
}
