#include "cli/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/clock.h"
#include "cli/text.h"

#define DRAW_SECONDS 0.1
#define BAR_CELLS 30

void progress_begin(progress *bar, bool show, const char *what, uint64_t total, bool bytes)
{
    double now = clock_now_s();
    *bar = (progress){.shown = show && total > 0 && isatty(STDERR_FILENO),
                      .what = what,
                      .total = total,
                      .bytes = bytes,
                      .began = now,
                      .drawn = now};
    const char *level = getenv("BANYAN_LOG");
    bool logs = level && (strcmp(level, "info") == 0 || strcmp(level, "debug") == 0);
    if (show && total > 0 && !bar->shown && logs)
        fprintf(stderr, "banyan: info: %s\n", what);
}

static const char *fill_cells(double part, char cells[BAR_CELLS + 1])
{
    int full = (int)(part * BAR_CELLS);
    for (int i = 0; i < BAR_CELLS; i++)
        cells[i] = i < full ? '#' : '.';
    cells[BAR_CELLS] = '\0';
    return cells;
}

static void progress_draw(const progress *bar)
{
    double part = (double)bar->done / (double)bar->total, elapsed = bar->drawn - bar->began;
    double rate = elapsed > 0 ? (double)bar->done / elapsed : 0;
    char cells[BAR_CELLS + 1], amount[TEXT_NUMBER_BYTES], left[TEXT_NUMBER_BYTES];
    if (bar->bytes)
        text_bytes((uint64_t)rate, amount);
    else
        text_count((uint64_t)rate, amount);
    text_seconds(rate > 0 ? (double)(bar->total - bar->done) / rate : 0, left);
    fprintf(stderr, "\r%-12s [%s] %3.0f %%  %s/s  %s left\033[K", bar->what,
            fill_cells(part, cells), part * 100, amount, left);
    fflush(stderr);
}

static bool is_time_to_draw(progress *bar)
{
    if (!bar->shown)
        return false;
    double now = clock_now_s();
    if (now - bar->drawn < DRAW_SECONDS)
        return false;
    bar->drawn = now;
    return true;
}

void progress_add(progress *bar, uint64_t done)
{
    bar->done += done < bar->total - bar->done ? done : bar->total - bar->done;
    if (is_time_to_draw(bar))
        progress_draw(bar);
}

void progress_show(const progress *bar, const char *what, double share)
{
    char cells[BAR_CELLS + 1];
    double part = share < 0 ? 0 : share > 1 ? 1 : share;
    if (!bar->shown)
        return;
    fprintf(stderr, "\r%-12s [%s] %3.0f %%  %s\033[K", bar->what, fill_cells(part, cells),
            part * 100, what);
    fflush(stderr);
}

void progress_hide(const progress *bar)
{
    if (!bar->shown)
        return;
    fputs("\r\033[K", stderr);
    fflush(stderr);
}

void progress_end(progress *bar)
{
    progress_hide(bar);
    bar->shown = false;
}
