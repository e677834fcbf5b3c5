/* A picture of the bytes that each rank sends to each other one. */
#ifndef TOOLS_SVG_H
#define TOOLS_SVG_H

#include <stdbool.h>
#include <stdint.h>

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

#endif
