/* The figure of `banyan plan view --svg`, in points: lanes, arrows, findings, buffers, legend. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/text.h"
#include "core/status.h"
#include "draw/picture.h"
#include "draw/plan_view.h"
#include "draw/svg.h"

#define FONT 6.5
#define SMALL 5.5
#define LEFT 66.0 /* width of the lanes' names */
#define MARGIN 6.0
#define ROW 19.0
#define BUFFERS_ROW 8.0
#define RANK_GAP 6.0
#define PROXY_LEAST 3.0 /* width: in steps it takes next to no time */
#define SLANT_LEAST 8.0 /* of data's arrows, which would lie on each other upright */
#define CELL 11.0
#define WIDTH_LEAST 320.0
#define WIDTH_MOST 1440.0
#define GREY "#5b6475"
#define WRONG "#b3261e"
#define WARNING "#d07b14"

#define SMALL_TEXT "font-size=\"5.5\""
#define GREY_TEXT "font-size=\"5.5\" fill=\"" GREY "\""

static const struct {
    const char *colour, *legend;
} arrow_looks[] = {
    [PICTURE_SIGNAL] = {"#b06000", "signal"},
    [PICTURE_PACKETS] = {"#7a4fb5", "packets"},
    [PICTURE_PUT] = {"#2f6db5", "data, written"},
    [PICTURE_GET] = {"#2e8b57", "data, read"},
};

#define ARROW_KINDS (sizeof arrow_looks / sizeof arrow_looks[0])

struct drawing {
    FILE *file;
    const plan_view *view;
    const picture *picture;
    const plan_figure *figure;
    double *lane_y;     /* NaN: the lane is not shown */
    double y;           /* below what has been drawn */
    double width;       /* total width */
    double from_s, end; /* the displayed time */
    bool drawn_arrows[ARROW_KINDS], drawn_families[16];
};

static bool plan_figure_shown(const struct drawing *of, size_t lane)
{
    return !isnan(of->lane_y[lane]);
}

static double plan_figure_x_of(const struct drawing *of, double seconds)
{
    double share = (seconds - of->from_s) / (of->end - of->from_s);
    return LEFT + fmin(fmax(share, 0), 1) * (of->width - LEFT - MARGIN);
}

static void draw_label(const struct drawing *of, const picture_step *step)
{
    double x = plan_figure_x_of(of, step->began_s), width = plan_figure_x_of(of, step->ended_s) - x;
    double y = of->lane_y[step->lane] + 1.5;
    const char *name = picture_op_name(of->picture, step);
    const picture_family *family = picture_op_family(of->picture, step);
    double room = width - 2;
    char style[96];
    if (svg_text_width(name, FONT) > room)
        return;
    char *detail = picture_label_detail(of->picture, step, room, SMALL);
    bool two = detail && detail[0];
    const char *colour = family->dark ? "#1c2330" : "#ffffff";
    snprintf(style, sizeof style, "text-anchor=\"middle\" fill=\"%s\"", colour);
    svg_text(of->file, x + width / 2, y + (two ? 7.2 : 10.6), style, name);
    snprintf(style, sizeof style, "text-anchor=\"middle\" fill=\"%s\" " SMALL_TEXT, colour);
    if (two)
        svg_text(of->file, x + width / 2, y + 14, style, detail);
    free(detail);
}

static bool is_at(const banyan_check_place *place, const picture_step *step)
{
    return place->rank == step->rank && place->thread_block == step->thread_block &&
           place->operation == step->operation && place->loop_operation == step->loop_operation;
}

/* Find the first finding from `first` on that is about the step; errors precede warnings. SIZE_MAX:
 * none. */
static size_t finding_at(const struct drawing *of, const picture_step *step, size_t first)
{
    const banyan_check_report *report = of->view->report;
    for (size_t i = first; report && i < banyan_check_report_count(report); i++) {
        const banyan_check_finding *finding = banyan_check_report_finding(report, i);
        for (size_t p = 0; p < finding->place_count; p++) {
            if (is_at(&finding->places[p], step))
                return i;
        }
    }
    return SIZE_MAX;
}

