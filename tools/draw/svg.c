#include "draw/svg.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/files.h"
#include "cli/text.h"

#define WIDTH 960.0
#define TOP 96.0
#define LEFT 150.0
#define RIGHT (WIDTH - 150.0)
#define NODE_WIDTH 14.0
#define GAP 10.0
#define BOTTOM 92.0
#define LABEL_HEIGHT 11.0 /* of a label; a label is left out where nodes are closer than this */
#define STAYS "#b8bcc4"

/* A rank on one side: its position, and the height that bands have taken. */
struct node {
    uint64_t bytes;
    double top, height, taken;
};

struct svg_picture {
    FILE *file;
    const svg_flows *flows;
    struct node *senders, *receivers;
    uint64_t total, stays;
    double height, scale; /* scale: pixels a byte */
};

static uint64_t draw_svg_flow(const struct svg_picture *picture, int sender, int receiver)
{
    return picture->flows->bytes[(size_t)sender * (size_t)picture->flows->ranks + (size_t)receiver];
}

/* Colours that neighbours in the list do not share. */
static void colour_of(int rank, char text[32])
{
    double hue = fmod(210.0 + rank * 137.508, 360.0);
    snprintf(text, 32, "hsl(%.0f,52%%,%d%%)", hue, rank % 2 ? 46 : 54);
}

static int count_active(const struct node *nodes, int ranks)
{
    int active = 0;
    for (int rank = 0; rank < ranks; rank++)
        active += nodes[rank].bytes > 0;
    return active;
}

static void sum_up(struct svg_picture *picture)
{
    int ranks = picture->flows->ranks;
    for (int sender = 0; sender < ranks; sender++) {
        for (int receiver = 0; receiver < ranks; receiver++) {
            uint64_t bytes = draw_svg_flow(picture, sender, receiver);
            picture->senders[sender].bytes += bytes;
            picture->receivers[receiver].bytes += bytes;
            picture->total += bytes;
            picture->stays += sender == receiver ? bytes : 0;
        }
    }
}

/* Stack one side's ranks in the middle of the height. */
static void draw_svg_stack(const struct svg_picture *picture, struct node *nodes)
{
    int ranks = picture->flows->ranks, active = count_active(nodes, ranks);
    double used = (double)picture->total * picture->scale + (active > 1 ? GAP * (active - 1) : 0);
    double at = TOP + (picture->height - used) / 2;
    for (int rank = 0; rank < ranks; rank++) {
        if (nodes[rank].bytes == 0)
            continue;
        nodes[rank].top = at;
        nodes[rank].height = (double)nodes[rank].bytes * picture->scale;
        at += nodes[rank].height + GAP;
    }
}

static void draw_svg_arrange(struct svg_picture *picture)
{
    int ranks = picture->flows->ranks;
    sum_up(picture);
    int senders = count_active(picture->senders, ranks);
    int receivers = count_active(picture->receivers, ranks);
    int rows = senders > receivers ? senders : receivers;
    double bands = fmax(280.0, rows * 26.0);
    picture->height = bands + (rows > 1 ? GAP * (rows - 1) : 0);
    picture->scale = picture->total > 0 ? bands / (double)picture->total : 0;
    draw_svg_stack(picture, picture->senders);
    draw_svg_stack(picture, picture->receivers);
}

static void draw_band(const struct svg_picture *picture, int sender, int receiver)
{
    uint64_t bytes = draw_svg_flow(picture, sender, receiver);
    if (bytes == 0)
        return;
    struct node *from = &picture->senders[sender], *to = &picture->receivers[receiver];
    double thick = (double)bytes * picture->scale;
    double y0 = from->top + from->taken, y1 = to->top + to->taken;
    double x0 = LEFT + NODE_WIDTH, x1 = RIGHT - NODE_WIDTH, bend = (x1 - x0) * 0.45;
    char colour[32] = STAYS, amount[TEXT_NUMBER_BYTES];
    from->taken += thick;
    to->taken += thick;
    if (sender != receiver)
        colour_of(sender, colour);
    fprintf(picture->file,
            "<path fill=\"%s\" fill-opacity=\"0.55\" d=\"M%.1f %.2fC%.1f %.2f %.1f %.2f %.1f %.2f"
            "V%.2fC%.1f %.2f %.1f %.2f %.1f %.2fZ\"><title>rank %d to rank %d: %s</title></path>\n",
            colour, x0, y0, x0 + bend, y0, x1 - bend, y1, x1, y1, y1 + thick, x1 - bend, y1 + thick,
            x0 + bend, y0 + thick, x0, y0 + thick, sender, receiver, text_bytes(bytes, amount));
}

