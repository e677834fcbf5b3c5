/* Pages that the command fills with data: compiled in. */
#ifndef TOOLS_PAGES_H
#define TOOLS_PAGES_H

#include <stddef.h>

typedef struct page {
    const char *name, *text;
} page;

extern const page pages[]; /* ends with an empty one */

#endif
