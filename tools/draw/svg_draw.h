/* Lines of SVG that pictures are made of: shapes and text with plain attributes, without styles or
 * markers, which not every program reads. */
#ifndef TOOLS_SVG_DRAW_H
#define TOOLS_SVG_DRAW_H

#include <stdio.h>

/* `style`: further attributes. Anything may be in the text. */
void svg_text(FILE *to, double x, double y, const char *style, const char *text);
/* In lines of at most so many characters, below each other; gives the y behind the last. */
double svg_paragraph(FILE *to, double x, double y, double line_height, int columns,
                     const char *style, const char *text);
/* What a text takes in whatever font without serifs there is, or a little more. */
double svg_text_width(const char *text, double font_size);

void svg_rect(FILE *to, double x, double y, double width, double height, const char *style);
void svg_line(FILE *to, double x0, double y0, double x1, double y1, const char *style);
/* A line that ends in a filled head. */
void svg_arrow(FILE *to, double x0, double y0, double x1, double y1, const char *colour,
               double width);

#endif
