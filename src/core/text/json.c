#include "core/text/json.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

banyan_status json_parse(const char *path, const char *text, size_t bytes, json_t **root)
{
    json_error_t error;
    json_t *parsed = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!parsed)
        return error_set(BANYAN_ERR_FORMAT, "%s:%d:%d: %s", path, error.line, error.column,
                         error.text);
    *root = parsed;
    return BANYAN_OK;
}

/* True if the digits are a number above INT64_MAX and at most UINT64_MAX. */
static bool json_is_large(const char *digits, size_t count)
{
    static const char int64_max[] = "9223372036854775807", uint64_max[] = "18446744073709551615";
    if (count == 0 || digits[0] == '0')
        return false;
    if (count == sizeof int64_max - 1)
        return memcmp(digits, int64_max, count) > 0;
    return count == sizeof uint64_max - 1 && memcmp(digits, uint64_max, count) <= 0;
}

/* True for a character that can be inside a number: a number begins or ends only next to another
 * character. */
static bool is_part_of_number(char c)
{
    return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
}

/* Copy the text with quotes around its large integers; `quoted` needs space for a quarter more. */
static size_t quote_large(const char *text, size_t bytes, char *quoted)
{
    size_t out = 0;
    bool in_string = false;
    for (size_t i = 0; i < bytes;) {
        size_t digits = 0;
        if (!in_string && (i == 0 || !is_part_of_number(text[i - 1])))
            while (i + digits < bytes && text[i + digits] >= '0' && text[i + digits] <= '9')
                digits++;
        if (json_is_large(text + i, digits) &&
            (i + digits == bytes || !is_part_of_number(text[i + digits]))) {
            quoted[out++] = '"';
            memcpy(quoted + out, text + i, digits);
            out += digits;
            quoted[out++] = '"';
            i += digits;
            continue;
        }
        if (in_string && text[i] == '\\' && i + 1 < bytes)
            quoted[out++] = text[i++];
        else if (text[i] == '"')
            in_string = !in_string;
        quoted[out++] = text[i++];
    }
    return out;
}

banyan_status json_parse_u64(const char *path, const char *text, size_t bytes, json_t **root)
{
    size_t room = bytes + bytes / 4 + 1;
    char *quoted = room > bytes ? malloc(room) : NULL;
    if (!quoted)
        return error_no_memory(room, path);
    banyan_status status = json_parse(path, quoted, quote_large(text, bytes, quoted), root);
    free(quoted);
    return status;
}

size_t json_line_of_key(const char *text, const char *key)
{
    size_t length = strlen(key), line = 1;
    for (const char *at = text; *at; at++) {
        if (*at == '\n')
            line++;
        if (*at == '"' && strncmp(at + 1, key, length) == 0 && at[length + 1] == '"')
            return line;
    }
    return 0;
}

/* Append to the path without printf: a check visits every place of a document and rarely needs the
 * path's text, so printf would take most of its time. */
static void json_push(json_path *path, const char *text, size_t bytes)
{
    size_t room = sizeof path->text - 1 - path->used;
    size_t taken = bytes < room ? bytes : room;
    memcpy(path->text + path->used, text, taken);
    path->used += taken;
    path->text[path->used] = '\0';
}

size_t json_path_key(json_path *path, const char *key)
{
    size_t mark = path->used;
    if (mark > 0)
        json_push(path, ".", 1);
    json_push(path, key, strlen(key));
    return mark;
}

size_t json_path_index(json_path *path, size_t index)
{
    char text[24];
    size_t mark = path->used, at = sizeof text;
    text[--at] = ']';
    do
        text[--at] = (char)('0' + index % 10);
    while ((index /= 10) > 0);
    text[--at] = '[';
    json_push(path, text + at, sizeof text - at);
    return mark;
}

void json_path_pop(json_path *path, size_t mark)
{
    path->used = mark;
    path->text[mark] = '\0';
}