static const char *finding_colour(const struct drawing *of, size_t index)
{
    const banyan_check_finding *finding = banyan_check_report_finding(of->view->report, index);
    return banyan_check_rule_is_warning(finding->rule) ? WARNING : WRONG;
}

static void draw_badge(const struct drawing *of, double x, double y, size_t index,
                       const char *number)
{
    double width = svg_text_width(number, SMALL) + 3;
    fprintf(of->file,
            "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"7\" rx=\"3.5\" fill=\"%s\" "
            "stroke=\"#ffffff\" stroke-width=\"0.5\"/>",
            x - width / 2, y - 3.5, fmax(width, 7), finding_colour(of, index));
    svg_text(of->file, x - width / 2 + fmax(width, 7) / 2, y + 2,
             "text-anchor=\"middle\" fill=\"#ffffff\" font-weight=\"bold\" " SMALL_TEXT, number);
}

/* Return the numbers, as in banyan check, of all findings about the step: "1", "2–4,7". To be
 * freed. */
static char *numbers_at(const struct drawing *of, const picture_step *step)
{
    char *text = NULL;
    size_t bytes, count = banyan_check_report_count(of->view->report), end;
    FILE *to = open_memstream(&text, &bytes);
    if (!to)
        return NULL;
    for (size_t i = finding_at(of, step, 0); i < count; i = finding_at(of, step, end + 1)) {
        for (end = i; finding_at(of, step, end + 1) == end + 1;)
            end++;
        fprintf(to, "%s%zu", ftell(to) > 0 ? "," : "", i);
        if (end > i)
            fprintf(to, "–%zu", end);
    }
    fclose(to);
    return text;
}

static void list_findings(struct drawing *of)
{
    const banyan_check_report *report = of->view->report;
    int columns = (int)((of->width - MARGIN - 20) / (0.5 * FONT));
    for (size_t i = 0; report && i < banyan_check_report_count(report); i++) {
        const banyan_check_finding *finding = banyan_check_report_finding(report, i);
        char *text;
        of->y += 9;
        char number[24];
        snprintf(number, sizeof number, "%zu", i);
        draw_badge(of, MARGIN + 4, of->y - 2.2, i, number);
        if (asprintf(&text, "%s: %s", banyan_check_rule_name(finding->rule), finding->message) < 0)
            continue;
        of->y = svg_paragraph(of->file, MARGIN + 14, of->y, 8, columns, "", text) - 8;
        free(text);
    }
    of->y += report && banyan_check_report_count(report) > 0 ? 8 : 0;
}

static void draw_lane(struct drawing *of, size_t index, bool first)
{
    const picture_lane *lane = &of->picture->lanes[index];
    char name[48];
    double height = lane->kind == PICTURE_BUFFERS ? BUFFERS_ROW : ROW, y = of->y,
           text_y = y + height / 2 + 2.3;
    of->lane_y[index] = y;
    if (first) {
        snprintf(name, sizeof name, "rank %d", lane->rank);
        svg_text(of->file, MARGIN, text_y, "font-weight=\"bold\"", name);
    }
    if (lane->kind == PICTURE_BUFFERS)
        snprintf(name, sizeof name, "buffers");
    else
        snprintf(name, sizeof name, "%s %d", lane->kind == PICTURE_PROXY ? "proxy" : "block",
                 lane->thread_block);
    svg_text(of->file, LEFT - 4, text_y, "text-anchor=\"end\" " GREY_TEXT, name);
    svg_rect(of->file, LEFT, y + 1, of->width - LEFT - MARGIN, height - 2,
             lane->kind == PICTURE_BUFFERS ? "fill=\"#e3e7ee\"" : "fill=\"#f6f7f9\"");
    of->y += height;
}

