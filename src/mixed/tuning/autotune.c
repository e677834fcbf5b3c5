#include "mixed/tuning/autotune.h"

#include <string.h>

#include "core/error.h"
#include "mixed/modes.h"
#include "world/control.h"

/* True if `bytes` is nearer, by ratio, to `high` than to `low`; none need be a power of two. */
static bool is_nearer_to_higher(uint64_t bytes, uint64_t low, uint64_t high)
{
    return (double)bytes * (double)bytes > (double)low * (double)high;
}

static banyan_mixed_mode autotune_nearest(const mixed_choices *choices, uint64_t bytes)
{
    size_t i = 0;
    while (i + 1 < choices->count &&
           is_nearer_to_higher(bytes, choices->data[i].bytes, choices->data[i + 1].bytes))
        i++;
    return choices->data[i].mode;
}

banyan_status banyan_mixed_select_autotune_mode(const banyan_mixed *mixed, banyan_mixed_op op,
                                                uint64_t bytes, banyan_mixed_mode *mode)
{
    RETURN_IF_NULL(mixed);
    RETURN_IF_NULL(mode);
    RETURN_IF_FAILED(op_check(mixed, op));
    const mixed_choices *choices = &mixed->choices[op];
    *mode = choices->count > 0 ? autotune_nearest(choices, bytes) : mode_default(mixed, op, bytes);
    return BANYAN_OK;
}

/* On the host, repeated measurements of one short call vary by a tenth. The single or separate
 * mode, which callers would use otherwise, therefore wins unless another mode is faster by more
 * than this. */
#define HOST_DOUBT 8
#define HOST_DOUBT_MOST_NS 40000

static uint64_t rated_ns(const banyan_mixed *mixed, const banyan_mixed_timing *one)
{
    banyan_mixed_mode usual = op_is_pair(one->op) ? BANYAN_MIXED_SEPARATE : BANYAN_MIXED_SINGLE;
    if (!mixed_is_host(mixed) || one->mode == usual)
        return one->ns;
    uint64_t doubt_ns = one->ns / HOST_DOUBT;
    return one->ns + (doubt_ns < HOST_DOUBT_MOST_NS ? doubt_ns : HOST_DOUBT_MOST_NS);
}

/* Choose among measurements [begin, end), of one operation and size. Modes that are not valid here
 * are skipped. */
static void choose_of_size(banyan_mixed *mixed, banyan_mixed_timing *timings, size_t begin,
                           size_t end)
{
    banyan_mixed_timing *best = NULL;
    char reason[MODE_REASON_BYTES];
    for (size_t i = begin; i < end; i++) {
        banyan_mixed_timing *one = &timings[i];
        one->is_best = false;
        if ((!best || rated_ns(mixed, one) < rated_ns(mixed, best)) &&
            mode_is_valid(mixed, one->op, one->mode, reason, sizeof reason))
            best = one;
    }
    if (!best)
        return;
    best->is_best = true;
    mixed_choices *choices = &mixed->choices[best->op];
    choices->data[choices->count++] = (mixed_choice){best->bytes, best->mode};
}

static size_t end_of_size(const banyan_mixed_timing *timings, size_t begin, size_t count)
{
    size_t end = begin;
    while (end < count && timings[end].op == timings[begin].op &&
           timings[end].bytes == timings[begin].bytes)
        end++;
    return end;
}

void autotune_choose(banyan_mixed *mixed)
{
    banyan_mixed_timing *timings = mixed->timings.data;
    size_t count = mixed->timings.count;
    for (int op = 0; op < BANYAN_MIXED_OPS; op++)
        mixed->choices[op].count = 0;
    for (size_t i = 0, end; i < count; i = end) {
        end = end_of_size(timings, i, count);
        choose_of_size(mixed, timings, i, end);
    }
}

