#include "reshard/model/model.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <banyan/checkpoint.h>

#include "core/containers.h"
#include "core/files/file.h"
#include "core/text/json.h"
#include "reshard/checkpoint/saved.h"
#include "reshard/layout/box.h"
#include "reshard/layout/file.h"
#include "reshard/layout/layout.h"
#include "reshard/layout/names.h"
#include "reshard/model/facts.h"

#define MAX_FILE_BYTES ((size_t)1 << 30)
#define CONFIG_NAME "config.json"
#define MAX_NAME_BYTES 1024

struct banyan_model {
    ARRAY(banyan_local_tensor) tensors;
    names names;
    hash_map by_name;
    uint64_t bytes;
    facts known;   /* from the folder's config.json, and saved with the tensors */
    facts saved;   /* saved ones alone */
    bool is_saved; /* by ranks, or in a layout file */
    bool *skipped; /* tensors left out by banyan_model_skip; NULL: none */
    _Atomic(model_matched *) *matched; /* NULL there: not matched yet */
};

/* One entry of a model's file; its line is computed only for an error. */
struct model_entry {
    const char *file, *text;
    const char *name;
};

static banyan_status model_fail(const struct model_entry *entry, const char *problem,
                                const char *detail)
{
    size_t line = json_line_of_key(entry->text, entry->name);
    if (line == 0)
        return error_set(BANYAN_ERR_FORMAT, "%s: tensor \"%s\" %s%s", entry->file, entry->name,
                         problem, detail);
    return error_set(BANYAN_ERR_FORMAT, "%s:%zu: tensor \"%s\" %s%s", entry->file, line,
                     entry->name, problem, detail);
}

static banyan_status model_read_shape(const struct model_entry *entry, const json_t *shape,
                                      banyan_local_tensor *tensor)
{
    if (!json_is_array(shape))
        return model_fail(entry, "has no \"shape\" that is an array", "");
    size_t ndim = json_array_size(shape);
    char text[BOX_TEXT_BYTES];
    if (ndim > BANYAN_MAX_DIMS) {
        snprintf(text, sizeof text, "%zu dimensions: at most %d are possible", ndim,
                 BANYAN_MAX_DIMS);
        return model_fail(entry, "has ", text);
    }
    tensor->ndim = (int)ndim;
    for (size_t d = 0; d < ndim; d++) {
        const json_t *extent = json_array_get(shape, d);
        if (!json_is_integer(extent) || json_integer_value(extent) < 0) {
            snprintf(text, sizeof text, "%zu, which is not an integer from 0", d);
            return model_fail(entry, "has an extent in dimension ", text);
        }
        tensor->shape[d] = json_integer_value(extent);
    }
    uint64_t bytes;
    if (!shape_bytes(tensor->ndim, tensor->shape, banyan_dtype_bytes(tensor->dtype), &bytes))
        return model_fail(entry, "is larger than any memory: ",
                          shape_format(tensor->ndim, tensor->shape, text, sizeof text));
    return BANYAN_OK;
}

static banyan_status model_read_tensor(const struct model_entry *entry, const json_t *description,
                                       banyan_local_tensor *tensor)
{
    if (!json_is_object(description))
        return model_fail(entry, "is not described by an object", "");
    const char *dtype = json_string_value(json_object_get(description, "dtype"));
    if (!dtype)
        return model_fail(entry, "has no \"dtype\" that is a string", "");
    if (banyan_dtype_parse(dtype, &tensor->dtype) != BANYAN_OK)
        return model_fail(entry, "has an unknown dtype: ", dtype);
    tensor->name = entry->name;
    return model_read_shape(entry, json_object_get(description, "shape"), tensor);
}

/* Add a tensor. The caller has checked that the name is new and the shape valid. */
static banyan_status model_add_tensor(banyan_model *model, const banyan_local_tensor *tensor,
                                      const char *file)
{
    uint64_t bytes;
    if (!shape_bytes(tensor->ndim, tensor->shape, banyan_dtype_bytes(tensor->dtype), &bytes) ||
        __builtin_add_overflow(model->bytes, bytes, &model->bytes) || model->bytes > INT64_MAX)
        return error_set(BANYAN_ERR_FORMAT,
                         "%s: up to tensor \"%s\" the model has more than 2⁶³ "
                         "bytes",
                         file, tensor->name);
    banyan_local_tensor kept = *tensor;
    kept.name = names_keep(&model->names, tensor->name);
    RETURN_IF_NO_MEMORY(kept.name &&
                        map_put_string(&model->by_name, kept.name, model->tensors.count) &&
                        array_push(&model->tensors, kept));
    return BANYAN_OK;
}

