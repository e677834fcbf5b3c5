/* List rule files and packings, and explain how rules place a model's tensors. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/nearest.h"
#include "reshard/model/model.h"
#include "reshard/rules/rules.h"

size_t banyan_rules_file_count(void)
{
    size_t count = 0;
    while (rules_files[count].name)
        count++;
    return count;
}

const char *banyan_rules_file_name(size_t i)
{
    return rules_files[i].name;
}

const char *banyan_rules_file_text(size_t i)
{
    return rules_files[i].text;
}

size_t banyan_rules_packing_count(const banyan_rules *rules)
{
    return rules->packings.count;
}

const char *banyan_rules_packing_name(const banyan_rules *rules, size_t i)
{
    return rules->packings.data[i].name;
}

const char *banyan_rules_packing_release(const banyan_rules *rules, size_t i)
{
    return rules->packings.data[i].release;
}

static banyan_rules_verdict explain(const banyan_rules *rules, const rule_subject *subject,
                                    const rule_match *match, const char *packing, char *text,
                                    size_t bytes)
{
    const rule_skip *skip;
    rule_answer skips = rules_skip(rules, match, rules_skips_of(rules, packing), &skip);
    const rule_skip *open = skips == RULE_UNDECIDED ? skip : NULL;
    const rule_condition *which = match->undecided;
    const rule_packed *packed = NULL;
    char condition[256];
    if (skips == RULE_YES) {
        snprintf(text, bytes, "skipped (%s:%d)", skip->file, skip->line);
        return BANYAN_RULES_SKIPPED;
    }
    if (!match->rule) {
        rules_explain_nearest(rules, subject, match->name, text, bytes);
        return BANYAN_RULES_UNMATCHED;
    }
    rule_answer answer = rule_find_packed(rules, subject, match, packing, &packed, &which);
    const model_rule *rule = match->rule;
    if (open || match->undecided || answer == RULE_UNDECIDED) {
        snprintf(text, bytes, "%s:%d depends on config.json%s%s", open ? open->file : rule->file,
                 open ? open->line : rule->line, which && !open ? ": " : "",
                 which && !open ? rule_condition_format(which, condition, sizeof condition) : "");
        return BANYAN_RULES_UNDECIDED;
    }
    if (match->missing) {
        snprintf(text, bytes, "%s:%d needs a tensor \"%s\" beside it, and the model has none",
                 rule->file, match->missing_line, match->missing);
        return BANYAN_RULES_INCOMPLETE;
    }
    if (answer == RULE_YES)
        snprintf(text, bytes, "%s (%s:%d), in %s", rule->text, rule->file, rule->line,
                 packed->name);
    else
        snprintf(text, bytes, "%s (%s:%d)", rule->text, rule->file, rule->line);
    return BANYAN_RULES_MATCHED;
}

banyan_status banyan_rules_explain(const banyan_rules *rules, const banyan_model *model,
                                   const char *packing, size_t i, banyan_rules_verdict *verdict,
                                   char *text, size_t bytes)
{
    rule_packing known;
    const model_matched *matched;
    model_matched *own = NULL;
    if (i >= banyan_model_tensor_count(model))
        return error_set(BANYAN_ERR_INVALID, "tensor %zu of %zu", i,
                         banyan_model_tensor_count(model));
    RETURN_IF_FAILED(rules_find_packing(rules, packing, &known));
    RETURN_IF_FAILED(model_match(model, rules, &matched, &own));
    const rule_subject subject = model_matched_subject(matched, model);
    if (model_skips(model, i)) {
        *verdict = BANYAN_RULES_SKIPPED;
        snprintf(text, bytes, "left out");
    } else {
        *verdict = explain(rules, &subject, &matched->matches[i], packing, text, bytes);
    }
    model_matched_free(own);
    return BANYAN_OK;
}

/* Find the nearest rule of a name that no rule fits, and the difference. */

/* Return the length of one component of a dotted name. */
static size_t rules_nearest_component(const char *text)
{
    return strcspn(text, ".");
}

/* True if a pattern's component fits the name's. Fields and stars fit anything here. */
static bool rules_nearest_fits(const char *pattern, size_t pattern_bytes, const char *name,
                               size_t name_bytes)
{
    if (memchr(pattern, '*', pattern_bytes) || memchr(pattern, '{', pattern_bytes))
        return true;
    return pattern_bytes == name_bytes && memcmp(pattern, name, name_bytes) == 0;
}

/* Skip the components that fit from the start, to the first that does not. */
static void skip_start(const char *pattern, const char *name, const char **pattern_at,
                       const char **name_at)
{
    while (*pattern && *name &&
           rules_nearest_fits(pattern, rules_nearest_component(pattern), name,
                              rules_nearest_component(name))) {
        pattern += rules_nearest_component(pattern);
        name += rules_nearest_component(name);
        if (!*pattern || !*name)
            break;
        pattern++;
        name++;
    }
    *pattern_at = pattern;
    *name_at = name;
}

