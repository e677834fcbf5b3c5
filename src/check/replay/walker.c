/* Places of thread blocks and operations, and the clocks of thread blocks. */
#include "check/replay/replay.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static instance instance_of(const replay *all, const walker *by)
{
    return (instance){.rank = by->pos->rank,
                      .block = by->pos->number,
                      .op = by->pos->at,
                      .loop_op = plan_position_loop(by->pos) ? by->pos->inner : NOBODY,
                      .iteration = (uint32_t)by->pos->iteration,
                      .run = all->ranks[by->pos->rank].run};
}

static banyan_check_place check_replay_place_of(instance one)
{
    bool caller = one.block == NOBODY;
    return (banyan_check_place){.rank = one.rank,
                                .thread_block = caller ? -1 : (int)one.block,
                                .operation = caller ? -1 : (int)one.op,
                                .loop_operation = one.loop_op == NOBODY ? -1 : (int)one.loop_op,
                                .run = (int)one.run};
}

banyan_check_place walker_place(const replay *all, const walker *by)
{
    return check_replay_place_of(instance_of(all, by));
}

banyan_check_place replay_place(const replay *all, uint32_t number)
{
    return check_replay_place_of(all->instances.data[number]);
}

/* Show the end of a long path. */
#define FILE_BYTES_MOST 96

const char *line_text(const plan_line *line, char text[LINE_TEXT_BYTES])
{
    text[0] = '\0';
    if (!line)
        return text;
    size_t bytes = strlen(line->file);
    bool cut = bytes > FILE_BYTES_MOST;
    snprintf(text, LINE_TEXT_BYTES, ", %s%s:%d", cut ? "..." : "",
             cut ? line->file + bytes - FILE_BYTES_MOST : line->file, line->line);
    return text;
}

const char *replay_place_text(const replay *all, uint32_t number, char text[PLACE_TEXT_BYTES])
{
    instance one = all->instances.data[number];
    if (one.block == NOBODY) {
        snprintf(text, PLACE_TEXT_BYTES, "rank %d's caller", one.rank);
        return text;
    }
    const plan_op *op = &all->plan->ranks[one.rank].blocks[one.block].ops[one.op];
    bool in_loop = one.loop_op != NOBODY;
    const plan_op *inner = in_loop ? &op->ops[one.loop_op] : op;
    char line[LINE_TEXT_BYTES];
    line_text(plan_line_of(all->plan, inner), line);
    if (!in_loop)
        snprintf(text, PLACE_TEXT_BYTES, "rank %d, thread block %u, operation %u (%s%s)", one.rank,
                 one.block, one.op, plan_op_name(op->kind), line);
    else
        snprintf(text, PLACE_TEXT_BYTES,
                 "rank %d, thread block %u, operation %u of the loop %u (%s%s), iteration %u",
                 one.rank, one.block, one.loop_op, one.op, plan_op_name(inner->kind), line,
                 one.iteration);
    return text;
}

/* Find the chunk of a rank's buffer that has this byte. False for bytes that several chunks use. */
static bool chunk_at(const replay *all, plan_buffer buffer, bool packets, uint64_t byte,
                     uint64_t *chunk)
{
    const plan_geometry *geometry = all->geometry;
    if (buffer == PLAN_SCRATCH) {
        uint64_t behind = packets ? 0 : geometry->scratch_data_chunks;
        if (geometry->scratch_stride < geometry->chunk_bytes || geometry->scratch_stride == 0 ||
            byte / geometry->scratch_stride < behind)
            return false;
        *chunk = byte / geometry->scratch_stride - behind;
        return true;
    }
    uint64_t block_bytes = geometry->buffers[buffer].block_bytes;
    uint64_t block_chunks = geometry->buffers[buffer].block_chunks;
    if (block_bytes == 0 || geometry->chunk_bytes == 0)
        return false;
    uint64_t in_block = byte % block_bytes / geometry->chunk_bytes;
    *chunk =
        byte / block_bytes * block_chunks + (in_block < block_chunks ? in_block : block_chunks - 1);
    return true;
}

const char *replay_bytes_text(const replay *all, plan_buffer buffer, bool packets, uint64_t begin,
                              uint64_t end, char text[BYTES_TEXT_BYTES])
{
    uint64_t first, last;
    int used = snprintf(text, BYTES_TEXT_BYTES, "bytes [%" PRIu64 ", %" PRIu64 ")", begin, end);
    if (!chunk_at(all, buffer, packets, begin, &first) ||
        !chunk_at(all, buffer, packets, end - 1, &last))
        return text;
    if (first == last)
        snprintf(text + used, BYTES_TEXT_BYTES - (size_t)used, " (chunk %" PRIu64 ")", first);
    else
        snprintf(text + used, BYTES_TEXT_BYTES - (size_t)used,
                 " (chunks %" PRIu64 " to %" PRIu64 ")", first, last);
    return text;
}

bool walker_begin(replay *all, walker *by)
{
    if (by->instance != NOBODY)
        return true;
    by->instance = (uint32_t)all->instances.count;
    return array_push(&all->instances, instance_of(all, by));
}

static void walker_forget_released(replay *all, walker *by)
{
    vector_clock_drop(&all->store, by->released);
    vector_clock_drop(&all->store, by->released_relaxed);
    by->released = by->released_relaxed = NULL;
}

bool walker_release(replay *all, walker *by, bool relaxed, vector_clock **released)
{
    if (!by->released) {
        by->released = vector_clock_keep(by->start);
        vector_clock_entry own = {by->chain, by->time - 1, by->time - 1};
        if (!vector_clock_add_one(&all->store, &by->released, own))
            return false;
    }
    if (relaxed && !by->released_relaxed) {
        by->released_relaxed = vector_clock_relax(&all->store, by->released, by->pos->rank);
        if (!by->released_relaxed)
            return false;
    }
    *released = relaxed ? by->released_relaxed : by->released;
    return true;
}

bool walker_join(replay *all, walker *by)
{
    if (!vector_clock_add(&all->store, &by->start, by->pending))
        return false;
    vector_clock_drop(&all->store, by->pending);
    by->pending = NULL;
    by->time++;
    walker_forget_released(all, by);
    return true;
}