static banyan_status read_model(const char *path, const char *text, const json_t *root,
                                banyan_model *model)
{
    if (!json_is_object(root))
        return error_set(BANYAN_ERR_FORMAT, "%s: not an object of tensors", path);
    const char *name;
    json_t *description;
    json_object_foreach((json_t *)root, name, description)
    {
        struct model_entry entry = {path, text, name};
        banyan_local_tensor tensor = {0};
        if (strcmp(name, CONFIG_NAME) == 0) {
            if (!json_is_object(description))
                return error_set(BANYAN_ERR_FORMAT, "%s: \"" CONFIG_NAME "\" is not an object",
                                 path);
            RETURN_IF_FAILED(facts_add_config(&model->known, description));
            continue;
        }
        RETURN_IF_FAILED(model_read_tensor(&entry, description, &tensor));
        RETURN_IF_FAILED(model_add_tensor(model, &tensor, path));
    }
    return BANYAN_OK;
}

/* Add facts that were saved beside the tensors. MISMATCH when the folder's config.json contradicts
 * them. */
static banyan_status add_saved(const char *folder, const facts *saved, banyan_model *model)
{
    for (size_t i = 0; i < saved->list.count; i++) {
        const fact *one = &saved->list.data[i];
        const char *other = facts_find(&model->known, one->key);
        if (other && !facts_equal(other, one->text))
            return error_set(BANYAN_ERR_MISMATCH,
                             "%s: %s is %s in " CHECKPOINT_INDEX_NAME " and %s in " CONFIG_NAME,
                             folder, one->key, one->text, other);
        RETURN_IF_FAILED(facts_put(&model->known, one->key, one->text));
        RETURN_IF_FAILED(facts_put(&model->saved, one->key, one->text));
    }
    return BANYAN_OK;
}

static banyan_status read_config(const char *path, facts *read)
{
    char *text = NULL;
    json_t *root = NULL;
    size_t bytes;
    RETURN_IF_FAILED(file_read(path, MAX_FILE_BYTES, &text, &bytes));
    banyan_status status = config_parse(path, text, bytes, &root);
    if (status == BANYAN_OK && !json_is_object(root))
        status = error_set(BANYAN_ERR_FORMAT, "%s is not an object", path);
    if (status == BANYAN_OK)
        status = facts_add_config(read, root);
    json_decref(root);
    free(text);
    return status;
}

/* Read the config.json that a Hugging Face folder has beside the weights, and a saved folder may
 * have. */
static banyan_status load_config(const char *folder, banyan_model *model)
{
    char *path = path_join(folder, CONFIG_NAME);
    RETURN_IF_NO_MEMORY(path);
    banyan_status status = access(path, F_OK) == 0 ? read_config(path, &model->known) : BANYAN_OK;
    free(path);
    return status;
}

banyan_status banyan_model_add_config(banyan_model *model, const char *path)
{
    facts added = {0};
    banyan_status status = read_config(path, &added);
    for (size_t i = 0; i < added.list.count && status == BANYAN_OK; i++) {
        const fact *one = &added.list.data[i];
        const char *other = facts_find(&model->known, one->key);
        if (other && !facts_equal(other, one->text))
            status = error_set(BANYAN_ERR_MISMATCH, "%s: %s is %s, but %s in the model", path,
                               one->key, one->text, other);
        else
            status = facts_put(&model->known, one->key, one->text);
    }
    facts_free(&added);
    /* Conditions may have new answers now. */
    model_matched_free(atomic_exchange(model->matched, NULL));
    return status;
}

/* Add the global tensors that ranks have pieces of, and the facts of all ranks. In a destination a
 * type may differ between ranks: the first one counts. */
