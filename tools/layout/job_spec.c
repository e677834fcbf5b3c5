#include "layout/job_spec.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <banyan/rules.h>

#include "cli/text.h"
#include "core/nearest.h"
#include "core/status.h"
#include "core/text/escape.h"

static bool job_spec_refused(const char *who, const char *option)
{
    fprintf(stderr, "%s: %s%s\n", who, option, banyan_last_error());
    return false;
}

/* The option's layout does not fit the model. */
static bool refused_model(const char *who, const char *option, const job_spec *spec)
{
    fprintf(stderr, "%s: %s%s: %s\n", who, option, spec->model_path, banyan_last_error());
    return false;
}

/* True if the text names a layout file, by the ending ".json". */
static bool job_spec_is_file(const char *text)
{
    size_t length = text ? strlen(text) : 0;
    return length >= 5 && strcmp(text + length - 5, ".json") == 0;
}

const char *job_spec_missing(const job_spec *spec)
{
    bool both_files = job_spec_is_file(spec->from_text) && job_spec_is_file(spec->to_text);
    if (!spec->model_path && !both_files)
        return "--model FILE";
    if (!spec->from_text)
        return "--from SPEC";
    return spec->to_text ? NULL : "--to SPEC";
}

static bool count_ranks(job_spec *spec, const char *who)
{
    spec->from_ranks = spec->from_file   ? banyan_layout_file_rank_count(spec->from_file)
                       : spec->from_text ? banyan_spec_world_size(&spec->from)
                                         : banyan_checkpoint_rank_count(spec->saved);
    spec->to_ranks = spec->to_file ? banyan_layout_file_rank_count(spec->to_file)
                                   : banyan_spec_world_size(&spec->to);
    int64_t to_first = spec->disjoint ? spec->from_ranks : 0;
    int64_t ranks = to_first + spec->to_ranks;
    ranks = ranks > spec->from_ranks ? ranks : spec->from_ranks;
    if (ranks > BANYAN_MAX_RANKS) {
        fprintf(stderr, "%s: %" PRId64 " ranks are more than the %d that a world can have\n", who,
                ranks, BANYAN_MAX_RANKS);
        return false;
    }
    spec->to_first = (int)to_first;
    spec->ranks = (int)ranks;
    return true;
}

static void job_spec_add_source(const job_spec *spec, int rank, banyan_layout *layout)
{
    if (spec->from_file)
        banyan_layout_add_file(layout, spec->from_file, rank, 0);
    else if (spec->from_text)
        banyan_layout_add_model(layout, spec->model, spec->rules, &spec->from, rank, 0);
    else
        banyan_checkpoint_add_layout(spec->saved, rank, layout);
}

static void add_destination(const job_spec *spec, int to_rank, banyan_layout *layout)
{
    if (spec->to_file)
        banyan_layout_add_file(layout, spec->to_file, to_rank, spec->to_first);
    else
        banyan_layout_add_model(layout, spec->model, spec->rules, &spec->to, to_rank,
                                spec->to_first);
}

/* Test whether the model can be cut so: build its first rank's layout. */
static banyan_status try_layout(const job_spec *spec,
                                void (*add)(const job_spec *spec, int rank, banyan_layout *layout))
{
    banyan_layout *layout;
    banyan_status status = banyan_layout_create(&layout);
    if (status != BANYAN_OK)
        return status;
    add(spec, 0, layout);
    status = banyan_layout_check(layout);
    banyan_layout_destroy(layout);
    return status;
}

/* Read a side's spec, or its layout file. */
static bool read_side(const char *who, const char *option, const char *text, banyan_side side,
                      banyan_spec *spec, banyan_layout_file **file)
{
    if (!text)
        return true;
    if (!job_spec_is_file(text))
        return banyan_spec_parse(text, spec) == BANYAN_OK || job_spec_refused(who, option);
    if (banyan_layout_file_load(text, file) != BANYAN_OK)
        return job_spec_refused(who, option);
    if (banyan_layout_file_check(*file, side) == BANYAN_OK)
        return true;
    fprintf(stderr, "%s: %s%s: %s\n", who, option, text, banyan_last_error());
    return false;
}

bool job_spec_read(job_spec *spec, const char *who)
{
    if (!read_side(who, "--from: ", spec->from_text, BANYAN_SOURCE, &spec->from,
                   &spec->from_file) ||
        !read_side(who, "--to: ", spec->to_text, BANYAN_DESTINATION, &spec->to, &spec->to_file) ||
        !count_ranks(spec, who))
        return false;
    /* Two layout files need no model but the tensors that the source has pieces of. */
    const char *model = spec->model_path ? spec->model_path : spec->from_text;
    if (banyan_model_load(model, &spec->model) != BANYAN_OK ||
        banyan_rules_load(spec->rules_path, &spec->rules) != BANYAN_OK)
        return job_spec_refused(who, "");
    if (spec->config_path && banyan_model_add_config(spec->model, spec->config_path) != BANYAN_OK)
        return job_spec_refused(who, "--config: ");
    if (spec->skip && skip_tensors(spec->model, spec->skip) != BANYAN_OK)
        return job_spec_refused(who, "--skip: ");
    if (!spec->from_file && try_layout(spec, job_spec_add_source) != BANYAN_OK)
        return refused_model(who, spec->from_text ? "--from: " : "", spec);
    if (!spec->to_file && try_layout(spec, add_destination) != BANYAN_OK)
        return refused_model(who, "--to: ", spec);
    return true;
}

