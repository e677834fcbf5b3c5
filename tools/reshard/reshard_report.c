#include "reshard/reshard_job.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "cli/json_print.h"
#include "cli/out_file.h"
#include "cli/text.h"
#include "core/status.h"
#include "draw/svg.h"

static double gigabytes_per_s(const reshard_result *result)
{
    return (double)result->bytes / result->best_s / 1e9;
}

static double share_of_memcpy(const reshard_result *result)
{
    return (double)result->bytes / result->best_s / result->memcpy_bytes_per_s;
}

static void reshard_report_print_row(const reshard_result *result)
{
    char cell[TEXT_NUMBER_BYTES], text[TEXT_NUMBER_BYTES];
    printf("%9s", text_count(banyan_model_tensor_count(result->job->spec.model), text));
    printf("%12s", text_count(result->transfers, text));
    printf("%s", text_right(text_bytes(result->bytes, text), 12, cell));
    printf("%s", text_right(text_seconds(result->best_s, text), 12, cell));
    printf("%s", text_right(text_seconds(result->median_s, text), 12, cell));
    printf("%9.2f%9.0f %%\n\n", gigabytes_per_s(result), share_of_memcpy(result) * 100);
}

static void reshard_report_print_table(const reshard_result *result)
{
    const reshard_job *job = result->job;
    char title[JOB_SPEC_TITLE_BYTES], between[TEXT_NUMBER_BYTES], planned[TEXT_NUMBER_BYTES];
    char elems[TEXT_NUMBER_BYTES];
    printf("%s (%s, %s memory%s%s)\n\n", job_spec_title(&job->spec, title), result->backend,
           job->how.ordinary_memory ? "ordinary" : "symmetric", job->how.transform ? ", " : "",
           job->how.transform ? job->how.transform : "");
    printf("%9s%12s%12s%12s%12s%9s%11s\n", "tensors", "transfers", "bytes", "best", "median",
           "GB/s", "of memcpy");
    reshard_report_print_row(result);
    printf("%s of them between ranks, planned in %s; memcpy by %d ranks at once: %.2f GB/s\n",
           text_bytes(result->bytes_between, between), text_seconds(result->plan_s, planned),
           job->spec.ranks, result->memcpy_bytes_per_s / 1e9);
    printf("every one of %s destination elements is right\n", text_count(result->elems, elems));
}

static json_t *json_of(const reshard_result *result)
{
    const reshard_job *job = result->job;
    size_t ranks = (size_t)job->spec.ranks;
    json_t *iterations = json_array(), *pairs = json_array();
    for (int i = 0; i < job->iters; i++)
        json_array_append_new(iterations, json_real(result->iteration_s[i]));
    for (size_t i = 0; i < ranks * ranks; i++) {
        if (result->pair_bytes[i] > 0)
            json_array_append_new(pairs, json_pack("[I,I,I]", (json_int_t)(i / ranks),
                                                   (json_int_t)(i % ranks),
                                                   (json_int_t)result->pair_bytes[i]));
    }
    return json_pack(
        "{s:s?, s:s, s:s, s:b, s:i, s:s, s:s, s:s, s:b, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:o, "
        "s:f, s:f,"
        " s:f, s:I, s:o}",
        "model", job->spec.model_path, "from", job->spec.from_text, "to", job->spec.to_text,
        "disjoint", job->spec.disjoint, "ranks", job->spec.ranks, "backend", result->backend,
        "memory", job->how.ordinary_memory ? "ordinary" : "symmetric", "transform",
        job->how.transform ? job->how.transform : "none", "checksums", job->how.checksums,
        "tensors", (json_int_t)banyan_model_tensor_count(job->spec.model), "transfers",
        (json_int_t)result->transfers, "bytes", (json_int_t)result->bytes, "bytes_between_ranks",
        (json_int_t)result->bytes_between, "plan_seconds", result->plan_s, "best_seconds",
        result->best_s, "median_seconds", result->median_s, "iteration_seconds", iterations,
        "gb_per_s", gigabytes_per_s(result), "memcpy_gb_per_s", result->memcpy_bytes_per_s / 1e9,
        "share_of_memcpy", share_of_memcpy(result), "verified_elements", (json_int_t)result->elems,
        "pair_bytes", pairs);
}

static banyan_status write_picture(const reshard_result *result)
{
    const reshard_job *job = result->job;
    char name[256], caption[256], from[256], to[256], texts[3][TEXT_NUMBER_BYTES];
    snprintf(caption, sizeof caption,
             "%s tensors, %s in %s: %.2f GB/s, %.0f %% of this machine's memcpy",
             text_count(banyan_model_tensor_count(job->spec.model), texts[0]),
             text_bytes(result->bytes, texts[1]), text_seconds(result->best_s, texts[2]),
             gigabytes_per_s(result), share_of_memcpy(result) * 100);
    snprintf(from, sizeof from, "%s", job->spec.from_text);
    snprintf(to, sizeof to, "%s (%s)", job->spec.to_text,
             job->spec.disjoint ? "other ranks" : "the same ranks");
    svg_flows flows = {.title = job_spec_name(&job->spec, name),
                       .from = from,
                       .to = to,
                       .caption = caption,
                       .ranks = job->spec.ranks,
                       .bytes = result->pair_bytes};
    if (!svg_write(job->svg_path, &flows))
        return banyan_error_set(BANYAN_ERR_SYSTEM, "cannot write %s: %s", job->svg_path,
                                strerror(errno));
    return BANYAN_OK;
}

banyan_status reshard_report(const reshard_result *result)
{
    if (result->job->svg_path)
        RETURN_IF_FAILED(write_picture(result));
    if (result->job->json)
        RETURN_IF_FAILED(json_print(json_of(result)));
    else
        reshard_report_print_table(result);
    if (!out_file_flush_stdout())
        return banyan_error_set(BANYAN_ERR_SYSTEM, "cannot write to stdout: %s", strerror(errno));
    return BANYAN_OK;
}
