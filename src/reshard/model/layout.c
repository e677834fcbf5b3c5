/* Build layouts of a model's tensor list, by rules and a parallel spec. */
#include "reshard/model/layout.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reshard/layout/layout.h"
#include "reshard/model/model.h"

#define MAX_NAME_BYTES 1024
#define MAX_UNMATCHED 4 /* in one message */

/* True if the last stage holds it in place of the tensor that it is tied to. */
static bool is_tied(const model_build *build, const rule_match *match)
{
    const model_rule *rule = match->rule;
    return rule->tied && rule->stage == STAGE_FIRST && !subject_find(&build->subject, rule->tied);
}

static bool is_needed_behind(const model_build *build, const rule_match *match)
{
    return build->layers_behind > 0 && build->behind->needs &&
           strcmp(match->name, build->behind->needs) == 0;
}

static bool has_stage(const model_build *build, const rule_match *match)
{
    const spec_axis *stage = &build->place.stage;
    int64_t layer = match->captures.layer;
    bool is_last = stage->index == stage->count - 1;
    if (layer >= build->layers)
        return is_last;
    if (layer >= 0)
        return layer >= build->first_layer && layer < build->last_layer;
    switch (match->rule->stage) {
    case STAGE_FIRST:
        return stage->index == 0 ||
               (is_last && (is_tied(build, match) || is_needed_behind(build, match)));
    case STAGE_LAST:
        return is_last;
    default:
        return true;
    }
}

/* True if the engine computes other values from the tensor. Its local tensor is left alone once the
 * user has left the tensor out. */
static bool is_computed(const model_build *build, const rule_match *match)
{
    const rule_packed *packed = NULL;
    return match->rule &&
           rule_find_packed(build->rules, &build->subject, match, build->packing.name, &packed,
                            NULL) == RULE_YES &&
           packed->computed;
}

static bool is_skipped(const model_build *build, size_t index)
{
    const rule_match *match = &build->matched->matches[index];
    const rule_skip *which;
    return rules_skip(build->rules, match, build->skips, &which) == RULE_YES ||
           (model_skips(build->model, index) && !is_computed(build, match));
}

static bool is_here(const model_build *build, size_t index)
{
    const rule_match *match = &build->matched->matches[index];
    int64_t expert = match->captures.expert;
    if (is_skipped(build, index))
        return false;
    if (expert >= 0 &&
        (expert < build->first_expert || expert >= build->first_expert + build->expert_count))
        return false;
    return has_stage(build, match);
}

/* Name the tensors that no rule fits, as many as fit a message, each with the nearest rule. */
static bool fail_unmatched(model_build *build)
{
    char text[MAX_UNMATCHED * 512], nearest[448];
    size_t used = 0, count = 0, total = banyan_model_tensor_count(build->model);
    for (size_t i = 0; i < total; i++) {
        const rule_match *match = &build->matched->matches[i];
        if (match->rule || is_skipped(build, i) || count++ >= MAX_UNMATCHED)
            continue;
        rules_explain_nearest(build->rules, &build->subject, match->name, nearest, sizeof nearest);
        int written =
            snprintf(text + used, sizeof text - used, "%s\"%.256s\" (%s)", used > 0 ? "; " : "",
                     banyan_model_tensor(build->model, i)->name, nearest);
        used = (size_t)written < sizeof text - used ? used + (size_t)written : sizeof text - 1;
    }
    if (count == 1)
        return layout_fail(build->layout, BANYAN_ERR_INVALID,
                           "no rule matches the name of tensor %s", text);
    return layout_fail(build->layout, BANYAN_ERR_INVALID,
                       "no rule matches the names of %zu tensors: %s%s", count, text,
                       count > MAX_UNMATCHED ? "; …" : "");
}