/* Allocate new arrays beside the existing ones, which stay if memory runs out. */
static banyan_status autotune_take_room(banyan_mixed *mixed, size_t count)
{
    bool fits = array_reserve(&mixed->timings, count);
    for (int op = 0; op < BANYAN_MIXED_OPS && fits; op++)
        fits = array_reserve(&mixed->choices[op], count);
    return fits ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

banyan_status autotune_take(banyan_mixed *mixed, const banyan_mixed_timing *timings, size_t count)
{
    RETURN_IF_FAILED(control_agree(mixed->world, autotune_take_room(mixed, count)));
    if (count > 0)
        memcpy(mixed->timings.data, timings, count * sizeof *timings);
    mixed->timings.count = count;
    autotune_choose(mixed);
    return BANYAN_OK;
}

void autotune_free(banyan_mixed *mixed)
{
    array_free(&mixed->timings);
    for (int op = 0; op < BANYAN_MIXED_OPS; op++)
        array_free(&mixed->choices[op]);
}

banyan_status banyan_mixed_timing_at(const banyan_mixed *mixed, size_t index,
                                     banyan_mixed_timing *timing)
{
    RETURN_IF_NULL(mixed);
    RETURN_IF_NULL(timing);
    if (index >= mixed->timings.count)
        return error_set(BANYAN_ERR_NOT_FOUND, "there are %zu timings, and none has the number %zu",
                         mixed->timings.count, index);
    *timing = mixed->timings.data[index];
    return BANYAN_OK;
}

#define COLUMN_LEAST 12

static bool autotune_is_timed(const banyan_mixed *mixed, banyan_mixed_mode mode)
{
    for (size_t i = 0; i < mixed->timings.count; i++) {
        if (mixed->timings.data[i].mode == mode)
            return true;
    }
    return false;
}

/* Wide enough for the name, and for times. */
static int column_width(banyan_mixed_mode mode)
{
    int width = (int)strlen(banyan_mixed_mode_name(mode)) + 2;
    return width < COLUMN_LEAST ? COLUMN_LEAST : width;
}

static void print_head(const banyan_mixed *mixed, FILE *file)
{
    fprintf(file, "%-24s%12s", "µs", "bytes");
    for (int mode = 0; mode < BANYAN_MIXED_MODES; mode++) {
        if (autotune_is_timed(mixed, (banyan_mixed_mode)mode))
            fprintf(file, "%*s", column_width((banyan_mixed_mode)mode),
                    banyan_mixed_mode_name((banyan_mixed_mode)mode));
    }
    fputc('\n', file);
}

/* Print a star after the fastest mode. */
static void print_cell(const banyan_mixed_timing *row, size_t count, banyan_mixed_mode mode,
                       FILE *file)
{
    char text[32] = "-";
    for (size_t i = 0; i < count; i++) {
        if (row[i].mode == mode)
            snprintf(text, sizeof text, "%.1f%s", (double)row[i].ns / 1000,
                     row[i].is_best ? "*" : "");
    }
    fprintf(file, "%*s", column_width(mode), text);
}

banyan_status banyan_mixed_print_autotune(const banyan_mixed *mixed, FILE *file)
{
    RETURN_IF_NULL(mixed);
    RETURN_IF_NULL(file);
    size_t count = mixed->timings.count;
    if (count > 0)
        print_head(mixed, file);
    for (size_t i = 0, end; i < count; i = end) {
        const banyan_mixed_timing *row = &mixed->timings.data[i];
        end = end_of_size(mixed->timings.data, i, count);
        fprintf(file, "%-23s%12llu", banyan_mixed_op_name(row->op), (unsigned long long)row->bytes);
        for (int mode = 0; mode < BANYAN_MIXED_MODES; mode++) {
            if (autotune_is_timed(mixed, (banyan_mixed_mode)mode))
                print_cell(row, end - i, (banyan_mixed_mode)mode, file);
        }
        fputc('\n', file);
    }
    if (ferror(file) || fflush(file) != 0)
        return error_set_errno("the autotuned table cannot be written");
    return BANYAN_OK;
}
