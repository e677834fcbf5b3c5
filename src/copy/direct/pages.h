/* Peers' memory that a schedule will touch, whose pages are mapped before its first run. */
#ifndef COPY_DIRECT_PAGES_H
#define COPY_DIRECT_PAGES_H

#include "copy/strided/strided.h"
#include "core/containers/array.h"

typedef struct direct_page_range {
    uintptr_t low, high; /* whole pages */
} direct_page_range;

/* A zeroed set is empty. */
typedef struct direct_pages {
    ARRAY(direct_page_range) read, written;
} direct_pages;

/* Add the pages that the view's elements span. */
banyan_status direct_pages_add(direct_pages *all, const strided_view *view, bool written);

/* Map the pages, with one call between gaps, and clear the set. */
void direct_pages_prefault(direct_pages *all);

void direct_pages_free(direct_pages *all);

#endif
