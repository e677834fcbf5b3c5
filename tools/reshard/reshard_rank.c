#include "reshard/reshard_job.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/clock.h"
#include "cli/files.h"
#include "cli/progress.h"
#include "cli/text.h"
#include "core/status.h"
#include "draw/svg.h"
#include "reshard/pattern.h"
#include "run/measure.h"

/* Bytes that each rank copies to measure memcpy's speed: as many as it receives, within these
 * limits. */
#define MEMCPY_LEAST ((uint64_t)4 << 20)
#define MEMCPY_MOST ((uint64_t)64 << 20)
/* State of a rank; zeroed at first, and always released. */
struct run {
    const reshard_job *job;
    move move;
    interval *runs;
    double *seconds;      /* of each iteration */
    uint64_t *pair_bytes; /* [sender × ranks + receiver] */
    uint64_t elems;       /* of this rank's destination, each verified */
    double best_s, median_s, memcpy_bytes_per_s;
    /* Over all ranks. */
    uint64_t transfers, bytes;
    uint64_t bytes_between, bytes_network; /* of them, to another rank, and to another node */
    uint64_t all_elems;
};

static uint64_t reshard_rank_piece_bytes(const banyan_piece *piece, const banyan_tensors *tensors)
{
    const DLTensor *tensor = banyan_tensors_get(tensors, (size_t)piece->tensor);
    return banyan_box_elems(&piece->box) * banyan_dtype_bytes(tensor->dtype);
}

static void fill_source(struct run *run)
{
    progress bar;
    progress_begin(&bar, run->move.rank == 0, "filling", banyan_layout_bytes(run->move.source),
                   true);
    for (size_t i = 0; i < banyan_layout_piece_count(run->move.source); i++) {
        const banyan_piece *piece = banyan_layout_piece(run->move.source, i);
        pattern_fill(piece, banyan_tensors_get(run->move.source_tensors, (size_t)piece->tensor));
        progress_add(&bar, reshard_rank_piece_bytes(piece, run->move.source_tensors));
    }
    progress_end(&bar);
}

static banyan_status reshard_rank_wrong(const struct run *run, const char *what, const char *name,
                                        const pattern_result *result)
{
    return banyan_error_set(BANYAN_ERR_CORRUPT,
                            "rank %d: %llu %s%s are wrong, the first at element %llu",
                            run->move.rank, (unsigned long long)result->wrong, what, name,
                            (unsigned long long)result->first_wrong);
}

static banyan_status verify_padding(struct run *run)
{
    for (size_t i = 0; i < banyan_layout_padding_count(run->move.destination); i++) {
        int tensor;
        const banyan_box *box = banyan_layout_padding(run->move.destination, i, &tensor);
        pattern_result result =
            pattern_check_fill(box, banyan_layout_padding_fill(run->move.destination, i),
                               banyan_tensors_get(run->move.destination_tensors, (size_t)tensor));
        if (result.wrong > 0)
            return reshard_rank_wrong(
                run, "elements of the padding of ",
                banyan_layout_tensor(run->move.destination, (size_t)tensor)->name, &result);
    }
    return BANYAN_OK;
}

static bool is_transformed(const struct run *run, size_t tensor)
{
    return tensor < run->move.target.count && run->move.target.scales[tensor].data;
}

/* List a transfer for each piece of the destination, which has the piece's sent type; to be freed.
 */
static const banyan_transfer **sent_transfers(const struct run *run)
{
    const banyan_transfer **sent =
        calloc(banyan_layout_piece_count(run->move.destination) + 1, sizeof *sent);
    size_t count = sent ? banyan_reshard_plan_recv_count(run->move.plan) : 0;
    for (size_t i = 0; i < count; i++) {
        const banyan_transfer *transfer = banyan_reshard_plan_recv(run->move.plan, i);
        sent[transfer->destination_piece] = transfer;
    }
    return sent;
}

/* Verify a piece; its values show which of its two names it was filled by: its own, or the
 * fallback. */
