#include "reshard/verify/check.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/text/escape.h"
#include "core/text/text.h"
#include "reshard/layout/box.h"
#include "reshard/planner/sources.h"

static bool box_inside(const banyan_box *box, const banyan_box *of)
{
    if (box->ndim != of->ndim)
        return false;
    for (int d = 0; d < box->ndim; d++)
        if (box->extent[d] < 0 || box->start[d] < of->start[d] ||
            box->start[d] + box->extent[d] > of->start[d] + of->extent[d])
            return false;
    return true;
}

static banyan_status add_outside(int rank, const char *name, const banyan_box *whole,
                                 const banyan_box *box, banyan_reshard_report *report)
{
    char text[BOX_TEXT_BYTES], limits[BOX_TEXT_BYTES];
    return check_report_add(report, BANYAN_RESHARD_OUTSIDE, rank,
                            "%s of \"%s\" is received into %s, which does not hold all of it",
                            banyan_box_format(box, text, sizeof text), name,
                            banyan_box_format(whole, limits, sizeof limits));
}

banyan_status check_cover(int rank, const char *name, const banyan_box *whole, banyan_box *boxes,
                          size_t count, banyan_reshard_report *report)
{
    size_t inside = 0, a, b;
    uint64_t elems = 0;
    bool found;
    for (size_t i = 0; i < count; i++) {
        if (!box_inside(&boxes[i], whole))
            RETURN_IF_FAILED(add_outside(rank, name, whole, &boxes[i], report));
        if (boxes[i].ndim == whole->ndim && banyan_box_intersect(&boxes[i], whole, &boxes[inside]))
            elems += banyan_box_elems(&boxes[inside++]);
    }
    RETURN_IF_FAILED(boxes_find_overlap(boxes, inside, &found, &a, &b));
    banyan_box both = {0};
    char text[BOX_TEXT_BYTES];
    if (found && banyan_box_intersect(&boxes[a], &boxes[b], &both))
        RETURN_IF_FAILED(check_report_add(report, BANYAN_RESHARD_TWICE, rank,
                                          "two transfers write %s of \"%s\"",
                                          banyan_box_format(&both, text, sizeof text), name));
    if (!found && elems == banyan_box_elems(whole))
        return BANYAN_OK;
    RETURN_IF_FAILED(boxes_find_hole(whole, boxes, inside, &found, &both));
    if (!found)
        return BANYAN_OK;
    return check_report_add(report, BANYAN_RESHARD_UNWRITTEN, rank,
                            "no transfer writes %s of \"%s\"",
                            banyan_box_format(&both, text, sizeof text), name);
}

bool check_names_fit(const banyan_piece *source, const banyan_piece *destination)
{
    return strcmp(source->name, destination->name) == 0 ||
           (destination->fallback_name && strcmp(source->name, destination->fallback_name) == 0);
}

/* Check that a source piece of this rank holds the box. A transfer has its destination's name, and
 * its receiver checks whether the piece may have another. */
static banyan_status check_held(const check_rank *checked, const banyan_transfer *transfer,
                                banyan_reshard_report *report)
{
    char text[BOX_TEXT_BYTES], held[BOX_TEXT_BYTES] = "";
    const banyan_layout *destination = checked->destination;
    const banyan_layout *source = transfer->stage == 0 ? checked->source : destination;
    bool known = transfer->source_rank == checked->rank &&
                 transfer->source_piece < banyan_layout_piece_count(source);
    const banyan_piece *piece = known ? banyan_layout_piece(source, transfer->source_piece) : NULL;
    bool is_local = transfer->destination_rank == checked->rank &&
                    transfer->destination_piece < banyan_layout_piece_count(destination);
    if (piece) {
        DLDataType dtype = banyan_layout_tensor(source, (size_t)piece->tensor)->dtype;
        uint64_t bytes = banyan_box_elems(&transfer->box) * banyan_dtype_bytes(dtype);
        if (box_inside(&transfer->box, &piece->box) && bytes == transfer->bytes &&
            (!is_local ||
             check_names_fit(piece, banyan_layout_piece(destination, transfer->destination_piece))))
            return BANYAN_OK;
        banyan_box_format(&piece->box, held, sizeof held);
    }
    return check_report_add(report, BANYAN_RESHARD_SOURCE, checked->rank,
                            "it is to send %s of \"%s\", %" PRIu64
                            " bytes, to rank %d, but its piece (%s%s) does not hold that",
                            banyan_box_format(&transfer->box, text, sizeof text), transfer->name,
                            transfer->bytes, transfer->destination_rank,
                            piece ? piece->name : "none", held);
}

