/* Time over size, as SVG. */
#include <math.h>
#include <stdio.h>

#include "cli/files.h"
#include "cli/text.h"
#include "draw/svg.h"
#include "mixed/mixed_job.h"

#define PANEL_WIDTH 640.0
#define PANEL_HEIGHT 360.0
#define LEFT 80.0
#define TOP 60.0
#define BELOW 70.0
#define LEGEND 190.0

#define TEXT_STYLE "font-family=\"sans-serif\" font-size=\"12\" fill=\"#333\""
#define TITLE_STYLE "font-family=\"sans-serif\" font-size=\"15\" font-weight=\"bold\" fill=\"#111\""
#define GRID_STYLE "stroke=\"#ddd\" stroke-width=\"1\""

static const char *const colours[BANYAN_MIXED_MODES] = {"#000000", "#1b7837", "#2166ac", "#762a83",
                                                        "#7fbf7b", "#67a9cf", "#af8dc3", "#e08214",
                                                        "#b35806", "#d6604d", "#b2182b"};

/* A panel's axes, as powers: of two for bytes, of ten for µs. */
struct axes {
    double x0, y0; /* of the lower left corner */
    double low_bytes, high_bytes, low_us, high_us;
};

static double mixed_plot_x_of(const struct axes *axes, double bytes)
{
    double span = axes->high_bytes - axes->low_bytes;
    return axes->x0 + (span > 0 ? (log2(bytes) - axes->low_bytes) / span : 0.5) * PANEL_WIDTH;
}

static double y_of(const struct axes *axes, double us)
{
    return axes->y0 - (log10(us) - axes->low_us) / (axes->high_us - axes->low_us) * PANEL_HEIGHT;
}

static double us_of(const mixed_cell *cell)
{
    return (double)(cell->ns > 0 ? cell->ns : 1) / 1000;
}

/* False when the operation was not run. */
static bool find_axes(const mixed_job *job, int op, double top, struct axes *axes)
{
    double low = INFINITY, high = 0;
    for (size_t s = 0; s < job->size_count; s++) {
        for (int mode = 0; mode < BANYAN_MIXED_MODES; mode++) {
            const mixed_cell *cell = &job->sizes[s].cells[op][mode];
            if (!cell->done)
                continue;
            low = fmin(low, us_of(cell));
            high = fmax(high, us_of(cell));
        }
    }
    *axes = (struct axes){.x0 = LEFT,
                          .y0 = top + PANEL_HEIGHT,
                          .low_bytes = log2((double)mixed_job_bytes(job, &job->sizes[0])),
                          .high_bytes =
                              log2((double)mixed_job_bytes(job, &job->sizes[job->size_count - 1])),
                          .low_us = floor(log10(low)),
                          .high_us = floor(log10(high)) + 1};
    return high > 0;
}

static void draw_grid(FILE *to, const mixed_job *job, const struct axes *axes)
{
    char text[TEXT_NUMBER_BYTES];
    for (double power = axes->low_us; power <= axes->high_us; power++) {
        double y = y_of(axes, pow(10, power));
        svg_line(to, axes->x0, y, axes->x0 + PANEL_WIDTH, y, GRID_STYLE);
        snprintf(text, sizeof text, "%g µs", pow(10, power));
        svg_text(to, 10, y + 4, TEXT_STYLE, text);
    }
    size_t step = job->size_count / 8 + 1;
    for (size_t s = 0; s < job->size_count; s += step) {
        double x = mixed_plot_x_of(axes, (double)mixed_job_bytes(job, &job->sizes[s]));
        svg_line(to, x, axes->y0, x, axes->y0 - PANEL_HEIGHT, GRID_STYLE);
        svg_text(to, x - 15, axes->y0 + 18, TEXT_STYLE,
                 text_bytes(mixed_job_bytes(job, &job->sizes[s]), text));
        snprintf(text, sizeof text, "%llu", (unsigned long long)job->sizes[s].rows);
        svg_text(to, x - 15, axes->y0 + 34, TEXT_STYLE, text);
    }
    svg_text(to, 10, axes->y0 + 18, TEXT_STYLE, "bytes");
    svg_text(to, 10, axes->y0 + 34, TEXT_STYLE, "rows");
}

