/* List rule files and packings, and explain how rules place a model's tensors. */
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "reshard/model/model.h"
#include "reshard/rules/files.h"

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
