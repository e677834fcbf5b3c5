/* Read, evaluate and format conditions of rule files. */
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "reshard/model/model.h"
#include "reshard/rules/parse.h"

#define MAX_NAME_BYTES 1024

static bool starts_condition(const char *word)
{
    return strcmp(word, "with") == 0 || strcmp(word, "without") == 0 || strcmp(word, "when") == 0 ||
           strcmp(word, "unless") == 0;
}

static banyan_status check_template(const rules_parser *parser, const rules_line *line,
                                    const char *text, const glob *pattern)
{
    const char *problem = NULL;
    if (pattern)
        problem = glob_check_template(text, pattern, false);
    for (size_t i = parser->first_open; !pattern && !problem && i < parser->rules->rules.count; i++)
        problem = glob_check_template(text, &parser->rules->rules.data[i].pattern, false);
    return problem ? rules_line_fail(line, text, problem) : BANYAN_OK;
}

/* = VALUE …, up to the next condition. */
static banyan_status conditions_read_values(rules_parser *parser, const rules_line *line, int *word,
                                            rule_condition *condition)
{
    int first = ++*word, end = first;
    while (end < line->count && !starts_condition(line->words[end]))
        end++;
    if (end == first)
        return rules_line_fail(line, line->words[first - 1], "should be followed by values");
    RETURN_IF_NO_MEMORY(condition->values = alloc_zeroed((size_t)(end - first),
                                                         sizeof *condition->values, "a condition"));
    for (; *word < end; ++*word)
        RETURN_IF_FAILED(
            rules_keep_word(parser, line, *word, &condition->values[condition->value_count++]));
    return BANYAN_OK;
}

static banyan_status conditions_read_condition(rules_parser *parser, const rules_line *line,
                                               int *word, const glob *pattern,
                                               rule_condition *condition)
{
    const char *kind = line->words[*word];
    condition->is_fact = strncmp(kind, "with", 4) != 0;
    condition->is_negated = strcmp(kind, "without") == 0 || strcmp(kind, "unless") == 0;
    ++*word;
    RETURN_IF_FAILED(rules_keep_word(parser, line, *word, &condition->text));
    ++*word;
    if (!condition->is_fact)
        return check_template(parser, line, condition->text, pattern);
    if (*word < line->count && strcmp(line->words[*word], "=") == 0)
        return conditions_read_values(parser, line, word, condition);
    return BANYAN_OK;
}

banyan_status rules_read_conditions(rules_parser *parser, const rules_line *line, int word,
                                    const glob *pattern, rule_conditions *conditions)
{
    while (word < line->count) {
        if (!starts_condition(line->words[word]))
            return rules_line_fail(line, line->words[word], "is not expected here");
        if (!array_push(&conditions->list, (rule_condition){0}))
            return BANYAN_ERR_NO_MEMORY;
        rule_condition *added = &conditions->list.data[conditions->list.count - 1];
        RETURN_IF_FAILED(conditions_read_condition(parser, line, &word, pattern, added));
    }
    return BANYAN_OK;
}

void rule_conditions_free(rule_conditions *conditions)
{
    for (size_t i = 0; i < conditions->list.count; i++)
        free(conditions->list.data[i].values);
    array_free(&conditions->list);
}

/* True if the fact's JSON text is this word. A string is compared without its quotes. */
static bool fact_is(const char *fact, const char *value)
{
    size_t bytes = strlen(value);
    if (*fact == '"')
        return strncmp(fact + 1, value, bytes) == 0 && strcmp(fact + 1 + bytes, "\"") == 0;
    return strcmp(fact, value) == 0;
}

/* Any config.json that was read has a model_type: then keys that it lacks are known to be missing.
 */
static rule_answer decide_fact(const rule_condition *condition, const banyan_model *model)
{
    const char *fact = model_fact(model, condition->text);
    if (!fact && !model_fact(model, "model_type"))
        return RULE_UNDECIDED;
    bool holds = fact && condition->value_count == 0;
    for (size_t i = 0; fact && i < condition->value_count; i++)
        holds = holds || fact_is(fact, condition->values[i]);
    return holds != condition->is_negated ? RULE_YES : RULE_NO;
}

static rule_answer decide_tensor(const rule_condition *condition, const rule_subject *subject,
                                 const glob_captures *captures)
{
    const glob_local nowhere = {-1, -1};
    char name[MAX_NAME_BYTES];
    uint64_t index;
    bool exists = glob_expand(condition->text, captures, &nowhere, name, sizeof name) &&
                  (subject->by_name ? map_get_string(subject->by_name, name, &index)
                                    : model_find(subject->model, name) != NULL);
    return exists != condition->is_negated ? RULE_YES : RULE_NO;
}