static bool fail_undecided(model_build *build, size_t index, const char *file, int line,
                           const char *condition)
{
    return layout_fail(
        build->layout, BANYAN_ERR_INVALID,
        "tensor \"%s\": whether %s:%d applies to it depends on the model's config.json "
        "(%s), and there is none beside the weights",
        banyan_model_tensor(build->model, index)->name, file, line, condition);
}

/* Fail on conditions that decide about a tensor and need a config.json that is missing. */
static bool check_decided(model_build *build, size_t index)
{
    const rule_match *match = &build->matched->matches[index];
    const rule_condition *which = match->undecided;
    char condition[256];
    const rule_skip *skip;
    if (rules_skip(build->rules, match, build->skips, &skip) == RULE_UNDECIDED) {
        for (size_t i = 0; i < skip->conditions.list.count; i++)
            which = skip->conditions.list.data[i].is_fact ? &skip->conditions.list.data[i] : which;
        return fail_undecided(build, index, skip->file, skip->line,
                              rule_condition_format(which, condition, sizeof condition));
    }
    return !which || fail_undecided(build, index, match->rule->file, match->rule->line,
                                    rule_condition_format(which, condition, sizeof condition));
}

/* Return a name after prefixes in the model's own spelling. */
static const char *original_name(const rule_match *match, const char *name, char *text,
                                 size_t bytes)
{
    const rule_prefix *prefix = match->prefix;
    bool has_prefix = prefix && strncmp(name, prefix->to, strlen(prefix->to)) == 0;
    snprintf(text, bytes, "%s%s", has_prefix ? prefix->from : "",
             has_prefix ? name + strlen(prefix->to) : name);
    return text;
}

static bool fail_missing(model_build *build, size_t index, const char *missing, int line)
{
    const rule_match *match = &build->matched->matches[index];
    char text[MAX_NAME_BYTES];
    return layout_fail(build->layout, BANYAN_ERR_INVALID,
                       "tensor \"%s\" (rule \"%s\", %s:%d): it needs a tensor \"%s\" beside it, "
                       "and the model has none",
                       banyan_model_tensor(build->model, index)->name, match->rule->text,
                       match->rule->file, line, original_name(match, missing, text, sizeof text));
}

/* Check that the model has all layers: as many as config.json gives, and those below its highest
 * one. */
static bool check_layers(model_build *build)
{
    const char *key = build->rules->layer_fact;
    int64_t missing = build->matched->no_layer, count = 0;
    if (!key || model_is_saved(build->model))
        return true;
    if (model_fact_int(build->model, key, &count) && missing < count)
        return layout_fail(build->layout, BANYAN_ERR_INVALID,
                           "the model has no tensor of layer %" PRId64 ", and %s is %" PRId64
                           " in config.json",
                           missing, key, count);
    return missing == build->matched->layers ||
           layout_fail(build->layout, BANYAN_ERR_INVALID,
                       "the model has no tensor of layer %" PRId64 ", and has layer %" PRId64,
                       missing, build->matched->layers - 1);
}

/* Check that every layer with experts has all of them: as many as config.json gives, if it gives a
 * number. */
static bool check_experts(model_build *build)
{
    for (size_t i = 0; i < build->rules->expert_facts.count; i++) {
        const char *key = build->rules->expert_facts.data[i];
        int64_t count;
        if (!model_fact_int(build->model, key, &count))
            continue;
        if (build->experts > count)
            return layout_fail(build->layout, BANYAN_ERR_INVALID,
                               "the model has tensors of %" PRId64 " experts, and %s is %" PRId64
                               " in config.json",
                               build->experts, key, count);
        layout_keep_fact(build->layout, key, model_fact(build->model, key));
        build->experts = count;
        break;
    }
    for (size_t i = 0; i < banyan_model_tensor_count(build->model); i++) {
        const rule_match *match = &build->matched->matches[i];
        char name[MAX_NAME_BYTES];
        if (match->ends_experts && match->captures.expert + 1 < build->experts &&
            !is_skipped(build, i) && rules_expert_name(match, 1, name, sizeof name))
            return fail_missing(build, i, name, match->rule->line);
    }
    return true;
}

