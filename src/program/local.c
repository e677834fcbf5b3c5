/* Operations within a rank: copies, reductions, barriers, semaphores. */
#include "program/builder.h"

#include <string.h>

/* Add one operation per thread block, with the block's share of it. */
static void add_shares(banyan_program *program, int rank, banyan_program_by by, plan_op op)
{
    int count = program_by_count(program, by);
    for (int i = 0; i < count; i++) {
        program_share share = program_by_share(by, i);
        program_block *block = program_block_of(program, rank, share.thread_block);
        if (!block)
            return;
        op.group_index = share.index;
        op.group_size = share.size;
        program_add(program, block, op);
    }
}

static void add_copy(banyan_program *program, int rank, plan_op_kind kind, banyan_chunk destination,
                     banyan_chunk source, banyan_program_by by)
{
    plan_op op = {.kind = kind,
                  .sources = program_operand(program, program_local(source)),
                  .source_count = 1,
                  .destinations = program_operand(program, program_local(destination)),
                  .destination_count = 1};
    if (op.sources && op.destinations)
        add_shares(program, rank, by, op);
}

static bool begin_copy(banyan_program *program, const char *operation, int rank,
                       banyan_chunk destination, banyan_chunk source)
{
    return program_call_begin(program, (program_call){.operation = operation, .rank = rank}) &&
           program_has_rank(program, rank, "rank") &&
           program_has_chunk(program, destination, rank, "destination") &&
           program_has_chunk(program, source, rank, "source") &&
           program_same_size(program, source, "source", destination, "destination");
}

void banyan_program_copy(banyan_program *program, int rank, banyan_chunk destination,
                         banyan_chunk source, banyan_program_by by)
{
    if (begin_copy(program, "copy", rank, destination, source))
        add_copy(program, rank, PLAN_COPY, destination, source, by);
}

void banyan_program_copy_packets(banyan_program *program, int rank, banyan_chunk destination,
                                 banyan_chunk source, banyan_program_by by)
{
    if (begin_copy(program, "copy to packets", rank, destination, source) &&
        program_in_scratch(program, destination, "destination"))
        add_copy(program, rank, PLAN_COPY_PACKET, destination, source, by);
}

void banyan_program_unpack_packets(banyan_program *program, int rank, banyan_chunk destination,
                                   banyan_chunk source, banyan_program_by by)
{
    if (begin_copy(program, "unpack packets", rank, destination, source) &&
        program_in_scratch(program, source, "source"))
        add_copy(program, rank, PLAN_UNPACK_PACKET, destination, source, by);
}

static bool has_others(banyan_program *program, int rank, banyan_chunk source,
                       const banyan_chunk *others, int count, bool packets)
{
    if (count < 1) {
        program_fail(program, "there is nothing to reduce the source with: %d other chunks", count);
        return false;
    }
    for (int i = 0; i < count; i++) {
        if (!program_has_chunk(program, others[i], rank, "other source") ||
            !program_same_size(program, source, "source", others[i], "other source") ||
            (packets && !program_in_scratch(program, others[i], "other source")))
            return false;
    }
    return true;
}

static void program_local_add_reduce(banyan_program *program, plan_op_kind kind, int rank,
                                     banyan_chunk source, const banyan_chunk *others, int count,
                                     banyan_chunk destination, banyan_reduce_op reduce_op,
                                     banyan_program_by by)
{
    if (destination.rank < 0)
        destination = source;
    if (!program_has_rank(program, rank, "rank") ||
        !program_has_chunk(program, source, rank, "source") ||
        !program_has_chunk(program, destination, rank, "destination") ||
        !program_same_size(program, source, "source", destination, "destination") ||
        !has_others(program, rank, source, others, count, kind == PLAN_REDUCE_PACKET) ||
        !program_has_reduce_op(program, reduce_op))
        return;
    plan_operand *sources = program_take(program, (size_t)count + 1, sizeof *sources);
    plan_operand *destinations = program_operand(program, program_local(destination));
    if (!sources || !destinations)
        return;
    sources[0] = program_local(source);
    for (int i = 0; i < count; i++)
        sources[i + 1] = program_local(others[i]);
    add_shares(program, rank, by,
               (plan_op){.kind = kind,
                         .reduce_op = reduce_op,
                         .sources = sources,
                         .source_count = (uint32_t)count + 1,
                         .destinations = destinations,
                         .destination_count = 1});
}