static banyan_status verify_piece(struct run *run, const banyan_piece *piece,
                                  const banyan_transfer *sent)
{
    const DLTensor *tensor =
        banyan_tensors_get(run->move.destination_tensors, (size_t)piece->tensor);
    const char *names[] = {piece->name, piece->fallback_name};
    pattern_result result = {0}, own = {0};
    for (int i = 0; i < 2 && names[i]; i++) {
        banyan_piece filled = *piece;
        filled.name = names[i];
        if (!sent ||
            (banyan_dtype_equal(sent->origin_dtype, tensor->dtype) && sent->origin_map == 0))
            result = pattern_check(&filled, tensor);
        else
            RETURN_IF_FAILED(cast_check(&filled, sent, tensor, &result));
        if (result.wrong == 0)
            return BANYAN_OK;
        own = i == 0 ? result : own;
    }
    return reshard_rank_wrong(run, "elements of ", piece->name, &own);
}

static banyan_status verify_pieces(struct run *run, progress *bar)
{
    const banyan_transfer **sent = sent_transfers(run);
    banyan_status status = sent ? BANYAN_OK : pattern_no_memory(sizeof *sent);
    size_t count = banyan_layout_piece_count(run->move.destination);
    for (size_t i = 0; i < count && status == BANYAN_OK; i++) {
        const banyan_piece *piece = banyan_layout_piece(run->move.destination, i);
        run->elems += banyan_box_elems(&piece->box);
        if (is_transformed(run, (size_t)piece->tensor))
            continue;
        status = verify_piece(run, piece, sent[i]);
        progress_add(bar, reshard_rank_piece_bytes(piece, run->move.destination_tensors));
    }
    free(sent);
    return status;
}

static banyan_status verify_transformed(struct run *run, progress *bar)
{
    for (size_t i = 0; i < run->move.target.count; i++) {
        const DLTensor *received = banyan_tensors_get(run->move.destination_tensors, i);
        pattern_result result;
        if (!is_transformed(run, i))
            continue;
        RETURN_IF_FAILED(
            mxfp8_target_check(&run->move.target, run->move.plain, received, i, &result));
        if (result.wrong > 0)
            return reshard_rank_wrong(run, "blocks of ",
                                      banyan_layout_tensor(run->move.plain, i)->name, &result);
        progress_add(bar, move_tensor_bytes(received));
    }
    return BANYAN_OK;
}

static banyan_status reshard_rank_verify(struct run *run)
{
    progress bar;
    progress_begin(&bar, run->move.rank == 0, "verifying",
                   banyan_layout_bytes(run->move.destination), true);
    banyan_status status = verify_pieces(run, &bar);
    if (status == BANYAN_OK)
        status = verify_transformed(run, &bar);
    if (status == BANYAN_OK)
        status = verify_padding(run);
    progress_end(&bar);
    return status;
}

static int reshard_rank_ascending(const void *a, const void *b)
{
    double first = *(const double *)a, second = *(const double *)b;
    return (first > second) - (first < second);
}

static banyan_status reshard_rank_iterate(struct run *run)
{
    size_t iters = (size_t)run->job->iters;
    run->runs = calloc(iters, sizeof *run->runs);
    run->seconds = calloc(2 * iters, sizeof *run->seconds);
    if (!run->runs || !run->seconds)
        return pattern_no_memory(iters * sizeof *run->runs);
    progress bar;
    progress_begin(&bar, run->move.rank == 0, "moving", iters, false);
    banyan_status status = BANYAN_OK;
    for (size_t i = 0; i < iters && status == BANYAN_OK; i++) {
        /* Verify the result of a later run, by the schedule that the first one kept. */
        if (i > 0 && i + 1 == iters)
            move_poison(&run->move);
        status = banyan_world_barrier(run->move.world);
        run->runs[i].began = clock_now_s();
        if (status == BANYAN_OK)
            status = move_execute(&run->move);
        run->runs[i].ended = clock_now_s();
        progress_add(&bar, 1);
    }
    progress_end(&bar);
    RETURN_IF_FAILED(status);
    RETURN_IF_FAILED(measure_durations(run->move.world, run->runs, iters, run->seconds));
    double *sorted = run->seconds + iters;
    memcpy(sorted, run->seconds, iters * sizeof *sorted);
    qsort(sorted, iters, sizeof *sorted, reshard_rank_ascending);
    run->best_s = sorted[0];
    run->median_s = (sorted[(iters - 1) / 2] + sorted[iters / 2]) / 2;
    return BANYAN_OK;
}

