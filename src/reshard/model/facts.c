#include "reshard/model/facts.h"

#include <stdlib.h>
#include <string.h>

const char *facts_find(const facts *known, const char *key)
{
    uint64_t index;
    return map_get_string(&known->by_key, key, &index) ? known->list.data[index].text : NULL;
}

bool facts_find_int(const facts *known, const char *key, int64_t *value)
{
    const char *text = facts_find(known, key);
    json_t *parsed = text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
    bool is_integer = json_is_integer(parsed);
    if (is_integer)
        *value = json_integer_value(parsed);
    json_decref(parsed);
    return is_integer;
}

banyan_status facts_put(facts *known, const char *key, const char *text)
{
    uint64_t index;
    fact added = {names_keep(&known->names, key), names_keep(&known->names, text)};
    RETURN_IF_NO_MEMORY(added.key && added.text);
    if (map_get_string(&known->by_key, key, &index)) {
        known->list.data[index] = added;
        return BANYAN_OK;
    }
    RETURN_IF_NO_MEMORY(array_reserve(&known->list, 1) &&
                        map_put_string(&known->by_key, added.key, known->list.count));
    known->list.data[known->list.count++] = added;
    return BANYAN_OK;
}

bool facts_equal(const char *a, const char *b)
{
    if (strcmp(a, b) == 0)
        return true;
    json_t *first = json_loads(a, JSON_DECODE_ANY, NULL);
    json_t *second = json_loads(b, JSON_DECODE_ANY, NULL);
    bool equal = json_is_number(first) && json_is_number(second)
                     ? json_number_value(first) == json_number_value(second)
                     : first && json_equal(first, second);
    json_decref(first);
    json_decref(second);
    return equal;
}

char *fact_text(const json_t *value, banyan_status *status)
{
    *status = BANYAN_OK;
    if (json_is_array(value) || json_is_object(value) || json_is_null(value) ||
        json_string_length(value) > FACT_MAX_BYTES)
        return NULL;
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    if (!text)
        *status = error_no_memory(FACT_MAX_BYTES, "a fact");
    return text;
}

static banyan_status add_scalars(facts *known, const json_t *object)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        banyan_status status;
        char *text = fact_text(value, &status);
        if (text)
            status = facts_put(known, key, text);
        free(text);
        RETURN_IF_FAILED(status);
    }
    return BANYAN_OK;
}

banyan_status facts_add_config(facts *known, const json_t *config)
{
    RETURN_IF_FAILED(add_scalars(known, config));
    return add_scalars(known, json_object_get(config, "text_config"));
}

/* Configurations as Python writes them. */

static bool is_word(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '+' || c == '.' || c == '_';
}

/* True for a word that Python writes and that is neither JSON nor a 64-bit integer. */
static bool is_foreign(const char *word, size_t length)
{
    static const char *const foreign[] = {"NaN", "Infinity", "-Infinity"};
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) {
        if (strlen(foreign[i]) == length && memcmp(word, foreign[i], length) == 0)
            return true;
    }
    size_t sign = length > 0 && word[0] == '-', digits = sign;
    while (digits < length && word[digits] >= '0' && word[digits] <= '9')
        digits++;
    return digits == length && length - sign > 18 && word[sign] != '0';
}

/* Copy a document with null for the words above; a word grows by one byte at most. */
static size_t replace_foreign(const char *text, size_t bytes, char *copy)
{
    size_t out = 0;
    for (size_t i = 0; i < bytes;) {
        size_t end = i;
        if (text[i] == '"') {
            for (end++; end < bytes && text[end] != '"'; end++)
                end += text[end] == '\\';
            end = end < bytes ? end + 1 : bytes;
        } else {
            while (end < bytes && is_word(text[end]))
                end++;
            end += end == i;
        }
        bool foreign = text[i] != '"' && is_foreign(text + i, end - i);
        memcpy(copy + out, foreign ? "null" : text + i, foreign ? 4 : end - i);
        out += foreign ? 4 : end - i;
        i = end;
    }
    return out;
}

banyan_status config_parse(const char *path, const char *text, size_t bytes, json_t **root)
{
    char *copy = malloc(bytes + bytes / 3 + 1);
    if (!copy)
        return error_no_memory(bytes + bytes / 3 + 1, path);
    banyan_status status = json_parse(path, copy, replace_foreign(text, bytes, copy), root);
    free(copy);
    return status;
}

json_t *facts_to_json(const facts *known)
{
    json_t *object = json_object();
    for (size_t i = 0; object && i < known->list.count; i++) {
        json_t *value = json_loads(known->list.data[i].text, JSON_DECODE_ANY, NULL);
        if (!value || json_object_set_new(object, known->list.data[i].key, value) != 0) {
            json_decref(object);
            object = NULL;
        }
    }
    if (!object)
        error_no_memory(known->list.count * sizeof(fact), "the facts of a model");
    return object;
}

banyan_status facts_from_json(facts *known, json_path *path, const json_t *object)
{
    const char *key;
    json_t *value;
    if (!json_is_object(object))
        return json_path_fail(path, "is not an object");
    json_object_foreach((json_t *)object, key, value)
    {
        banyan_status status;
        size_t mark = json_path_key(path, key);
        char *text = fact_text(value, &status);
        if (text)
            status = facts_put(known, key, text);
        else if (status == BANYAN_OK)
            status = json_path_fail(
                path, "is not a number, true, false or string of at most %d bytes", FACT_MAX_BYTES);
        free(text);
        RETURN_IF_FAILED(status);
        json_path_pop(path, mark);
    }
    return BANYAN_OK;
}

void facts_free(facts *known)
{
    array_free(&known->list);
    map_free(&known->by_key);
    names_free(&known->names);
}
