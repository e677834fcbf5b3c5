/* Finds the bytes of a rank's output that a run writes. */
#include <stdlib.h>

#include "execute/specialize/specialize.h"

struct span_finder {
    specialized_plan *of;
    int rank;             /* the output's rank */
    plan_cursor actor;    /* the operation that may write there */
    uint64_t at;          /* offset of the current buffer in the buffer that stands for both */
    uint32_t destination; /* index among the destinations of the current part */
    uint32_t source_count;
};

static banyan_status add_span(specialized_plan *of, uint64_t offset, uint64_t bytes)
{
    if (bytes > 0 && !array_push(&of->spans, (specialized_span){offset, bytes}))
        return BANYAN_ERR_NO_MEMORY;
    return BANYAN_OK;
}

static banyan_status specialize_spans_visit(void *context, const plan_piece *piece)
{
    const struct span_finder *find = context;
    uint64_t offset = piece->offsets[find->source_count + find->destination];
    return add_span(find->of, find->at + offset, piece->bytes);
}

/* True if the operand lies in this rank's output or, in place, its input. */
static bool lies_there(const struct span_finder *find, const plan_op *op,
                       const plan_operand *operand, plan_buffer *buffer)
{
    const plan_cursor *at = &find->actor;
    const int *ranks;
    int room, i = 0;
    int count = plan_operand_ranks(at->plan, at->rank, at->block, op, operand, &ranks, &room);
    *buffer = plan_operand_where(at->plan, at->rank, at->block, op, operand).buffer;
    while (i < count && ranks[i] != find->rank)
        i++;
    return i < count && (*buffer == PLAN_OUTPUT || (*buffer == PLAN_INPUT && at->plan->in_place));
}

static banyan_status find_in_part(struct span_finder *find, const plan_op *part)
{
    const plan_cursor *at = &find->actor;
    find->source_count = part->source_count;
    for (uint32_t i = 0; i < part->destination_count; i++) {
        plan_buffer buffer;
        if (!lies_there(find, part, &part->destinations[i], &buffer))
            continue;
        find->destination = i;
        find->at =
            at->plan->in_place ? specialized_place(find->of, at->plan, find->rank, buffer) : 0;
        RETURN_IF_FAILED(plan_geometry_cut(&find->of->geometry, at->plan, at->rank, at->block, part,
                                           NULL, 0, specialize_spans_visit, find));
    }
    return BANYAN_OK;
}

static int compare_spans(const void *a, const void *b)
{
    const specialized_span *left = a, *right = b;
    return (left->offset > right->offset) - (left->offset < right->offset);
}

static void merge_spans(specialized_plan *of)
{
    size_t kept = 0;
    if (of->spans.count > 0)
        qsort(of->spans.data, of->spans.count, sizeof *of->spans.data, compare_spans);
    for (size_t i = 0; i < of->spans.count; i++) {
        specialized_span next = of->spans.data[i];
        specialized_span *last = kept > 0 ? &of->spans.data[kept - 1] : NULL;
        if (!last || next.offset > last->offset + last->bytes)
            of->spans.data[kept++] = next;
        else if (next.offset + next.bytes > last->offset + last->bytes)
            last->bytes = next.offset + next.bytes - last->offset;
    }
    of->spans.count = kept;
}

/* Convert offsets in the buffer that stands for both to offsets in the output. */
static void clip_spans(specialized_plan *of, uint64_t begin, uint64_t bytes)
{
    size_t kept = 0;
    for (size_t i = 0; i < of->spans.count; i++) {
        uint64_t from = of->spans.data[i].offset, to = from + of->spans.data[i].bytes;
        from = from < begin ? begin : from;
        to = to > begin + bytes ? begin + bytes : to;
        if (from < to)
            of->spans.data[kept++] = (specialized_span){from - begin, to - from};
    }
    of->spans.count = kept;
}

banyan_status specialize_find_spans(specialized_plan *of, const banyan_plan *plan, int rank,
                                    bool of_others)
{
    struct span_finder find = {.of = of, .actor.plan = plan, .rank = rank};
    /* A loop's iterations write the same bytes as its operations would outside of it. */
    while (plan_cursor_next(&find.actor)) {
        if (of_others && find.actor.rank == rank)
            continue;
        for (uint32_t k = 0; k < plan_op_part_count(find.actor.op); k++) {
            plan_op part = plan_op_part(find.actor.op, k);
            RETURN_IF_FAILED(find_in_part(&find, &part));
        }
    }
    bool keeps_input =
        plan->in_place && (plan->collective != BANYAN_BROADCAST || rank == plan->root);
    if (keeps_input)
        RETURN_IF_FAILED(
            add_span(of, specialized_place(of, plan, rank, PLAN_INPUT), of->bytes[PLAN_INPUT]));
    merge_spans(of);
    clip_spans(of, plan->in_place ? specialized_place(of, plan, rank, PLAN_OUTPUT) : 0,
               of->bytes[PLAN_OUTPUT]);
    return BANYAN_OK;
}
