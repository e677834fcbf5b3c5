#include <stdio.h>
#include <string.h>

#include "check/classes.h"
#include "check/executor.h"
#include "check/findings.h"
#include "check/replay/replay.h"
#include "check/warnings/warnings.h"
#include "core/error.h"
#include "plan/geometry/geometry.h"

/* Halves of scratch repeat after two runs; a third run distinguishes the others from the first. */
#define RUNS 3
#define RUNS_DOUBLE_SCRATCH 4

/* Findings collected per rule, as a multiple of those kept after sorting. */
#define COLLECTED_TIMES 8

/* Upper limit of chunks per buffer, since the check may visit each. */
#define CHUNKS_MOST (1 << 22)

typedef struct checker {
    const banyan_plan *plan;
    banyan_plan *changed; /* to free: the plan as another executor reads it; or NULL */
    banyan_check_options options;
    banyan_check_report *report;
    size_classes classes;
    size_t skipped;
    uint64_t steps; /* replayed in all classes */
    bool shared_counters;
} checker;

static uint32_t check_runs_of(const banyan_plan *plan)
{
    return plan->double_scratch ? RUNS_DOUBLE_SCRATCH : RUNS;
}

static banyan_status check_class(checker *by, const size_class *at)
{
    replay all = {.plan = by->plan,
                  .geometry = &at->geometry,
                  .runs = check_runs_of(by->plan),
                  .whole = at->whole,
                  .flushes_lost = by->options.executor == BANYAN_EXECUTOR_MSCCLPP &&
                                  by->plan->executor != BANYAN_EXECUTOR_MSCCLPP,
                  .max_memory_bytes = by->options.max_memory_bytes,
                  .findings = &by->report->findings};
    by->report->findings.message_bytes = at->message_bytes;
    banyan_status status = replay_plan(&all);
    if (status == BANYAN_OK && by->options.warnings && at->whole)
        status = warn_of_replay(&all);
    by->shared_counters |= all.shared.count > 0;
    by->steps += all.steps;
    replay_free(&all);
    return status;
}

/* Warn about the plan as a whole. */
static banyan_status check_warn(checker *by)
{
    findings *found = &by->report->findings;
    uint64_t steps = banyan_check_report_is_sound(by->report) ? by->steps : IDLE_NOT_SOUND;
    found->message_bytes = by->classes.data[0].message_bytes;
    RETURN_IF_FAILED(warn_of_unused(by->plan, found));
    RETURN_IF_FAILED(warn_of_idle(by->plan, &by->classes, check_runs_of(by->plan), steps, found));
    size_t whole = 0;
    while (whole < by->classes.count && !by->classes.data[whole].whole)
        whole++;
    if (whole == by->classes.count)
        return BANYAN_OK;
    found->message_bytes = by->classes.data[whole].message_bytes;
    return warn_of_uneven(by->plan, found->message_bytes, found);
}

/* Keep the sizes that MSCCL++'s executor runs. */
static banyan_status keep_whole_classes(checker *by)
{
    size_t kept = 0;
    for (size_t i = 0; i < by->classes.count; i++) {
        const size_class *one = &by->classes.data[i];
        if (!one->whole && by->options.message_bytes)
            return error_set(BANYAN_ERR_INVALID,
                             "plan %s on MSCCL++'s executor runs no message of %llu bytes: it must "
                             "divide into %llu chunks of multiples of %llu bytes",
                             by->plan->name, (unsigned long long)one->message_bytes,
                             (unsigned long long)(by->plan->ranks[0].chunks[PLAN_INPUT]),
                             (unsigned long long)by->plan->buffer_alignment);
        if (one->whole)
            by->classes.data[kept++] = *one;
    }
    by->classes.count = kept;
    return BANYAN_OK;
}

static banyan_status choose_classes(checker *by)
{
    if (!by->options.message_bytes)
        RETURN_IF_FAILED(
            size_classes_make(by->plan, by->options.max_steps, &by->classes, &by->skipped));
    for (size_t i = 0; by->options.message_bytes && i < by->options.message_count; i++)
        RETURN_IF_FAILED(
            size_classes_add(by->plan, by->options.message_bytes[i], &by->classes, &by->skipped));
    return by->options.executor == BANYAN_EXECUTOR_MSCCLPP ? keep_whole_classes(by) : BANYAN_OK;
}

static banyan_status describe_limits(checker *by)
{
    const banyan_plan *plan = by->plan;
    char text[2000] = "";
    size_t used = 0;
    if (by->options.executor == BANYAN_EXECUTOR_MSCCLPP) {
        executor_describe_limits(plan, text, sizeof text);
        used = strlen(text);
    }
    if (plan->collective == BANYAN_CUSTOM && !plan->expected)
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 " Outputs were not checked: the collective \"%.64s\" does not say "
                                 "what they must hold.",
                                 plan->collective_name);
    if (by->skipped > 0)
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 " %zu of %zu message sizes were not checked, since their loops "
                                 "have too many iterations: %llu steps of loops are played "
                                 "(max_steps, --max-steps).",
                                 by->skipped, by->skipped + by->classes.count,
                                 (unsigned long long)by->options.max_steps);
    if (class_elem_bytes(plan) < CLASS_ELEM_BYTES)
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 " The plan was checked for elements of %zu bytes: it cannot cut "
                                 "longer ones.",
                                 class_elem_bytes(plan));
    if (by->shared_counters && (by->report->findings.of_rule[BANYAN_CHECK_RACE] > 0 ||
                                by->report->findings.of_rule[BANYAN_CHECK_REUSE] > 0))
        snprintf(text + used, sizeof text - used,
                 " Thread blocks share channels or semaphores: a reported race may be none if in "
                 "every order some signal is between the two, though not always the same one.");
    const char *limits = text[0] ? text + 1 : text;
    by->report->limits = arena_take(&by->report->findings.memory, strlen(limits) + 1);
    if (!by->report->limits)
        return BANYAN_ERR_NO_MEMORY;
    strcpy(by->report->limits, limits);
    return BANYAN_OK;
}