/* Read the number of experts from a tensor that stacks them all. */
static bool count_stack(model_build *build, size_t index, int64_t *stacked)
{
    const banyan_local_tensor *tensor = banyan_model_tensor(build->model, index);
    const model_rule *rule = build->matched->matches[index].rule;
    if (tensor->ndim == 0 || (*stacked > 0 && tensor->shape[0] != *stacked))
        return layout_fail(build->layout, BANYAN_ERR_INVALID,
                           "tensor \"%s\" (rule \"%s\", %s:%d): %" PRId64
                           " experts in dimension 0, and %" PRId64 " in other tensors",
                           tensor->name, rule->text, rule->file, rule->line,
                           tensor->ndim > 0 ? tensor->shape[0] : 0, *stacked);
    *stacked = tensor->shape[0];
    return true;
}

/* Check layers behind all others: they are the last ones, and each has the tensor that marks them.
 * `layers` counts all layers; `count` of them, from `first` on, are behind. */
static bool set_behind(model_build *build, int64_t first, int64_t count)
{
    if (count == 0)
        return true;
    build->layers_behind = build->layers - first;
    if (count != build->layers_behind)
        return layout_fail(build->layout, BANYAN_ERR_INVALID,
                           "of the %" PRId64 " layers from %" PRId64 " on, %" PRId64
                           " have a tensor \"%s\", which none or all of them must have",
                           build->layers_behind, first, count, build->behind->text);
    build->layers = first;
    return true;
}

/* Check that the packing has some of the tensors that are not left out. */
static bool check_any(model_build *build, size_t here)
{
    size_t count = banyan_model_tensor_count(build->model), left_out = 0;
    for (size_t i = 0; i < count; i++)
        left_out += model_skips(build->model, i);
    return here > 0 || left_out == count ||
           layout_fail(build->layout, BANYAN_ERR_INVALID,
                       "the packing \"%s\" has none of the model's %zu tensors",
                       build->packing.name, count - left_out);
}

/* Count layers and experts. */
static bool look_at_names(model_build *build)
{
    size_t here = 0;
    int64_t stacked = 0, first_behind = INT64_MAX, behind = 0;
    glob_captures captures;
    build->behind = rules_find_behind(build->rules, build->packing.name);
    for (size_t i = 0; i < banyan_model_tensor_count(build->model); i++) {
        const rule_match *match = &build->matched->matches[i];
        if (is_skipped(build, i)) {
            layout_keep_skipped(build->layout, banyan_model_tensor(build->model, i)->name);
            continue;
        }
        here++;
        if (model_skips(build->model, i))
            layout_keep_skipped(build->layout, banyan_model_tensor(build->model, i)->name);
        if (!match->rule)
            return fail_unmatched(build);
        if (match->missing)
            return fail_missing(build, i, match->missing, match->missing_line);
        if (!check_decided(build, i) ||
            (match->rule->stacks_experts && !count_stack(build, i, &stacked)))
            return false;
        if (match->captures.layer >= build->layers)
            build->layers = match->captures.layer + 1;
        if (match->captures.expert >= build->experts)
            build->experts = match->captures.expert + 1;
        if (!build->behind ||
            !glob_match(&build->behind->pattern, match->name, strlen(match->name), &captures))
            continue;
        first_behind = captures.layer < first_behind ? captures.layer : first_behind;
        behind++;
    }
    if (!check_any(build, here) || !check_layers(build) || !set_behind(build, first_behind, behind))
        return false;
    if (stacked > 0 && build->experts > 0 && stacked != build->experts)
        return layout_fail(build->layout, BANYAN_ERR_INVALID,
                           "stacked tensors have %" PRId64 " experts, and there are %" PRId64
                           " with tensors of their own",
                           stacked, build->experts);
    build->experts = stacked > 0 ? stacked : build->experts;
    return build->experts == 0 || check_experts(build);
}

