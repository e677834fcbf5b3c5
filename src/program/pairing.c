/* Signals and waits between two ranks. */
#include "program/pass.h"

#include <inttypes.h>

typedef struct pair_count {
    int from, to;
    plan_channel_type type;
    int64_t signals, waits;
} pair_count;

typedef ARRAY(pair_count) pair_counts;

static bool count_op(pair_counts *counts, const plan_rank *rank, int number,
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
        if (!array_push(counts, count))
            return false;
    }
    return true;
}

static bool count_ops(pair_counts *counts, const plan_rank *rank, int number,
                      const plan_thread_block *block, const plan_op *ops, uint32_t op_count)
{
    for (uint32_t i = 0; i < op_count; i++) {
        bool counted = ops[i].kind == PLAN_PIPELINE
                           ? count_ops(counts, rank, number, block, ops[i].ops, ops[i].op_count)
                           : count_op(counts, rank, number, block, &ops[i]);
        if (!counted)
            return false;
    }
    return true;
}

static int compare_pairs(const void *left, const void *right)
{
    const pair_count *a = left, *b = right;
    if (a->from != b->from)
        return a->from < b->from ? -1 : 1;
    if (a->to != b->to)
        return a->to < b->to ? -1 : 1;
    return (a->type > b->type) - (a->type < b->type);
}

static banyan_status check_counts(const char *name, pair_counts *counts)
{
    if (counts->count > 0)
        qsort(counts->data, counts->count, sizeof *counts->data, compare_pairs);
    for (size_t i = 0; i < counts->count;) {
        pair_count sum = counts->data[i++];
        while (i < counts->count && compare_pairs(&sum, &counts->data[i]) == 0) {
            sum.signals += counts->data[i].signals;
            sum.waits += counts->data[i++].waits;
        }
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
            if (!count_ops(&counts, of, rank, block, block->ops, block->op_count))
                status = BANYAN_ERR_NO_MEMORY;
        }
    }
    if (status == BANYAN_OK)
        status = check_counts(plan->name, &counts);
    array_free(&counts);
    return status;
}