#define POINT 2.0 /* radius; a mode with one size is only a point */
#define CHOSEN_POINT 4.5

/* Draw a mode's line; modes that calls without a forced mode take have larger points. */
static bool draw_mode(FILE *to, const mixed_job *job, const struct axes *axes, int op, int mode)
{
    char style[64];
    bool drawn = false;
    double last_x = 0, last_y = 0;
    snprintf(style, sizeof style, "stroke=\"%s\" stroke-width=\"2\"", colours[mode]);
    for (size_t s = 0; s < job->size_count; s++) {
        const mixed_cell *cell = &job->sizes[s].cells[op][mode];
        if (!cell->done)
            continue;
        double x = mixed_plot_x_of(axes, (double)mixed_job_bytes(job, &job->sizes[s]));
        double y = y_of(axes, us_of(cell));
        if (drawn)
            svg_line(to, last_x, last_y, x, y, style);
        bool chosen = (int)job->sizes[s].chosen[op] == mode;
        fprintf(to, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" fill=\"%s\"/>\n", x, y,
                chosen ? CHOSEN_POINT : POINT, colours[mode]);
        last_x = x;
        last_y = y;
        drawn = true;
    }
    return drawn;
}

static void draw_panel(FILE *to, const mixed_job *job, const struct axes *axes, int op)
{
    double legend_y = axes->y0 - PANEL_HEIGHT + 12, legend_x = axes->x0 + PANEL_WIDTH + 20;
    svg_text(to, axes->x0, axes->y0 - PANEL_HEIGHT - 12, TITLE_STYLE,
             banyan_mixed_op_name((banyan_mixed_op)op));
    draw_grid(to, job, axes);
    for (int mode = 0; mode < BANYAN_MIXED_MODES; mode++) {
        if (!draw_mode(to, job, axes, op, mode))
            continue;
        char style[64];
        snprintf(style, sizeof style, "stroke=\"%s\" stroke-width=\"3\"", colours[mode]);
        svg_line(to, legend_x, legend_y - 4, legend_x + 18, legend_y - 4, style);
        svg_text(to, legend_x + 24, legend_y, TEXT_STYLE,
                 banyan_mixed_mode_name((banyan_mixed_mode)mode));
        legend_y += 20;
    }
    svg_text(to, legend_x, legend_y + 8, TEXT_STYLE,
             mixed_job_is_tuned(job) ? "● chosen by autotuning" : "● chosen by default");
}

static void mixed_plot_draw(FILE *to, const mixed_job *job)
{
    double height = TOP, width = LEFT + PANEL_WIDTH + LEGEND + 20;
    struct axes axes;
    for (int op = 0; op < BANYAN_MIXED_OPS; op++)
        height += find_axes(job, op, 0, &axes) ? PANEL_HEIGHT + BELOW + 20 : 0;
    fprintf(to,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
            "viewBox=\"0 0 %.0f %.0f\">\n",
            width, height, width, height);
    svg_rect(to, 0, 0, width, height, "fill=\"#fff\"");
    double top = TOP;
    for (int op = 0; op < BANYAN_MIXED_OPS; op++) {
        if (!find_axes(job, op, top, &axes))
            continue;
        draw_panel(to, job, &axes, op);
        top += PANEL_HEIGHT + BELOW + 20;
    }
    fputs("</svg>\n", to);
}

bool mixed_plot(const mixed_job *job)
{
    out_file made;
    if (!out_file_open(&made, job->svg_path))
        return false;
    mixed_plot_draw(made.file, job);
    return out_file_finish(&made);
}
