/* `banyan plan view`: a plan as a page for a browser, or as a figure. */
#ifndef TOOLS_PLAN_VIEW_H
#define TOOLS_PLAN_VIEW_H

#include <stdio.h>

#include <banyan/check.h>

#include "draw/picture.h"

/* The displayed data. */
typedef struct plan_view {
    const banyan_plan *plan;
    picture picture;
    const char *topology;              /* its name; NULL: in steps, or from a trace */
    const char *trace;                 /* its file; NULL */
    const char *hang;                  /* message about a deadlock; NULL */
    const banyan_check_report *report; /* NULL: it was not checked */
    uint64_t message_bytes;            /* 0: a trace does not have it */
} plan_view;

/* The selection that a figure shows. */
typedef struct plan_figure {
    const bool *ranks; /* the displayed ranks */
    double width;      /* points; 0: as its labels need */
    double from, to;   /* of the time from the first step to the last, 0 to 1 */
} plan_figure;

int plan_view_command(int argc, char **argv);

/* A page for a browser, and a figure in SVG. NO_MEMORY. */
banyan_status plan_page_print(FILE *to, const plan_view *view);
banyan_status plan_figure_print(FILE *to, const plan_view *view, const plan_figure *figure);

/* True when an operation, or a route, takes one step: neither times nor bytes are known. */
static inline bool plan_view_in_steps(const plan_view *view)
{
    return !view->topology && !view->trace;
}

/* A file of the page, embedded by the build. */
typedef struct page {
    const char *name, *text;
} page;

extern const page pages[]; /* ends with an empty one */

#endif
