/* Layouts of a model's tensor list, by rules and a parallel spec. */
#include "reshard/layout_model.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reshard/layout.h"
#include "reshard/model.h"

#define MAX_NAME_BYTES 1024

static bool has_stage(const model_build *build, const rule_match *match)
{
    const spec_axis *stage = &build->place.stage;
    int64_t layer = match->captures.layer;
    if (layer >= 0)
        return layer >= build->first_layer && layer < build->last_layer;
    switch (match->rule->stage) {
    case STAGE_FIRST:
        return stage->index == 0 || (stage->index == stage->count - 1 && match->rule->tied &&
                                     !model_find(build->model, match->rule->tied));
    case STAGE_LAST:
        return stage->index == stage->count - 1;
    default:
        return true;
    }
}

static bool is_here(const model_build *build, const rule_match *match)
{
    int64_t expert = match->captures.expert;
    if (expert >= 0 &&
        (expert < build->first_expert || expert >= build->first_expert + build->expert_count))
        return false;
    return has_stage(build, match);
}

/* How many layers and experts there are. */
static bool look_at_names(model_build *build)
{
    for (size_t i = 0; i < banyan_model_tensor_count(build->model); i++) {
        const rule_match *match = &build->matches[i];
        if (!match->rule)
            return layout_fail(build->layout, BANYAN_ERR_INVALID,
                               "tensor \"%s\": no rule matches the name",
                               banyan_model_tensor(build->model, i)->name);
        if (match->captures.layer >= build->layers)
            build->layers = match->captures.layer + 1;
        if (match->captures.expert >= build->experts)
            build->experts = match->captures.expert + 1;
    }
    return true;
}

/* Layers go to the stages in order, evenly, and one more to each of the first when they do not
 * divide. Experts must divide. */
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

/* Under which name, and how packed. A tied tensor lies on the last stage where the one that it
 * stands in for would. */
static bool find_place(model_build *build, const model_tensor *tensor, char *name, size_t bytes,
                       const rule_packed **packed)
{
    rule_match as = tensor->match;
    const char *own = tensor->global->name;
    if (tensor->is_tied && build->place.stage.index > 0) {
        own = tensor->match.rule->tied;
        if (!rules_match(build->rules, own, &as))
            return layout_fail(build->layout, BANYAN_ERR_INVALID,
                               "tensor \"%s\": no rule matches the name, which \"%s\" stands in "
                               "for",
                               own, tensor->global->name);
    }
    *packed = rule_find_packed(build->rules, as.rule, build->packing.name);
    glob_local local = {as.captures.layer - build->first_layer,
                        as.captures.expert - build->first_expert};
    int written;
    if (!*packed) {
        written = snprintf(name, bytes, "%s", own);
    } else {
        bool fits = glob_expand((*packed)->name, &as.captures, &local, name, bytes);
        size_t used = fits ? strlen(name) : bytes;
        written = fits && as.is_scale
                      ? (int)used + snprintf(name + used, bytes - used, "%s", as.rule->scale_suffix)
                      : (int)used;
    }
    if ((size_t)written < bytes)
        return true;
    return layout_fail(build->layout, BANYAN_ERR_INVALID,
                       "tensor \"%.64s…\": names of more than %zu bytes", own, bytes - 1);
}

static bool add_tensor(model_build *build, size_t index)
{
    model_tensor tensor = {.global = banyan_model_tensor(build->model, index),
                           .match = build->matches[index]};
    const model_rule *rule = tensor.match.rule;
    tensor.is_expert = tensor.match.captures.expert >= 0;
    tensor.is_tied = rule->tied && rule->stage == STAGE_FIRST && build->place.stage.count > 1 &&
                     !model_find(build->model, rule->tied);
    char name[MAX_NAME_BYTES];
    const rule_packed *packed = NULL;
    model_part part;
    if (!find_place(build, &tensor, name, sizeof name, &packed) ||
        !model_part_cut(build, &tensor, &part))
        return false;
    if (packed) {
        part.slot = packed->slot;
        if (packed->stacked)
            part.expert = tensor.match.captures.expert - build->first_expert;
    }
    const spec_axes *axes = tensor.is_expert ? &build->place.expert : &build->place.dense;
    return model_part_file(build, name, packed, axes, &part);
}

static bool build_all(model_build *build)
{
    if (!look_at_names(build) || !share_out(build))
        return false;
    model_pass_facts(build->model, build->layout);
    for (size_t i = 0; i < banyan_model_tensor_count(build->model); i++) {
        if (is_here(build, &build->matches[i]) && !add_tensor(build, i))
            return false;
    }
    for (size_t i = 0; i < build->targets.count; i++) {
        if (!model_target_build(build, &build->targets.data[i]))
            return false;
    }
    return true;
}

static bool check_arguments(model_build *build, int rank)
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
    if (layout_failed(layout) || !check_arguments(&build, rank))
        return;
    build.place = spec_place_of(spec, rank);
    model_matched *own = NULL;
    if (model_match(model, rules, &build.matches, &own) == BANYAN_OK)
        build_all(&build);
    else
        layout_fail(layout, BANYAN_ERR_NO_MEMORY, "no memory to look at %zu tensors",
                    banyan_model_tensor_count(model));
    free(own);
    array_free(&build.parts);
    array_free(&build.targets);
    map_free(&build.target_by_name);
    names_free(&build.names);
}
