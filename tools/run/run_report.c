#include <inttypes.h>
#include <stdio.h>

#include <jansson.h>

#include "cli/files.h"
#include "cli/message.h"
#include "cli/text.h"
#include "run/run_job.h"

static double algorithm_gb_per_s(const run_size *size)
{
    return size->seconds > 0 ? (double)size->bytes / size->seconds / 1e9 : 0;
}

static uint64_t run_report_elems_of(const run_job *job, const run_size *size)
{
    return size->bytes / job->data.elem_bytes;
}

void run_report_head(const run_job *job)
{
    const banyan_plan_info *info = &job->info;
    char cell[TEXT_NUMBER_BYTES];
    printf("%s: %s, %d %s%s, %s, %s%s memory\n\n", info->name, info->collective_name, info->ranks,
           job->on_gpus ? "GPU" : "rank", info->ranks == 1 ? "" : "s", job->dtype_name,
           job->in_place ? "in place, " : "", job->ordinary_memory ? "ordinary" : "symmetric");
    printf("%16s%16s%12s%10s%10s%12s\n", "bytes", "elements", "time", "algbw", "busbw", "wrong");
    printf("%32s%s%10s%10s%12s\n", "", text_right("µs", 12, cell), "GB/s", "GB/s", "elements");
    fflush(stdout);
}

void run_report_size(const run_job *job, const run_size *size)
{
    char text[TEXT_NUMBER_BYTES];
    double algbw = algorithm_gb_per_s(size);
    printf("%c%15s", size->in_bounds ? ' ' : '~', text_count(size->bytes, text));
    printf("%16s", text_count(run_report_elems_of(job, size), text));
    printf("%12.2f%10.3f%10.3f", size->seconds * 1e6, algbw,
           algbw * message_bus_factor(&job->info));
    printf("%12s\n", job->data.said ? text_count(size->wrong, text) : "-");
    fflush(stdout);
}

static void explain_bounds(const run_job *job)
{
    char low[TEXT_NUMBER_BYTES], high[TEXT_NUMBER_BYTES];
    bool outside = false;
    for (size_t i = 0; i < job->size_count; i++)
        outside = outside || !job->sizes[i].in_bounds;
    if (!outside)
        return;
    text_count(job->info.min_message_bytes, low);
    if (job->info.max_message_bytes == UINT64_MAX)
        printf("~: shorter than the %s bytes that the plan is meant for\n", low);
    else
        printf("~: outside the %s to %s bytes that the plan is meant for\n", low,
               text_count(job->info.max_message_bytes, high));
}

void run_report_end(const run_job *job)
{
    uint64_t checked = 0;
    for (size_t i = 0; i < job->size_count; i++)
        checked += job->sizes[i].checked;
    char text[TEXT_NUMBER_BYTES];
    bool wrong = false;
    for (size_t i = 0; i < job->size_count; i++)
        wrong = wrong || job->sizes[i].wrong > 0;
    printf("\n");
    explain_bounds(job);
    if (!job->data.said)
        printf("nothing was checked: the plan's collective \"%s\" does not say what its outputs "
               "must hold\n",
               job->info.collective_name);
    else if (!wrong)
        printf("%s output elements were checked in two runs of each size: all are right\n",
               text_count(checked, text));
}

const char *run_report_wrong(const run_job *job, const run_size *size, char text[RUN_WRONG_BYTES])
{
    char found[RUN_DATA_TEXT_BYTES], expected[RUN_DATA_TEXT_BYTES];
    char index[TEXT_NUMBER_BYTES], bytes[TEXT_NUMBER_BYTES], count[TEXT_NUMBER_BYTES];
    snprintf(text, RUN_WRONG_BYTES,
             "rank %d: element %s of the output is %s, not %s, at %s bytes in the %s checked run: "
             "the first of %s wrong elements",
             size->wrong_rank, text_count(size->first.first, index),
             run_data_text(&job->data, size->first.found, found),
             run_data_text(&job->data, size->first.expected, expected),
             text_count(size->bytes, bytes), size->wrong_turn == 0 ? "first" : "second",
             text_count(size->wrong, count));
    return text;
}

static json_t *wrong_json(const run_job *job, const run_size *size)
{
    char found[RUN_DATA_TEXT_BYTES], expected[RUN_DATA_TEXT_BYTES];
    if (size->wrong == 0)
        return json_null();
    return json_pack("{s:i, s:I, s:s, s:s}", "rank", size->wrong_rank, "index",
                     (json_int_t)size->first.first, "expected",
                     run_data_text(&job->data, size->first.expected, expected), "found",
                     run_data_text(&job->data, size->first.found, found));
}

static json_t *size_json(const run_job *job, const run_size *size)
{
    double algbw = algorithm_gb_per_s(size);
    json_t *wrong = job->data.said ? json_integer((json_int_t)size->wrong) : json_null();
    return json_pack(
        "{s:I, s:I, s:I, s:b, s:i, s:f, s:f, s:f, s:I, s:o, s:o}", "bytes", (json_int_t)size->bytes,
        "message_bytes", (json_int_t)size->message_bytes, "elements",
        (json_int_t)run_report_elems_of(job, size), "in_bounds", (int)size->in_bounds, "iterations",
        size->iters, "seconds", size->seconds, "algorithm_gb_per_s", algbw, "bus_gb_per_s",
        algbw * message_bus_factor(&job->info), "checked_elements", (json_int_t)size->checked,
        "wrong_elements", wrong, "first_wrong", wrong_json(job, size));
}

banyan_status run_report_json(const run_job *job)
{
    const banyan_plan_info *info = &job->info;
    json_t *sizes = json_array();
    for (size_t i = 0; i < job->size_count; i++)
        json_array_append_new(sizes, size_json(job, &job->sizes[i]));
    json_t *object =
        json_pack("{s:s, s:s, s:s, s:i, s:s, s:s, s:b, s:s, s:i, s:b, s:o}", "plan", job->path,
                  "name", info->name, "collective", info->collective_name, "ranks", info->ranks,
                  "device", job->on_gpus ? "cuda" : "host", "dtype", job->dtype_name, "in_place",
                  (int)job->in_place, "memory", job->ordinary_memory ? "ordinary" : "symmetric",
                  "workers", job->workers, "checked", (int)job->data.said, "sizes", sizes);
    return json_print(object);
}
