#include "reshard_job.h"

#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "memcpy_limit.h"
#include "mxfp8_target.h"
#include "pattern.h"
#include "progress.h"
#include "span.h"
#include "try.h"

/* What each rank copies to measure memcpy's speed: more than caches hold, little enough for many
 * ranks. */
#define MEMCPY_BYTES ((size_t)32 << 20)
/* What a destination holds before a run: nothing that could be right. */
#define POISON 0xa5

/* What a rank has in hand; zeroed at first, and given back whatever happens. */
struct run {
    const reshard_job *job;
    int rank;
    banyan_world *world;
    banyan_layout *source, *plain; /* plain: the destination without a transform */
    const banyan_layout *destination;
    mxfp8_target target; /* what makes it another; zeroed: none */
    banyan_reshard_plan *plan;
    banyan_copy_service *service;
    banyan_tensors *source_tensors, *destination_tensors;
    span *spans;
    double *seconds; /* of each iteration */
    uint64_t *pair_bytes;
    uint64_t elems;
    reshard_result result;
};

static banyan_status no_memory(size_t bytes)
{
    return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory: %zu bytes", bytes);
}

/* ---- planning ---- */

/* A rank that has no part of a side has an empty layout of it. */
static banyan_status make_layouts(struct run *run)
{
    TRY(banyan_layout_create(&run->source));
    TRY(banyan_layout_create(&run->plain));
    job_spec_layouts(&run->job->spec, run->rank, run->source, run->plain);
    run->destination = run->plain;
    if (strcmp(run->job->transform, "none") == 0)
        return BANYAN_OK;
    bool at_sender = strcmp(run->job->transform, "mxfp8-at-sender") == 0;
    TRY(mxfp8_target_create(run->plain, at_sender, &run->target));
    run->destination = run->target.layout;
    return BANYAN_OK;
}

static banyan_status make_plan(struct run *run)
{
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    options.checksums = run->job->checksums;
    TRY(make_layouts(run));
    options.transform = run->target.transform;
    TRY(banyan_world_barrier(run->world));
    span planning = {.began = clock_now_s()};
    TRY(banyan_reshard_plan_create(run->source, run->destination, run->world, &options,
                                   &run->plan));
    planning.ended = clock_now_s();
    TRY(span_of_all(run->world, &planning, 1, &run->result.plan_s));
    TRY(banyan_copy_service_open(run->world, run->job->backend, NULL, &run->service));
    run->result.backend = banyan_copy_service_name(run->service);
    return BANYAN_OK;
}

/* ---- data ---- */

static uint64_t tensor_bytes(const DLTensor *tensor)
{
    uint64_t elems = 1;
    for (int k = 0; k < tensor->ndim; k++)
        elems *= (uint64_t)tensor->shape[k];
    return elems * banyan_dtype_bytes(tensor->dtype);
}

static uint64_t piece_bytes(const banyan_piece *piece, const banyan_tensors *tensors)
{
    const DLTensor *tensor = banyan_tensors_get(tensors, (size_t)piece->tensor);
    return banyan_box_elems(&piece->box) * banyan_dtype_bytes(tensor->dtype);
}

static void fill_source(struct run *run)
{
    progress bar;
    progress_begin(&bar, run->rank == 0, "filling", banyan_layout_bytes(run->source), true);
    for (size_t i = 0; i < banyan_layout_piece_count(run->source); i++) {
        const banyan_piece *piece = banyan_layout_piece(run->source, i);
        pattern_fill(piece, banyan_tensors_get(run->source_tensors, (size_t)piece->tensor));
        progress_add(&bar, piece_bytes(piece, run->source_tensors));
    }
    progress_end(&bar);
}