static banyan_status add_layout(const char *path, const banyan_layout *layout, banyan_model *model)
{
    for (size_t i = 0; i < banyan_layout_piece_count(layout); i++) {
        const banyan_piece *piece = banyan_layout_piece(layout, i);
        uint64_t known;
        if (map_get_string(&model->by_name, piece->name, &known))
            continue;
        banyan_local_tensor tensor = {
            .name = piece->name,
            .dtype = banyan_layout_tensor(layout, (size_t)piece->tensor)->dtype,
            .ndim = piece->ndim};
        memcpy(tensor.shape, piece->shape, sizeof tensor.shape);
        RETURN_IF_FAILED(model_add_tensor(model, &tensor, path));
    }
    const facts *known = layout_facts(layout);
    for (size_t i = 0; i < known->list.count; i++) {
        const fact *one = &known->list.data[i];
        const char *other = facts_find(&model->saved, one->key);
        if (other && !facts_equal(other, one->text))
            return error_set(BANYAN_ERR_MISMATCH, "%s: %s is %s for one rank and %s for another",
                             path, one->key, other, one->text);
        RETURN_IF_FAILED(facts_put(&model->known, one->key, one->text));
        RETURN_IF_FAILED(facts_put(&model->saved, one->key, one->text));
    }
    return BANYAN_OK;
}

static banyan_status load_layouts(const char *path, const char *text, size_t bytes,
                                  banyan_model *model)
{
    banyan_layout_file *file;
    model->is_saved = true;
    RETURN_IF_FAILED(banyan_layout_file_create(&file));
    banyan_status status = layout_file_parse(path, text, bytes, file);
    for (size_t g = 0; g < banyan_layout_file_group_count(file) && status == BANYAN_OK; g++)
        status = add_layout(path, banyan_layout_file_group_layout(file, g), model);
    banyan_layout_file_destroy(file);
    return status;
}

static banyan_status load_json(const char *path, banyan_model *model)
{
    char *text;
    size_t bytes;
    RETURN_IF_FAILED(file_read(path, MAX_FILE_BYTES, &text, &bytes));
    /* The parser of layout files checks the rest. */
    if (strstr(text, "\"banyan.layout\"")) {
        banyan_status status = load_layouts(path, text, bytes, model);
        free(text);
        return status;
    }
    json_t *root;
    banyan_status status = json_parse_as(JSON_TENSORS, path, text, bytes, &root);
    if (status == BANYAN_OK) {
        status = read_model(path, text, root, model);
        json_decref(root);
    }
    free(text);
    return status;
}

static banyan_status load_checkpoint(const char *path, banyan_model *model)
{
    banyan_checkpoint *checkpoint;
    RETURN_IF_FAILED(banyan_checkpoint_open(path, &checkpoint));
    banyan_status status = BANYAN_OK;
    for (size_t i = 0; i < banyan_checkpoint_tensor_count(checkpoint) && status == BANYAN_OK; i++)
        status = model_add_tensor(model, banyan_checkpoint_tensor(checkpoint, i), path);
    if (status == BANYAN_OK)
        status = load_config(path, model);
    if (status == BANYAN_OK && checkpoint_saved(checkpoint))
        status = add_saved(path, &checkpoint_saved(checkpoint)->index.facts, model);
    model->is_saved = checkpoint_saved(checkpoint) != NULL;
    banyan_checkpoint_close(checkpoint);
    return status;
}

static bool is_checkpoint(const char *path)
{
    static const char suffix[] = ".safetensors";
    struct stat info;
    size_t bytes = strlen(path);
    return (bytes >= strlen(suffix) && strcmp(path + bytes - strlen(suffix), suffix) == 0) ||
           (stat(path, &info) == 0 && S_ISDIR(info.st_mode));
}

banyan_status banyan_model_load(const char *path, banyan_model **model)
{
    banyan_model *created = alloc_zeroed(1, sizeof *created, "a model");
    RETURN_IF_NO_MEMORY(created);
    created->matched = calloc(1, sizeof *created->matched);
    if (!created->matched) {
        free(created);
        return error_no_memory(sizeof *created, "a model");
    }
    banyan_status status =
        is_checkpoint(path) ? load_checkpoint(path, created) : load_json(path, created);
    if (status == BANYAN_OK && created->tensors.count == 0)
        status = error_set(BANYAN_ERR_FORMAT, "%s: a model without tensors", path);
    if (status != BANYAN_OK) {
        banyan_model_destroy(created);
        return status;
    }
    *model = created;
    return BANYAN_OK;
}

