/* Chunks and groups of thread blocks: the values that operations take. */
#include "program/builder.h"

#include <inttypes.h>
#include <string.h>

static const banyan_chunk no_chunk = {.rank = -1};

static const char *chunks_buffer_word(banyan_buffer buffer)
{
    static const char *const words[] = {"input", "output", "scratch"};
    return words[buffer];
}

static banyan_chunk buffer_slice(banyan_program *program, int rank, banyan_buffer buffer,
                                 uint64_t start, uint64_t stop)
{
    program_call call = {.operation = buffer == BANYAN_INPUT ? "input" : "output", .rank = rank};
    if (!program_call_begin(program, call) || !program_has_rank(program, rank, "rank"))
        return no_chunk;
    uint64_t chunks = program->ranks[rank].chunks[buffer];
    if (start > stop || stop > chunks) {
        program_fail(program,
                     start > stop ? "[%" PRIu64 ", %" PRIu64
                                    ") starts after its stop (the buffer has %" PRIu64 " chunks)"
                                  : "[%" PRIu64 ", %" PRIu64
                                    ") is outside of the buffer, which has %" PRIu64 " chunks",
                     start, stop, chunks);
        return no_chunk;
    }
    return (banyan_chunk){rank, buffer, start, stop - start};
}

banyan_chunk banyan_program_input(banyan_program *program, int rank, uint64_t start, uint64_t stop)
{
    return buffer_slice(program, rank, BANYAN_INPUT, start, stop);
}

banyan_chunk banyan_program_output(banyan_program *program, int rank, uint64_t start, uint64_t stop)
{
    return buffer_slice(program, rank, BANYAN_OUTPUT, start, stop);
}

banyan_chunk banyan_program_scratch(banyan_program *program, int rank, uint64_t chunks)
{
    program_call call = {.operation = "scratch", .rank = rank};
    if (!program_call_begin(program, call) || !program_has_rank(program, rank, "rank"))
        return no_chunk;
    uint64_t *taken = &program->ranks[rank].chunks[PLAN_SCRATCH];
    uint64_t start = *taken;
    if (__builtin_add_overflow(start, chunks, taken)) {
        *taken = start;
        program_fail(program, "%" PRIu64 " chunks beside the %" PRIu64 " taken are too many",
                     chunks, start);
        return no_chunk;
    }
    return (banyan_chunk){rank, BANYAN_SCRATCH, start, chunks};
}

banyan_chunk banyan_program_slice(banyan_program *program, banyan_chunk of, uint64_t start,
                                  uint64_t stop)
{
    program_call call = {.operation = "slice", .rank = of.rank};
    if (!program_call_begin(program, call))
        return no_chunk;
    if (start > stop || stop > of.size) {
        program_fail(program,
                     start > stop ? "[%" PRIu64 ", %" PRIu64
                                    ") starts after its stop (the chunk has %" PRIu64 " chunks)"
                                  : "[%" PRIu64 ", %" PRIu64
                                    ") is outside of the chunk, which has %" PRIu64 " chunks",
                     start, stop, of.size);
        return no_chunk;
    }
    return (banyan_chunk){of.rank, of.buffer, of.index + start, stop - start};
}

bool program_has_rank(banyan_program *program, int rank, const char *what)
{
    if (rank >= 0 && rank < program->rank_count)
        return true;
    program->call.rank = -1;
    program_fail(program, "%s %d is out of range: the program has %d ranks", what, rank,
                 program->rank_count);
    return false;
}

bool program_has_chunk(banyan_program *program, banyan_chunk chunk, int rank, const char *what)
{
    if (chunk.rank != rank) {
        program_fail(program, "the %s is a chunk of rank %d, not of rank %d", what, chunk.rank,
                     rank);
        return false;
    }
    if ((unsigned)chunk.buffer >= PLAN_BUFFERS) {
        program_fail(program, "the %s is in buffer %d, which no rank has", what, (int)chunk.buffer);
        return false;
    }
    uint64_t chunks = program->ranks[rank].chunks[chunk.buffer];
    if (chunk.index > chunks || chunk.size > chunks - chunk.index) {
        program_fail(program,
                     "the %s, %" PRIu64 " chunks at %" PRIu64
                     ", is outside of rank %d's %s, which has %" PRIu64 " chunks",
                     what, chunk.size, chunk.index, rank, chunks_buffer_word(chunk.buffer), chunks);
        return false;
    }
    if (chunk.size == 0)
        program_fail(program, "the %s, at %" PRIu64 " of rank %d's %s, has no chunks", what,
                     chunk.index, rank, chunks_buffer_word(chunk.buffer));
    return chunk.size > 0;
}

bool program_same_size(banyan_program *program, banyan_chunk a, const char *a_name, banyan_chunk b,
                       const char *b_name)
{
    if (a.size == b.size)
        return true;
    program_fail(program, "the %s has %" PRIu64 " chunks, the %s %" PRIu64, a_name, a.size, b_name,
                 b.size);
    return false;
}

bool program_in_scratch(banyan_program *program, banyan_chunk chunk, const char *what)
{
    if (chunk.buffer == BANYAN_SCRATCH)
        return true;
    program_fail(program,
                 "the %s is packets, which lie in scratch, but it is in rank %d's %s at %" PRIu64,
                 what, chunk.rank, chunks_buffer_word(chunk.buffer), chunk.index);
    return false;
}

bool program_has_reduce_op(banyan_program *program, banyan_reduce_op op)
{
    if ((unsigned)op <= BANYAN_PROD)
        return true;
    if (op == BANYAN_AVG)
        program_fail(program, "the reduction is avg, of which communicators alone have a call: a "
                              "plan or program can sum");
    else
        program_fail(program, "reduction %d is unknown", (int)op);
    return false;
}

bool program_has_blocks(banyan_program *program, const int *thread_blocks, int count)
{
    for (int i = 0; i < count; i++) {
        if (thread_blocks[i] < 0) {
            program_fail(program, "thread block %d is out of range", thread_blocks[i]);
            return false;
        }
        for (int j = 0; j < i; j++) {
            if (thread_blocks[i] == thread_blocks[j]) {
                program_fail(program, "thread block %d is in it twice, at %d and at %d",
                             thread_blocks[i], j, i);
                return false;
            }
        }
    }
    return true;
}

banyan_program_group *banyan_program_group_create(banyan_program *program, const int *thread_blocks,
                                                  int count)
{
    if (!program_call_begin(program, (program_call){.operation = "thread block group", .rank = -1}))
        return NULL;
    if (count < 1) {
        program_fail(program, "it has %d thread blocks", count);
        return NULL;
    }
    if (!program_has_blocks(program, thread_blocks, count))
        return NULL;
    banyan_program_group *group = program_take(program, 1, sizeof *group);
    int *blocks = program_take(program, (size_t)count, sizeof *blocks);
    if (!group || !blocks)
        return NULL;
    memcpy(blocks, thread_blocks, (size_t)count * sizeof *blocks);
    *group = (banyan_program_group){blocks, count};
    return group;
}

int program_by_count(banyan_program *program, banyan_program_by by)
{
    if (by.thread_block >= 0)
        return 1;
    if (by.group)
        return by.group->count;
    program_fail(program, "neither a thread block nor a group of them is given");
    return 0;
}

program_share program_by_share(banyan_program_by by, int i)
{
    if (by.thread_block >= 0)
        return (program_share){.thread_block = by.thread_block};
    return (program_share){by.group->blocks[i], (uint32_t)i, (uint32_t)by.group->count};
}