/* The receives of one rank: this, then `partners` pairs of a sender and the bytes from it. */
struct received {
    uint64_t transfers, elems, partners;
};

/* `*words` is to be freed. */
static banyan_status describe_received(const struct run *run, uint64_t **words, size_t *bytes)
{
    size_t ranks = (size_t)run->job->spec.ranks;
    size_t count = banyan_reshard_plan_recv_count(run->move.plan);
    uint64_t *from = calloc(ranks, sizeof *from);
    size_t most = sizeof(struct received) + 2 * (ranks < count ? ranks : count) * sizeof **words;
    unsigned char *text = malloc(most);
    if (!from || !text) {
        free(from);
        free(text);
        return pattern_no_memory(most);
    }
    for (size_t i = 0; i < count; i++) {
        const banyan_transfer *transfer = banyan_reshard_plan_recv(run->move.plan, i);
        from[transfer->source_rank] += transfer->bytes;
    }
    struct received received = {count, run->elems, 0};
    uint64_t *pairs = (uint64_t *)(text + sizeof received);
    for (size_t rank = 0; rank < ranks; rank++) {
        if (from[rank] == 0)
            continue;
        pairs[2 * received.partners] = rank;
        pairs[2 * received.partners + 1] = from[rank];
        received.partners++;
    }
    memcpy(text, &received, sizeof received);
    free(from);
    *words = (uint64_t *)text;
    *bytes = sizeof received + 2 * received.partners * sizeof *pairs;
    return BANYAN_OK;
}

static void add_received(struct run *run, size_t to, const uint64_t *words)
{
    size_t ranks = (size_t)run->job->spec.ranks;
    struct received received;
    memcpy(&received, words, sizeof received);
    const uint64_t *pairs = words + sizeof received / sizeof *words;
    for (uint64_t i = 0; i < received.partners; i++) {
        size_t from = (size_t)pairs[2 * i];
        uint64_t bytes = pairs[2 * i + 1];
        run->pair_bytes[from * ranks + to] = bytes;
        run->bytes += bytes;
        run->bytes_between += from != to ? bytes : 0;
        run->bytes_network += banyan_world_node_of(run->move.world, (int)from) !=
                                      banyan_world_node_of(run->move.world, (int)to)
                                  ? bytes
                                  : 0;
    }
    run->transfers += received.transfers;
    run->all_elems += received.elems;
}

/* Gather results; only the reporting rank keeps the bytes between any two. */
static banyan_status reshard_rank_gather(struct run *run, int rank)
{
    size_t ranks = (size_t)run->job->spec.ranks, bytes = 0;
    uint64_t *mine = NULL;
    void *all = NULL;
    size_t *all_bytes = calloc(ranks, sizeof *all_bytes);
    run->pair_bytes = rank == 0 ? calloc(ranks * ranks, sizeof *run->pair_bytes) : NULL;
    banyan_status status =
        all_bytes && (rank != 0 || run->pair_bytes) ? BANYAN_OK : pattern_no_memory(ranks * ranks);
    if (status == BANYAN_OK)
        status = describe_received(run, &mine, &bytes);
    if (status == BANYAN_OK)
        status = banyan_world_allgatherv(run->move.world, mine, bytes, &all, all_bytes);
    size_t at = 0;
    for (size_t to = 0; to < ranks && status == BANYAN_OK && rank == 0; to++) {
        add_received(run, to, (const uint64_t *)((const unsigned char *)all + at));
        at += all_bytes[to];
    }
    free(all);
    free(all_bytes);
    free(mine);
    return status;
}