static bool has_data(const picture *of)
{
    for (size_t i = 0; i < of->arrow_count; i++) {
        if (of->arrows[i].kind == PICTURE_PUT || of->arrows[i].kind == PICTURE_GET)
            return true;
    }
    return false;
}

static void draw_lanes(struct drawing *of)
{
    bool first = true, data = has_data(of->picture);
    for (size_t i = 0; i < of->picture->lane_count; i++) {
        const picture_lane *lane = &of->picture->lanes[i];
        of->lane_y[i] = NAN;
        if (!of->figure->ranks[lane->rank] || (lane->kind == PICTURE_BUFFERS && !data))
            continue;
        if (lane->kind == PICTURE_RANK) {
            of->y += RANK_GAP;
            first = true;
            continue;
        }
        draw_lane(of, i, first);
        first = false;
    }
}

static bool in_sight(const struct drawing *of, const picture_step *step)
{
    return plan_figure_shown(of, step->lane) && step->ended_s >= of->from_s &&
           step->began_s <= of->end &&
           (step->ended_s > of->from_s || step->began_s == step->ended_s);
}

static void draw_step(struct drawing *of, const picture_step *step)
{
    size_t finding = finding_at(of, step, 0);
    double x = plan_figure_x_of(of, step->began_s), width = plan_figure_x_of(of, step->ended_s) - x;
    double y = of->lane_y[step->lane];
    const picture_family *family = picture_op_family(of->picture, step);
    char style[160];
    bool nothing = step->ended_s == step->began_s && !step->proxy;
    if (finding == SIZE_MAX && (nothing || (width < 0.6 && strcmp(family->name, "sync") == 0)))
        return;
    of->drawn_families[family - picture_families] = true;
    snprintf(style, sizeof style,
             "rx=\"1.2\" fill=\"%s\" stroke=\"%s\" stroke-width=\"%.1f\" class=\"step\"",
             family->colour, finding == SIZE_MAX ? "#ffffff" : finding_colour(of, finding),
             finding == SIZE_MAX ? 0.4 : 1.2);
    svg_rect(of->file, x, y + 1.5, fmax(width, step->proxy ? PROXY_LEAST : 0.8), ROW - 3, style);
}

static void draw_badges(const struct drawing *of)
{
    for (size_t i = 0; i < of->picture->step_count; i++) {
        const picture_step *step = &of->picture->steps[i];
        size_t finding = in_sight(of, step) ? finding_at(of, step, 0) : SIZE_MAX;
        char *numbers = finding != SIZE_MAX ? numbers_at(of, step) : NULL;
        if (numbers)
            draw_badge(of, plan_figure_x_of(of, step->began_s), of->lane_y[step->lane] + 1.5,
                       finding, numbers);
        free(numbers);
    }
}

struct spot {
    double x, y, height; /* y: top of the object that it leaves, or reaches */
};

static struct spot spot_of_step(const struct drawing *of, const picture_step *step, double share)
{
    double x0 = plan_figure_x_of(of, step->began_s), x1 = plan_figure_x_of(of, step->ended_s);
    return (struct spot){x0 + share * (x1 - x0), of->lane_y[step->lane] + 1.5, ROW - 3};
}

static struct spot spot_of_buffers(const struct drawing *of, size_t lane, double seconds)
{
    return (struct spot){plan_figure_x_of(of, seconds), of->lane_y[lane] + 1, BUFFERS_ROW - 2};
}

