/* A table of colours: a row for each kind of tensor, a column for each layer. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/files.h"
#include "cli/text.h"
#include "draw/svg.h"
#include "publish/diff.h"

#define MARGIN 24.0
#define TOP 96.0
#define ROW 20.0
#define FONT 12.0
#define CELLS_WIDTH 640.0
#define CELL_MOST 32.0
#define SHARE_WIDTH 76.0
#define BOTTOM 76.0
#define MAX_COLUMNS 4096
#define MAX_LABEL 64
#define GREY "fill=\"#5b6472\""

/* A tensor in the picture: its kind is the name with a star for each number. */
struct drawn {
    const diff_tensor *tensor;
    char *kind;
    int column; /* the first number in the name; 0: none */
};

/* Tensors of one kind: rows of the picture. */
struct row {
    const struct drawn *first;
    size_t count;
    banyan_delta_size size;
};

struct diff_picture {
    FILE *file;
    const diff *of;
    struct drawn *drawn;
    struct row *rows;
    size_t drawn_count, row_count;
    int columns;
    double label_width, cell_width;
};

/* Replace the numbers that stand alone between dots. */
static char *diff_kind_of(const char *name, int *column)
{
    char *kind = strdup(name), *to = kind;
    bool first = true;
    *column = 0;
    for (const char *at = name; kind && *at;) {
        size_t digits = strspn(at, "0123456789");
        bool starts = at == name || at[-1] == '.';
        if (starts && digits > 0 && digits < 6 && (at[digits] == '.' || at[digits] == '\0')) {
            if (first)
                *column = atoi(at);
            first = false;
            *to++ = '*';
            at += digits;
        } else {
            *to++ = *at++;
        }
    }
    if (kind)
        *to = '\0';
    return kind;
}

static int by_kind_and_layer(const void *a, const void *b)
{
    const struct drawn *x = a, *y = b;
    int order = strcmp(x->kind, y->kind);
    if (order != 0)
        return order;
    return x->column != y->column ? x->column - y->column
                                  : (x->tensor > y->tensor) - (x->tensor < y->tensor);
}

/* In the order of the first checkpoint. */
static int by_first_tensor(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    return (x->first->tensor > y->first->tensor) - (x->first->tensor < y->first->tensor);
}

static void add_size(banyan_delta_size *to, const banyan_delta_size *more)
{
    to->elems += more->elems;
    to->changed += more->changed;
    to->bytes += more->bytes;
}

/* Group the tensors. False when out of memory. */
static bool diff_picture_arrange(struct diff_picture *picture)
{
    const diff *of = picture->of;
    picture->drawn = calloc(of->count + 1, sizeof *picture->drawn);
    picture->rows = calloc(of->count + 1, sizeof *picture->rows);
    for (size_t i = 0; i < of->count && picture->drawn && picture->rows; i++) {
        if (!of->tensors[i].comparable)
            continue;
        struct drawn *added = &picture->drawn[picture->drawn_count];
        added->tensor = &of->tensors[i];
        added->kind = diff_kind_of(added->tensor->after->name, &added->column);
        if (!added->kind)
            return false;
        if (added->column >= MAX_COLUMNS)
            added->column = MAX_COLUMNS - 1;
        if (added->column >= picture->columns)
            picture->columns = added->column + 1;
        picture->drawn_count++;
    }
    if (!picture->drawn || !picture->rows)
        return false;
    qsort(picture->drawn, picture->drawn_count, sizeof *picture->drawn, by_kind_and_layer);
    for (size_t i = 0; i < picture->drawn_count; i++) {
        const struct drawn *one = &picture->drawn[i];
        if (i == 0 || strcmp(one->kind, one[-1].kind) != 0)
            picture->rows[picture->row_count++].first = one;
        struct row *row = &picture->rows[picture->row_count - 1];
        row->count++;
        add_size(&row->size, &one->tensor->size);
    }
    qsort(picture->rows, picture->row_count, sizeof *picture->rows, by_first_tensor);
    return true;
}

/* White for no change; from 0.01 % to 100 %, by the logarithm, from light to dark blue. */
static void colour(const banyan_delta_size *size, char text[48])
{
    double share = diff_share(size), step = 0;
    if (size->changed > 0)
        step = 0.12 + 0.88 * (fmax(log10(share), -4) + 4) / 4;
    snprintf(text, 48, "fill=\"hsl(215,%.0f%%,%.0f%%)\"", 70 * fmin(1, step * 4), 96 - 66 * step);
}

/* Draw the tensors of one kind and layer. */
static void draw_cell(const struct diff_picture *picture, const struct drawn *first, size_t count,
                      double x, double y)
{
    banyan_delta_size size = {0};
    char style[48], title[512], text[2][TEXT_NUMBER_BYTES];
    for (size_t i = 0; i < count; i++)
        add_size(&size, &first[i].tensor->size);
    colour(&size, style);
    const char *name = first->tensor->after->name;
    snprintf(title, sizeof title, "%.300s%s: %s of %s elements (%.3g %%)", name,
             count > 1 ? " and others" : "", text_count(size.changed, text[0]),
             text_count(size.elems, text[1]), 100 * diff_share(&size));
    fprintf(picture->file,
            "<g><rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" %s "
            "stroke=\"#d5d9e0\" stroke-width=\"0.5\"/>",
            x, y, picture->cell_width, ROW - 3, style);
    svg_title(picture->file, title);
    fputs("</g>\n", picture->file);
}