/* Keep the first `most` findings of each rule. */
static void keep_most(findings *all, size_t most)
{
    size_t kept = 0, of_rule[BANYAN_CHECK_RULES] = {0};
    findings_sort(all);
    for (size_t i = 0; i < all->list.count; i++) {
        if (of_rule[all->list.data[i].rule]++ < most)
            all->list.data[kept++] = all->list.data[i];
    }
    all->list.count = kept;
}

static banyan_status refuse_too_many_chunks(const banyan_plan *plan)
{
    for (int r = 0; r < plan->rank_count; r++) {
        for (int b = 0; b < PLAN_BUFFERS; b++) {
            if (plan->ranks[r].chunks[b] > CHUNKS_MOST)
                return error_set(
                    BANYAN_ERR_UNSUPPORTED,
                    "rank %d of plan %s has a buffer of %llu chunks; plans are checked "
                    "up to %d",
                    r, plan->name, (unsigned long long)plan->ranks[r].chunks[b], CHUNKS_MOST);
        }
    }
    return BANYAN_OK;
}

/* MSCCL++'s executor knows one size of reused scratch. */
static banyan_status read_plan_as_mscclpp(checker *by)
{
    if (!by->plan->reuse_resources || by->plan->reused_scratch_bytes == PLAN_REUSED_SCRATCH_BYTES)
        return BANYAN_OK;
    RETURN_IF_FAILED(plan_clone(by->plan, &by->changed));
    by->changed->reused_scratch_bytes = PLAN_REUSED_SCRATCH_BYTES;
    by->plan = by->changed;
    return BANYAN_OK;
}

static banyan_status check_all(checker *by)
{
    bool theirs = by->options.executor == BANYAN_EXECUTOR_MSCCLPP;
    RETURN_IF_FAILED(plan_check_indices(by->plan, by->plan->name));
    RETURN_IF_FAILED(refuse_too_many_chunks(by->plan));
    if (theirs)
        RETURN_IF_FAILED(read_plan_as_mscclpp(by));
    RETURN_IF_FAILED(choose_classes(by));
    by->report->findings.most = by->options.max_findings * COLLECTED_TIMES;
    by->report->findings.message_bytes =
        by->classes.count > 0 ? by->classes.data[0].message_bytes : 0;
    if (theirs)
        RETURN_IF_FAILED(executor_find_faults(by->plan, &by->report->findings));
    for (size_t i = 0; i < by->classes.count; i++)
        RETURN_IF_FAILED(check_class(by, &by->classes.data[i]));
    if (by->options.warnings && by->classes.count > 0)
        RETURN_IF_FAILED(check_warn(by));
    keep_most(&by->report->findings, by->options.max_findings);
    if (!findings_relate(&by->report->findings, by->plan))
        return BANYAN_ERR_NO_MEMORY;
    return describe_limits(by);
}

static banyan_status check_read_options(const banyan_check_options *given,
                                        banyan_check_options *options)
{
    *options = (banyan_check_options)BANYAN_CHECK_OPTIONS_INIT;
    RETURN_IF_FAILED(options_take(given, "BANYAN_CHECK_OPTIONS_INIT", options, sizeof *options));
    if (options->max_findings == 0 || (options->message_bytes && options->message_count == 0))
        return error_set(BANYAN_ERR_INVALID,
                         "check options ask for %zu findings of a rule and %zu message sizes",
                         options->max_findings, options->message_count);
    if (options->executor != BANYAN_EXECUTOR_BANYAN && options->executor != BANYAN_EXECUTOR_MSCCLPP)
        return error_set(BANYAN_ERR_INVALID, "check options name executor %d, which is none",
                         (int)options->executor);
    return BANYAN_OK;
}

banyan_status banyan_plan_check(const banyan_plan *plan, const banyan_check_options *options,
                                banyan_check_report **report)
{
    checker by = {.plan = plan};
    RETURN_IF_FAILED(check_read_options(options, &by.options));
    by.report = calloc(1, sizeof *by.report);
    if (!by.report)
        return error_no_memory(sizeof *by.report, "a report");
    banyan_status status = check_all(&by);
    array_free(&by.classes);
    banyan_plan_destroy(by.changed);
    if (status != BANYAN_OK) {
        banyan_check_report_destroy(by.report);
        return status;
    }
    *report = by.report;
    return BANYAN_OK;
}