static void draw_arrow(struct drawing *of, const picture_arrow *arrow)
{
    const picture *drawn = of->picture;
    bool puts = arrow->kind == PICTURE_PUT, gets = arrow->kind == PICTURE_GET;
    const picture_step *from = gets ? NULL : &drawn->steps[arrow->from];
    const picture_step *to = puts ? NULL : &drawn->steps[arrow->to];
    if ((from && !in_sight(of, from)) || (to && !in_sight(of, to)))
        return;
    if ((puts && !plan_figure_shown(of, arrow->to)) ||
        (gets && !plan_figure_shown(of, arrow->from)))
        return;
    struct spot start = gets ? spot_of_buffers(of, arrow->from, to->began_s)
                             : spot_of_step(of, from, puts ? 0.5 : 1);
    struct spot end =
        puts ? spot_of_buffers(of, arrow->to, from->ended_s) : spot_of_step(of, to, gets ? 0.5 : 1);
    if (puts)
        end.x = fmin(fmax(end.x, start.x + SLANT_LEAST), of->width - MARGIN);
    if (gets)
        start.x = fmax(fmin(start.x, end.x - SLANT_LEAST), LEFT);
    of->drawn_arrows[arrow->kind] = true;
    bool down = start.y < end.y;
    svg_arrow(of->file, start.x, down ? start.y + start.height : start.y, end.x,
              down ? end.y : end.y + end.height, arrow_looks[arrow->kind].colour, 0.7);
}

static double round_unit(double raw)
{
    double power = pow(10, floor(log10(raw)));
    double times = raw / power;
    return power * (times <= 1.0001 ? 1 : times <= 2.0001 ? 2 : times <= 5.0001 ? 5 : 10);
}

static void draw_axis(struct drawing *of, double top)
{
    if (plan_view_in_steps(of->view))
        return;
    double unit = round_unit((of->end - of->from_s) / ((of->width - LEFT) / 60));
    int digits = (int)fmax(0, ceil(-log10(unit * 1e6) - 1e-9));
    for (double t = ceil(of->from_s / unit) * unit; t <= of->end; t += unit) {
        char text[48];
        snprintf(text, sizeof text, "%.*f µs", digits, t * 1e6);
        svg_line(of->file, plan_figure_x_of(of, t), top, plan_figure_x_of(of, t), of->y + 2,
                 "stroke=\"#c9ced8\" stroke-width=\"0.4\"");
        svg_text(of->file, plan_figure_x_of(of, t), of->y + 8, "text-anchor=\"middle\" " GREY_TEXT,
                 text);
    }
    of->y += 10;
}

static uint64_t plan_figure_chunks_of(const struct drawing *of, int rank, int buffer)
{
    static const char *const keys[] = {"input_chunks", "output_chunks", "scratch_chunks"};
    const json_t *gpu = json_array_get(json_object_get(of->picture->root, "gpus"), (size_t)rank);
    return picture_number(json_object_get(gpu, keys[buffer]));
}

static uint64_t plan_figure_most_chunks(const struct drawing *of, int buffer)
{
    uint64_t most = 0;
    for (int r = 0; r < of->picture->ranks; r++) {
        uint64_t chunks = of->figure->ranks[r] ? plan_figure_chunks_of(of, r, buffer) : 0;
        most = chunks > most ? chunks : most;
    }
    return most;
}

static void draw_cells(const struct drawing *of, double x, uint64_t count, uint64_t cells)
{
    for (uint64_t c = 0; c < count && c < cells; c++) {
        char text[24];
        snprintf(text, sizeof text, "%" PRIu64, c);
        svg_rect(of->file, x + (double)c * CELL, of->y, CELL, 8,
                 "fill=\"#ffffff\" stroke=\"#9aa3b2\" stroke-width=\"0.4\"");
        svg_text(of->file, x + ((double)c + 0.5) * CELL, of->y + 6,
                 "text-anchor=\"middle\" " GREY_TEXT, text);
    }
    if (count > cells) {
        char text[40];
        snprintf(text, sizeof text, "… %" PRIu64, count - 1);
        svg_text(of->file, x + (double)cells * CELL + 2, of->y + 6, GREY_TEXT, text);
    }
}

