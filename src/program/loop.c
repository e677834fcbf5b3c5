#include "program/builder.h"

#include <inttypes.h>
#include <string.h>

void banyan_program_loop_begin(banyan_program *program, uint64_t unit_bytes, uint64_t chunks)
{
    if (!program_call_begin(program, (program_call){.operation = "loop", .rank = -1}))
        return;
    if (program->in_loop) {
        program_fail(program, "it begins inside the loop begun at %s:%d: loops do not nest",
                     program_loop_file(program), program->loop_place.line);
        return;
    }
    if (unit_bytes == 0 || chunks == 0) {
        program_fail(program, "%" PRIu64 " chunks in units of %" PRIu64 " bytes", chunks,
                     unit_bytes);
        return;
    }
    program->in_loop = true;
    program->loop_unit_bytes = unit_bytes;
    program->loop_chunks = chunks;
    program->loop_place = program->call.place;
}

/* Replace the block's part of the loop by one operation. */
static bool close_loop(banyan_program *program, program_block *block)
{
    size_t count = block->loop_ops.count;
    if (count == 0)
        return true;
    plan_op *ops = program_take(program, count, sizeof *ops);
    if (!ops)
        return false;
    memcpy(ops, block->loop_ops.data, count * sizeof *ops);
    array_free(&block->loop_ops);
    program_add(program, block,
                (plan_op){.kind = PLAN_PIPELINE,
                          .unit_bytes = program->loop_unit_bytes,
                          .loop_chunks = program->loop_chunks,
                          .ops = ops,
                          .op_count = (uint32_t)count});
    return program->failed == BANYAN_OK;
}

void banyan_program_loop_end(banyan_program *program)
{
    if (!program_call_begin(program, (program_call){.operation = "end of a loop", .rank = -1}))
        return;
    if (!program->in_loop) {
        program_fail(program, "no loop has begun");
        return;
    }
    program->in_loop = false;
    program->call.place = program->loop_place;
    for (int rank = 0; rank < program->rank_count; rank++) {
        for (size_t i = 0; i < program->ranks[rank].blocks.count; i++) {
            if (!close_loop(program, &program->ranks[rank].blocks.data[i]))
                return;
        }
    }
}
