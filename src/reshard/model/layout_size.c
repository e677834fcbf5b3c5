/* Evaluate sizes that rules name: from the spec, the model's config.json, or the rules' defaults.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "reshard/layout/layout.h"
#include "reshard/model/layout.h"
#include "reshard/rules/expr.h"

#define MAX_DEPTH 8

struct scope {
    model_build *build;
    int64_t size;
    int depth; /* recursion through defaults */
};

bool model_tensor_fail(model_build *build, const model_tensor *tensor, const char *format, ...)
{
    char text[640];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const model_rule *rule = tensor->match.rule;
    return layout_fail(build->layout, BANYAN_ERR_INVALID, "tensor \"%s\" (rule \"%s\", %s:%d): %s",
                       tensor->global->name, rule->text, rule->file, rule->line, text);
}

static expr_result layout_size_find(void *context, const char *name, int64_t *value, char *problem);

static expr_result find_default(struct scope *scope, const char *name, int64_t *value,
                                char *problem)
{
    const banyan_rules *rules = scope->build->rules;
    const glob_captures nothing = {.layer = -1, .expert = -1};
    for (size_t i = 0; i < rules->defaults.count && scope->depth < MAX_DEPTH; i++) {
        const rule_default *other = &rules->defaults.data[i];
        if (strcmp(other->key, name) != 0 ||
            rules_decide(&other->conditions, &scope->build->subject, &nothing, NULL) != RULE_YES)
            continue;
        struct scope inner = {scope->build, scope->size, scope->depth + 1};
        expr_result result = expr_evaluate(other->value, layout_size_find, &inner, value, problem);
        if (result != EXPR_UNKNOWN)
            return result;
    }
    snprintf(problem, EXPR_PROBLEM_BYTES, "%s", name);
    return EXPR_UNKNOWN;
}

static expr_result find_fact(struct scope *scope, const char *name, int64_t *value, char *problem)
{
    const banyan_model *model = scope->build->model;
    const char *text = model_fact(model, name);
    if (!text)
        return find_default(scope, name, value, problem);
    if (!model_fact_int(model, name, value) || *value < 0 || *value > INT32_MAX) {
        snprintf(problem, EXPR_PROBLEM_BYTES, "%s is %.64s in config.json: 0 to %d are possible",
                 name, text, INT32_MAX);
        return EXPR_WRONG;
    }
    layout_keep_fact(scope->build->layout, name, text);
    return EXPR_OK;
}

/* The spec's head=N is head_dim, and must not contradict the configuration. */
static expr_result find_head(struct scope *scope, int64_t *value, char *problem)
{
    int64_t given = scope->build->spec->head, other;
    expr_result result = find_fact(scope, "head_dim", &other, problem);
    if (result == EXPR_WRONG || given == 0) {
        *value = other;
        return result;
    }
    if (result == EXPR_OK && other != given) {
        snprintf(problem, EXPR_PROBLEM_BYTES,
                 "heads have %" PRId64 " elements by the spec's head=%" PRId64 ", and %" PRId64
                 " by config.json",
                 given, given, other);
        return EXPR_WRONG;
    }
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, given);
    layout_keep_fact(scope->build->layout, "head_dim", text);
    *value = given;
    return EXPR_OK;
}

static expr_result layout_size_find(void *context, const char *name, int64_t *value, char *problem)
{
    struct scope *scope = context;
    if (strcmp(name, "size") == 0) {
        *value = scope->size;
        return EXPR_OK;
    }
    if (strcmp(name, "head_dim") == 0)
        return find_head(scope, value, problem);
    return find_fact(scope, name, value, problem);
}

bool model_size(model_build *build, const model_tensor *tensor, const char *expression,
                int64_t size, bool needed, int64_t *value)
{
    char problem[EXPR_PROBLEM_BYTES];
    struct scope scope = {.build = build, .size = size};
    switch (expr_evaluate(expression, layout_size_find, &scope, value, problem)) {
    case EXPR_OK:
        return true;
    case EXPR_UNKNOWN:
        if (!needed)
            return false;
        if (strcmp(problem, "head_dim") == 0)
            return model_tensor_fail(build, tensor,
                                     "the size of its heads is unknown: give head=N in the "
                                     "spec, or a config.json with head_dim (or hidden_size and "
                                     "num_attention_heads) beside the weights");
        return model_tensor_fail(build, tensor,
                                 "\"%s\" is needed and unknown: give a config.json that has it "
                                 "beside the weights",
                                 problem);
    default:
        return needed && model_tensor_fail(build, tensor, "%s: %s", expression, problem);
    }
}
