/* Tensors that a rule needs beside the one that it matches. */
#include <string.h>

#include "reshard/model/model.h"

#define MAX_NAME_BYTES 1024

static bool need_applies(const rule_need *need, const rule_subject *subject,
                         const glob_captures *captures)
{
    bool applies = true;
    for (size_t i = 0; i < need->conditions.list.count && applies; i++)
        applies = rule_condition_holds(&need->conditions.list.data[i], subject, captures);
    return applies;
}

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
        bool found = false;
        if (!need_applies(need, subject, &match->captures))
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
