#include "program/compile/fuse.h"

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