static void draw_node(const struct svg_picture *picture, const struct node *node, int rank,
                      bool is_sender)
{
    if (node->bytes == 0)
        return;
    char colour[32], label[96], amount[TEXT_NUMBER_BYTES];
    colour_of(rank, colour);
    fprintf(picture->file,
            "<rect x=\"%.1f\" y=\"%.2f\" width=\"%.0f\" height=\"%.2f\" rx=\"2\" fill=\"%s\"/>\n",
            is_sender ? LEFT : RIGHT - NODE_WIDTH, node->top, NODE_WIDTH, fmax(node->height, 1),
            is_sender ? colour : "#4a5160");
    if (node->height + GAP < LABEL_HEIGHT)
        return;
    snprintf(label, sizeof label, "rank %d · %s", rank, text_bytes(node->bytes, amount));
    svg_text(picture->file, is_sender ? LEFT - 8 : RIGHT + 8, node->top + node->height / 2 + 4,
             is_sender ? "text-anchor=\"end\"" : "", label);
}

static void draw_svg_draw_legend(const struct svg_picture *picture)
{
    double y = TOP + picture->height + 40;
    char label[128], amount[TEXT_NUMBER_BYTES], colour[32];
    colour_of(0, colour);
    fprintf(picture->file,
            "<rect x=\"%.1f\" y=\"%.1f\" width=\"22\" height=\"12\" fill=\"%s\" "
            "fill-opacity=\"0.55\"/>\n",
            LEFT, y - 10, colour);
    snprintf(label, sizeof label, "from rank to rank, in the sender's colour: %s",
             text_bytes(picture->total - picture->stays, amount));
    svg_text(picture->file, LEFT + 30, y, "", label);
    fprintf(picture->file,
            "<rect x=\"%.1f\" y=\"%.1f\" width=\"22\" height=\"12\" fill=\"%s\" "
            "fill-opacity=\"0.55\"/>\n",
            LEFT + 380, y - 10, STAYS);
    snprintf(label, sizeof label, "stays on its rank: %s", text_bytes(picture->stays, amount));
    svg_text(picture->file, LEFT + 410, y, "", label);
    svg_text(picture->file, LEFT, y + 26, "fill=\"#5b6472\"", picture->flows->caption);
}

static void draw_svg_draw(const struct svg_picture *picture)
{
    const svg_flows *flows = picture->flows;
    double height = TOP + picture->height + BOTTOM;
    fprintf(picture->file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" "
            "height=\"%.0f\" font-family=\"system-ui,sans-serif\" font-size=\"12\" "
            "fill=\"#20242c\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
            WIDTH, height, WIDTH, height);
    svg_text(picture->file, LEFT, 36, "font-size=\"18\" font-weight=\"600\"", flows->title);
    svg_text(picture->file, LEFT, 66, "font-weight=\"600\"", flows->from);
    svg_text(picture->file, RIGHT, 66, "font-weight=\"600\" text-anchor=\"end\"", flows->to);
    svg_text(picture->file, LEFT, 82, "fill=\"#5b6472\"", "sends");
    svg_text(picture->file, RIGHT, 82, "fill=\"#5b6472\" text-anchor=\"end\"", "receives");
    for (int sender = 0; sender < flows->ranks; sender++) {
        for (int receiver = 0; receiver < flows->ranks; receiver++)
            draw_band(picture, sender, receiver);
    }
    for (int rank = 0; rank < flows->ranks; rank++) {
        draw_node(picture, &picture->senders[rank], rank, true);
        draw_node(picture, &picture->receivers[rank], rank, false);
    }
    draw_svg_draw_legend(picture);
    fputs("</svg>\n", picture->file);
}

