/* Check signals and waits between two ranks. */
#include "program/compile/pass.h"

#include <inttypes.h>

typedef struct pair_count {
    int from, to;
    plan_channel_type type;
    int64_t signals, waits;
} pair_count;

typedef ARRAY(pair_count) pair_counts;

static int pairing_compare_pairs(const void *left, const void *right)
{
    const pair_count *a = left, *b = right;
    if (a->from != b->from)
        return a->from < b->from ? -1 : 1;
    if (a->to != b->to)
        return a->to < b->to ? -1 : 1;
    return (a->type > b->type) - (a->type < b->type);
}

/* A thread block uses the same few peers in turn: repeated counts are added to one of the last
 * pairs. */
#define LOOK_BACK 4

static bool count_pair(pair_counts *counts, size_t first, const pair_count *more)
{
    for (size_t i = counts->count; i > first && counts->count - i < LOOK_BACK; i--) {
        pair_count *known = &counts->data[i - 1];
        if (pairing_compare_pairs(known, more) != 0)
            continue;
        known->signals += more->signals;
        known->waits += more->waits;
        return true;
    }
    return array_push(counts, *more);
}

static bool count_op(pair_counts *counts, size_t first, const plan_rank *rank, int number,
                     const plan_thread_block *block, const plan_op *op)
{
    bool signals = false;
    switch (op->kind) {
    case PLAN_SIGNAL:
    case PLAN_RELAXED_SIGNAL:
    case PLAN_PUT_WITH_SIGNAL:
    case PLAN_PUT_WITH_SIGNAL_AND_FLUSH:
        signals = true;
        break;
    case PLAN_WAIT:
    case PLAN_RELAXED_WAIT:
        break;
    default:
        return true;
    }
    for (uint32_t i = 0; i < op->channel_count; i++) {
        int peer = rank->peers[op->channel_type][plan_channel_of(block, op, op->channels[i])];
        pair_count count = {.from = signals ? number : peer,
                            .to = signals ? peer : number,
                            .type = op->channel_type,
                            .signals = signals,
                            .waits = !signals};
        if (!count_pair(counts, first, &count))
            return false;
    }
    return true;
}

static bool pairing_count_ops(pair_counts *counts, size_t first, const plan_rank *rank, int number,
                              const plan_thread_block *block, const plan_op *ops, uint32_t op_count)
{
    for (uint32_t i = 0; i < op_count; i++) {
        bool counted =
            ops[i].kind == PLAN_PIPELINE
                ? pairing_count_ops(counts, first, rank, number, block, ops[i].ops, ops[i].op_count)
                : count_op(counts, first, rank, number, block, &ops[i]);
        if (!counted)
            return false;
    }
    return true;
}

/* Sort the entries from `first` on, and add up those of one pair. */
static void pairing_add_up(pair_counts *counts, size_t first)
{
    size_t kept = first;
    if (counts->count > first)
        qsort(counts->data + first, counts->count - first, sizeof *counts->data,
              pairing_compare_pairs);
    for (size_t i = first; i < counts->count; i++) {
        pair_count *last = kept > first ? &counts->data[kept - 1] : NULL;
        if (last && pairing_compare_pairs(last, &counts->data[i]) == 0) {
            last->signals += counts->data[i].signals;
            last->waits += counts->data[i].waits;
        } else {
            counts->data[kept++] = counts->data[i];
        }
    }
    counts->count = kept;
}

static banyan_status pairing_check_counts(const char *name, pair_counts *counts)
{
    pairing_add_up(counts, 0);
    for (size_t i = 0; i < counts->count; i++) {
        pair_count sum = counts->data[i];
        if (sum.signals != sum.waits)
            return error_set(
                BANYAN_ERR_INVALID,
                "program \"%s\": signals and waits on %s channels do not pair up: rank %d signals "
                "rank %d %" PRId64 " times, but rank %d waits for it %" PRId64 " times",
                name, plan_channel_name(sum.type), sum.from, sum.to, sum.signals, sum.to,
                sum.waits);
    }
    return BANYAN_OK;
}

banyan_status pairing_check(const banyan_plan *plan)
{
    pair_counts counts = {0};
    banyan_status status = BANYAN_OK;
    for (int rank = 0; rank < plan->rank_count && status == BANYAN_OK; rank++) {
        const plan_rank *of = &plan->ranks[rank];
        for (uint32_t i = 0; i < of->block_count && status == BANYAN_OK; i++) {
            const plan_thread_block *block = &of->blocks[i];
            size_t first = counts.count;
            if (!pairing_count_ops(&counts, first, of, rank, block, block->ops, block->op_count))
                status = BANYAN_ERR_NO_MEMORY;
            pairing_add_up(&counts, first);
        }
    }
    if (status == BANYAN_OK)
        status = pairing_check_counts(plan->name, &counts);
    array_free(&counts);
    return status;
}