/* Assign layers to stages in order and evenly; if they do not divide, each of the first stages gets
 * one more. Experts must divide. */
static bool share_out(model_build *build)
{
    const spec_axis *stage = &build->place.stage, *owner = &build->place.expert_owner;
    int64_t even = build->layers / stage->count, more = build->layers % stage->count;
    build->first_layer = even * stage->index + (stage->index < more ? stage->index : more);
    build->last_layer = build->first_layer + even + (stage->index < more);
    if (build->experts % owner->count != 0)
        return layout_fail(build->layout, BANYAN_ERR_INVALID,
                           "%" PRId64 " experts do not divide over ep=%d", build->experts,
                           owner->count);
    build->expert_count = build->experts / owner->count;
    build->first_expert = build->expert_count * owner->index;
    return true;
}

static bool fail_long(model_build *build, const char *name)
{
    return layout_fail(build->layout, BANYAN_ERR_INVALID,
                       "tensor \"%.64s…\": names of more than %d bytes", name, MAX_NAME_BYTES - 1);
}

/* Spell a name after prefixes as this packing does; hf keeps the model's spelling. */
static bool add_prefix(model_build *build, const rule_prefix *prefix, char *name)
{
    char bare[MAX_NAME_BYTES];
    if (!prefix || strncmp(name, prefix->to, strlen(prefix->to)) != 0)
        return true;
    const char *out = NULL;
    if (strcmp(build->packing.name, "hf") == 0)
        out = prefix->from;
    else if (prefix->packing &&
             rules_packing_is(build->rules, build->packing.name, prefix->packing))
        out = prefix->out;
    if (!out)
        return true;
    snprintf(bare, sizeof bare, "%s", name + strlen(prefix->to));
    int written = snprintf(name, MAX_NAME_BYTES, "%s%s", out, bare);
    return written < MAX_NAME_BYTES || fail_long(build, bare);
}

static bool rename_local(model_build *build, const model_tensor *tensor, char name[MAX_NAME_BYTES])
{
    const glob_local nowhere = {-1, -1};
    glob_captures captures;
    char renamed[MAX_NAME_BYTES];
    const rule_rename *rename =
        rules_find_rename(build->rules, &build->subject, build->packing.name, name,
                          tensor->match.captures.layer >= build->layers, &captures);
    if (!rename)
        return true;
    if (!glob_expand(rename->name, &captures, &nowhere, renamed, sizeof renamed))
        return fail_long(build, name);
    memcpy(name, renamed, sizeof renamed);
    return true;
}

static bool find_packed(model_build *build, const model_tensor *tensor, const rule_match *as,
                        const rule_packed **packed)
{
    const rule_condition *which = NULL;
    char condition[256];
    *packed = NULL;
    switch (
        rule_find_packed(build->rules, &build->subject, as, build->packing.name, packed, &which)) {
    case RULE_YES:
        return !(*packed)->computed || tensor->is_left_out ||
               model_tensor_fail(build, tensor,
                                 "the packing \"%s\" computes other values from it, for \"%s\", "
                                 "which a move cannot do: leave the tensor out, and the engine's "
                                 "values stay as they are",
                                 build->packing.name, (*packed)->name);
    case RULE_UNDECIDED:
        return model_tensor_fail(build, tensor,
                                 "its place in the packing \"%s\" depends on the model's "
                                 "config.json (%s), and there is none beside the weights",
                                 build->packing.name,
                                 rule_condition_format(which, condition, sizeof condition));
    default:
        if (build->packing.strict) {
            const char *why = *packed ? (*packed)->why : NULL;
            return model_tensor_fail(build, tensor,
                                     "the rules have no place for it in the packing \"%s\"%s%s",
                                     build->packing.name, why ? ": " : "", why ? why : "");
        }
        *packed = NULL;
        return true;
    }
}

