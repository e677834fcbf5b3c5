#include "reshard/verify/report.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>

#include "core/text/escape.h"
#include "core/text/text.h"

static const char *const rule_names[BANYAN_RESHARD_RULES] = {
    [BANYAN_RESHARD_UNWRITTEN] = "unwritten", [BANYAN_RESHARD_TWICE] = "twice",
    [BANYAN_RESHARD_OUTSIDE] = "outside",     [BANYAN_RESHARD_SOURCE] = "source",
    [BANYAN_RESHARD_UNPAIRED] = "unpaired",   [BANYAN_RESHARD_SLOT] = "slot",
    [BANYAN_RESHARD_STUCK] = "stuck",         [BANYAN_RESHARD_MEMORY] = "memory",
    [BANYAN_RESHARD_UNPLANNED] = "unplanned",
};

const char *banyan_reshard_rule_name(banyan_reshard_rule rule)
{
    return (unsigned)rule < BANYAN_RESHARD_RULES ? rule_names[rule] : "unknown";
}

banyan_status check_report_create(banyan_reshard_report **report)
{
    banyan_reshard_report *made = calloc(1, sizeof *made);
    if (!made)
        return error_no_memory(sizeof *made, "a report");
    *report = made;
    return BANYAN_OK;
}

void banyan_reshard_report_destroy(banyan_reshard_report *report)
{
    if (!report)
        return;
    for (size_t i = 0; i < report->findings.count; i++)
        free((char *)report->findings.data[i].message);
    array_free(&report->findings);
    free(report);
}

banyan_status check_report_add(banyan_reshard_report *report, banyan_reshard_rule rule, int rank,
                               const char *format, ...)
{
    if (report->counts[rule] == CHECK_REPORT_MOST)
        return BANYAN_OK;
    char *text, *whole;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    if (length < 0)
        return error_no_memory(0, "a finding");
    const char *subject = report->subject ? report->subject : "";
    length = asprintf(&whole, "%s%srank %d: %s", subject, report->subject ? ": " : "", rank, text);
    free(text);
    if (length < 0)
        return error_no_memory(0, "a finding");
    if (!array_push(&report->findings, (banyan_reshard_finding){rule, rank, whole})) {
        free(whole);
        return BANYAN_ERR_NO_MEMORY;
    }
    report->counts[rule]++;
    return BANYAN_OK;
}

size_t banyan_reshard_report_count(const banyan_reshard_report *report)
{
    return report->findings.count;
}

const banyan_reshard_finding *banyan_reshard_report_finding(const banyan_reshard_report *report,
                                                            size_t i)
{
    return i < report->findings.count ? &report->findings.data[i] : NULL;
}

/* ---- printing ---- */

/* Escape text: names of tensors come from files. */
static void escape_add(bytes_writer *to, const char *text)
{
    size_t bytes = strlen(text) * ESCAPE_GROWTH + 1;
    char *escaped = malloc(bytes);
    if (escaped)
        text_add(to, escape_controls(text, escaped, bytes));
    else
        to->failed = true;
    free(escaped);
}

static banyan_status verify_report_print_text(const banyan_reshard_report *report, const char *name,
                                              char **text)
{
    bytes_writer to = {0};
    size_t count = report->findings.count;
    for (size_t i = 0; i < count; i++) {
        const banyan_reshard_finding *one = &report->findings.data[i];
        text_print(&to, "%zu. %s:\n   ", i, rule_names[one->rule]);
        escape_add(&to, one->message);
        text_add(&to, ".\n");
    }
    text_print(&to, "%s: %s, %zu finding%s\n", name, count == 0 ? "sound" : "not sound", count,
               count == 1 ? "" : "s");
    return text_finish(&to, text, NULL);
}

static banyan_status verify_report_print_json(const banyan_reshard_report *report, const char *name,
                                              char **text)
{
    json_t *list = json_array();
    for (size_t i = 0; i < report->findings.count; i++) {
        const banyan_reshard_finding *one = &report->findings.data[i];
        json_array_append_new(list, json_pack("{s:I, s:s, s:s, s:i, s:s}", "number", (json_int_t)i,
                                              "rule", rule_names[one->rule], "level", "error",
                                              "rank", one->rank, "message", one->message));
    }
    json_t *whole = json_pack("{s:s, s:b, s:o}", "reshard", name, "sound",
                              report->findings.count == 0, "findings", list);
    *text = whole ? json_dumps(whole, JSON_INDENT(2)) : NULL;
    json_decref(whole);
    return *text ? BANYAN_OK : error_no_memory(0, "a report in JSON");
}

banyan_status banyan_reshard_report_print(const banyan_reshard_report *report, const char *name,
                                          bool json, char **text)
{
    return json ? verify_report_print_json(report, name, text)
                : verify_report_print_text(report, name, text);
}
