#include "plan/json/read.h"

#include <stdlib.h>
#include <string.h>

#include "core/text/json.h"
#include "plan/op.h"

/* A file of this size has some ten million operations. */
#define FILE_BYTES_MAX ((size_t)4 << 30)

banyan_status read_u64_maybe(plan_reader *reader, const json_t *object, const char *key,
                             uint64_t low, uint64_t high, uint64_t *value)
{
    const json_t *found = json_object_get(object, key);
    if (!found || json_is_null(found))
        return BANYAN_OK;
    return json_member_u64(&reader->path, object, key, low, high, value);
}

banyan_status read_bool_maybe(plan_reader *reader, const json_t *object, const char *key,
                              bool *value)
{
    const json_t *found = json_object_get(object, key);
    if (!found || json_is_null(found))
        return BANYAN_OK;
    return json_member_bool(&reader->path, object, key, value);
}

banyan_status read_array_maybe(plan_reader *reader, const json_t *object, const char *key,
                               json_t **array)
{
    const json_t *found = json_object_get(object, key);
    *array = NULL;
    if (!found || json_is_null(found))
        return BANYAN_OK;
    return json_member(&reader->path, object, key, JSON_ARRAY, array);
}

banyan_status read_count(plan_reader *reader, const json_t *array, uint32_t *count)
{
    size_t length = json_array_size(array);
    if (length > INT32_MAX)
        return json_path_fail(&reader->path, "has %zu entries: at most %d are possible", length,
                              INT32_MAX);
    *count = (uint32_t)length;
    return BANYAN_OK;
}

banyan_status read_numbers(plan_reader *reader, const json_t *object, const char *key,
                           uint32_t high, uint32_t *numbers, uint32_t *count)
{
    json_t *array;
    RETURN_IF_FAILED(json_member(&reader->path, object, key, JSON_ARRAY, &array));
    size_t mark = json_path_key(&reader->path, key);
    size_t length = json_array_size(array);
    if (length > INT32_MAX - *count)
        return json_path_fail(&reader->path, "has %zu entries: at most %d are possible", length,
                              INT32_MAX);
    for (size_t i = 0; i < length; i++) {
        uint64_t number;
        size_t inner = json_path_index(&reader->path, i);
        RETURN_IF_FAILED(json_u64(&reader->path, json_array_get(array, i), 0, high, &number));
        json_path_pop(&reader->path, inner);
        numbers[(*count)++] = (uint32_t)number;
    }
    json_path_pop(&reader->path, mark);
    return BANYAN_OK;
}

banyan_status read_channel_type(plan_reader *reader, const json_t *object, const char *key,
                                plan_channel_type *type)
{
    const char *name;
    RETURN_IF_FAILED(json_member_string(&reader->path, object, key, &name));
    size_t mark = json_path_key(&reader->path, key);
    if (!plan_channel_parse(name, type))
        return json_path_fail(&reader->path, "is \"%s\": memory, port and switch are possible",
                              name);
    json_path_pop(&reader->path, mark);
    return BANYAN_OK;
}

banyan_status read_buffer(plan_reader *reader, const json_t *object, const char *key,
                          plan_buffer *buffer)
{
    const char *name;
    RETURN_IF_FAILED(json_member_string(&reader->path, object, key, &name));
    size_t mark = json_path_key(&reader->path, key);
    if (!plan_buffer_parse(name, buffer))
        return json_path_fail(
            &reader->path, "is \"%s\": i (input), o (output) and s (scratch) are possible", name);
    json_path_pop(&reader->path, mark);
    return BANYAN_OK;
}

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

banyan_status read_text(plan_reader *reader, const char *what, const char *text, const char **taken)
{
    RETURN_IF_FAILED(json_path_check_text(&reader->path, what, text));
    *taken = plan_take_text(reader->plan, text);
    return *taken ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

static banyan_status read_names(plan_reader *reader, const json_t *root)
{
    banyan_plan *plan = reader->plan;
    const char *name, *collective;
    RETURN_IF_FAILED(json_member_string(&reader->path, root, "name", &name));
    RETURN_IF_FAILED(json_member_string(&reader->path, root, "collective", &collective));
    RETURN_IF_FAILED(read_text(reader, "name", name, &plan->name));
    RETURN_IF_FAILED(read_text(reader, "collective", collective, &plan->collective_name));
    if (banyan_collective_parse(collective, &plan->collective) != BANYAN_OK)
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

static banyan_status json_read_ranks(plan_reader *reader, const json_t *gpus)
{
    size_t key = json_path_key(&reader->path, "gpus");
    for (int r = 0; r < reader->plan->rank_count; r++) {
        const json_t *gpu = json_array_get(gpus, (size_t)r);
        size_t mark = json_path_index(&reader->path, (size_t)r);
        uint64_t id;
        RETURN_IF_FAILED(json_member_u64(&reader->path, gpu, "id", 0, UINT64_MAX, &id));
        if (id != (uint64_t)r)
            return json_path_fail(&reader->path,
                                  "has the id %llu: ranks stand in order, and rank %d is missing",
                                  (unsigned long long)id, r);
        reader->rank = r;
        RETURN_IF_FAILED(read_rank(reader, gpu, &reader->plan->ranks[r]));
        json_path_pop(&reader->path, mark);
    }
    json_path_pop(&reader->path, key);
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
        status = json_read_ranks(reader, gpus);
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
