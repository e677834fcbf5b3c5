#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "cli/files.h"
#include "cli/text.h"
#include "mixed/mixed_job.h"

uint64_t mixed_job_bytes(const mixed_job *job, const mixed_size *size)
{
    return size->rows * job->hidden * banyan_dtype_bytes(job->options.dtype);
}

bool mixed_job_is_tuned(const mixed_job *job)
{
    return job->sizes[0].is_tuned;
}

static bool mixed_report_is_run(const mixed_job *job, banyan_mixed_op op, banyan_mixed_mode mode)
{
    for (size_t s = 0; s < job->size_count; s++) {
        if (job->sizes[s].cells[op][mode].done)
            return true;
    }
    return false;
}

static bool op_is_run(const mixed_job *job, banyan_mixed_op op)
{
    for (int mode = 0; mode < BANYAN_MIXED_MODES; mode++) {
        if (mixed_report_is_run(job, op, (banyan_mixed_mode)mode))
            return true;
    }
    return false;
}

#define COLUMN_LEAST 12

static int column_of(banyan_mixed_mode mode)
{
    int width = (int)strlen(banyan_mixed_mode_name(mode)) + 3;
    return width < COLUMN_LEAST ? COLUMN_LEAST : width;
}

/* The fastest mode of a size, or BANYAN_MIXED_MODES if fewer than two were run. */
static int fastest_of(const mixed_size *size, banyan_mixed_op op)
{
    int fastest = BANYAN_MIXED_MODES, run = 0;
    for (int mode = 0; mode < BANYAN_MIXED_MODES; mode++) {
        const mixed_cell *cells = size->cells[op];
        if (!cells[mode].done)
            continue;
        if (run++ == 0 || cells[mode].ns < cells[fastest].ns)
            fastest = mode;
    }
    return run > 1 ? fastest : BANYAN_MIXED_MODES;
}

/* True for the chosen mode when another one is fastest. */
static bool is_chosen_instead(const mixed_size *size, banyan_mixed_op op, int mode)
{
    int fastest = fastest_of(size, op);
    return fastest < BANYAN_MIXED_MODES && fastest != mode && (int)size->chosen[op] == mode &&
           size->cells[op][mode].ns > size->cells[op][fastest].ns;
}

static void print_size(const mixed_job *job, const mixed_size *size, banyan_mixed_op op)
{
    char text[TEXT_NUMBER_BYTES];
    printf("%10s", text_count(size->rows, text));
    printf("%12s", text_bytes(mixed_job_bytes(job, size), text));
    for (int mode = 0; mode < BANYAN_MIXED_MODES; mode++) {
        const mixed_cell *cell = &size->cells[op][mode];
        int width = column_of((banyan_mixed_mode)mode);
        if (!mixed_report_is_run(job, op, (banyan_mixed_mode)mode))
            continue;
        if (!cell->done)
            printf("%*s ", width - 1, "-");
        else
            printf("%*.2f%c", width - 1, (double)cell->ns / 1000,
                   fastest_of(size, op) == mode        ? '*'
                   : is_chosen_instead(size, op, mode) ? '+'
                                                       : ' ');
    }
    printf("\n");
}

static void print_op(const mixed_job *job, banyan_mixed_op op)
{
    printf("\n%s, µs\n%10s%12s", banyan_mixed_op_name(op), "rows", "bytes");
    for (int mode = 0; mode < BANYAN_MIXED_MODES; mode++) {
        if (mixed_report_is_run(job, op, (banyan_mixed_mode)mode))
            printf("%*s ", column_of((banyan_mixed_mode)mode) - 1,
                   banyan_mixed_mode_name((banyan_mixed_mode)mode));
    }
    printf("\n");
    for (size_t s = 0; s < job->size_count; s++)
        print_size(job, &job->sizes[s], op);
}

/* Explain the marks that the tables have. */
static void print_legend(const mixed_job *job)
{
    bool starred = false, plus = false;
    for (size_t s = 0; s < job->size_count; s++) {
        const mixed_size *size = &job->sizes[s];
        for (banyan_mixed_op op = 0; op < BANYAN_MIXED_OPS; op++) {
            starred |= fastest_of(size, op) < BANYAN_MIXED_MODES;
            plus |= is_chosen_instead(size, op, (int)size->chosen[op]);
        }
    }
    if (starred)
        printf("*: the fastest mode of the line\n");
    if (plus)
        printf("+: the mode that %s chose instead\n",
               mixed_job_is_tuned(job) ? "autotuning" : "the default");
}