static void draw_buffers(struct drawing *of)
{
    static const char *const names[] = {"input i", "output o", "scratch s"};
    double x[3], at = LEFT;
    uint64_t cells[3];
    uint64_t room = (uint64_t)fmax(1, (of->width - LEFT - MARGIN - 3 * 34) / (3 * CELL));
    of->y += 10;
    for (int b = 0; b < 3; b++) {
        uint64_t most = plan_figure_most_chunks(of, b);
        x[b] = at;
        cells[b] = most < room ? most : room;
        if (most > 0) {
            svg_text(of->file, at, of->y, GREY_TEXT, names[b]);
            at += fmax((double)cells[b] * CELL + (most > room ? 34 : 12), 40);
        }
    }
    of->y += 3;
    for (int r = 0; r < of->picture->ranks; r++) {
        char name[32];
        if (!of->figure->ranks[r])
            continue;
        snprintf(name, sizeof name, "rank %d", r);
        svg_text(of->file, MARGIN, of->y + 6.2, "font-weight=\"bold\"", name);
        for (int b = 0; b < 3; b++)
            draw_cells(of, x[b], plan_figure_chunks_of(of, r, b), cells[b]);
        of->y += 10;
    }
}

/* Entries stand side by side as long as they fit. */
static double place_entry(struct drawing *of, double x, const char *text)
{
    double needed = svg_text_width(text, FONT) + 24;
    if (x > MARGIN && x + needed > of->width) {
        of->y += 10;
        return MARGIN;
    }
    return x;
}

static void plan_figure_draw_legend(struct drawing *of)
{
    double x = MARGIN;
    of->y += 12;
    for (size_t f = 0; picture_families[f].name; f++) {
        char style[64];
        if (!of->drawn_families[f])
            continue;
        x = place_entry(of, x, picture_families[f].name);
        snprintf(style, sizeof style, "rx=\"1.2\" fill=\"%s\"", picture_families[f].colour);
        svg_rect(of->file, x, of->y - 5.5, 10, 7, style);
        svg_text(of->file, x + 13, of->y, "", picture_families[f].name);
        x += svg_text_width(picture_families[f].name, FONT) + 24;
    }
    for (size_t k = 0; k < ARROW_KINDS; k++) {
        if (!of->drawn_arrows[k])
            continue;
        x = place_entry(of, x, arrow_looks[k].legend);
        svg_arrow(of->file, x, of->y - 2, x + 14, of->y - 2, arrow_looks[k].colour, 0.7);
        svg_text(of->file, x + 17, of->y, "", arrow_looks[k].legend);
        x += svg_text_width(arrow_looks[k].legend, FONT) + 28;
    }
    of->y += 9;
    of->y = svg_paragraph(of->file, MARGIN, of->y, 7.5, (int)((of->width - 2 * MARGIN) / 3.0),
                          GREY_TEXT,
                          "i0→s1@2: from chunk 0 of the rank’s own input to chunk 1 of the scratch "
                          "of rank 2; @* of all ranks of a switch channel; → 2, ← 2: for, "
                          "from rank 2") -
            7.5;
}

static void draw_head(struct drawing *of)
{
    const plan_view *view = of->view;
    banyan_plan_info info = banyan_plan_describe(view->plan);
    char number[TEXT_NUMBER_BYTES], time[TEXT_NUMBER_BYTES], *text = NULL;
    double all = of->picture->steps[of->picture->step_count - 1].ended_s;
    if (asprintf(&text, "%s: %s of %d ranks%s", info.name, info.collective_name, info.ranks,
                 info.in_place ? ", in place" : "") < 0)
        return;
    svg_text(of->file, MARGIN, 11, "font-size=\"8.5\" font-weight=\"bold\"", text);
    free(text);
    of->y = 20;
    int printed;
    if (view->hang)
        printed = asprintf(&text, "%s", view->hang);
    else if (view->trace)
        printed = asprintf(&text, "as a run took %s", text_seconds(all, time));
    else if (view->topology)
        printed = asprintf(&text, "%s bytes on %s, %s, simulated",
                           text_count(view->message_bytes, number), view->topology,
                           text_seconds(all, time));
    else
        printed = asprintf(&text, "in steps: an operation takes one, and so does the way to "
                                  "another rank");
    if (printed < 0)
        return;
    of->y = svg_paragraph(of->file, MARGIN, of->y, 8, (int)((of->width - 2 * MARGIN) / 3.4),
                          view->hang ? "fill=\"" WRONG "\"" : "fill=\"" GREY "\"", text) -
            6;
    free(text);
}

