#include "draw/svg_draw.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

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
