/* Pictures in SVG, with plain attributes: some programs read neither styles nor markers. */
#ifndef TOOLS_SVG_H
#define TOOLS_SVG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* The bytes that each rank sends to each other one. */
typedef struct svg_flows {
    const char *title;     /* the model */
    const char *from, *to; /* the specs */
    const char *caption;   /* a line below with the totals */
    int ranks;
    const uint64_t *bytes; /* [sender × ranks + receiver] */
} svg_flows;

/* Draw senders at the left, receivers at the right, and bands between them whose width is
 * proportional to their bytes. Bytes that stay on their rank are grey. False with errno. */
bool svg_write(const char *path, const svg_flows *flows);

/* `style`: further attributes. Anything may be in the text. */
void svg_text(FILE *to, double x, double y, const char *style, const char *text);
/* Write the title of the element that is open, which viewers show under the pointer. */
void svg_title(FILE *to, const char *text);
/* Write text in lines of at most `columns` characters, below each other; returns the y behind the
 * last. */
double svg_paragraph(FILE *to, double x, double y, double line_height, int columns,
                     const char *style, const char *text);
/* Return the width of a text in any common sans-serif font, or slightly more. */
double svg_text_width(const char *text, double font_size);

void svg_rect(FILE *to, double x, double y, double width, double height, const char *style);
void svg_line(FILE *to, double x0, double y0, double x1, double y1, const char *style);
/* A line that ends in a filled head. */
void svg_arrow(FILE *to, double x0, double y0, double x1, double y1, const char *colour,
               double width);

#endif
