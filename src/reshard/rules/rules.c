#include "reshard/rules/rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/text/json.h"
#include "reshard/model/model.h"
#include "reshard/rules/parse.h"

#define MAX_FILE_BYTES ((size_t)64 << 20)

const char *rules_embedded(const char *name)
{
    for (const rules_file *file = rules_files; file->name; file++) {
        if (strcmp(file->name, name) == 0)
            return file->text;
    }
    return NULL;
}

static banyan_status read_rules(const char *path, char **text)
{
    static const char builtin[] = "include builtin\n";
    if (!path) {
        *text = strdup(builtin);
        return *text ? BANYAN_OK : error_no_memory(sizeof builtin, "the built-in rules");
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

static void free_rule(model_rule *rule)
{
    for (size_t i = 0; i < rule->packed.count; i++)
        rule_conditions_free(&rule->packed.data[i].conditions);
    for (size_t i = 0; i < rule->needs.count; i++) {
        rule_conditions_free(&rule->needs.data[i].conditions);
        free(rule->needs.data[i].names);
    }
    array_free(&rule->packed);
    array_free(&rule->parts);
    array_free(&rule->needs);
    rule_conditions_free(&rule->conditions);
}

void banyan_rules_destroy(banyan_rules *rules)
{
    if (!rules)
        return;
    for (size_t i = 0; i < rules->rules.count; i++)
        free_rule(&rules->rules.data[i]);
    for (size_t i = 0; i < rules->defaults.count; i++)
        rule_conditions_free(&rules->defaults.data[i].conditions);
    for (size_t i = 0; i < rules->skips.count; i++)
        rule_conditions_free(&rules->skips.data[i].conditions);
    for (size_t i = 0; i < rules->prefixes.count; i++)
        rule_conditions_free(&rules->prefixes.data[i].conditions);
    for (size_t i = 0; i < rules->renames.count; i++)
        rule_conditions_free(&rules->renames.data[i].conditions);
    array_free(&rules->expert_facts);
    array_free(&rules->rules);
    array_free(&rules->packings);
    array_free(&rules->defaults);
    array_free(&rules->skips);
    array_free(&rules->prefixes);
    array_free(&rules->behinds);
    array_free(&rules->renames);
    names_free(&rules->names);
    free(rules);
}

/* Return the length of the name without the rule's scale suffix, or 0 when it has another end. */
static size_t without_suffix(const char *name, size_t bytes, const char *suffix)
{
    size_t suffix_bytes = suffix ? strlen(suffix) : 0;
    if (suffix_bytes == 0 || suffix_bytes >= bytes ||
        memcmp(name + bytes - suffix_bytes, suffix, suffix_bytes) != 0)
        return 0;
    return bytes - suffix_bytes;
}

bool rule_fits(const model_rule *rule, const char *name, glob_captures *captures, bool *is_scale)
{
    size_t bytes = strlen(name), base = without_suffix(name, bytes, rule->scale_suffix);
    *is_scale = base > 0 && glob_match(&rule->pattern, name, base, captures);
    return *is_scale || glob_match(&rule->pattern, name, bytes, captures);
}

static void find_skips(const banyan_rules *rules, const rule_subject *subject, const char *name,
                       rule_match *match)
{
    match->skips = match->undecided_skips = 0;
    for (size_t i = 0; i < rules->skips.count; i++) {
        const rule_skip *skip = &rules->skips.data[i];
        glob_captures captures;
        if (!glob_match(&skip->pattern, name, strlen(name), &captures))
            continue;
        rule_answer answer = rules_decide(&skip->conditions, subject, &captures, NULL);
        if (answer == RULE_YES)
            match->skips |= (uint64_t)1 << i;
        else if (answer == RULE_UNDECIDED)
            match->undecided_skips |= (uint64_t)1 << i;
    }
}

bool rules_match(const banyan_rules *rules, const rule_subject *subject, const char *name,
                 rule_match *match)
{
    *match = (rule_match){.name = name};
    find_skips(rules, subject, name, match);
    for (size_t i = 0; i < rules->rules.count; i++) {
        const model_rule *rule = &rules->rules.data[i];
        if (!rule_fits(rule, name, &match->captures, &match->is_scale))
            continue;
        const rule_condition *which = NULL;
        rule_answer answer = rules_decide(&rule->conditions, subject, &match->captures, &which);
        if (answer == RULE_NO)
            continue;
        match->rule = rule;
        match->undecided = answer == RULE_UNDECIDED ? which : NULL;
        return true;
    }
    return false;
}

uint64_t rules_skips_of(const banyan_rules *rules, const char *packing)
{
    uint64_t lines = 0;
    for (size_t i = 0; i < rules->skips.count; i++) {
        const char *about = rules->skips.data[i].packing;
        if (about ? rules_packing_is(rules, packing, about) : strcmp(packing, "hf") != 0)
            lines |= (uint64_t)1 << i;
    }
    return lines;
}

rule_answer rules_skip(const banyan_rules *rules, const rule_match *match, uint64_t lines,
                       const rule_skip **which)
{
    uint64_t fitting = (match->skips | match->undecided_skips) & lines;
    *which = NULL;
    if (!fitting)
        return RULE_NO;
    int first = __builtin_ctzll(fitting);
    *which = &rules->skips.data[first];
    if (match->undecided_skips >> first & 1)
        return RULE_UNDECIDED;
    return (*which)->keeps ? RULE_NO : RULE_YES;
}

const rule_rename *rules_find_rename(const banyan_rules *rules, const rule_subject *subject,
                                     const char *packing, const char *name, bool behind,
                                     glob_captures *captures)
{
    for (size_t i = 0; i < rules->renames.count; i++) {
        const rule_rename *rename = &rules->renames.data[i];
        if ((behind || !rename->behind) && rules_packing_is(rules, packing, rename->packing) &&
            glob_match(&rename->pattern, name, strlen(name), captures) &&
            rules_decide(&rename->conditions, subject, captures, NULL) == RULE_YES)
            return rename;
    }
    return NULL;
}

const rule_behind *rules_find_behind(const banyan_rules *rules, const char *packing)
{
    for (size_t i = 0; i < rules->behinds.count; i++) {
        if (rules_packing_is(rules, packing, rules->behinds.data[i].packing))
            return &rules->behinds.data[i];
    }
    return NULL;
}

const rule_prefix *rules_find_prefix(const banyan_rules *rules, const rule_subject *subject,
                                     const char *name)
{
    const glob_captures nothing = {.layer = -1, .expert = -1};
    for (size_t i = 0; i < rules->prefixes.count; i++) {
        const rule_prefix *prefix = &rules->prefixes.data[i];
        if (strncmp(name, prefix->from, strlen(prefix->from)) == 0 &&
            rules_decide(&prefix->conditions, subject, &nothing, NULL) == RULE_YES)
            return prefix;
    }
    return NULL;
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

bool rules_packing_is(const banyan_rules *rules, const char *packing, const char *name)
{
    for (const rule_packing *known = NULL; packing; packing = known ? known->like : NULL) {
        if (strcmp(packing, name) == 0)
            return true;
        known = find_packing(rules, packing);
    }
    return false;
}

rule_answer rule_find_packed(const banyan_rules *rules, const rule_subject *subject,
                             const rule_match *match, const char *packing,
                             const rule_packed **packed, const rule_condition **which)
{
    const model_rule *rule = match->rule;
    for (size_t i = 0; i < rule->packed.count; i++) {
        const rule_packed *at = &rule->packed.data[i];
        if (strcmp(at->packing, packing) != 0)
            continue;
        rule_answer answer = rules_decide(&at->conditions, subject, &match->captures, which);
        if (answer == RULE_NO)
            continue;
        *packed = at;
        return answer == RULE_YES && at->is_none ? RULE_NO : answer;
    }
    const rule_packing *known = find_packing(rules, packing);
    return known && known->like
               ? rule_find_packed(rules, subject, match, known->like, packed, which)
               : RULE_NO;
}