void banyan_model_destroy(banyan_model *model)
{
    if (!model)
        return;
    array_free(&model->tensors);
    names_free(&model->names);
    map_free(&model->by_name);
    facts_free(&model->known);
    facts_free(&model->saved);
    free(model->skipped);
    if (model->matched)
        model_matched_free(*model->matched);
    free(model->matched);
    free(model);
}

size_t banyan_model_tensor_count(const banyan_model *model)
{
    return model->tensors.count;
}

const banyan_local_tensor *banyan_model_tensor(const banyan_model *model, size_t i)
{
    return &model->tensors.data[i];
}

uint64_t banyan_model_bytes(const banyan_model *model)
{
    return model->bytes;
}

banyan_status banyan_model_skip(banyan_model *model, const char *pattern, size_t *count)
{
    glob compiled;
    glob_captures captures;
    const char *problem = glob_compile(pattern, &compiled);
    if (problem)
        return error_set(BANYAN_ERR_INVALID, "the pattern \"%s\" %s", pattern, problem);
    if (!model->skipped)
        RETURN_IF_NO_MEMORY(model->skipped = alloc_zeroed(
                                model->tensors.count, sizeof *model->skipped, "skipped tensors"));
    *count = 0;
    for (size_t i = 0; i < model->tensors.count; i++) {
        const char *name = model->tensors.data[i].name;
        if (!glob_match(&compiled, name, strlen(name), &captures))
            continue;
        model->skipped[i] = true;
        ++*count;
    }
    return BANYAN_OK;
}

bool model_skips(const banyan_model *model, size_t i)
{
    return model->skipped && model->skipped[i];
}

const char *model_fact(const banyan_model *model, const char *key)
{
    return facts_find(&model->known, key);
}

bool model_fact_int(const banyan_model *model, const char *key, int64_t *value)
{
    return facts_find_int(&model->known, key, value);
}

bool model_is_saved(const banyan_model *model)
{
    return model->is_saved;
}

void model_pass_facts(const banyan_model *model, banyan_layout *layout)
{
    for (size_t i = 0; i < model->saved.list.count; i++)
        layout_keep_fact(layout, model->saved.list.data[i].key, model->saved.list.data[i].text);
}

const banyan_local_tensor *model_find(const banyan_model *model, const char *name)
{
    uint64_t index;
    return map_get_string(&model->by_name, name, &index) ? &model->tensors.data[index] : NULL;
}

const banyan_local_tensor *subject_find(const rule_subject *subject, const char *name)
{
    uint64_t index;
    if (!subject->by_name)
        return model_find(subject->model, name);
    return map_get_string(subject->by_name, name, &index) ? &subject->model->tensors.data[index]
                                                          : NULL;
}

void model_matched_free(model_matched *matched)
{
    if (!matched)
        return;
    map_free(&matched->by_name);
    names_free(&matched->names);
    free(matched->matches);
    free(matched);
}

/* Find prefixes, and index the tensors by their names after prefixes. */
static banyan_status match_prefixes(const banyan_model *model, const banyan_rules *rules,
                                    model_matched *made)
{
    const rule_subject raw = {.model = model};
    for (size_t i = 0; i < model->tensors.count; i++) {
        const char *name = model->tensors.data[i].name;
        const rule_prefix *prefix = rules_find_prefix(rules, &raw, name);
        rule_match *match = &made->matches[i];
        *match = (rule_match){.name = name, .prefix = prefix};
        if (!prefix)
            continue;
        char *renamed;
        if (asprintf(&renamed, "%s%s", prefix->to, name + strlen(prefix->from)) < 0)
            return error_no_memory(strlen(name), "a name");
        match->name = names_keep(&made->names, renamed);
        free(renamed);
        RETURN_IF_NO_MEMORY(match->name);
        made->has_prefixes = true;
    }
    for (size_t i = 0; made->has_prefixes && i < model->tensors.count; i++) {
        uint64_t known;
        if (map_get_string(&made->by_name, made->matches[i].name, &known))
            return error_set(BANYAN_ERR_INVALID,
                             "tensors \"%s\" and \"%s\" are both \"%s\" without their prefixes",
                             model->tensors.data[known].name, model->tensors.data[i].name,
                             made->matches[i].name);
        RETURN_IF_NO_MEMORY(map_put_string(&made->by_name, made->matches[i].name, i));
    }
    return BANYAN_OK;
}