static int compare_doubles(const void *a, const void *b)
{
    double first = *(const double *)a, second = *(const double *)b;
    return first < second ? -1 : first > second;
}

/* Choose a width in which nine names in ten fit. */
static double choose_width(const struct drawing *of)
{
    const picture *drawn = of->picture;
    double *needed = malloc((drawn->step_count + 1) * sizeof *needed), width = 0;
    size_t count = 0;
    for (size_t i = 0; needed && i < drawn->step_count; i++) {
        const picture_step *step = &drawn->steps[i];
        double share = (step->ended_s - step->began_s) / (of->end - of->from_s);
        if (share > 0 && of->figure->ranks[step->rank] && step->ended_s > of->from_s &&
            step->began_s < of->end)
            needed[count++] = (svg_text_width(picture_op_name(drawn, step), FONT) + 2.5) / share;
    }
    if (count > 0) {
        qsort(needed, count, sizeof *needed, compare_doubles);
        width = needed[count * 9 / 10];
    }
    free(needed);
    double most = plan_view_in_steps(of->view) ? WIDTH_MOST : WIDTH_MOST / 2;
    return fmin(fmax(width + LEFT + MARGIN, WIDTH_LEAST), most);
}

static void draw_body(struct drawing *of)
{
    draw_head(of);
    double top = of->y;
    draw_lanes(of);
    draw_axis(of, top + RANK_GAP);
    for (size_t i = 0; i < of->picture->step_count; i++) {
        if (in_sight(of, &of->picture->steps[i]))
            draw_step(of, &of->picture->steps[i]);
    }
    for (size_t i = 0; i < of->picture->arrow_count; i++)
        draw_arrow(of, &of->picture->arrows[i]);
    for (size_t i = 0; i < of->picture->step_count; i++) {
        if (in_sight(of, &of->picture->steps[i]))
            draw_label(of, &of->picture->steps[i]);
    }
    draw_badges(of);
    draw_buffers(of);
    plan_figure_draw_legend(of);
    list_findings(of);
    of->y += MARGIN;
}

static banyan_status print_body(struct drawing *of, char **body)
{
    size_t bytes;
    of->file = open_memstream(body, &bytes);
    if (!of->file)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory: a figure");
    draw_body(of);
    bool whole = ferror(of->file) == 0;
    whole &= fclose(of->file) == 0;
    if (whole)
        return BANYAN_OK;
    free(*body);
    return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory: a figure");
}

banyan_status plan_figure_print(FILE *to, const plan_view *view, const plan_figure *figure)
{
    char *body;
    const picture *drawn = &view->picture;
    struct drawing of = {.view = view, .picture = drawn, .figure = figure};
    double all = 0;
    for (size_t i = 0; i < drawn->step_count; i++)
        all = fmax(all, drawn->steps[i].ended_s);
    of.from_s = figure->from * all;
    of.end = fmax(figure->to * all, of.from_s + 1e-12);
    of.width = figure->width > 0 ? figure->width : choose_width(&of);
    of.lane_y = calloc(drawn->lane_count, sizeof *of.lane_y);
    if (!of.lane_y)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory: a figure");
    banyan_status status = print_body(&of, &body);
    free(of.lane_y);
    if (status != BANYAN_OK)
        return status;
    fprintf(to,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.1f %.1f\" "
            "width=\"%.1fpt\" height=\"%.1fpt\" font-family=\"Helvetica, Arial, sans-serif\" "
            "font-size=\"%.1f\" fill=\"#1c2330\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n%s</svg>\n",
            of.width, of.y, of.width, of.y, FONT, body);
    free(body);
    return BANYAN_OK;
}