void banyan_program_reduce(banyan_program *program, int rank, banyan_chunk source,
                           const banyan_chunk *others, int count, banyan_chunk destination,
                           banyan_reduce_op op, banyan_program_by by)
{
    if (program_call_begin(program, (program_call){.operation = "reduce", .rank = rank}))
        program_local_add_reduce(program, PLAN_REDUCE, rank, source, others, count, destination, op,
                                 by);
}

void banyan_program_reduce_packets(banyan_program *program, int rank, banyan_chunk source,
                                   const banyan_chunk *others, int count, banyan_chunk destination,
                                   banyan_reduce_op op, banyan_program_by by)
{
    if (program_call_begin(program, (program_call){.operation = "reduce packets", .rank = rank}))
        program_local_add_reduce(program, PLAN_REDUCE_PACKET, rank, source, others, count,
                                 destination, op, by);
}

/* Return the rank's number for the barrier of these blocks. */
static bool barrier_number(banyan_program *program, int rank, const int *thread_blocks, int count,
                           uint32_t *number)
{
    program_rank *of = &program->ranks[rank];
    size_t bytes = (size_t)count * sizeof *thread_blocks;
    for (size_t i = 0; i < of->barriers.count; i++) {
        const program_barrier *known = &of->barriers.data[i];
        if (known->count == count && memcmp(known->blocks, thread_blocks, bytes) == 0) {
            *number = (uint32_t)i;
            return true;
        }
    }
    program_barrier added = {program_take(program, (size_t)count, sizeof *added.blocks), count};
    if (!added.blocks)
        return false;
    memcpy(added.blocks, thread_blocks, bytes);
    if (!array_push(&of->barriers, added)) {
        program_fail_memory(program);
        return false;
    }
    *number = (uint32_t)of->barriers.count - 1;
    return true;
}

void banyan_program_barrier(banyan_program *program, int rank, const int *thread_blocks, int count)
{
    if (!program_call_begin(program, (program_call){.operation = "barrier", .rank = rank}) ||
        !program_has_rank(program, rank, "rank"))
        return;
    if (count < 1) {
        program_fail(program, "of %d thread blocks", count);
        return;
    }
    plan_op op = {.kind = PLAN_NOP};
    if (count > 1) {
        op.kind = PLAN_BARRIER;
        op.barrier_members = (uint32_t)count;
        if (!program_has_blocks(program, thread_blocks, count) ||
            !barrier_number(program, rank, thread_blocks, count, &op.barrier))
            return;
    }
    for (int i = 0; i < count; i++) {
        program_block *block = program_block_of(program, rank, thread_blocks[i]);
        if (!block)
            return;
        program_add(program, block, op);
    }
}

banyan_program_semaphore *banyan_program_semaphore_create(banyan_program *program, int rank,
                                                          uint64_t initial)
{
    if (!program_call_begin(program, (program_call){.operation = "semaphore", .rank = rank}) ||
        !program_has_rank(program, rank, "rank"))
        return NULL;
    banyan_program_semaphore *semaphore = program_take(program, 1, sizeof *semaphore);
    if (!semaphore)
        return NULL;
    program_rank *of = &program->ranks[rank];
    *semaphore = (banyan_program_semaphore){program, rank, (uint32_t)of->semaphores.count};
    if (!array_push(&of->semaphores, initial)) {
        program_fail_memory(program);
        return NULL;
    }
    return semaphore;
}

static void add_semaphore(banyan_program_semaphore *semaphore, const char *operation,
                          plan_op_kind kind, int thread_block, banyan_sync sync)
{
    program_call call = {.operation = operation, .rank = semaphore ? semaphore->rank : -1};
    if (!program_call_begin(semaphore ? semaphore->program : NULL, call))
        return;
    program_block *block = program_block_of(semaphore->program, semaphore->rank, thread_block);
    uint32_t *number = block ? program_number(semaphore->program, semaphore->number) : NULL;
    if (number)
        program_add(semaphore->program, block,
                    (plan_op){.kind = kind,
                              .sync = program_sync_bits(sync),
                              .semaphores = number,
                              .semaphore_count = 1});
}

void banyan_program_semaphore_acquire(banyan_program_semaphore *semaphore, int thread_block,
                                      banyan_sync sync)
{
    add_semaphore(semaphore, "semaphore acquire", PLAN_SEM_ACQUIRE, thread_block, sync);
}

void banyan_program_semaphore_release(banyan_program_semaphore *semaphore, int thread_block,
                                      banyan_sync sync)
{
    add_semaphore(semaphore, "semaphore release", PLAN_SEM_RELEASE, thread_block, sync);
}