static int by_place(const void *left, const void *right)
{
    const banyan_transfer *a = left, *b = right;
    RETURN_IF_UNEQUAL(a->destination_piece, b->destination_piece);
    RETURN_IF_UNEQUAL(a->turn, b->turn);
    return planner_box_compare(&a->box, &b->box);
}

/* Check that a transfer of stage 1 passes on what another rank sends in stage 0: `first` are these
 * receives, sorted. */
static banyan_status check_passed_on(const check_rank *checked, const banyan_transfer *transfer,
                                     const banyan_transfer *first, size_t count,
                                     banyan_reshard_report *report)
{
    char text[BOX_TEXT_BYTES];
    banyan_transfer wanted = *transfer;
    wanted.destination_piece = transfer->source_piece;
    if (bsearch(&wanted, first, count, sizeof *first, by_place))
        return BANYAN_OK;
    return check_report_add(report, BANYAN_RESHARD_SOURCE, checked->rank,
                            "it is to pass %s of \"%s\" on to rank %d, and does not receive that "
                            "before",
                            banyan_box_format(&transfer->box, text, sizeof text), transfer->name,
                            transfer->destination_rank);
}

static banyan_status check_stages(const check_rank *checked, banyan_reshard_report *report)
{
    const planner_result *transfers = checked->transfers;
    banyan_transfer *first =
        alloc_zeroed(transfers->recv_count + 1, sizeof *first, "the check of stages");
    RETURN_IF_NO_MEMORY(first);
    size_t count = 0;
    banyan_status status = BANYAN_OK;
    for (size_t i = 0; i < transfers->recv_count; i++)
        if (transfers->recvs[i].stage == 0 && transfers->recvs[i].source_rank != checked->rank)
            first[count++] = transfers->recvs[i];
    sort_elements(first, count, sizeof *first, by_place);
    for (size_t i = 0; i < transfers->send_count && status == BANYAN_OK; i++)
        if (transfers->sends[i].stage > 0)
            status = check_passed_on(checked, &transfers->sends[i], first, count, report);
    for (size_t i = 0; i < transfers->recv_count && status == BANYAN_OK; i++)
        if (transfers->recvs[i].stage > 0 && transfers->recvs[i].source_rank == checked->rank)
            status = check_passed_on(checked, &transfers->recvs[i], first, count, report);
    free(first);
    return status;
}

static int by_piece(const void *left, const void *right)
{
    const banyan_transfer *a = *(banyan_transfer *const *)left;
    const banyan_transfer *b = *(banyan_transfer *const *)right;
    return COMPARE(a->destination_piece, b->destination_piece);
}

/* Check the receives, sorted by piece; `boxes` has space for all of them. */
static banyan_status verify_check_pieces(const check_rank *checked, banyan_transfer *const *sorted,
                                         size_t count, banyan_box *boxes,
                                         banyan_reshard_report *report)
{
    size_t at = 0, pieces = banyan_layout_piece_count(checked->destination);
    for (size_t p = 0; p < pieces; p++) {
        const banyan_piece *piece = banyan_layout_piece(checked->destination, p);
        size_t filled = 0;
        for (; at < count && sorted[at]->destination_piece == p; at++) {
            if (strcmp(sorted[at]->name, piece->name) == 0)
                boxes[filled++] = sorted[at]->box;
            else
                RETURN_IF_FAILED(check_report_add(report, BANYAN_RESHARD_OUTSIDE, checked->rank,
                                                  "\"%s\" is received into a piece of \"%s\"",
                                                  sorted[at]->name, piece->name));
        }
        RETURN_IF_FAILED(
            check_cover(checked->rank, piece->name, &piece->box, boxes, filled, report));
    }
    if (at == count)
        return BANYAN_OK;
    return check_report_add(report, BANYAN_RESHARD_OUTSIDE, checked->rank,
                            "\"%s\" is received into piece %zu of %zu", sorted[at]->name,
                            sorted[at]->destination_piece, pieces);
}

