#include "reshard/verify/run.h"

#include <inttypes.h>

#include "reshard/layout/box.h"
#include "reshard/run/tensors.h"

/* Memory from `low` to below `high`; `view` is the part of it that is touched. */
typedef struct run_span {
    const char *low, *high;
    bool is_write;
    size_t tensor;            /* of its side */
    const execution_end *end; /* NULL: a whole tensor, or padding */
    strided_view view;
} run_span;

typedef ARRAY(run_span) run_spans;

static banyan_status add_view(run_spans *spans, const strided_view *view, bool is_write,
                              size_t tensor, const execution_end *end)
{
    char *low;
    size_t bytes;
    strided_view_span(view, &low, &bytes);
    run_span span = {low, low + bytes, is_write, tensor, end, *view};
    if (bytes == 0)
        return BANYAN_OK;
    return array_push(spans, span) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

static int by_address(const void *left, const void *right)
{
    const run_span *a = left, *b = right;
    return COMPARE(a->low, b->low);
}

typedef banyan_status (*overlap_fn)(void *context, const run_span *read, const run_span *write);

/* Report each read and write whose spans overlap. The spans are sorted; `open` holds, for each
 * kind, indices of the spans that the sweep has not left. */
static banyan_status verify_run_sweep(const run_spans *spans, size_t *open[2], overlap_fn report,
                                      void *context)
{
    size_t counts[2] = {0, 0};
    for (size_t i = 0; i < spans->count; i++) {
        const run_span *span = &spans->data[i];
        size_t kept = 0, *others = open[!span->is_write];
        for (size_t k = 0; k < counts[!span->is_write]; k++) {
            const run_span *other = &spans->data[others[k]];
            if (other->high <= span->low)
                continue;
            others[kept++] = others[k];
            RETURN_IF_FAILED(span->is_write ? report(context, other, span)
                                            : report(context, span, other));
        }
        counts[!span->is_write] = kept;
        open[span->is_write][counts[span->is_write]++] = i;
    }
    return BANYAN_OK;
}

static banyan_status each_overlap(run_spans *spans, overlap_fn report, void *context)
{
    if (spans->count < 2)
        return BANYAN_OK;
    qsort(spans->data, spans->count, sizeof *spans->data, by_address);
    size_t *indices = alloc_zeroed(spans->count, 2 * sizeof *indices, "the check of a run");
    RETURN_IF_NO_MEMORY(indices);
    banyan_status status =
        verify_run_sweep(spans, (size_t *[2]){indices, indices + spans->count}, report, context);
    free(indices);
    return status;
}

/* First whole tensors: usually no two share memory. */

typedef struct shared_tensors {
    bool *read, *written; /* per tensor of a side: it shares memory with the other side */
    bool any;
} shared_tensors;

/* An end without a view can only be moved by a transform. */
static banyan_status verify_run_add_tensors(const banyan_tensors *set, bool is_write,
                                            run_spans *spans)
{
    for (size_t i = 0; set && i < banyan_tensors_count(set); i++) {
        strided_view view;
        if (strided_view_anywhere(banyan_tensors_get(set, i), &view) == BANYAN_OK)
            RETURN_IF_FAILED(add_view(spans, &view, is_write, i, NULL));
    }
    return BANYAN_OK;
}

static banyan_status verify_run_note_shared(void *context, const run_span *read,
                                            const run_span *write)
{
    shared_tensors *shared = context;
    shared->read[read->tensor] = shared->written[write->tensor] = shared->any = true;
    return BANYAN_OK;
}

static banyan_status find_shared(const execution *run, shared_tensors *shared)
{
    run_spans spans = {0};
    banyan_status status = verify_run_add_tensors(run->source, false, &spans);
    if (status == BANYAN_OK)
        status = verify_run_add_tensors(run->destination, true, &spans);
    if (status == BANYAN_OK)
        status = each_overlap(&spans, verify_run_note_shared, shared);
    array_free(&spans);
    return status;
}

/* Then the memory that a run touches in tensors that share it. */

static banyan_status add_end(const execution *run, const shared_tensors *shared,
                             const execution_end *end, run_spans *spans)
{
    /* Stage 1 reads the destination after stage 0 has written it. */
    if (end->is_send && end->transfer->stage > 0)
        return BANYAN_OK;
    const banyan_piece *piece =
        end->is_send
            ? banyan_layout_piece(run->plan->source, end->transfer->source_piece)
            : banyan_layout_piece(run->plan->destination, end->transfer->destination_piece);
    size_t tensor = (size_t)piece->tensor;
    strided_view view;
    bool converted = end->transformed && !end->transfer->value_map;
    if (converted || !(end->is_send ? shared->read : shared->written)[tensor])
        return BANYAN_OK;
    RETURN_IF_FAILED(strided_view_anywhere(&end->view, &view));
    return add_view(spans, &view, !end->is_send, tensor, end);
}

static banyan_status add_touched(const execution *run, const shared_tensors *shared,
                                 run_spans *spans)
{
    for (size_t i = 0; i < run->ends.count; i++)
        RETURN_IF_FAILED(add_end(run, shared, &run->ends.data[i], spans));
    for (size_t i = 0; i < run->locals.count; i += 2) {
        const execution_end *sending = &run->locals.data[i], *receiving = sending + 1;
        RETURN_IF_FAILED(add_end(run, shared, sending, spans));
        if (!execution_same_memory(&sending->view, &receiving->view))
            RETURN_IF_FAILED(add_end(run, shared, receiving, spans));
    }
    for (size_t i = 0; i < run->paddings.count; i++) {
        int tensor;
        banyan_layout_padding(run->plan->destination, i, &tensor);
        RETURN_IF_FAILED(add_view(spans, &run->paddings.data[i], true, (size_t)tensor, NULL));
    }
    return BANYAN_OK;
}

static banyan_status fail_overlap(void *context, const run_span *read, const run_span *write)
{
    const execution *run = context;
    char from[BOX_TEXT_BYTES], to[BOX_TEXT_BYTES] = "padding";
    if (!check_views_overlap(&read->view, &write->view))
        return BANYAN_OK;
    if (write->end)
        banyan_box_format(&write->end->box, to, sizeof to);
    const banyan_reshard_plan *plan = run->plan;
    return error_set(
        BANYAN_ERR_INVALID,
        "rank %d: %s of \"%s\", written at %p to %p (destination tensor \"%s\"), shares memory "
        "with "
        "%s of \"%s\", read at %p to %p (source tensor \"%s\"), and nothing orders the two",
        plan->rank, to, write->end ? write->end->transfer->name : "a tensor",
        (const void *)write->low, (const void *)write->high,
        banyan_layout_tensor(plan->destination, write->tensor)->name,
        banyan_box_format(&read->end->box, from, sizeof from), read->end->transfer->name,
        (const void *)read->low, (const void *)read->high,
        banyan_layout_tensor(plan->source, read->tensor)->name);
}

static banyan_status check_touched(const execution *run, const shared_tensors *shared)
{
    run_spans spans = {0};
    banyan_status status = add_touched(run, shared, &spans);
    if (status == BANYAN_OK)
        status = each_overlap(&spans, fail_overlap, (void *)run);
    array_free(&spans);
    return status;
}

banyan_status check_run_overlaps(const execution *run)
{
    size_t reads = banyan_layout_tensor_count(run->plan->source) + 1;
    size_t writes = banyan_layout_tensor_count(run->plan->destination) + 1;
    bool *flags = alloc_zeroed(reads + writes, sizeof *flags, "the check of a run");
    RETURN_IF_NO_MEMORY(flags);
    shared_tensors shared = {.read = flags, .written = flags + reads};
    banyan_status status = find_shared(run, &shared);
    if (status == BANYAN_OK && shared.any)
        status = check_touched(run, &shared);
    free(flags);
    return status;
}

banyan_status check_run_staging(const execution *run)
{
    uint64_t bound = run->plan->max_staging_bytes, most = execution_largest_wave(run);
    if (bound == 0 || (most <= bound && run->kept_bytes <= bound - most))
        return BANYAN_OK;
    return error_set(BANYAN_ERR_INVALID,
                     "rank %d: a wave takes %" PRIu64 " bytes of staging, beside %" PRIu64
                     " that the transform keeps; max_staging_bytes is %" PRIu64,
                     run->plan->rank, most, run->kept_bytes, bound);
}

/* Compare whole blocks of one view with the other view, then the parts of blocks in its reach, down
 * to runs of bytes. Adjacent blocks in memory need few comparisons. */

/* A view, and per level the bounds of a block around its first element. */
typedef struct view_bounds {
    const strided_view *view;
    int64_t low[BANYAN_MAX_DIMS + 1], high[BANYAN_MAX_DIMS + 1];
} view_bounds;

static view_bounds views_reach_of(const strided_view *view)
{
    view_bounds made = {.view = view};
    made.high[view->ndim] = (int64_t)view->elem_bytes;
    for (int level = view->ndim - 1; level >= 0; level--) {
        int64_t last = (view->extent[level] - 1) * view->stride[level];
        made.low[level] = made.low[level + 1] + (last < 0 ? last : 0);
        made.high[level] = made.high[level + 1] + (last > 0 ? last : 0);
    }
    return made;
}

/* True if the block owns all bytes of its reach. */
static bool views_is_run(const view_bounds *of, int level)
{
    const strided_view *view = of->view;
    return level == view->ndim ||
           (level == view->ndim - 1 && view->stride[level] == (int64_t)view->elem_bytes);
}

/* Find the blocks of one level, inside a block at address 0, whose reach intersects [low, high). */
static void blocks_in(const view_bounds *of, int level, int64_t low, int64_t high, int64_t *first,
                      int64_t *last)
{
    int64_t stride = of->view->stride[level], count = of->view->extent[level];
    int64_t below = low - of->high[level + 1], above = high - of->low[level + 1];
    *first = 0;
    *last = stride == 0 ? 0 : count - 1;
    if (stride < 0) {
        int64_t kept = below;
        below = -above;
        above = -kept;
        stride = -stride;
    }
    if (stride == 0)
        return;
    /* Block i is at i × stride, above `below` and under `above`. The division rounds towards 0, so
     * block 0 may be one too many: callers check the bounds of each. */
    if (below >= 0)
        *first = below / stride + 1;
    if ((above - 1) / stride < *last)
        *last = (above - 1) / stride;
}

/* True if a block touches [low, high). Addresses count from its first element. */
static bool views_touches(const view_bounds *of, int level, int64_t low, int64_t high)
{
    if (of->high[level] <= low || high <= of->low[level])
        return false;
    if (views_is_run(of, level))
        return true;
    int64_t first, last;
    blocks_in(of, level, low, high, &first, &last);
    for (int64_t i = first; i <= last; i++) {
        int64_t at = i * of->view->stride[level];
        if (views_touches(of, level + 1, low - at, high - at))
            return true;
    }
    return false;
}

/* True if a block of `a`, `at` bytes behind the first element of `b`, overlaps it. */
static bool block_overlaps(const view_bounds *a, int level, int64_t at, const view_bounds *b)
{
    if (!views_touches(b, 0, at + a->low[level], at + a->high[level]))
        return false;
    if (views_is_run(a, level))
        return true;
    int64_t first, last;
    blocks_in(a, level, b->low[0] - at, b->high[0] - at, &first, &last);
    for (int64_t i = first; i <= last; i++)
        if (block_overlaps(a, level + 1, at + i * a->view->stride[level], b))
            return true;
    return false;
}

bool check_views_overlap(const strided_view *a, const strided_view *b)
{
    if (a->elems == 0 || b->elems == 0)
        return false;
    view_bounds first = views_reach_of(a), second = views_reach_of(b);
    return block_overlaps(&first, 0, (int64_t)((uintptr_t)a->data - (uintptr_t)b->data), &second);
}
