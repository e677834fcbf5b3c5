#include "check/report.h"

#include <jansson.h>
#include <stdio.h>

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

/* ---- text ---- */

static const char *remark_of(const banyan_check_finding *one)
{
    if (one->caller_only && one->relaxed_only)
        return " (rests on what the caller does, and on a relaxed pair or packets)";
    if (one->caller_only)
        return " (rests on what the caller does after its rank's part)";
    return one->relaxed_only ? " (rests on a relaxed pair or packets)" : "";
}

static banyan_status print_text(const banyan_check_report *report, const char *plan_name,
                                char **text)
{
    bytes_writer to = {0};
    size_t warnings = 0, count = report->findings.list.count;
    for (size_t i = 0; i < count; i++) {
        const banyan_check_finding *one = &report->findings.list.data[i];
        bool warning = banyan_check_rule_is_warning(one->rule);
        warnings += warning;
        text_print(&to, "%zu. %s%s%s, from messages of %llu bytes on:\n   %s.\n", i,
                   warning ? "warning: " : "", banyan_check_rule_name(one->rule), remark_of(one),
                   (unsigned long long)one->message_bytes, one->message);
    }
    if (report->limits[0])
        text_print(&to, "%s\n", report->limits);
    text_print(&to, "%s: %s, %zu finding%s, %zu warning%s\n", plan_name,
               banyan_check_report_is_sound(report) ? "sound" : "not sound", count - warnings,
               count - warnings == 1 ? "" : "s", warnings, warnings == 1 ? "" : "s");
    return text_finish(&to, text, NULL);
}

/* ---- JSON ---- */

static json_t *json_of_places(const banyan_check_finding *one)
{
    json_t *list = json_array();
    for (size_t i = 0; i < one->place_count; i++) {
        const banyan_check_place *at = &one->places[i];
        json_array_append_new(list, json_pack("{s:i, s:i, s:i, s:i, s:i}", "rank", at->rank,
                                              "thread_block", at->thread_block, "operation",
                                              at->operation, "loop_operation", at->loop_operation,
                                              "run", at->run));
    }
    return list;
}

static json_t *json_of_finding(const banyan_check_finding *one, size_t number)
{
    return json_pack("{s:I, s:s, s:s, s:s, s:o, s:I, s:b, s:b}", "number", (json_int_t)number,
                     "rule", banyan_check_rule_name(one->rule), "level",
                     banyan_check_rule_is_warning(one->rule) ? "warning" : "error", "message",
                     one->message, "places", json_of_places(one), "message_bytes",
                     (json_int_t)one->message_bytes, "caller_only", one->caller_only,
                     "relaxed_only", one->relaxed_only);
}

static banyan_status print_json(const banyan_check_report *report, const char *plan_name,
                                char **text)
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
    return json ? print_json(report, plan_name, text) : print_text(report, plan_name, text);
}