void job_spec_free(job_spec *spec)
{
    banyan_layout_file_destroy(spec->from_file);
    banyan_layout_file_destroy(spec->to_file);
    banyan_rules_destroy(spec->rules);
    banyan_model_destroy(spec->model);
}

void job_spec_layouts(const job_spec *spec, int rank, banyan_layout *source,
                      banyan_layout *destination)
{
    int to_rank = rank - spec->to_first;
    if (rank < spec->from_ranks)
        job_spec_add_source(spec, rank, source);
    if (to_rank >= 0 && to_rank < spec->to_ranks)
        add_destination(spec, to_rank, destination);
}

const char *job_spec_name(const job_spec *spec, char text[256])
{
    const char *path = spec->model_path ? spec->model_path : spec->from_text;
    const char *slash = strrchr(path, '/');
    snprintf(text, 256, "%s", slash && slash[1] ? slash + 1 : path);
    char *dot = strrchr(text, '.');
    if (dot && dot != text)
        *dot = '\0';
    return text;
}

/* An empty spec is one rank that holds everything. */
static const char *in_words(const char *text)
{
    return text[0] == '\0' ? "tp=1" : text;
}

const char *job_spec_from(const job_spec *spec)
{
    return spec->from_text ? in_words(spec->from_text) : "as saved";
}

const char *job_spec_title(const job_spec *spec, char text[JOB_SPEC_TITLE_BYTES])
{
    char name[256], from[TEXT_NUMBER_BYTES], to[TEXT_NUMBER_BYTES];
    snprintf(text, JOB_SPEC_TITLE_BYTES, "%s: %s on %s rank%s to %s on %s %s",
             job_spec_name(spec, name), job_spec_from(spec),
             text_count((uint64_t)spec->from_ranks, from), spec->from_ranks == 1 ? "" : "s",
             in_words(spec->to_text), text_count((uint64_t)spec->to_ranks, to),
             spec->disjoint                      ? "others"
             : spec->to_ranks > spec->from_ranks ? "with these among them"
                                                 : "of them");
    return text;
}

static banyan_status skip_one(banyan_model *model, const char *pattern)
{
    size_t count;
    RETURN_IF_FAILED(banyan_model_skip(model, pattern, &count));
    if (count > 0)
        return BANYAN_OK;
    names_search search = names_search_for(pattern);
    for (size_t i = 0; i < banyan_model_tensor_count(model); i++)
        names_search_try(&search, banyan_model_tensor(model, i)->name);
    return banyan_error_set(BANYAN_ERR_INVALID, "no tensor of the model fits \"%s\"%s%s%s", pattern,
                            search.nearest ? " (did you mean " : "",
                            search.nearest ? search.nearest : "", search.nearest ? "?)" : "");
}

banyan_status job_spec_left_out(const job_spec *spec, size_t *count, const char **first)
{
    *count = 0;
    for (size_t i = 0; !spec->to_file && i < banyan_model_tensor_count(spec->model); i++) {
        banyan_rules_verdict verdict;
        char text[1024];
        banyan_status status = banyan_rules_explain(spec->rules, spec->model, spec->to.packing, i,
                                                    &verdict, text, sizeof text);
        if (status != BANYAN_OK)
            return status;
        if (verdict == BANYAN_RULES_SKIPPED && (*count)++ == 0)
            *first = banyan_model_tensor(spec->model, i)->name;
    }
    return BANYAN_OK;
}

banyan_status job_spec_print_left_out(const job_spec *spec)
{
    const char *first;
    size_t count;
    char name[1024 * ESCAPE_GROWTH];
    bool by_packing = strcmp(spec->to.packing, "hf") != 0;
    banyan_status status = job_spec_left_out(spec, &count, &first);
    if (status == BANYAN_OK && count > 0)
        printf("left out %zu tensor%s, by %s%s%s%s: %s%s\n", count, count == 1 ? "" : "s",
               spec->skip ? "--skip" : "", spec->skip && by_packing ? " and " : "",
               by_packing ? "packing=" : "", by_packing ? spec->to.packing : "",
               escape_controls(first, name, sizeof name), count > 1 ? ", …" : "");
    return status;
}

banyan_status skip_tensors(banyan_model *model, const char *patterns)
{
    char *text = strdup(patterns), *rest = text;
    if (!text)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory for patterns");
    banyan_status status = BANYAN_OK;
    for (char *pattern; status == BANYAN_OK && (pattern = strtok_r(rest, ",", &rest));)
        status = skip_one(model, pattern);
    free(text);
    return status;
}