static banyan_status model_find_missing(const rule_subject *subject, model_matched *made,
                                        rule_match *match)
{
    char name[MAX_NAME_BYTES];
    const rule_need *need = rules_find_missing(subject, match, name, sizeof name);
    if (need)
        match->missing_line = need->line;
    else if (match->captures.expert == 1 && rules_expert_name(match, -1, name, sizeof name) &&
             !subject_find(subject, name))
        match->missing_line = match->rule->line;
    else
        return BANYAN_OK;
    match->missing = names_keep(&made->names, name);
    return match->missing ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

static bool ends_experts(const rule_subject *subject, const rule_match *match)
{
    char name[MAX_NAME_BYTES];
    return match->rule && match->captures.expert >= 0 &&
           rules_expert_name(match, 1, name, sizeof name) && !subject_find(subject, name);
}

/* Count layers, with those that are left out. */
static banyan_status match_layers(size_t tensors, model_matched *made)
{
    bool *has;
    RETURN_IF_NO_MEMORY(has = alloc_zeroed(tensors + 1, sizeof *has, "the layers of a model"));
    for (size_t i = 0; i < tensors; i++) {
        int64_t layer = made->matches[i].captures.layer;
        if (!made->matches[i].rule || layer < 0)
            continue;
        made->layers = layer >= made->layers ? layer + 1 : made->layers;
        if ((uint64_t)layer < tensors)
            has[layer] = true;
    }
    while (has[made->no_layer])
        made->no_layer++;
    free(has);
    return BANYAN_OK;
}

static banyan_status match_all(const banyan_model *model, const banyan_rules *rules,
                               model_matched **matched)
{
    size_t count = model->tensors.count;
    model_matched *made = calloc(1, sizeof *made);
    if (made)
        made->matches = calloc(count, sizeof *made->matches);
    if (!made || !made->matches) {
        model_matched_free(made);
        return error_no_memory(count * sizeof *made->matches, "the rules of a model's tensors");
    }
    made->serial = rules->serial;
    banyan_status status = match_prefixes(model, rules, made);
    if (status != BANYAN_OK) {
        model_matched_free(made);
        return status;
    }
    const rule_subject subject = model_matched_subject(made, model);
    for (size_t i = 0; i < count && status == BANYAN_OK; i++) {
        const rule_prefix *prefix = made->matches[i].prefix;
        if (rules_match(rules, &subject, made->matches[i].name, &made->matches[i]))
            status = model_find_missing(&subject, made, &made->matches[i]);
        made->matches[i].ends_experts = ends_experts(&subject, &made->matches[i]);
        made->matches[i].prefix = prefix;
    }
    if (status == BANYAN_OK)
        status = match_layers(count, made);
    if (status != BANYAN_OK) {
        model_matched_free(made);
        return status;
    }
    *matched = made;
    return BANYAN_OK;
}

rule_subject model_matched_subject(const model_matched *matched, const banyan_model *model)
{
    return (rule_subject){model, matched->has_prefixes ? &matched->by_name : NULL};
}

banyan_status model_match(const banyan_model *model, const banyan_rules *rules,
                          const model_matched **matched, model_matched **own)
{
    model_matched *known = atomic_load(model->matched), *made = NULL;
    if (!known || known->serial != rules->serial) {
        RETURN_IF_FAILED(match_all(model, rules, &made));
        if (!known && atomic_compare_exchange_strong(model->matched, &known, made)) {
            known = made;
            made = NULL;
        }
    }
    *matched = made ? made : known;
    *own = made;
    return BANYAN_OK;
}
