#include "check/findings.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/text/text.h"

static const struct rule_form {
    const char *name;
    bool warning;
} forms[BANYAN_CHECK_RULES] = {
    [BANYAN_CHECK_DEADLOCK] = {"deadlock", false},
    [BANYAN_CHECK_RACE] = {"race", false},
    [BANYAN_CHECK_RESULT] = {"result", false},
    [BANYAN_CHECK_UNINITIALISED] = {"uninitialised", false},
    [BANYAN_CHECK_INPUT_WRITTEN] = {"input_written", false},
    [BANYAN_CHECK_REUSE] = {"reuse", false},
    [BANYAN_CHECK_UNDECIDED] = {"undecided", false},
    [BANYAN_CHECK_EXECUTOR] = {"executor", false},
    [BANYAN_CHECK_IDLE_SYNC] = {"idle_sync", true},
    [BANYAN_CHECK_UNREAD] = {"unread", true},
    [BANYAN_CHECK_UNUSED] = {"unused", true},
    [BANYAN_CHECK_UNEVEN] = {"uneven", true},
};

const char *banyan_check_rule_name(banyan_check_rule rule)
{
    return (unsigned)rule < BANYAN_CHECK_RULES ? forms[rule].name : "unknown";
}

bool banyan_check_rule_is_warning(banyan_check_rule rule)
{
    return (unsigned)rule < BANYAN_CHECK_RULES && forms[rule].warning;
}

void banyan_check_report_destroy(banyan_check_report *report)
{
    if (!report)
        return;
    findings_free(&report->findings);
    free(report);
}

bool banyan_check_report_is_sound(const banyan_check_report *report)
{
    for (size_t i = 0; i < report->findings.list.count; i++) {
        if (!banyan_check_rule_is_warning(report->findings.list.data[i].rule))
            return false;
    }
    return true;
}

size_t banyan_check_report_count(const banyan_check_report *report)
{
    return report->findings.list.count;
}

const banyan_check_finding *banyan_check_report_finding(const banyan_check_report *report,
                                                        size_t index)
{
    return index < report->findings.list.count ? &report->findings.list.data[index] : NULL;
}

const char *banyan_check_report_limits(const banyan_check_report *report)
{
    return report->limits;
}

static const char *remark_of(const banyan_check_finding *one)
{
    if (one->caller_only && one->relaxed_only)
        return " (depends on what the caller does, and on a relaxed pair or packets)";
    if (one->caller_only)
        return " (depends on what the caller does after its rank's part)";
    return one->relaxed_only ? " (depends on a relaxed pair or packets)" : "";
}

/* Consequences that are listed per cause. */
#define CONSEQUENCES_LISTED 3

/* Return the rank of its first operation. */
static int check_report_rank_of(const banyan_check_finding *one)
{
    for (size_t i = 0; i < one->place_count; i++) {
        if (one->places[i].thread_block >= 0)
            return one->places[i].rank;
    }
    return one->place_count > 0 ? one->places[0].rank : 0;
}

static int check_report_compare_ranks(const void *left, const void *right)
{
    const int *a = left, *b = right;
    return (*a > *b) - (*a < *b);
}

/* "0 to 3, 5 and 7" */
static void check_report_print_ranks(bytes_writer *to, int *ranks, size_t count)
{
    size_t kept = 0;
    qsort(ranks, count, sizeof *ranks, check_report_compare_ranks);
    for (size_t i = 0; i < count; i++) {
        if (kept == 0 || ranks[kept - 1] != ranks[i])
            ranks[kept++] = ranks[i];
    }
    text_add(to, kept == 1 ? " rank " : " ranks ");
    for (size_t i = 0, next; i < kept; i = next) {
        for (next = i + 1; next < kept && ranks[next] == ranks[next - 1] + 1;)
            next++;
        next = next > i + 2 ? next : i + 1;
        const char *before = i == 0 ? "" : next < kept ? ", " : " and ";
        text_print(to, next > i + 1 ? "%s%d to %d" : "%s%d", before, ranks[i], ranks[next - 1]);
    }
}

/* Print a finding with the number of identical ones and their ranks. */
static banyan_status print_finding(bytes_writer *to, const banyan_check_report *report,
                                   size_t number)
{
    const banyan_check_finding *all = report->findings.list.data, *one = &all[number];
    size_t count = report->findings.list.count, identical = 0;
    uint64_t least_bytes = one->message_bytes;
    int *ranks = malloc((count + 1) * sizeof *ranks);
    if (!ranks)
        return error_no_memory(count * sizeof *ranks, "a report");
    for (size_t i = number + 1; i < count; i++) {
        if (all[i].like != number)
            continue;
        ranks[identical++] = check_report_rank_of(&all[i]);
        least_bytes = all[i].message_bytes < least_bytes ? all[i].message_bytes : least_bytes;
    }
    text_print(to, "%zu. %s%s%s, from messages of %llu bytes on:\n   %s.\n", number,
               banyan_check_rule_is_warning(one->rule) ? "warning: " : "",
               banyan_check_rule_name(one->rule), remark_of(one), (unsigned long long)least_bytes,
               one->message);
    if (identical > 0) {
        text_print(to, "   And %zu identical, at", identical);
        check_report_print_ranks(to, ranks, identical);
        text_add(to, ".\n");
    }
    free(ranks);
    return BANYAN_OK;
}

