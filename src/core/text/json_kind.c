#include "core/text/json_kind.h"

#include <string.h>

#include "core/error.h"
#include "core/text/json.h"

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
