#include "program/compile/fuse.h"

static bool fuse_moves_same_operands(const plan_operand *a, uint32_t a_count, const plan_operand *b,
                                     uint32_t b_count)
{
    if (a_count != b_count)
        return false;
    for (uint32_t i = 0; i < a_count; i++) {
        if (!ops_operand_equal(&a[i], &b[i]))
            return false;
    }
    return true;
}

/* True if a get would write to a place that the run already wrote: a run has no internal order. */
static bool fuse_moves_overwrites(const plan_op *run, const plan_op *get)
{
    const plan_operand *to = &get->destinations[0];
    for (uint32_t i = 0; i < run->destination_count; i++) {
        const plan_operand *old = &run->destinations[i];
        bool again =
            ops_operand_equal(old, to) && ops_operand_equal(&run->sources[i], &get->sources[0]);
        if (!again && old->buffer == to->buffer && plan_operands_overlap(old, to))
            return true;
    }
    return false;
}

/* True for pairs of a source and a destination of equal sizes. */
static bool fuse_moves_is_run(const plan_op *current, const plan_op *next)
{
    if (current->sources[0].size != next->sources[0].size)
        return false;
    switch (current->kind) {
    case PLAN_PUT:
    case PLAN_PUT_PACKET:
    case PLAN_PUT_WITH_SIGNAL:
    case PLAN_PUT_WITH_SIGNAL_AND_FLUSH:
        return true;
    case PLAN_GET:
        return !fuse_moves_overwrites(current, next);
    default:
        return false;
    }
}

banyan_status fuse_moves(fuse *with, plan_op *current, const plan_op *next, bool *joined)
{
    *joined = false;
    if (current->kind != next->kind || current->channel_type != next->channel_type ||
        current->source_count == 0 || next->source_count == 0 || !ops_share_equal(current, next))
        return BANYAN_OK;
    bool one_source = current->kind == PLAN_READ_PUT_PACKET &&
                      fuse_moves_same_operands(current->sources, current->source_count,
                                               next->sources, next->source_count);
    if (!one_source && !fuse_moves_is_run(current, next))
        return BANYAN_OK;
    if (!one_source)
        RETURN_IF_FAILED(fuse_add_sources(with, current, next->sources, next->source_count));
    RETURN_IF_FAILED(
        fuse_add_destinations(with, current, next->destinations, next->destination_count));
    RETURN_IF_FAILED(fuse_add_channels(with, current, next));
    current->sync |= next->sync;
    *joined = true;
    return BANYAN_OK;
}