/* Return the end of a label, which is cut in front if it is long: kinds differ at their ends. */
static const char *label_of(const char *kind, char text[MAX_LABEL + 4])
{
    size_t length = strlen(kind);
    snprintf(text, MAX_LABEL + 4, "%s%s", length > MAX_LABEL ? "…" : "",
             kind + (length > MAX_LABEL ? length - MAX_LABEL : 0));
    return text;
}

static void draw_row(const struct diff_picture *picture, const struct row *row, double y)
{
    double x = MARGIN + picture->label_width;
    char text[MAX_LABEL + 4];
    svg_text(picture->file, x - 10, y + 13, "text-anchor=\"end\"",
             label_of(row->first->kind, text));
    for (size_t i = 0, some; i < row->count; i += some) {
        const struct drawn *first = row->first + i;
        for (some = 1; i + some < row->count && first[some].column == first->column; some++)
            ;
        draw_cell(picture, first, some, x + first->column * picture->cell_width, y);
    }
    snprintf(text, sizeof text, "%.3g %%", 100 * diff_share(&row->size));
    svg_text(picture->file, x + picture->columns * picture->cell_width + SHARE_WIDTH, y + 13,
             "text-anchor=\"end\"", text);
}

static void diff_picture_draw_legend(const struct diff_picture *picture, double y)
{
    static const uint64_t per_million[] = {0, 100, 1000, 10000, 100000, 1000000};
    double x = MARGIN + picture->label_width;
    for (size_t i = 0; i < sizeof per_million / sizeof per_million[0]; i++) {
        banyan_delta_size size = {.elems = 1000000, .changed = per_million[i]};
        char style[96], text[32];
        colour(&size, style);
        strcat(style, " stroke=\"#d5d9e0\"");
        svg_rect(picture->file, x, y, 22, 12, style);
        snprintf(text, sizeof text, "%g %%", 100 * diff_share(&size));
        svg_text(picture->file, x + 28, y + 10, GREY, text);
        x += 86;
    }
}

static void diff_picture_draw(struct diff_picture *picture)
{
    diff_total total = diff_sum(picture->of);
    char text[512], numbers[4][TEXT_NUMBER_BYTES], label[MAX_LABEL + 4];
    for (size_t i = 0; i < picture->row_count; i++) {
        double width = svg_text_width(label_of(picture->rows[i].first->kind, label), FONT) + 10;
        picture->label_width = fmax(picture->label_width, width);
    }
    picture->cell_width = fmin(CELL_MOST, CELLS_WIDTH / fmax(picture->columns, 1));
    double cells = fmax(picture->columns * picture->cell_width + SHARE_WIDTH, 540);
    double width = 2 * MARGIN + picture->label_width + cells;
    double height = TOP + ROW * (double)picture->row_count + BOTTOM;
    fprintf(picture->file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" "
            "height=\"%.0f\" font-family=\"system-ui,sans-serif\" font-size=\"%.0f\" "
            "fill=\"#20242c\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
            width, height, width, height, FONT);
    snprintf(text, sizeof text, "%.200s → %.200s", picture->of->before_path,
             picture->of->after_path);
    svg_text(picture->file, MARGIN, 34, "font-size=\"18\" font-weight=\"600\"", text);
    snprintf(text, sizeof text, "%s of %s elements changed (%.3g %%); a publication sends %s of %s",
             text_count(total.size.changed, numbers[0]), text_count(total.size.elems, numbers[1]),
             100 * diff_share(&total.size), text_bytes(total.size.bytes, numbers[2]),
             text_bytes(total.bytes, numbers[3]));
    svg_text(picture->file, MARGIN, 58, GREY, text);
    double x = MARGIN + picture->label_width;
    if (picture->columns > 1) {
        svg_text(picture->file, x, TOP - 8, GREY, "layer 0");
        snprintf(text, sizeof text, "%d", picture->columns - 1);
        svg_text(picture->file, x + picture->columns * picture->cell_width, TOP - 8,
                 GREY " text-anchor=\"end\"", text);
    }
    for (size_t i = 0; i < picture->row_count; i++)
        draw_row(picture, &picture->rows[i], TOP + ROW * (double)i);
    diff_picture_draw_legend(picture, TOP + ROW * (double)picture->row_count + 14);
    snprintf(
        text, sizeof text,
        "tensors that are not compared: %zu only in the first, %zu only in the second, %zu with "
        "another type or shape",
        total.only_before, total.only_after, total.different);
    if (total.compared < picture->of->count)
        svg_text(picture->file, MARGIN, height - 20, GREY, text);
    fputs("</svg>\n", picture->file);
}

bool diff_draw(const diff *made, const char *path)
{
    struct diff_picture picture = {.of = made};
    out_file file;
    bool written = false;
    if (diff_picture_arrange(&picture) && out_file_open(&file, path)) {
        picture.file = file.file;
        diff_picture_draw(&picture);
        written = out_file_finish(&file);
    }
    for (size_t i = 0; i < picture.drawn_count; i++)
        free(picture.drawn[i].kind);
    free(picture.rows);
    free(picture.drawn);
    return written;
}