/* Find the tensor's local name and packing. A tied tensor lies on the last stage at the place of
 * the tensor that it replaces. */
static bool model_layout_find_place(model_build *build, model_tensor *tensor,
                                    char name[MAX_NAME_BYTES])
{
    rule_match as = tensor->match;
    if (tensor->is_tied && build->place.stage.index > 0) {
        const char *tied = tensor->match.rule->tied;
        if (!rules_match(build->rules, &build->subject, tied, &as))
            return layout_fail(build->layout, BANYAN_ERR_INVALID,
                               "tensor \"%s\": no rule matches the name that \"%s\" replaces", tied,
                               tensor->global->name);
    }
    if (!find_packed(build, tensor, &as, &tensor->packed))
        return false;
    bool is_behind = as.captures.layer >= build->layers;
    const glob_local local = {as.captures.layer - (is_behind ? build->layers : build->first_layer),
                              as.captures.expert - build->first_expert};
    const char *suffix = tensor->packed && as.is_scale ? as.rule->scale_suffix : "";
    int used = 0;
    if (!tensor->packed)
        used = snprintf(name, MAX_NAME_BYTES, "%s", as.name);
    else if (glob_expand(tensor->packed->name, &as.captures, &local, name, MAX_NAME_BYTES))
        used = (int)strlen(name) +
               snprintf(name + strlen(name), MAX_NAME_BYTES - strlen(name), "%s", suffix);
    else
        used = MAX_NAME_BYTES;
    if (used >= MAX_NAME_BYTES)
        return fail_long(build, as.name);
    return rename_local(build, tensor, name) && add_prefix(build, tensor->match.prefix, name);
}

static bool model_layout_add_tensor(model_build *build, size_t index)
{
    model_tensor tensor = {.global = banyan_model_tensor(build->model, index),
                           .match = build->matched->matches[index]};
    const model_rule *rule = tensor.match.rule;
    char name[MAX_NAME_BYTES];
    tensor.is_left_out = model_skips(build->model, index);
    tensor.is_expert = tensor.match.captures.expert >= 0 || rule->stacks_experts;
    bool is_needed = is_needed_behind(build, &tensor.match);
    tensor.is_tied = build->place.stage.count > 1 && is_tied(build, &tensor.match);
    tensor.is_at_ends = build->place.stage.count > 1 && (tensor.is_tied || is_needed);
    if (tensor.is_tied && is_needed)
        return model_tensor_fail(build, &tensor,
                                 "the last stage is to have it twice: in place of \"%s\", and for "
                                 "the layers behind the last one; give pp=1",
                                 rule->tied);
    if (!rule->stacks_experts)
        return model_layout_find_place(build, &tensor, name) &&
               model_tensor_cut(build, &tensor, name);
    for (int64_t i = 0; i < build->expert_count; i++) {
        tensor.match.captures.expert = build->first_expert + i;
        if (!model_layout_find_place(build, &tensor, name) ||
            !model_tensor_cut(build, &tensor, name))
            return false;
        if (!tensor.packed || !tensor.packed->unstacked)
            break;
    }
    return true;
}

/* Keep every fact that these conditions ask for, and the model's type: without a type, a missing
 * key counts as unknown. */
static void keep_facts_of(model_build *build, const rule_conditions *conditions)
{
    for (size_t i = 0; i < conditions->list.count; i++) {
        const rule_condition *condition = &conditions->list.data[i];
        const char *fact = condition->is_fact ? model_fact(build->model, condition->text) : NULL;
        const char *type = condition->is_fact ? model_fact(build->model, "model_type") : NULL;
        if (fact)
            layout_keep_fact(build->layout, condition->text, fact);
        if (type)
            layout_keep_fact(build->layout, "model_type", type);
    }
}

/* Keep the facts that decided, so that rules decide identically about a saved folder, which may
 * have no others. */