static banyan_status check_receives(const check_rank *checked, banyan_reshard_report *report)
{
    size_t count = checked->transfers->recv_count;
    banyan_transfer **sorted = calloc(count + 1, sizeof *sorted);
    banyan_box *boxes = calloc(count + 1, sizeof *boxes);
    banyan_status status = BANYAN_ERR_NO_MEMORY;
    if (!sorted || !boxes) {
        error_no_memory((count + 1) * (sizeof *sorted + sizeof *boxes), "the check of a plan");
        goto free_arrays;
    }
    for (size_t i = 0; i < count; i++)
        sorted[i] = &checked->transfers->recvs[i];
    qsort(sorted, count, sizeof *sorted, by_piece);
    status = verify_check_pieces(checked, sorted, count, boxes, report);
free_arrays:
    free(boxes);
    free(sorted);
    return status;
}

banyan_status check_rank_alone(const check_rank *checked, banyan_reshard_report *report)
{
    const planner_result *transfers = checked->transfers;
    for (size_t i = 0; i < transfers->send_count; i++)
        RETURN_IF_FAILED(check_held(checked, &transfers->sends[i], report));
    for (size_t i = 0; i < transfers->recv_count; i++)
        if (transfers->recvs[i].source_rank == checked->rank)
            RETURN_IF_FAILED(check_held(checked, &transfers->recvs[i], report));
    RETURN_IF_FAILED(check_stages(checked, report));
    return check_receives(checked, report);
}

banyan_status check_rank_sound(const check_rank *checked)
{
    banyan_reshard_report *report = NULL;
    RETURN_IF_FAILED(check_report_create(&report));
    banyan_status status = check_rank_alone(checked, report);
    if (status == BANYAN_OK && report->findings.count > 0)
        status = error_set(BANYAN_ERR_INVALID, "the plan is not sound: %s",
                           report->findings.data[0].message);
    banyan_reshard_report_destroy(report);
    return status;
}

banyan_status banyan_reshard_plan_prove(const banyan_reshard_plan *plan)
{
    const check_rank checked = {plan->rank, plan->source, plan->destination, &plan->transfers};
    return check_rank_sound(&checked);
}

static const char *const rule_names[BANYAN_RESHARD_RULES] = {
    [BANYAN_RESHARD_UNWRITTEN] = "unwritten", [BANYAN_RESHARD_TWICE] = "twice",
    [BANYAN_RESHARD_OUTSIDE] = "outside",     [BANYAN_RESHARD_SOURCE] = "source",
    [BANYAN_RESHARD_UNPAIRED] = "unpaired",   [BANYAN_RESHARD_SLOT] = "slot",
    [BANYAN_RESHARD_STUCK] = "stuck",         [BANYAN_RESHARD_MEMORY] = "memory",
    [BANYAN_RESHARD_UNPLANNED] = "unplanned", [BANYAN_RESHARD_AGAIN] = "again",
};

const char *banyan_reshard_rule_name(banyan_reshard_rule rule)
{
    return (unsigned)rule < BANYAN_RESHARD_RULES ? rule_names[rule] : "unknown";
}

banyan_status check_report_create(banyan_reshard_report **report)
{
    banyan_reshard_report *made = alloc_zeroed(1, sizeof *made, "a report");
    RETURN_IF_NO_MEMORY(made);
    made->nodes = 1;
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
    text_print(&to, "%s: %s, %zu finding%s", name, count == 0 ? "sound" : "not sound", count,
               count == 1 ? "" : "s");
    if (report->nodes > 1)
        text_print(&to, ", %d nodes, %" PRIu64 " waves played", report->nodes, report->waves);
    text_add(&to, "\n");
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
    json_t *whole = json_pack("{s:s, s:b, s:i, s:I, s:o}", "reshard", name, "sound",
                              report->findings.count == 0, "nodes", report->nodes, "waves",
                              (json_int_t)report->waves, "findings", list);
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
