/* Thread blocks of a program, with their own numbers for channels and peers' buffers. */
#include "program/builder.h"

#include <inttypes.h>

program_block *program_block_of(banyan_program *program, int rank, int thread_block)
{
    program_rank *of = &program->ranks[rank];
    if (thread_block < 0 || thread_block >= PROGRAM_MAX_BLOCKS) {
        program_fail(program, "thread block %d is out of range: a rank has at most %d",
                     thread_block, PROGRAM_MAX_BLOCKS);
        return NULL;
    }
    while (of->blocks.count <= (size_t)thread_block) {
        if (!array_push(&of->blocks, (program_block){0})) {
            program_fail_memory(program);
            return NULL;
        }
    }
    return &of->blocks.data[thread_block];
}

/* Find the rank's number in the block's list; append it if it is new. */
static bool number_place(banyan_program *program, program_numbers *known, uint32_t number,
                         uint32_t *place)
{
    uint64_t found;
    if (map_get(&known->places, &number, sizeof number, &found)) {
        *place = (uint32_t)found;
        return true;
    }
    uint32_t *key = program_number(program, number);
    if (!key)
        return false;
    *place = (uint32_t)known->numbers.count;
    if (!array_push(&known->numbers, number) ||
        !map_put(&known->places, key, sizeof *key, *place)) {
        program_fail_memory(program);
        return false;
    }
    return true;
}

bool program_use_channel(banyan_program *program, program_block *block, plan_channel_type type,
                         uint32_t channel, uint32_t *number)
{
    return number_place(program, &block->channels[type], channel, number);
}

/* Two ints, so the key has no undefined padding bytes. */
typedef struct remote_key {
    int rank, buffer;
} remote_key;

static bool remote_buffer_number(banyan_program *program, program_rank *of, plan_channel_type type,
                                 banyan_chunk remote, uint32_t *number)
{
    unsigned access = 1U << type;
    remote_key wanted = {remote.rank, (int)remote.buffer};
    uint64_t found;
    if (map_get(&of->remote_numbers, &wanted, sizeof wanted, &found)) {
        of->remote_buffers.data[found].access |= access;
        *number = (uint32_t)found;
        return true;
    }
    remote_key *key = program_take(program, 1, sizeof *key);
    if (!key)
        return false;
    *key = wanted;
    *number = (uint32_t)of->remote_buffers.count;
    plan_remote_buffer added = {remote.rank, (plan_buffer)remote.buffer, access};
    if (!array_push(&of->remote_buffers, added) ||
        !map_put(&of->remote_numbers, key, sizeof *key, *number)) {
        program_fail_memory(program);
        return false;
    }
    return true;
}

bool program_use_remote(banyan_program *program, int rank, program_block *block,
                        plan_channel_type type, banyan_chunk remote, plan_operand *operand)
{
    uint32_t number, reference;
    if (!remote_buffer_number(program, &program->ranks[rank], type, remote, &number) ||
        !number_place(program, &block->remote_buffers[type], number, &reference))
        return false;
    *operand = (plan_operand){
        .place = PLAN_REMOTE, .reference = reference, .index = remote.index, .size = remote.size};
    return true;
}

plan_operand program_local(banyan_chunk chunk)
{
    return (plan_operand){.place = PLAN_LOCAL,
                          .buffer = (plan_buffer)chunk.buffer,
                          .index = chunk.index,
                          .size = chunk.size};
}

plan_operand *program_operand(banyan_program *program, plan_operand operand)
{
    plan_operand *list = program_take(program, 1, sizeof *list);
    if (list)
        *list = operand;
    return list;
}

uint32_t *program_number(banyan_program *program, uint32_t number)
{
    uint32_t *list = program_take(program, 1, sizeof *list);
    if (list)
        *list = number;
    return list;
}

/* True if the operation has at most as many chunks as the loop: an iteration cuts units off the
 * loop's chunks, and the operation's data must be within them. */
static bool fits_loop(banyan_program *program, const plan_op *op)
{
    for (uint32_t i = 0; program->in_loop && i < op->source_count; i++) {
        if (op->sources[i].size > program->loop_chunks) {
            program_fail(program, "%" PRIu64 " chunks in a loop over %" PRIu64 ", begun at %s:%d",
                         op->sources[i].size, program->loop_chunks, program_loop_file(program),
                         program->loop_place.line);
            return false;
        }
    }
    return true;
}

/* Return the number of the call's source line; 0: unknown. */
static uint32_t line_of(banyan_program *program)
{
    const plan_line *place = &program->call.place;
    struct {
        uintptr_t file;
        uintptr_t line; /* pointer-sized, so that keys have no padding */
    } key = {(uintptr_t)place->file, (uintptr_t)place->line}, *kept;
    uint64_t number = program->lines.count;
    if (!place->file)
        return 0;
    if (map_get(&program->line_numbers, &key, sizeof key, &number))
        return (uint32_t)number + 1;
    kept = program_take(program, 1, sizeof *kept);
    if (!kept)
        return 0;
    *kept = key;
    if (!array_push(&program->lines, *place) ||
        !map_put(&program->line_numbers, kept, sizeof *kept, number)) {
        program_fail_memory(program);
        return 0;
    }
    return (uint32_t)number + 1;
}

void program_add(banyan_program *program, program_block *block, plan_op op)
{
    op.line = line_of(program);
    if (!program->options.requested_sync)
        op.sync = 0;
    if (program->failed != BANYAN_OK || !fits_loop(program, &op))
        return;
    if (!array_push(program->in_loop ? &block->loop_ops : &block->ops, op))
        program_fail_memory(program);
}

unsigned program_sync_bits(banyan_sync sync)
{
    switch (sync) {
    case BANYAN_SYNC_NONE:
        return 0;
    case BANYAN_SYNC_BEFORE:
        return PLAN_SYNC_BEFORE;
    case BANYAN_SYNC_AFTER:
        return PLAN_SYNC_AFTER;
    case BANYAN_SYNC_BOTH:
        break;
    }
    return PLAN_SYNC_BEFORE | PLAN_SYNC_AFTER;
}
