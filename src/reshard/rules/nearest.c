/* Find the nearest rule of a name that no rule fits, and the difference. */
#include <stdio.h>
#include <string.h>

#include "reshard/rules/rules.h"

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

/* Count the components that fit from the start; set where the first that does not begins. */
static int count_start(const char *pattern, const char *name, const char **pattern_at,
                       const char **name_at)
{
    int count = 0;
    while (*pattern && *name &&
           rules_nearest_fits(pattern, rules_nearest_component(pattern), name,
                              rules_nearest_component(name))) {
        count++;
        pattern += rules_nearest_component(pattern);
        name += rules_nearest_component(name);
        if (!*pattern || !*name)
            break;
        pattern++;
        name++;
    }
    *pattern_at = pattern;
    *name_at = name;
    return count;
}

static const char *last_dot(const char *text, const char *end)
{
    while (end > text && end[-1] != '.')
        end--;
    return end;
}

static int count_end(const char *pattern, const char *name)
{
    const char *pattern_end = pattern + strlen(pattern), *name_end = name + strlen(name);
    int count = 0;
    while (pattern_end > pattern && name_end > name) {
        const char *p = last_dot(pattern, pattern_end), *n = last_dot(name, name_end);
        if (!rules_nearest_fits(p, (size_t)(pattern_end - p), n, (size_t)(name_end - n)))
            break;
        count++;
        pattern_end = p > pattern ? p - 1 : pattern;
        name_end = n > name ? n - 1 : name;
    }
    return count;
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
    count_start(rule->text, name, &pattern_at, &name_at);
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
    int best = 0;
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
        const char *pattern_at, *name_at;
        int near = count_start(rule->text, name, &pattern_at, &name_at);
        /* A pattern with two stars is near to everything. */
        if (!strstr(rule->text, "**"))
            near = 2 * near + count_end(rule->text, name);
        if (near > best) {
            best = near;
            nearest = rule;
        }
    }
    if (nearest)
        say_difference(nearest, name, text, bytes);
    else
        snprintf(text, bytes, "no rule is near it");
}