static uint64_t mixed_report_sum_of_checked(const mixed_job *job)
{
    uint64_t sum = 0;
    for (size_t s = 0; s < job->size_count; s++) {
        for (int op = 0; op < BANYAN_MIXED_OPS; op++) {
            for (int mode = 0; mode < BANYAN_MIXED_MODES; mode++)
                sum += job->sizes[s].cells[op][mode].checked;
        }
    }
    return sum;
}

void mixed_report(const mixed_job *job)
{
    char text[MIXED_WRONG_BYTES], count[TEXT_NUMBER_BYTES];
    printf("%d %s, rows of %" PRIu64 " %s\n", job->ranks, job->on_gpus ? "GPUs" : "ranks",
           job->hidden, banyan_dtype_name(job->options.dtype));
    for (int op = 0; op < BANYAN_MIXED_OPS; op++) {
        if (op_is_run(job, (banyan_mixed_op)op))
            print_op(job, (banyan_mixed_op)op);
    }
    printf("\n");
    print_legend(job);
    if (!mixed_report_wrong(job, text))
        printf("%s output elements were checked: all are right\n",
               text_count(mixed_report_sum_of_checked(job), count));
}

static const char *mixed_report_format(const mixed_job *job, const mixed_size *size,
                                       banyan_mixed_op op, banyan_mixed_mode mode,
                                       char text[MIXED_WRONG_BYTES])
{
    const mixed_cell *cell = &size->cells[op][mode];
    char index[TEXT_NUMBER_BYTES], count[TEXT_NUMBER_BYTES], checked[TEXT_NUMBER_BYTES];
    snprintf(text, MIXED_WRONG_BYTES,
             "rank %d: element %s of the output of %s in mode %s is %g, not %g, with %" PRIu64
             " rows of %" PRIu64 ": the first of %s wrong elements of %s",
             cell->wrong_rank, text_count(cell->wrong_index, index), banyan_mixed_op_name(op),
             banyan_mixed_mode_name(mode), cell->wrong_found, cell->wrong_expected, size->rows,
             job->hidden, text_count(cell->wrong, count), text_count(cell->checked, checked));
    return text;
}

const char *mixed_report_wrong(const mixed_job *job, char text[MIXED_WRONG_BYTES])
{
    for (size_t s = 0; s < job->size_count; s++) {
        for (int op = 0; op < BANYAN_MIXED_OPS; op++) {
            for (int mode = 0; mode < BANYAN_MIXED_MODES; mode++) {
                if (job->sizes[s].cells[op][mode].wrong > 0)
                    return mixed_report_format(job, &job->sizes[s], (banyan_mixed_op)op,
                                               (banyan_mixed_mode)mode, text);
            }
        }
    }
    return NULL;
}

static json_t *cell_json(const mixed_job *job, const mixed_size *size, banyan_mixed_op op,
                         banyan_mixed_mode mode)
{
    const mixed_cell *cell = &size->cells[op][mode];
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:b, s:b, s:I, s:I}", "op",
                     banyan_mixed_op_name(op), "mode", banyan_mixed_mode_name(mode), "rows",
                     (json_int_t)size->rows, "bytes", (json_int_t)mixed_job_bytes(job, size), "ns",
                     (json_int_t)cell->ns, "chosen", (int)(size->chosen[op] == mode), "fastest",
                     (int)(fastest_of(size, op) == (int)mode), "checked_elements",
                     (json_int_t)cell->checked, "wrong_elements", (json_int_t)cell->wrong);
}

static void add_cells(const mixed_job *job, const mixed_size *size, json_t *rows)
{
    for (int op = 0; op < BANYAN_MIXED_OPS; op++) {
        for (int mode = 0; mode < BANYAN_MIXED_MODES; mode++) {
            if (size->cells[op][mode].done)
                json_array_append_new(
                    rows, cell_json(job, size, (banyan_mixed_op)op, (banyan_mixed_mode)mode));
        }
    }
}

banyan_status mixed_report_json(const mixed_job *job)
{
    const banyan_mixed_options *options = &job->options;
    json_t *rows = json_array();
    for (size_t s = 0; s < job->size_count; s++)
        add_cells(job, &job->sizes[s], rows);
    json_t *object =
        json_pack("{s:i, s:s, s:i, s:i, s:i, s:i, s:i, s:I, s:s, s:o}", "ranks", job->ranks,
                  "device", job->on_gpus ? "cuda" : "host", "local_tp", options->local_tp,
                  "local_dp", options->local_dp, "inter_tp", options->inter_tp, "inter_dp",
                  options->inter_dp, "nodes", options->nodes, "hidden", (json_int_t)job->hidden,
                  "dtype", banyan_dtype_name(options->dtype), "measurements", rows);
    return json_print(object);
}