static double gigabytes_per_s(const struct run *run)
{
    return (double)run->bytes / run->best_s / 1e9;
}

static double share_of_memcpy(const struct run *run)
{
    return (double)run->bytes / run->best_s / run->memcpy_bytes_per_s;
}

static void reshard_report_print_row(const struct run *run)
{
    char cell[TEXT_NUMBER_BYTES], text[TEXT_NUMBER_BYTES];
    printf("%9s", text_count(banyan_model_tensor_count(run->job->spec.model), text));
    printf("%12s", text_count(run->transfers, text));
    printf("%s", text_right(text_bytes(run->bytes, text), 12, cell));
    printf("%s", text_right(text_seconds(run->best_s, text), 12, cell));
    printf("%s", text_right(text_seconds(run->median_s, text), 12, cell));
    printf("%9.2f%9.0f %%\n\n", gigabytes_per_s(run), share_of_memcpy(run) * 100);
}

static void reshard_report_print_table(const struct run *run)
{
    const reshard_job *job = run->job;
    char title[JOB_SPEC_TITLE_BYTES], between[TEXT_NUMBER_BYTES], planned[TEXT_NUMBER_BYTES];
    char elems[TEXT_NUMBER_BYTES];
    printf("%s (%s, %s memory%s%s)\n\n", job_spec_title(&job->spec, title),
           banyan_copy_service_name(run->move.service),
           job->how.ordinary_memory ? "ordinary" : "symmetric", job->how.transform ? ", " : "",
           job->how.transform ? job->how.transform : "");
    printf("%9s%12s%12s%12s%12s%9s%11s\n", "tensors", "transfers", "bytes", "best", "median",
           "GB/s", "of memcpy");
    reshard_report_print_row(run);
    printf("%s of them between ranks, planned in %s; memcpy by %d ranks at once: %.2f GB/s\n",
           text_bytes(run->bytes_between, between), text_seconds(run->move.plan_s, planned),
           job->spec.ranks, run->memcpy_bytes_per_s / 1e9);
    if (banyan_world_node_count(run->move.world) > 1)
        printf("%s cross the network between %d nodes\n", text_bytes(run->bytes_network, between),
               banyan_world_node_count(run->move.world));
    printf("every one of %s destination elements is right\n", text_count(run->all_elems, elems));
}

static json_t *json_of(const struct run *run)
{
    const reshard_job *job = run->job;
    size_t ranks = (size_t)job->spec.ranks;
    json_t *iterations = json_array(), *pairs = json_array();
    for (int i = 0; i < job->iters; i++)
        json_array_append_new(iterations, json_real(run->seconds[i]));
    for (size_t i = 0; i < ranks * ranks; i++) {
        if (run->pair_bytes[i] > 0)
            json_array_append_new(pairs, json_pack("[I,I,I]", (json_int_t)(i / ranks),
                                                   (json_int_t)(i % ranks),
                                                   (json_int_t)run->pair_bytes[i]));
    }
    return json_pack(
        "{s:s?, s:s, s:s, s:b, s:i, s:s, s:s, s:s, s:b, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, "
        "s:o, "
        "s:f, s:f,"
        " s:f, s:I, s:o}",
        "model", job->spec.model_path, "from", job->spec.from_text, "to", job->spec.to_text,
        "disjoint", job->spec.disjoint, "ranks", job->spec.ranks, "backend",
        banyan_copy_service_name(run->move.service), "memory",
        job->how.ordinary_memory ? "ordinary" : "symmetric", "transform",
        job->how.transform ? job->how.transform : "none", "checksums", job->how.checksums,
        "tensors", (json_int_t)banyan_model_tensor_count(job->spec.model), "transfers",
        (json_int_t)run->transfers, "bytes", (json_int_t)run->bytes, "bytes_between_ranks",
        (json_int_t)run->bytes_between, "bytes_between_nodes", (json_int_t)run->bytes_network,
        "plan_seconds", run->move.plan_s, "best_seconds", run->best_s, "median_seconds",
        run->median_s, "iteration_seconds", iterations, "gb_per_s", gigabytes_per_s(run),
        "memcpy_gb_per_s", run->memcpy_bytes_per_s / 1e9, "share_of_memcpy", share_of_memcpy(run),
        "verified_elements", (json_int_t)run->all_elems, "pair_bytes", pairs);
}