/* Distances: a component that is another one, or is missing, costs COMPONENT. */
#define COMPONENT 64
#define ANY_NAME 8       /* a component that a star fits */
#define ANY_COMPONENT 48 /* each component that two stars fit */
#define COMPONENTS_MOST 32

static size_t split_components(const char *text, const char *parts[COMPONENTS_MOST])
{
    size_t count = 0;
    while (*text && count < COMPONENTS_MOST) {
        parts[count++] = text;
        text += rules_nearest_component(text);
        text += *text == '.';
    }
    return count;
}

static int component_distance(const char *pattern, const char *name)
{
    size_t pattern_bytes = rules_nearest_component(pattern);
    size_t name_bytes = rules_nearest_component(name);
    if (memchr(pattern, '*', pattern_bytes))
        return ANY_NAME;
    if (memchr(pattern, '{', pattern_bytes))
        return name[0] >= '0' && name[0] <= '9' ? 0 : COMPONENT;
    char a[256], b[256];
    snprintf(a, sizeof a, "%.*s", (int)pattern_bytes, pattern);
    snprintf(b, sizeof b, "%.*s", (int)name_bytes, name);
    size_t longer = pattern_bytes > name_bytes ? pattern_bytes : name_bytes;
    int limit = longer < COMPONENT ? (int)longer : COMPONENT;
    return limit > 0 ? COMPONENT * names_distance(a, b, limit) / limit : 0;
}

/* Return the cost of the cheapest alignment of a pattern's components with a name's. */
static int rule_distance(const char *pattern, const char *name)
{
    const char *patterns[COMPONENTS_MOST], *parts[COMPONENTS_MOST];
    size_t rows = split_components(pattern, patterns), columns = split_components(name, parts);
    int cost[COMPONENTS_MOST + 1][COMPONENTS_MOST + 1];
    for (size_t i = 0; i <= rows; i++) {
        bool any = i > 0 && strncmp(patterns[i - 1], "**", 2) == 0;
        for (size_t j = 0; j <= columns; j++) {
            int least = i + j == 0 ? 0 : INT_MAX, tried[3] = {INT_MAX, INT_MAX, INT_MAX};
            if (i > 0)
                tried[0] = cost[i - 1][j] + (any ? 0 : COMPONENT);
            if (j > 0)
                tried[1] = cost[i][j - 1] + (any ? ANY_COMPONENT : COMPONENT);
            if (i > 0 && j > 0 && !any)
                tried[2] = cost[i - 1][j - 1] + component_distance(patterns[i - 1], parts[j - 1]);
            for (int k = 0; k < 3; k++)
                least = tried[k] < least ? tried[k] : least;
            cost[i][j] = least;
        }
    }
    return cost[rows][columns];
}

static void say_condition(const model_rule *rule, const rule_condition *which, char *text,
                          size_t bytes)
{
    char condition[256];
    snprintf(text, bytes,
             "the nearest rule, \"%s\" (%s:%d), does not fit since its condition "
             "\"%s\" does not hold",
             rule->text, rule->file, rule->line,
             rule_condition_format(which, condition, sizeof condition));
}

static void say_difference(const model_rule *rule, const char *name, char *text, size_t bytes)
{
    const char *pattern_at, *name_at;
    skip_start(rule->text, name, &pattern_at, &name_at);
    if (!*name_at || !*pattern_at)
        snprintf(text, bytes, "the nearest rule is \"%s\" (%s:%d), and the name %s", rule->text,
                 rule->file, rule->line, *name_at ? "goes on where it ends" : "ends before it");
    else
        snprintf(text, bytes,
                 "the nearest rule is \"%s\" (%s:%d), which has \"%.*s\" where the name has "
                 "\"%.*s\"",
                 rule->text, rule->file, rule->line, (int)rules_nearest_component(pattern_at),
                 pattern_at, (int)rules_nearest_component(name_at), name_at);
}

void rules_explain_nearest(const banyan_rules *rules, const rule_subject *subject, const char *name,
                           char *text, size_t bytes)
{
    const model_rule *nearest = NULL;
    const char *parts[COMPONENTS_MOST];
    int best = COMPONENT * (int)split_components(name, parts);
    for (size_t i = 0; i < rules->rules.count; i++) {
        const model_rule *rule = &rules->rules.data[i];
        glob_captures captures;
        bool is_scale;
        const rule_condition *which = NULL;
        if (rule_fits(rule, name, &captures, &is_scale) &&
            rules_decide(&rule->conditions, subject, &captures, &which) == RULE_NO) {
            say_condition(rule, which, text, bytes);
            return;
        }
        int distance = rule_distance(rule->text, name);
        if (distance < best) {
            best = distance;
            nearest = rule;
        }
    }
    if (nearest)
        say_difference(nearest, name, text, bytes);
    else
        snprintf(text, bytes, "no rule is near it");
}