/* Print the consequences of this finding and its identical ones, one of each kind. Returns their
 * number. */
static size_t print_consequences(bytes_writer *to, const banyan_check_report *report, size_t number)
{
    const banyan_check_finding *all = report->findings.list.data;
    size_t kinds = 0;
    for (size_t i = 0; i < report->findings.list.count; i++) {
        bool follows = all[i].cause != i && all[i].like == i && all[all[i].cause].like == number;
        if (follows && kinds++ < CONSEQUENCES_LISTED)
            text_print(to, "   Probable consequence: %zu. %s%s: %s.\n", i,
                       banyan_check_rule_name(all[i].rule), remark_of(&all[i]), all[i].message);
    }
    if (kinds > CONSEQUENCES_LISTED)
        text_print(to, "   And %zu kinds more; the JSON has all.\n", kinds - CONSEQUENCES_LISTED);
    return kinds;
}

static banyan_status check_report_print_text(const banyan_check_report *report,
                                             const char *plan_name, char **text)
{
    bytes_writer to = {0};
    const banyan_check_finding *all = report->findings.list.data;
    size_t warnings = 0, shown = 0, count = report->findings.list.count;
    for (size_t i = 0; i < count; i++) {
        bool warning = banyan_check_rule_is_warning(all[i].rule);
        warnings += warning;
        if (all[i].like != i || all[i].cause != i)
            continue;
        banyan_status status = print_finding(&to, report, i);
        if (status != BANYAN_OK) {
            bytes_writer_free(&to);
            return status;
        }
        shown += print_consequences(&to, report, i) > 0 || !warning;
    }
    if (report->limits[0])
        text_print(&to, "%s\n", report->limits);
    text_print(&to, "%s: %s, %zu finding%s", plan_name,
               banyan_check_report_is_sound(report) ? "sound" : "not sound", count - warnings,
               count - warnings == 1 ? "" : "s");
    if (shown < count - warnings)
        text_print(&to, " of %zu kind%s", shown, shown == 1 ? "" : "s");
    text_print(&to, ", %zu warning%s\n", warnings, warnings == 1 ? "" : "s");
    return text_finish(&to, text, NULL);
}

static json_t *json_of_places(const banyan_check_finding *one)
{
    json_t *list = json_array();
    for (size_t i = 0; i < one->place_count; i++) {
        const banyan_check_place *at = &one->places[i];
        json_t *place = json_pack("{s:i, s:i, s:i, s:i, s:i}", "rank", at->rank, "thread_block",
                                  at->thread_block, "operation", at->operation, "loop_operation",
                                  at->loop_operation, "run", at->run);
        if (at->file) {
            json_object_set_new(place, "file", json_string(at->file));
            json_object_set_new(place, "line", json_integer(at->line));
        }
        json_array_append_new(list, place);
    }
    return list;
}

static json_t *json_of_finding(const banyan_check_finding *one, size_t number)
{
    return json_pack("{s:I, s:s, s:s, s:s, s:o, s:I, s:b, s:b, s:I, s:I}", "number",
                     (json_int_t)number, "rule", banyan_check_rule_name(one->rule), "level",
                     banyan_check_rule_is_warning(one->rule) ? "warning" : "error", "message",
                     one->message, "places", json_of_places(one), "message_bytes",
                     (json_int_t)one->message_bytes, "caller_only", one->caller_only,
                     "relaxed_only", one->relaxed_only, "like", (json_int_t)one->like, "cause",
                     (json_int_t)one->cause);
}

static banyan_status check_report_print_json(const banyan_check_report *report,
                                             const char *plan_name, char **text)
{
    json_t *list = json_array();
    for (size_t i = 0; i < report->findings.list.count; i++)
        json_array_append_new(list, json_of_finding(&report->findings.list.data[i], i));
    json_t *whole =
        json_pack("{s:s, s:b, s:s, s:o}", "plan", plan_name, "sound",
                  banyan_check_report_is_sound(report), "limits", report->limits, "findings", list);
    *text = whole ? json_dumps(whole, JSON_INDENT(2)) : NULL;
    json_decref(whole);
    return *text ? BANYAN_OK : error_no_memory(0, "a report in JSON");
}

banyan_status banyan_check_report_print(const banyan_check_report *report, const char *plan_name,
                                        bool json, char **text)
{
    return json ? check_report_print_json(report, plan_name, text)
                : check_report_print_text(report, plan_name, text);
}