bool svg_write(const char *path, const svg_flows *flows)
{
    struct svg_picture picture = {.flows = flows};
    struct node *nodes = calloc(2 * (size_t)flows->ranks, sizeof *nodes);
    out_file file;
    bool written = false;
    if (nodes && out_file_open(&file, path)) {
        picture.file = file.file;
        picture.senders = nodes;
        picture.receivers = nodes + flows->ranks;
        draw_svg_arrange(&picture);
        draw_svg_draw(&picture);
        written = out_file_finish(&file);
    }
    free(nodes);
    return written;
}

/* The widest common fonts need it. */
#define WIDTH_OF_LETTER 0.6

static void print_escaped(FILE *to, const char *text, size_t bytes)
{
    for (const char *end = text + bytes; text < end; text++) {
        switch (*text) {
        case '&':
            fputs("&amp;", to);
            break;
        case '<':
            fputs("&lt;", to);
            break;
        case '>':
            fputs("&gt;", to);
            break;
        case '"':
            fputs("&quot;", to);
            break;
        default:
            if ((unsigned char)*text >= ' ')
                fputc(*text, to);
        }
    }
}

static void svg_draw_print_text(FILE *to, double x, double y, const char *style, const char *text,
                                size_t bytes)
{
    fprintf(to, "<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, style);
    print_escaped(to, text, bytes);
    fputs("</text>\n", to);
}

void svg_text(FILE *to, double x, double y, const char *style, const char *text)
{
    svg_draw_print_text(to, x, y, style, text, strlen(text));
}

void svg_title(FILE *to, const char *text)
{
    fputs("<title>", to);
    print_escaped(to, text, strlen(text));
    fputs("</title>", to);
}

static bool starts_letter(char c)
{
    return ((unsigned char)c & 0xc0) != 0x80;
}

double svg_text_width(const char *text, double font_size)
{
    int letters = 0;
    for (; *text; text++)
        letters += starts_letter(*text);
    return letters * WIDTH_OF_LETTER * font_size;
}

/* Return the bytes up to the last blank that fits, or of everything if it fits. */
static size_t line_bytes(const char *text, int columns)
{
    size_t at = 0, blank = 0;
    for (int letters = 0; text[at]; at++) {
        letters += starts_letter(text[at]);
        if (letters > columns)
            return blank > 0 ? blank : at;
        if (text[at] == ' ')
            blank = at;
    }
    return at;
}

double svg_paragraph(FILE *to, double x, double y, double line_height, int columns,
                     const char *style, const char *text)
{
    while (*text) {
        size_t bytes = line_bytes(text, columns < 1 ? 1 : columns);
        svg_draw_print_text(to, x, y, style, text, bytes);
        y += line_height;
        text += bytes;
        while (*text == ' ')
            text++;
    }
    return y;
}

void svg_rect(FILE *to, double x, double y, double width, double height, const char *style)
{
    fprintf(to, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" %s/>\n", x, y, width,
            height, style);
}

void svg_line(FILE *to, double x0, double y0, double x1, double y1, const char *style)
{
    fprintf(to, "<path d=\"M%.2f %.2fL%.2f %.2f\" fill=\"none\" %s/>\n", x0, y0, x1, y1, style);
}

void svg_arrow(FILE *to, double x0, double y0, double x1, double y1, const char *colour,
               double width)
{
    double length = hypot(x1 - x0, y1 - y0), head = 3 + 2 * width;
    if (length == 0)
        return;
    double along_x = (x1 - x0) / length, along_y = (y1 - y0) / length;
    double back_x = x1 - head * along_x, back_y = y1 - head * along_y, half = head * 0.36;
    fprintf(to,
            "<path d=\"M%.2f %.2fL%.2f %.2f\" fill=\"none\" stroke=\"%s\" "
            "stroke-width=\"%.2f\"/>"
            "<path d=\"M%.2f %.2fL%.2f %.2fL%.2f %.2fz\" fill=\"%s\"/>\n",
            x0, y0, back_x, back_y, colour, width, x1, y1, back_x - half * along_y,
            back_y + half * along_x, back_x + half * along_y, back_y - half * along_x, colour);
}
