#include "check/replay/replay.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- places ---- */

const plan_op *walker_op(const walker *by, const plan_op **loop)
{
    const plan_op *op = &by->block->ops[by->at];
    *loop = op->kind == PLAN_PIPELINE ? op : NULL;
    return *loop ? &op->ops[by->inner] : op;
}

static instance instance_of(const replay *all, const walker *by)
{
    const plan_op *loop;
    walker_op(by, &loop);
    return (instance){.rank = by->rank,
                      .block = by->index,
                      .op = by->at,
                      .loop_op = loop ? by->inner : NOBODY,
                      .iteration = (uint32_t)by->iteration,
                      .run = all->ranks[by->rank].run};
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

/* ---- chunks ---- */

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
                              uint64_t end, char text[SPAN_TEXT_BYTES])
{
    uint64_t first, last;
    int used = snprintf(text, SPAN_TEXT_BYTES, "bytes [%" PRIu64 ", %" PRIu64 ")", begin, end);
    if (!chunk_at(all, buffer, packets, begin, &first) ||
        !chunk_at(all, buffer, packets, end - 1, &last))
        return text;
    if (first == last)
        snprintf(text + used, SPAN_TEXT_BYTES - (size_t)used, " (chunk %" PRIu64 ")", first);
    else
        snprintf(text + used, SPAN_TEXT_BYTES - (size_t)used,
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

/* ---- vector clocks ---- */

static void forget_told(replay *all, walker *by)
{
    vector_clock_drop(&all->store, by->told);
    vector_clock_drop(&all->store, by->told_relaxed);
    by->told = by->told_relaxed = NULL;
}

bool walker_tell(replay *all, walker *by, bool relaxed, vector_clock **told)
{
    if (!by->told) {
        by->told = vector_clock_keep(by->start);
        vector_clock_entry own = {by->chain, by->time - 1, by->time - 1};
        if (!vector_clock_add_one(&all->store, &by->told, own))
            return false;
    }
    if (relaxed && !by->told_relaxed) {
        by->told_relaxed = vector_clock_relax(&all->store, by->told, by->rank);
        if (!by->told_relaxed)
            return false;
    }
    *told = relaxed ? by->told_relaxed : by->told;
    return true;
}

bool walker_join(replay *all, walker *by)
{
    if (!vector_clock_add(&all->store, &by->start, by->pending))
        return false;
    vector_clock_drop(&all->store, by->pending);
    by->pending = NULL;
    by->time++;
    forget_told(all, by);
    return true;
}

/* ---- thread blocks ---- */

static outcome check_replay_take_step(replay *all, walker *by)
{
    const plan_op *loop, *op = walker_op(by, &loop);
    switch (op->kind) {
    case PLAN_NOP:
        return walker_join(all, by) ? DONE : FAILED;
    case PLAN_SEM_ACQUIRE:
    case PLAN_SEM_RELEASE:
    case PLAN_SIGNAL:
    case PLAN_WAIT:
    case PLAN_RELAXED_SIGNAL:
    case PLAN_RELAXED_WAIT:
    case PLAN_BARRIER:
    case PLAN_FLUSH:
        return replay_sync(all, by, op);
    default:
        return replay_data(all, by, op, loop);
    }
}

static void check_replay_go_on(walker *by, const plan_op *loop)
{
    by->taken = 0;
    by->instance = NOBODY;
    plan_go_on(loop, &by->at, &by->inner, &by->iteration);
}

/* True for a loop that is over, or empty. */
static bool is_past_loop(const replay *all, const walker *by)
{
    const plan_op *op = &by->block->ops[by->at];
    return op->kind == PLAN_PIPELINE &&
           (op->op_count == 0 || by->iteration == plan_geometry_iterations(all->geometry, op));
}

static uint64_t memory_of(const replay *all)
{
    return all->store.bytes + all->memory.bytes + all->values.memory.bytes +
           cells_memory(&all->cells) + all->instances.capacity * sizeof *all->instances.data +
           all->parts.capacity * sizeof *all->parts.data +
           all->origins.capacity * sizeof *all->origins.data + map_memory(&all->values.by_content);
}

/* Advance the block as far as possible; `moved` is whether it made progress. */
static outcome check_replay_advance(replay *all, walker *by, bool *moved)
{
    while (by->at < by->block->op_count) {
        if (is_past_loop(all, by)) {
            by->iteration = 0;
            check_replay_go_on(by, NULL);
            continue;
        }
        const plan_op *loop;
        walker_op(by, &loop);
        outcome result = check_replay_take_step(all, by);
        if (result != DONE)
            return result;
        if (memory_of(all) > all->max_memory_bytes) {
            error_set(BANYAN_ERR_NO_MEMORY,
                      "checking plan %s takes more than the %llu bytes that it may",
                      all->plan->name, (unsigned long long)all->max_memory_bytes);
            return FAILED;
        }
        check_replay_go_on(by, loop);
        all->steps++;
        *moved = true;
    }
    return DONE;
}

/* ---- ranks ---- */

static bool has_ended(const replay *all, int r)
{
    const rank_state *rank = &all->ranks[r];
    for (uint32_t b = 0; b < all->plan->ranks[r].block_count; b++) {
        if (rank->walkers[b].at < rank->walkers[b].block->op_count)
            return false;
    }
    return true;
}

/* Advance one rank as far as possible in runs up to `last`. */
static outcome advance_rank(replay *all, int r, uint32_t last, bool *moved)
{
    rank_state *rank = &all->ranks[r];
    while (rank->run <= last) {
        if (!rank->running) {
            if (!replay_begin_run(all, r))
                return FAILED;
            *moved = true;
        }
        for (uint32_t b = 0; b < all->plan->ranks[r].block_count; b++) {
            if (check_replay_advance(all, &rank->walkers[b], moved) == FAILED)
                return FAILED;
        }
        if (!has_ended(all, r))
            return WAITS;
        if (!replay_end_run(all, r))
            return FAILED;
        *moved = true;
    }
    return DONE;
}

/* Advance all ranks in runs up to `last`; `waits` is whether any rank is still in one of them. */
static banyan_status advance_all(replay *all, uint32_t last, bool *waits)
{
    bool moved = true;
    while (moved) {
        moved = *waits = false;
        for (int r = 0; r < all->plan->rank_count; r++) {
            outcome result = advance_rank(all, r, last, &moved);
            *waits |= result == WAITS;
            if (result == FAILED)
                return BANYAN_ERR_NO_MEMORY;
        }
    }
    return BANYAN_OK;
}

banyan_status replay_play(replay *all)
{
    bool waits = false;
    for (uint32_t last = 0; last < all->runs; last++)
        RETURN_IF_FAILED(advance_all(all, last, &waits));
    all->stuck = waits;
    bool told = waits ? replay_explain_stuck(all) : replay_tell_dry(all);
    return told ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}
