#include "reshard/rules.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/json.h"
#include "reshard/rules_parse.h"

#define MAX_FILE_BYTES ((size_t)64 << 20)

static banyan_status read_rules(const char *path, char **text)
{
    if (!path) {
        *text = strdup(rules_builtin);
        return *text ? BANYAN_OK : error_no_memory(strlen(rules_builtin), "the built-in rules");
    }
    size_t bytes;
    RETURN_IF_FAILED(file_read(path, MAX_FILE_BYTES, text, &bytes));
    if (strlen(*text) == bytes)
        return BANYAN_OK;
    banyan_status status =
        error_set(BANYAN_ERR_FORMAT, "%s: a zero byte at %zu: not a text", path, strlen(*text));
    free(*text);
    return status;
}

banyan_status banyan_rules_load(const char *path, banyan_rules **rules)
{
    char *text;
    RETURN_IF_FAILED(read_rules(path, &text));
    banyan_rules *created = calloc(1, sizeof *created);
    banyan_status status = BANYAN_OK;
    if (!created)
        status = error_no_memory(sizeof *created, "rules");
    if (status == BANYAN_OK)
        status = rules_parse(created, path ? path : "built-in rules", text);
    free(text);
    static _Atomic uint64_t loaded;
    if (status == BANYAN_OK)
        created->serial = ++loaded;
    if (status != BANYAN_OK) {
        banyan_rules_destroy(created);
        return status;
    }
    *rules = created;
    return BANYAN_OK;
}

void banyan_rules_destroy(banyan_rules *rules)
{
    if (!rules)
        return;
    for (size_t i = 0; i < rules->rules.count; i++)
        array_free(&rules->rules.data[i].packed);
    array_free(&rules->rules);
    array_free(&rules->packings);
    names_free(&rules->names);
    free(rules);
}

/* The name without the rule's scale suffix, or 0 when it does not end in it. */
static size_t without_suffix(const char *name, size_t bytes, const char *suffix)
{
    size_t suffix_bytes = suffix ? strlen(suffix) : 0;
    if (suffix_bytes == 0 || suffix_bytes >= bytes ||
        memcmp(name + bytes - suffix_bytes, suffix, suffix_bytes) != 0)
        return 0;
    return bytes - suffix_bytes;
}

bool rules_match(const banyan_rules *rules, const char *name, rule_match *match)
{
    size_t bytes = strlen(name);
    for (size_t i = 0; i < rules->rules.count; i++) {
        const model_rule *rule = &rules->rules.data[i];
        size_t base = without_suffix(name, bytes, rule->scale_suffix);
        match->rule = rule;
        match->is_scale = base > 0 && glob_match(&rule->pattern, name, base, &match->captures);
        if (match->is_scale || glob_match(&rule->pattern, name, bytes, &match->captures))
            return true;
    }
    return false;
}

static const rule_packing *find_packing(const banyan_rules *rules, const char *name)
{
    for (size_t i = 0; i < rules->packings.count; i++) {
        if (strcmp(rules->packings.data[i].name, name) == 0)
            return &rules->packings.data[i];
    }
    return NULL;
}

banyan_status rules_find_packing(const banyan_rules *rules, const char *name, rule_packing *packing)
{
    const rule_packing *found = find_packing(rules, name);
    if (found || strcmp(name, "hf") == 0) {
        *packing = found ? *found : (rule_packing){.name = "hf"};
        return BANYAN_OK;
    }
    char known[256] = "hf";
    for (size_t i = 0; i < rules->packings.count; i++) {
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, ", %s", rules->packings.data[i].name);
    }
    return error_set(BANYAN_ERR_INVALID, "the rules know no packing \"%s\": there are %s", name,
                     known);
}

const rule_packed *rule_find_packed(const banyan_rules *rules, const model_rule *rule,
                                    const char *packing)
{
    for (size_t i = 0; i < rule->packed.count; i++) {
        if (strcmp(rule->packed.data[i].packing, packing) == 0)
            return &rule->packed.data[i];
    }
    const rule_packing *known = find_packing(rules, packing);
    return known && known->like ? rule_find_packed(rules, rule, known->like) : NULL;
}