static void keep_facts(model_build *build)
{
    const banyan_rules *rules = build->rules;
    model_pass_facts(build->model, build->layout);
    for (size_t i = 0; i < rules->rules.count; i++) {
        const model_rule *rule = &rules->rules.data[i];
        keep_facts_of(build, &rule->conditions);
        for (size_t p = 0; p < rule->packed.count; p++)
            keep_facts_of(build, &rule->packed.data[p].conditions);
    }
    for (size_t i = 0; i < rules->defaults.count; i++)
        keep_facts_of(build, &rules->defaults.data[i].conditions);
    for (size_t i = 0; i < rules->skips.count; i++)
        keep_facts_of(build, &rules->skips.data[i].conditions);
    for (size_t i = 0; i < rules->prefixes.count; i++)
        keep_facts_of(build, &rules->prefixes.data[i].conditions);
    for (size_t i = 0; i < rules->renames.count; i++)
        keep_facts_of(build, &rules->renames.data[i].conditions);
}

static bool build_all(model_build *build)
{
    if (!look_at_names(build) || !share_out(build))
        return false;
    keep_facts(build);
    for (size_t i = 0; i < banyan_model_tensor_count(build->model); i++) {
        if (is_here(build, i) && !model_layout_add_tensor(build, i))
            return false;
    }
    for (size_t i = 0; i < build->targets.count; i++) {
        if (!model_target_build(build, &build->targets.data[i]))
            return false;
    }
    return true;
}

static bool model_layout_check_arguments(model_build *build, int rank)
{
    char text[160];
    const banyan_spec *spec = build->spec;
    snprintf(text, sizeof text, "tp=%d,pp=%d,dp=%d,fsdp=%d,ep=%d,etp=%d,packing=%s", spec->tp,
             spec->pp, spec->dp, spec->fsdp, spec->ep, spec->etp, spec->packing);
    banyan_status status = spec_check(spec, text);
    if (status == BANYAN_OK)
        status = rules_find_packing(build->rules, spec->packing, &build->packing);
    if (status != BANYAN_OK)
        return layout_fail(build->layout, status, "%s", banyan_last_error());
    int64_t head;
    if (spec->head > 0 && model_fact_int(build->model, "head_dim", &head) && head != spec->head)
        return layout_fail(build->layout, BANYAN_ERR_INVALID,
                           "heads have %" PRId64 " elements by the spec's head=%" PRId64
                           ", and head_dim is %" PRId64 " in config.json",
                           spec->head, spec->head, head);
    build->skips = rules_skips_of(build->rules, spec->packing);
    int ranks = banyan_spec_world_size(spec);
    if (rank < 0 || rank >= ranks || build->rank_offset < 0 || build->rank_offset > INT_MAX - ranks)
        return layout_fail(build->layout, BANYAN_ERR_INVALID,
                           "rank %d (with offset %d) of a spec of %d ranks", rank,
                           build->rank_offset, ranks);
    return true;
}

void banyan_layout_add_model(banyan_layout *layout, const banyan_model *model,
                             const banyan_rules *rules, const banyan_spec *spec, int rank,
                             int rank_offset)
{
    model_build build = {
        .layout = layout, .model = model, .rules = rules, .spec = spec, .rank_offset = rank_offset};
    if (layout_failed(layout) || !model_layout_check_arguments(&build, rank))
        return;
    build.place = spec_place_of(spec, rank);
    model_matched *own = NULL;
    banyan_status status = model_match(model, rules, &build.matched, &own);
    if (status == BANYAN_OK) {
        build.subject = model_matched_subject(build.matched, model);
        build_all(&build);
    } else {
        layout_fail(layout, status, "%s", banyan_last_error());
    }
    model_matched_free(own);
    array_free(&build.parts);
    array_free(&build.targets);
    map_free(&build.target_by_name);
    names_free(&build.names);
}