banyan_status json_path_fail(const json_path *path, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return error_set(BANYAN_ERR_FORMAT, "%s: %s %s", path->file,
                     path->used > 0 ? path->text : "the document", text);
}

banyan_status json_path_check_text(const json_path *path, const char *what, const char *text)
{
    for (const char *c = text; *c != '\0'; c++) {
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            return json_path_fail(path, "has a %s with the control character 0x%02x", what,
                                  (unsigned)(unsigned char)*c);
    }
    return BANYAN_OK;
}

static const char *json_type_name(json_type type)
{
    static const char *const names[] = {"an object", "an array", "a string", "an integer",
                                        "a number",  "true",     "false",    "null"};
    return names[type];
}

banyan_status json_member(json_path *path, const json_t *object, const char *key, json_type type,
                          json_t **value)
{
    json_t *found = json_object_get(object, key);
    if (!found)
        return json_path_fail(path, "has no \"%s\"", key);
    size_t mark = json_path_key(path, key);
    if (json_typeof(found) != type)
        return json_path_fail(path, "is %s where %s should be", json_type_name(json_typeof(found)),
                              json_type_name(type));
    json_path_pop(path, mark);
    *value = found;
    return BANYAN_OK;
}

static banyan_status read_int(const json_path *path, const json_t *json, int64_t low, int64_t high,
                              int64_t *value)
{
    if (!json_is_integer(json))
        return json_path_fail(path, "is %s where an integer should be",
                              json_type_name(json_typeof(json)));
    json_int_t number = json_integer_value(json);
    if (number < low || number > high)
        return json_path_fail(
            path, "is %" JSON_INTEGER_FORMAT ": %" PRId64 " to %" PRId64 " are possible", number,
            low, high);
    *value = number;
    return BANYAN_OK;
}

banyan_status json_member_int(json_path *path, const json_t *object, const char *key, int64_t low,
                              int64_t high, int64_t *value)
{
    json_t *found;
    RETURN_IF_FAILED(json_member(path, object, key, JSON_INTEGER, &found));
    size_t mark = json_path_key(path, key);
    RETURN_IF_FAILED(read_int(path, found, low, high, value));
    json_path_pop(path, mark);
    return BANYAN_OK;
}

/* Read the digits of an integer that json_parse_u64 has quoted. */
static bool read_large(const json_t *json, uint64_t *value)
{
    const char *digits = json_string_value(json);
    size_t count = json_string_length(json);
    if (!digits || strspn(digits, "0123456789") != count || !json_is_large(digits, count))
        return false;
    *value = strtoull(digits, NULL, 10);
    return true;
}

banyan_status json_u64(const json_path *path, const json_t *value, uint64_t low, uint64_t high,
                       uint64_t *number)
{
    uint64_t read;
    if (json_is_integer(value) && json_integer_value(value) < 0)
        return json_path_fail(path, "is %" JSON_INTEGER_FORMAT ": a negative number",
                              json_integer_value(value));
    if (json_is_integer(value))
        read = (uint64_t)json_integer_value(value);
    else if (!read_large(value, &read))
        return json_path_fail(path, "is %s where an integer should be",
                              json_type_name(json_typeof(value)));
    if (read < low || read > high)
        return json_path_fail(path, "is %" PRIu64 ": %" PRIu64 " to %" PRIu64 " are possible", read,
                              low, high);
    *number = read;
    return BANYAN_OK;
}

banyan_status json_member_u64(json_path *path, const json_t *object, const char *key, uint64_t low,
                              uint64_t high, uint64_t *number)
{
    json_t *found = json_object_get(object, key);
    if (!found)
        return json_path_fail(path, "has no \"%s\"", key);
    size_t mark = json_path_key(path, key);
    RETURN_IF_FAILED(json_u64(path, found, low, high, number));
    json_path_pop(path, mark);
    return BANYAN_OK;
}

