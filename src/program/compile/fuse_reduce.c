#include "program/compile/fuse.h"

/* True if a source other than the first would be read after the joined operation wrote to it. */
static bool reads_own_result(const plan_op *current, const plan_op *next)
{
    const plan_operand *result = &current->destinations[0];
    for (uint32_t i = 1; i < next->source_count; i++) {
        const plan_operand *source = &next->sources[i];
        if (source->place == PLAN_LOCAL && source->buffer == result->buffer &&
            plan_operands_overlap(source, result))
            return true;
    }
    return false;
}

static bool is_plain_reduction(const plan_op *op)
{
    return op->kind == PLAN_REDUCE || op->kind == PLAN_REDUCE_PACKET ||
           op->kind == PLAN_READ_REDUCE;
}

/* True if both write their results to one place, and the second reads there only as its first
 * source. */
static bool share_result(const plan_op *current, const plan_op *next)
{
    return is_plain_reduction(current) && current->kind == next->kind &&
           current->channel_type == next->channel_type && current->reduce_op == next->reduce_op &&
           ops_operand_equal(&current->destinations[0], &next->destinations[0]) &&
           !reads_own_result(current, next);
}

/* True if reductions to one place, from one first source, add up. */
static bool adds_up(const plan_op *current, const plan_op *next)
{
    return share_result(current, next) &&
           ops_operand_equal(&current->sources[0], &next->sources[0]);
}

static bool fuse_reduce_sends(plan_op_kind kind, plan_op_kind *sending)
{
    switch (kind) {
    case PLAN_REDUCE:
    case PLAN_REDUCE_SEND:
        *sending = PLAN_REDUCE_SEND;
        return true;
    case PLAN_READ_REDUCE:
    case PLAN_READ_REDUCE_SEND:
        *sending = PLAN_READ_REDUCE_SEND;
        return true;
    default:
        return false;
    }
}

static bool sends_packets(plan_op_kind kind, plan_op_kind *sending)
{
    switch (kind) {
    case PLAN_REDUCE_PACKET:
    case PLAN_REDUCE_SEND_PACKET:
        *sending = PLAN_REDUCE_SEND_PACKET;
        return true;
    case PLAN_REDUCE_COPY_PACKET:
    case PLAN_REDUCE_COPY_SEND_PACKET:
        *sending = PLAN_REDUCE_COPY_SEND_PACKET;
        return true;
    default:
        return false;
    }
}

/* True if the put sends the reduction's result, as data or as packets, to a peer's memory. */
static bool sends_result(const plan_op *current, const plan_op *put, plan_op_kind *sending)
{
    if (put->channel_type != PLAN_MEMORY || put->source_count != 1)
        return false;
    const plan_operand *result = &current->destinations[0];
    const plan_operand *carried = &put->sources[0];
    switch (put->kind) {
    case PLAN_PUT:
        return fuse_reduce_sends(current->kind, sending) && ops_operand_equal(result, carried);
    case PLAN_PUT_PACKET:
        return sends_packets(current->kind, sending) && ops_operand_equal(result, carried);
    case PLAN_READ_PUT_PACKET:
        return sends_packets(current->kind, sending) && *sending == PLAN_REDUCE_COPY_SEND_PACKET &&
               ops_operand_equal(&current->destinations[1], carried);
    default:
        return false;
    }
}

static bool copies_result(const plan_op *current, const plan_op *copy)
{
    return current->kind == PLAN_REDUCE_PACKET && copy->kind == PLAN_COPY_PACKET &&
           ops_operand_equal(&current->destinations[0], &copy->sources[0]);
}

banyan_status fuse_chain(fuse *with, plan_op *current, const plan_op *next, bool *joined)
{
    *joined = is_plain_reduction(current) && ops_share_equal(current, next) &&
              share_result(current, next) &&
              ops_operand_equal(&current->destinations[0], &next->sources[0]);
    if (!*joined)
        return BANYAN_OK;
    return fuse_add_sources(with, current, next->sources + 1, next->source_count - 1);
}

banyan_status fuse_reduce(fuse *with, plan_op *current, const plan_op *next, bool *joined)
{
    plan_op_kind sending;
    *joined = false;
    if (!plan_op_reduces(current->kind) || current->channel_type == PLAN_SWITCH ||
        !ops_share_equal(current, next))
        return BANYAN_OK;
    if (adds_up(current, next)) {
        RETURN_IF_FAILED(
            fuse_add_sources(with, current, next->sources + 1, next->source_count - 1));
    } else if (sends_result(current, next, &sending)) {
        RETURN_IF_FAILED(
            fuse_add_destinations(with, current, next->destinations, next->destination_count));
        current->kind = sending;
        current->channel_type = PLAN_MEMORY;
    } else if (copies_result(current, next)) {
        RETURN_IF_FAILED(fuse_add_destinations(with, current, next->destinations, 1));
        current->kind = PLAN_REDUCE_COPY_PACKET;
    } else {
        return BANYAN_OK;
    }
    *joined = true;
    return BANYAN_OK;
}