static banyan_status make_tensors(struct run *run)
{
    banyan_world *shared = run->job->ordinary_memory ? NULL : run->world;
    TRY(banyan_tensors_alloc(run->source, shared, &run->source_tensors));
    TRY(banyan_tensors_alloc_planned(run->plan, shared, &run->destination_tensors));
    fill_source(run);
    for (size_t i = 0; i < banyan_tensors_count(run->destination_tensors); i++) {
        const DLTensor *tensor = banyan_tensors_get(run->destination_tensors, i);
        if (tensor_bytes(tensor) > 0)
            memset((char *)tensor->data + tensor->byte_offset, POISON, tensor_bytes(tensor));
    }
    return BANYAN_OK;
}

static banyan_status wrong(const struct run *run, const char *what, const char *name,
                           const pattern_result *result)
{
    return banyan_error_set(
        BANYAN_ERR_CORRUPT, "rank %d: %llu %s%s are wrong, the first at element %llu", run->rank,
        (unsigned long long)result->wrong, what, name, (unsigned long long)result->first_wrong);
}

static banyan_status verify_padding(struct run *run)
{
    for (size_t i = 0; i < banyan_layout_padding_count(run->destination); i++) {
        int tensor;
        const banyan_box *box = banyan_layout_padding(run->destination, i, &tensor);
        pattern_result result =
            pattern_check_zero(box, banyan_tensors_get(run->destination_tensors, (size_t)tensor));
        if (result.wrong > 0)
            return wrong(run, "elements of the padding of ",
                         banyan_layout_tensor(run->destination, (size_t)tensor)->name, &result);
    }
    return BANYAN_OK;
}

static bool is_transformed(const struct run *run, size_t tensor)
{
    return tensor < run->target.count && run->target.scales[tensor].data;
}

static banyan_status verify_pieces(struct run *run, progress *bar)
{
    for (size_t i = 0; i < banyan_layout_piece_count(run->destination); i++) {
        const banyan_piece *piece = banyan_layout_piece(run->destination, i);
        size_t tensor = (size_t)piece->tensor;
        run->elems += banyan_box_elems(&piece->box);
        if (is_transformed(run, tensor))
            continue;
        pattern_result result =
            pattern_check(piece, banyan_tensors_get(run->destination_tensors, tensor));
        if (result.wrong > 0)
            return wrong(run, "elements of ", piece->name, &result);
        progress_add(bar, piece_bytes(piece, run->destination_tensors));
    }
    return BANYAN_OK;
}

static banyan_status verify_transformed(struct run *run, progress *bar)
{
    for (size_t i = 0; i < run->target.count; i++) {
        const DLTensor *received = banyan_tensors_get(run->destination_tensors, i);
        pattern_result result;
        if (!is_transformed(run, i))
            continue;
        TRY(mxfp8_target_check(&run->target, run->plain, received, i, &result));
        if (result.wrong > 0)
            return wrong(run, "blocks of ", banyan_layout_tensor(run->plain, i)->name, &result);
        progress_add(bar, tensor_bytes(received));
    }
    return BANYAN_OK;
}

static banyan_status verify(struct run *run)
{
    progress bar;
    progress_begin(&bar, run->rank == 0, "verifying", banyan_layout_bytes(run->destination), true);
    banyan_status status = verify_pieces(run, &bar);
    if (status == BANYAN_OK)
        status = verify_transformed(run, &bar);
    if (status == BANYAN_OK)
        status = verify_padding(run);
    progress_end(&bar);
    return status;
}

/* ---- moving ---- */

static int ascending(const void *a, const void *b)
{
    double first = *(const double *)a, second = *(const double *)b;
    return (first > second) - (first < second);
}