banyan_status json_member_string(json_path *path, const json_t *object, const char *key,
                                 const char **value)
{
    json_t *found = NULL;
    RETURN_IF_FAILED(json_member(path, object, key, JSON_STRING, &found));
    *value = json_string_value(found);
    return BANYAN_OK;
}

banyan_status json_member_bool(json_path *path, const json_t *object, const char *key, bool *value)
{
    json_t *found = json_object_get(object, key);
    if (!found)
        return json_path_fail(path, "has no \"%s\"", key);
    size_t mark = json_path_key(path, key);
    if (!json_is_boolean(found))
        return json_path_fail(path, "is %s where true or false should be",
                              json_type_name(json_typeof(found)));
    json_path_pop(path, mark);
    *value = json_is_true(found);
    return BANYAN_OK;
}

banyan_status json_ints(json_path *path, const json_t *array, int64_t low, int64_t high, size_t max,
                        int64_t *values, size_t *count)
{
    if (!json_is_array(array))
        return json_path_fail(path, "is %s where an array should be",
                              json_type_name(json_typeof(array)));
    size_t length = json_array_size(array);
    if (length > max)
        return json_path_fail(path, "has %zu entries: at most %zu are possible", length, max);
    for (size_t i = 0; i < length; i++) {
        size_t mark = json_path_index(path, i);
        RETURN_IF_FAILED(read_int(path, json_array_get(array, i), low, high, &values[i]));
        json_path_pop(path, mark);
    }
    *count = length;
    return BANYAN_OK;
}

banyan_status json_member_ints(json_path *path, const json_t *object, const char *key, int64_t low,
                               int64_t high, size_t max, int64_t *values, size_t *count)
{
    json_t *array;
    RETURN_IF_FAILED(json_member(path, object, key, JSON_ARRAY, &array));
    size_t mark = json_path_key(path, key);
    RETURN_IF_FAILED(json_ints(path, array, low, high, max, values, count));
    json_path_pop(path, mark);
    return BANYAN_OK;
}

banyan_status json_member_ints_of(json_path *path, const json_t *object, const char *key,
                                  int64_t low, int64_t high, size_t count, int64_t *values)
{
    json_t *array;
    RETURN_IF_FAILED(json_member(path, object, key, JSON_ARRAY, &array));
    size_t mark = json_path_key(path, key), found = json_array_size(array);
    if (found <= count)
        RETURN_IF_FAILED(json_ints(path, array, low, high, count, values, &found));
    if (found != count)
        return json_path_fail(path, "has %zu entries, and must have %zu", found, count);
    json_path_pop(path, mark);
    return BANYAN_OK;
}

banyan_status json_member_dtype(json_path *path, const json_t *object, DLDataType *dtype)
{
    const char *name;
    RETURN_IF_FAILED(json_member_string(path, object, "dtype", &name));
    if (banyan_dtype_parse(name, dtype) != BANYAN_OK)
        return json_path_fail(path, "has unknown type \"%.80s\"", name);
    return BANYAN_OK;
}

banyan_status json_list_begin(json_path *path, const json_t *object, const char *key,
                              json_list *list)
{
    *list = (json_list){.path = path};
    RETURN_IF_FAILED(json_member(path, object, key, JSON_ARRAY, &list->array));
    list->count = json_array_size(list->array);
    list->outer = json_path_key(path, key);
    list->inner = path->used;
    return BANYAN_OK;
}

json_list json_list_of(json_path *path, json_t *array)
{
    return (json_list){.path = path,
                       .array = array,
                       .count = json_array_size(array),
                       .outer = path->used,
                       .inner = path->used};
}

banyan_status json_list_maybe(json_path *path, const json_t *object, const char *key,
                              json_list *list)
{
    const json_t *found = json_object_get(object, key);
    *list = json_list_of(path, NULL);
    return !found || json_is_null(found) ? BANYAN_OK : json_list_begin(path, object, key, list);
}

