/* A picture of who sends how much to whom. */
#ifndef TOOLS_SVG_H
#define TOOLS_SVG_H

#include <stdbool.h>
#include <stdint.h>

typedef struct svg_flows {
    const char *title;     /* the model */
    const char *from, *to; /* the specs */
    const char *caption;   /* a line below: what it came to */
    int ranks;
    const uint64_t *bytes; /* [sender × ranks + receiver] */
} svg_flows;

/* Senders at the left, receivers at the right, a band between them as wide as what it carries.
 * Bytes that stay on their rank are grey. False with errno. */
bool svg_write(const char *path, const svg_flows *flows);

#endif
