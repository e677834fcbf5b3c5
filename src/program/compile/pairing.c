/* Check signals and waits between two ranks. */
#include "program/compile/pass.h"

#include <inttypes.h>

#include "plan/op.h"

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

static bool count_op(pair_counts *counts, size_t first, const plan_cursor *at)
{
    const plan_op *op = at->op;
    bool signals = plan_op_form_of(op->kind)->signals;
    if (!signals && op->kind != PLAN_WAIT && op->kind != PLAN_RELAXED_WAIT)
        return true;
    for (uint32_t i = 0; i < op->channel_count; i++) {
        uint32_t channel = plan_channel_of(at->block, op, op->channels[i]);
        int peer = at->plan->ranks[at->rank].peers[op->channel_type][channel];
        pair_count count = {.from = signals ? at->rank : peer,
                            .to = signals ? peer : at->rank,
                            .type = op->channel_type,
                            .signals = signals,
                            .waits = !signals};
        if (!count_pair(counts, first, &count))
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
    size_t first = 0;
    const plan_thread_block *block = NULL;
    for (plan_cursor at = {.plan = plan}; status == BANYAN_OK && plan_cursor_next(&at);) {
        if (at.block != block) {
            pairing_add_up(&counts, first);
            first = counts.count;
            block = at.block;
        }
        if (!count_op(&counts, first, &at))
            status = BANYAN_ERR_NO_MEMORY;
    }
    if (status == BANYAN_OK)
        status = pairing_check_counts(plan->name, &counts);
    array_free(&counts);
    return status;
}