bool json_list_next(json_list *list)
{
    list->i = list->entry ? list->i + 1 : 0;
    list->entry = json_array_get(list->array, list->i);
    json_path_pop(list->path, list->entry ? list->inner : list->outer);
    if (list->entry)
        json_path_index(list->path, list->i);
    return list->entry != NULL;
}

json_t *json_of_ints(const int64_t *values, int count)
{
    json_t *array = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(array, json_integer(values[i]));
    return array;
}

/* Top-level members that only documents of one kind have. */
static const struct {
    const char *name;
    const char *key;
    json_type type;
    const char *text; /* of a string */
} kinds[JSON_KINDS] = {
    [JSON_PLAN] = {"a plan", "gpus", JSON_ARRAY, NULL},
    [JSON_TOPOLOGY] = {"a topology", "processors", JSON_ARRAY, NULL},
    [JSON_TENSORS] = {"a model's list of tensors", NULL, JSON_OBJECT, NULL},
    [JSON_CASE] = {"a case of banyan reshard verify", "world_size", JSON_INTEGER, NULL},
    [JSON_TUNING] = {"a table of banyan tune", "format", JSON_STRING, "banyan tuning"},
    [JSON_MIXED_TUNING] = {"a table of autotuned mixed collectives", "format", JSON_STRING,
                           "banyan mixed tuning"},
    [JSON_LAYOUT] = {"a layout file", "format", JSON_STRING, "banyan.layout"},
    [JSON_TRACE] = {"a trace", "traceEvents", JSON_ARRAY, NULL},
    [JSON_WEIGHT_MAP] = {"the index in a checkpoint's folder", "weight_map", JSON_OBJECT, NULL},
};

static bool lists_tensors(const json_t *root)
{
    const json_t *first = json_object_iter_value(json_object_iter((json_t *)root));
    return json_object_get(first, "shape") && json_object_get(first, "dtype");
}

static bool is_kind(const json_t *root, json_kind kind)
{
    if (kind == JSON_TENSORS)
        return lists_tensors(root);
    const json_t *member = json_object_get(root, kinds[kind].key);
    if (!member || json_typeof(member) != kinds[kind].type)
        return false;
    return !kinds[kind].text || strcmp(json_string_value(member), kinds[kind].text) == 0;
}

static banyan_status refuse_others(json_kind expected, const char *path, const json_t *root)
{
    if (is_kind(root, expected))
        return BANYAN_OK;
    for (json_kind kind = 0; kind < JSON_KINDS; kind++) {
        if (is_kind(root, kind))
            return error_set(BANYAN_ERR_FORMAT, "%s seems to be %s, where %s is expected", path,
                             kinds[kind].name, kinds[expected].name);
    }
    return BANYAN_OK;
}

/* Refuse text that fails to parse because it is a plan: only plans have integers above INT64_MAX.
 */
static banyan_status refuse_plan(json_kind expected, const char *path, const char *text,
                                 size_t bytes, banyan_status status)
{
    json_t *loose = json_loadb(text, bytes, JSON_DECODE_INT_AS_REAL, NULL);
    if (is_kind(loose, JSON_PLAN))
        status = refuse_others(expected, path, loose);
    json_decref(loose);
    return status;
}

banyan_status json_parse_as(json_kind expected, const char *path, const char *text, size_t bytes,
                            json_t **root)
{
    json_t *parsed;
    banyan_status status = expected == JSON_PLAN ? json_parse_u64(path, text, bytes, &parsed)
                                                 : json_parse(path, text, bytes, &parsed);
    if (status != BANYAN_OK && expected != JSON_PLAN)
        return refuse_plan(expected, path, text, bytes, status);
    RETURN_IF_FAILED(status);
    status = refuse_others(expected, path, parsed);
    if (status != BANYAN_OK) {
        json_decref(parsed);
        return status;
    }
    *root = parsed;
    return BANYAN_OK;
}
