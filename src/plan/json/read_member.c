/* Members of many objects: numbers, lists, names. */
#include "plan/json/read.h"

#include "plan/op.h"

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
    json_list list;
    RETURN_IF_FAILED(json_list_begin(&reader->path, object, key, &list));
    if (list.count > INT32_MAX - *count)
        return json_path_fail(&reader->path, "has %zu entries: at most %d are possible", list.count,
                              INT32_MAX);
    while (json_list_next(&list)) {
        uint64_t number;
        RETURN_IF_FAILED(json_u64(&reader->path, list.entry, 0, high, &number));
        numbers[(*count)++] = (uint32_t)number;
    }
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

banyan_status read_text(plan_reader *reader, const char *what, const char *text, const char **taken)
{
    RETURN_IF_FAILED(json_path_check_text(&reader->path, what, text));
    *taken = plan_take_text(reader->plan, text);
    return *taken ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}
