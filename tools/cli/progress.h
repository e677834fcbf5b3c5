/* A progress bar with rate and time left, on a terminal. Elsewhere a log line if BANYAN_LOG asks
 * for information. */
#ifndef TOOLS_PROGRESS_H
#define TOOLS_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct progress {
    bool shown;
    const char *what;
    uint64_t total, done;
    bool bytes; /* else things */
    double began, drawn;
} progress;

/* `show` false: on ranks that stay silent. */
void progress_begin(progress *bar, bool show, const char *what, uint64_t total, bool bytes);
void progress_add(progress *bar, uint64_t done);
/* Show work without a rate: `share` of it, 0 to 1, is done, and `what` comes now. */
void progress_show(const progress *bar, const char *what, double share);
/* Remove the line for good, before other lines are printed. */
void progress_hide(const progress *bar);
void progress_end(progress *bar);

#endif