/* A condition that fails decides, even if others are unknown. */
rule_answer rules_decide(const rule_conditions *conditions, const rule_subject *subject,
                         const glob_captures *captures, const rule_condition **which)
{
    rule_answer all = RULE_YES;
    for (size_t i = 0; i < conditions->list.count; i++) {
        const rule_condition *condition = &conditions->list.data[i];
        rule_answer answer = condition->is_fact ? decide_fact(condition, subject->model)
                                                : decide_tensor(condition, subject, captures);
        if (answer != RULE_YES && (answer == RULE_NO || all == RULE_YES) && which)
            *which = condition;
        if (answer == RULE_NO)
            return RULE_NO;
        if (answer == RULE_UNDECIDED)
            all = RULE_UNDECIDED;
    }
    return all;
}

bool rule_condition_holds(const rule_condition *condition, const rule_subject *subject,
                          const glob_captures *captures)
{
    if (!condition->is_fact)
        return decide_tensor(condition, subject, captures) == RULE_YES;
    rule_answer answer = decide_fact(condition, subject->model);
    return answer == RULE_YES || (answer == RULE_UNDECIDED && condition->is_negated);
}

const char *rule_condition_format(const rule_condition *condition, char *text, size_t bytes)
{
    const char *kind = condition->is_fact      ? condition->is_negated ? "unless" : "when"
                       : condition->is_negated ? "without"
                                               : "with";
    int used = snprintf(text, bytes, "%s %s%s", kind, condition->text,
                        condition->value_count > 0 ? " =" : "");
    for (size_t i = 0; i < condition->value_count && used >= 0 && (size_t)used < bytes; i++)
        used += snprintf(text + used, bytes - (size_t)used, " %s", condition->values[i]);
    return text;
}

/* Tensors that a rule needs beside the one that it matches. */

/* Block scales need scales beside each weight of their own weight's type. */
static bool need_has_scale(const rule_subject *subject, const rule_match *match, char *name,
                           size_t bytes)
{
    const char *suffix = match->rule->scale_suffix;
    size_t base = strlen(match->name) - strlen(suffix), used = strlen(name);
    char own[MAX_NAME_BYTES];
    if (base >= sizeof own || used + strlen(suffix) >= bytes)
        return true;
    memcpy(own, match->name, base);
    own[base] = '\0';
    const banyan_local_tensor *weight = subject_find(subject, own);
    const banyan_local_tensor *partner = subject_find(subject, name);
    if (!weight || !partner || !banyan_dtype_equal(weight->dtype, partner->dtype))
        return true;
    memcpy(name + used, suffix, strlen(suffix) + 1);
    return subject_find(subject, name) != NULL;
}

static bool is_there(const rule_subject *subject, const rule_match *match, const char *template,
                     char *name, size_t bytes)
{
    const glob_local nowhere = {-1, -1};
    if (!glob_expand(template, &match->captures, &nowhere, name, bytes))
        return true; /* too long for any tensor of the rule, which another check refuses */
    return subject_find(subject, name) &&
           (!match->is_scale || need_has_scale(subject, match, name, bytes));
}

const rule_need *rules_find_missing(const rule_subject *subject, const rule_match *match,
                                    char *name, size_t bytes)
{
    for (size_t i = 0; i < match->rule->needs.count; i++) {
        const rule_need *need = &match->rule->needs.data[i];
        bool found = false, applies = true;
        for (size_t c = 0; c < need->conditions.list.count && applies; c++)
            applies =
                rule_condition_holds(&need->conditions.list.data[c], subject, &match->captures);
        if (!applies)
            continue;
        /* Search from the last: the first one is the name in messages. */
        for (size_t n = need->count; n > 0 && !found; n--)
            found = is_there(subject, match, need->names[n - 1], name, bytes);
        if (!found)
            return need;
    }
    return NULL;
}

bool rules_expert_name(const rule_match *match, int step, char *name, size_t bytes)
{
    const glob_local nowhere = {-1, -1};
    const char *suffix = match->is_scale ? match->rule->scale_suffix : "";
    glob_captures captures = match->captures;
    captures.expert += step;
    if (strstr(match->rule->text, "**") ||
        !glob_expand(match->rule->text, &captures, &nowhere, name, bytes) ||
        strlen(name) + strlen(suffix) >= bytes)
        return false;
    strcat(name, suffix);
    return true;
}
