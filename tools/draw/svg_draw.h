/* SVG elements of pictures: shapes and text with plain attributes, without styles or markers, which
 * some programs cannot read. */
#ifndef TOOLS_SVG_DRAW_H
#define TOOLS_SVG_DRAW_H

#include <stdio.h>

/* `style`: further attributes. Anything may be in the text. */
void svg_text(FILE *to, double x, double y, const char *style, const char *text);
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