static banyan_status write_picture(const struct run *run)
{
    const reshard_job *job = run->job;
    char name[256], caption[256], from[256], to[256], texts[3][TEXT_NUMBER_BYTES];
    snprintf(caption, sizeof caption,
             "%s tensors, %s in %s: %.2f GB/s, %.0f %% of this machine's memcpy",
             text_count(banyan_model_tensor_count(job->spec.model), texts[0]),
             text_bytes(run->bytes, texts[1]), text_seconds(run->best_s, texts[2]),
             gigabytes_per_s(run), share_of_memcpy(run) * 100);
    snprintf(from, sizeof from, "%s", job->spec.from_text);
    snprintf(to, sizeof to, "%s (%s)", job->spec.to_text,
             job->spec.disjoint ? "other ranks" : "the same ranks");
    svg_flows flows = {.title = job_spec_name(&job->spec, name),
                       .from = from,
                       .to = to,
                       .caption = caption,
                       .ranks = job->spec.ranks,
                       .bytes = run->pair_bytes};
    if (!svg_write(job->svg_path, &flows))
        return banyan_error_set(BANYAN_ERR_SYSTEM, "cannot write %s: %s", job->svg_path,
                                strerror(errno));
    return BANYAN_OK;
}

static banyan_status reshard_report(const struct run *run)
{
    if (run->job->svg_path)
        RETURN_IF_FAILED(write_picture(run));
    if (run->job->json)
        RETURN_IF_FAILED(json_print(json_of(run)));
    else
        reshard_report_print_table(run);
    if (!run->job->json)
        RETURN_IF_FAILED(job_spec_print_left_out(&run->job->spec));
    if (!out_file_flush_stdout())
        return banyan_error_set(BANYAN_ERR_SYSTEM, "cannot write to stdout: %s", strerror(errno));
    return BANYAN_OK;
}

/* Return the bytes, equal on all ranks. */
static size_t memcpy_bytes(const reshard_job *job)
{
    uint64_t received = banyan_model_bytes(job->spec.model) / (uint64_t)job->spec.to_ranks;
    received = received > MEMCPY_LEAST ? received : MEMCPY_LEAST;
    return received < MEMCPY_MOST ? received : MEMCPY_MOST;
}

static banyan_status reshard_rank_run_all(struct run *run, int rank)
{
    RETURN_IF_FAILED(move_prepare(&run->job->spec, &run->job->how, rank, &run->move));
    fill_source(run);
    move_poison(&run->move);
    RETURN_IF_FAILED(
        memcpy_limit_measure(run->move.world, memcpy_bytes(run->job), &run->memcpy_bytes_per_s));
    RETURN_IF_FAILED(reshard_rank_iterate(run));
    RETURN_IF_FAILED(reshard_rank_verify(run));
    RETURN_IF_FAILED(reshard_rank_gather(run, rank));
    if (rank == 0)
        RETURN_IF_FAILED(reshard_report(run));
    return banyan_world_barrier(run->move.world);
}

int reshard_rank(int rank, void *context)
{
    const reshard_job *job = context;
    struct run run = {.job = job};
    banyan_status status = reshard_rank_run_all(&run, rank);
    free(run.runs);
    free(run.seconds);
    free(run.pair_bytes);
    return move_end(&run.move, status, job->failed);
}