static banyan_status move(struct run *run)
{
    size_t iters = (size_t)run->job->iters;
    run->spans = calloc(iters, sizeof *run->spans);
    run->seconds = calloc(2 * iters, sizeof *run->seconds);
    if (!run->spans || !run->seconds)
        return no_memory(iters * sizeof *run->spans);
    progress bar;
    progress_begin(&bar, run->rank == 0, "moving", iters, false);
    banyan_status status = BANYAN_OK;
    for (size_t i = 0; i < iters && status == BANYAN_OK; i++) {
        status = banyan_world_barrier(run->world);
        run->spans[i].began = clock_now_s();
        if (status == BANYAN_OK)
            status =
                banyan_reshard_execute(run->plan, run->source_tensors, run->destination_tensors,
                                       run->service, run->world, run->target.transform);
        run->spans[i].ended = clock_now_s();
        progress_add(&bar, 1);
    }
    progress_end(&bar);
    TRY(status);
    TRY(span_of_all(run->world, run->spans, iters, run->seconds));
    double *sorted = run->seconds + iters;
    memcpy(sorted, run->seconds, iters * sizeof *sorted);
    qsort(sorted, iters, sizeof *sorted, ascending);
    run->result.best_s = sorted[0];
    run->result.median_s = (sorted[(iters - 1) / 2] + sorted[iters / 2]) / 2;
    run->result.iteration_s = run->seconds;
    return BANYAN_OK;
}

/* ---- reporting ---- */

static banyan_status gather(struct run *run)
{
    size_t ranks = (size_t)run->job->spec.ranks;
    uint64_t *mine = calloc(ranks + 2, sizeof *mine);
    uint64_t *all = calloc((ranks + 2) * ranks, sizeof *all);
    run->pair_bytes = calloc(ranks * ranks, sizeof *run->pair_bytes);
    banyan_status status = mine && all && run->pair_bytes ? BANYAN_OK : no_memory(ranks * ranks);
    if (status == BANYAN_OK) {
        size_t count = banyan_reshard_plan_recv_count(run->plan);
        for (size_t i = 0; i < count; i++) {
            const banyan_transfer *transfer = banyan_reshard_plan_recv(run->plan, i);
            mine[transfer->source_rank] += transfer->bytes;
        }
        mine[ranks] = count;
        mine[ranks + 1] = run->elems;
        status = banyan_world_allgather(run->world, mine, (ranks + 2) * sizeof *mine, all);
    }
    for (size_t to = 0; to < ranks && status == BANYAN_OK; to++) {
        const uint64_t *its = all + to * (ranks + 2);
        for (size_t from = 0; from < ranks; from++) {
            run->pair_bytes[from * ranks + to] = its[from];
            run->result.bytes += its[from];
            run->result.bytes_between += from != to ? its[from] : 0;
        }
        run->result.transfers += its[ranks];
        run->result.elems += its[ranks + 1];
    }
    free(all);
    free(mine);
    run->result.pair_bytes = run->pair_bytes;
    return status;
}

static banyan_status run_all(struct run *run)
{
    TRY(banyan_world_open(NULL, &run->world));
    TRY(make_plan(run));
    TRY(make_tensors(run));
    TRY(memcpy_limit_measure(run->world, MEMCPY_BYTES, &run->result.memcpy_bytes_per_s));
    TRY(move(run));
    TRY(verify(run));
    TRY(gather(run));
    TRY(run->rank == 0 ? reshard_report(&run->result) : BANYAN_OK);
    return banyan_world_barrier(run->world);
}

int reshard_rank(int rank, void *context)
{
    const reshard_job *job = context;
    struct run run = {.job = job, .rank = rank};
    run.result.job = job;
    banyan_status status = run_all(&run);
    if (status != BANYAN_OK)
        failure_note(job->failed, rank, status);
    banyan_tensors_destroy(run.destination_tensors);
    banyan_tensors_destroy(run.source_tensors);
    banyan_reshard_plan_destroy(run.plan);
    banyan_copy_service_close(run.service);
    mxfp8_target_destroy(&run.target);
    banyan_layout_destroy(run.plain);
    banyan_layout_destroy(run.source);
    free(run.spans);
    free(run.seconds);
    free(run.pair_bytes);
    if (status != BANYAN_OK)
        return 1;
    status = banyan_world_close(run.world);
    if (status != BANYAN_OK)
        failure_note(job->failed, rank, status);
    return status == BANYAN_OK ? 0 : 1;
}
