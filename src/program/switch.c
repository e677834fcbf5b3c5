/* Switch channels: one address for a region of several ranks. */
#include "program/builder.h"

#include <inttypes.h>
#include <string.h>

static bool valid_ranks(banyan_program *program, const int *ranks, int count)
{
    if (count < 1) {
        program_fail(program, "of %d ranks", count);
        return false;
    }
    for (int i = 0; i < count; i++) {
        if (!program_has_rank(program, ranks[i], "rank"))
            return false;
        for (int j = 0; j < i; j++) {
            if (ranks[i] == ranks[j]) {
                program_fail(program, "rank %d is in it twice, at %d and at %d", ranks[i], j, i);
                return false;
            }
        }
    }
    return true;
}

banyan_program_switch_channel *banyan_program_switch_channel_create(banyan_program *program,
                                                                    const int *ranks, int count,
                                                                    banyan_buffer buffer)
{
    if (!program_call_begin(program, (program_call){.operation = "switch channel", .rank = -1}) ||
        !valid_ranks(program, ranks, count))
        return NULL;
    if ((unsigned)buffer >= PLAN_BUFFERS) {
        program_fail(program, "buffer %d is none that ranks have", (int)buffer);
        return NULL;
    }
    banyan_program_switch_channel *channel = program_take(program, 1, sizeof *channel);
    int *kept = program_take(program, (size_t)count, sizeof *kept);
    uint32_t *numbers = program_take(program, (size_t)count, sizeof *numbers);
    if (!channel || !kept || !numbers)
        return NULL;
    memcpy(kept, ranks, (size_t)count * sizeof *kept);
    *channel = (banyan_program_switch_channel){program, (plan_buffer)buffer, kept, numbers, count};
    for (int i = 0; i < count; i++) {
        program_rank *member = &program->ranks[ranks[i]];
        numbers[i] = (uint32_t)member->switches.count;
        if (!array_push(&member->switches, (plan_switch){(plan_buffer)buffer, kept, count})) {
            program_fail_memory(program);
            return NULL;
        }
    }
    return channel;
}

/* Find the index of the rank in the group. */
static bool member_index(const banyan_program_switch_channel *channel, int rank, int *index)
{
    for (int i = 0; i < channel->count; i++) {
        if (channel->ranks[i] == rank) {
            *index = i;
            return true;
        }
    }
    program_fail(channel->program, "rank %d is not in the group", rank);
    return false;
}

static bool region_exists(const banyan_program_switch_channel *channel, uint64_t index,
                          uint64_t size)
{
    for (int i = 0; i < channel->count; i++) {
        uint64_t chunks = channel->program->ranks[channel->ranks[i]].chunks[channel->buffer];
        if (index > chunks || size > chunks - index) {
            program_fail(channel->program,
                         "%" PRIu64 " chunks at %" PRIu64
                         " are past the end of the buffer of rank %d, which has %" PRIu64 " chunks",
                         size, index, channel->ranks[i], chunks);
            return false;
        }
    }
    return true;
}

/* Check that the chunk is the rank's own and as large as the region. */
static bool chunk_fits(const banyan_program_switch_channel *channel, int rank, banyan_chunk chunk,
                       const char *what, uint64_t size)
{
    if (!program_has_chunk(channel->program, chunk, rank, what))
        return false;
    if (chunk.size != size)
        program_fail(channel->program, "the %s has %" PRIu64 " chunks, the region %" PRIu64, what,
                     chunk.size, size);
    return chunk.size == size;
}

/* Take the operation's two operands: the shared region and the rank's own chunk. */
static bool take_operands(const banyan_program_switch_channel *channel, uint64_t index,
                          uint64_t size, banyan_chunk chunk, int thread_block,
                          program_block **block, plan_operand **region, plan_operand **own)
{
    int member;
    uint32_t number;
    *block = program_block_of(channel->program, chunk.rank, thread_block);
    if (!*block || !member_index(channel, chunk.rank, &member) ||
        !program_use_channel(channel->program, *block, PLAN_SWITCH, channel->numbers[member],
                             &number))
        return false;
    *region = program_operand(
        channel->program,
        (plan_operand){.place = PLAN_GROUP, .reference = number, .index = index, .size = size});
    *own = program_operand(channel->program, program_local(chunk));
    return *region && *own;
}

static bool program_switch_begin(const banyan_program_switch_channel *channel,
                                 const char *operation, int rank)
{
    int member;
    program_call call = {.operation = operation, .group = channel, .rank = rank};
    return program_call_begin(channel ? channel->program : NULL, call) &&
           member_index(channel, rank, &member);
}

void banyan_program_switch_reduce(banyan_program_switch_channel *channel, int rank, uint64_t index,
                                  uint64_t size, banyan_chunk destination, banyan_reduce_op op,
                                  int thread_block)
{
    program_block *block;
    plan_operand *region, *own;
    if (program_switch_begin(channel, "reduce", rank) &&
        chunk_fits(channel, rank, destination, "destination", size) &&
        region_exists(channel, index, size) && program_has_reduce_op(channel->program, op) &&
        take_operands(channel, index, size, destination, thread_block, &block, &region, &own))
        program_add(channel->program, block,
                    (plan_op){.kind = PLAN_GROUP_LOAD_REDUCE,
                              .channel_type = PLAN_SWITCH,
                              .reduce_op = op,
                              .sources = region,
                              .source_count = 1,
                              .destinations = own,
                              .destination_count = 1});
}

static void add_store(banyan_program_switch_channel *channel, plan_op_kind kind, int rank,
                      banyan_chunk source, uint64_t index, uint64_t size, int thread_block)
{
    program_block *block;
    plan_operand *region, *own;
    if (chunk_fits(channel, rank, source, "source", size) && region_exists(channel, index, size) &&
        take_operands(channel, index, size, source, thread_block, &block, &region, &own))
        program_add(channel->program, block,
                    (plan_op){.kind = kind,
                              .channel_type = PLAN_SWITCH,
                              .sources = own,
                              .source_count = 1,
                              .destinations = region,
                              .destination_count = 1});
}

void banyan_program_switch_broadcast(banyan_program_switch_channel *channel, int rank,
                                     banyan_chunk source, uint64_t index, uint64_t size,
                                     int thread_block)
{
    if (program_switch_begin(channel, "broadcast", rank))
        add_store(channel, PLAN_GROUP_STORE, rank, source, index, size, thread_block);
}

void banyan_program_switch_broadcast_packets(banyan_program_switch_channel *channel, int rank,
                                             banyan_chunk source, uint64_t index, uint64_t size,
                                             int thread_block)
{
    if (!program_switch_begin(channel, "broadcast packets", rank) ||
        !program_in_scratch(channel->program, source, "source"))
        return;
    if (channel->buffer != PLAN_SCRATCH) {
        program_fail(channel->program, "the group's buffer is %s: packets lie in scratch",
                     channel->buffer == PLAN_INPUT ? "input" : "output");
        return;
    }
    add_store(channel, PLAN_GROUP_STORE_PACKET, rank, source, index, size, thread_block);
}
