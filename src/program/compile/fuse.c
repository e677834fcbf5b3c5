#include "program/compile/fuse.h"

#include <inttypes.h>
#include <string.h>

/* Append to a list whose capacity is `*room`, or exactly its length. */
static banyan_status compile_fuse_append(fuse *with, void **list, uint32_t *count, uint32_t *room,
                                         const void *more, uint32_t more_count, size_t bytes)
{
    uint64_t total = (uint64_t)*count + more_count;
    if (total > UINT32_MAX / 2)
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d, thread block %" PRIu32 ": too many operations to join",
                         with->place->rank, with->place->block->id);
    if (total > *room) {
        unsigned char *longer = plan_take(with->place->plan, total * 2, bytes);
        if (!longer)
            return BANYAN_ERR_NO_MEMORY;
        if (*count > 0)
            memcpy(longer, *list, *count * bytes);
        *list = longer;
        *room = (uint32_t)total * 2;
    }
    if (more_count > 0)
        memcpy((unsigned char *)*list + *count * bytes, more, more_count * bytes);
    *count = (uint32_t)total;
    return BANYAN_OK;
}

banyan_status fuse_add_sources(fuse *with, plan_op *current, const plan_operand *more,
                               uint32_t count)
{
    return compile_fuse_append(with, (void **)&current->sources, &current->source_count,
                               &with->room.sources, more, count, sizeof *more);
}

banyan_status fuse_add_destinations(fuse *with, plan_op *current, const plan_operand *more,
                                    uint32_t count)
{
    return compile_fuse_append(with, (void **)&current->destinations, &current->destination_count,
                               &with->room.destinations, more, count, sizeof *more);
}

banyan_status fuse_add_channels(fuse *with, plan_op *current, const plan_op *next)
{
    return compile_fuse_append(with, (void **)&current->channels, &current->channel_count,
                               &with->room.channels, next->channels, next->channel_count,
                               sizeof *next->channels);
}

banyan_status fuse_add_semaphores(fuse *with, plan_op *current, const plan_op *next)
{
    return compile_fuse_append(with, (void **)&current->semaphores, &current->semaphore_count,
                               &with->room.semaphores, next->semaphores, next->semaphore_count,
                               sizeof *next->semaphores);
}

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

/* True if the source overlaps the owner's chunk. */
static bool reads_chunk(const plan_cursor *at, const plan_operand *source, int owner,
                        const plan_operand *chunk)
{
    plan_where where = plan_operand_where(at->plan, at->rank, at->block, at->op, source);
    bool owners = source->place == PLAN_GROUP || where.rank == owner;
    return owners && where.buffer == chunk->buffer && plan_operands_overlap(source, chunk);
}

/* True if only the store reads the chunk of scratch. */
static bool is_only_stored(const fuse *with, const plan_operand *chunk)
{
    if (chunk->buffer != PLAN_SCRATCH)
        return false;
    uint64_t reads = 0;
    for (plan_cursor at = {.plan = with->place->before}; plan_cursor_next(&at);) {
        for (uint32_t i = 0; i < at.op->source_count; i++)
            reads += reads_chunk(&at, &at.op->sources[i], with->place->rank, chunk);
    }
    return reads == 1;
}

/* True if the joined operation may skip the intermediate write of the chunk: the store writes it
 * too, or nobody reads it. */
static bool chunk_is_spare(const fuse *with, const plan_op *load, const plan_op *store)
{
    const plan_operand *chunk = &load->destinations[0];
    const plan_operand *region = &store->destinations[0];
    plan_where where =
        plan_operand_where(with->place->plan, with->place->rank, with->place->block, store, region);
    bool stored = chunk->buffer == where.buffer && chunk->index == region->index;
    return stored || is_only_stored(with, chunk);
}

banyan_status fuse_switch(fuse *with, plan_op *current, const plan_op *next, bool *joined)
{
    *joined = current->kind == PLAN_GROUP_LOAD_REDUCE && next->kind == PLAN_GROUP_STORE &&
              current->sources[0].reference == next->destinations[0].reference &&
              ops_operand_equal(&current->destinations[0], &next->sources[0]) &&
              chunk_is_spare(with, current, next);
    if (*joined) {
        current->kind = PLAN_GROUP_LOAD_REDUCE_STORE;
        current->destinations = next->destinations;
    }
    return BANYAN_OK;
}
