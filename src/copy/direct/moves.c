#include "copy/direct/moves.h"

#include <string.h>

#include "copy/strided/strided.h"

#define MOVE_BYTES_MAX ((uint64_t)256 << 10)
#define CHUNK_BYTES ((uint64_t)128 << 10)

static banyan_status direct_moves_push(direct_moves *moves, const direct_move *move, uint64_t bytes)
{
    RETURN_IF_NO_MEMORY(array_push(&moves->list, *move));
    moves->bytes += bytes;
    moves->chunk_bytes += bytes;
    return moves->chunk_bytes < CHUNK_BYTES ? BANYAN_OK : direct_moves_finish(moves);
}

banyan_status direct_moves_finish(direct_moves *moves)
{
    if (moves->chunk_bytes == 0)
        return BANYAN_OK;
    moves->chunk_bytes = 0;
    return array_push(&moves->chunk_ends, moves->list.count) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

/* Cut one run into parts of equal size, in whole lines. */
static banyan_status cut_run(direct_moves *moves, const strided_move *run)
{
    uint64_t parts = (run->run_bytes + MOVE_BYTES_MAX - 1) / MOVE_BYTES_MAX;
    uint64_t part_bytes = (run->run_bytes / parts + 63) / 64 * 64;
    for (uint64_t at = 0; at < run->run_bytes; at += part_bytes) {
        direct_move part = {.move = *run};
        part.move.to += at;
        part.move.from += at;
        if (part_bytes < run->run_bytes - at)
            part.move.run_bytes = part_bytes;
        else
            part.move.run_bytes = run->run_bytes - at;
        RETURN_IF_FAILED(direct_moves_push(moves, &part, part.move.run_bytes));
    }
    return BANYAN_OK;
}

/* Cut a move into chunks of several iterations of the slowest loop; where one iteration is too
 * long, the loops below cut it. */
static banyan_status direct_moves_cut(direct_moves *moves, const strided_move *move)
{
    uint64_t bytes = strided_move_bytes(move);
    if (bytes <= MOVE_BYTES_MAX)
        return direct_moves_push(moves, &(direct_move){.move = *move}, bytes);
    if (move->count == 0)
        return cut_run(moves, move);
    const strided_loop *slowest = &move->loops[0];
    uint64_t row_bytes = bytes / slowest->extent;
    uint64_t rows = row_bytes < MOVE_BYTES_MAX ? MOVE_BYTES_MAX / row_bytes : 1;
    for (uint64_t row = 0; row < slowest->extent; row += rows) {
        strided_move part = *move;
        part.to += (int64_t)row * slowest->to;
        part.from += (int64_t)row * slowest->from;
        if (rows == 1) {
            part.loops++;
            part.count--;
            RETURN_IF_FAILED(direct_moves_cut(moves, &part));
            continue;
        }
        uint64_t left = slowest->extent - row;
        strided_loop *loops = arena_take(&moves->loops, (size_t)move->count * sizeof *loops);
        RETURN_IF_NO_MEMORY(loops);
        memcpy(loops, move->loops, (size_t)move->count * sizeof *loops);
        loops[0].extent = rows < left ? rows : left;
        part.loops = loops;
        RETURN_IF_FAILED(
            direct_moves_push(moves, &(direct_move){.move = part}, strided_move_bytes(&part)));
    }
    return BANYAN_OK;
}

static banyan_status direct_moves_add_walk(direct_moves *moves, const strided_view *to,
                                           const strided_view *from)
{
    uint64_t most = MOVE_BYTES_MAX / to->elem_bytes + 1;
    for (uint64_t first = 0; first < to->elems; first += most) {
        uint64_t count = to->elems - first < most ? to->elems - first : most;
        direct_walk *walk = arena_take(&moves->loops, sizeof *walk);
        RETURN_IF_NO_MEMORY(walk);
        *walk = (direct_walk){*to, *from, first, count};
        RETURN_IF_FAILED(
            direct_moves_push(moves, &(direct_move){.walk = walk}, count * to->elem_bytes));
    }
    return BANYAN_OK;
}

/* Plan the move of all elements, with its own copy of the loops. */
static banyan_status plan_move(direct_moves *moves, const strided_grid *grid,
                               const strided_view *to, const strided_view *from, strided_move *move)
{
    strided_loop planned[STRIDED_MAX_LOOPS], *loops = NULL;
    strided_move_plan(grid, to->data, from->data, planned, move);
    if (move->count > 0) {
        loops = arena_take(&moves->loops, (size_t)move->count * sizeof *loops);
        RETURN_IF_NO_MEMORY(loops);
        memcpy(loops, planned, (size_t)move->count * sizeof *loops);
    }
    move->loops = loops;
    return BANYAN_OK;
}

banyan_status direct_moves_add(direct_moves *moves, const strided_view *to,
                               const strided_view *from)
{
    if (to->elems == 0)
        return BANYAN_OK;
    strided_grid grid;
    if (!strided_grid_of(to, from, &grid))
        return direct_moves_add_walk(moves, to, from);
    strided_move move;
    RETURN_IF_FAILED(plan_move(moves, &grid, to, from, &move));
    return direct_moves_cut(moves, &move);
}

/* Return the view of blocks along the last dimension, and the stride of a block's values in it. */
static strided_view direct_moves_blocks_of(const strided_view *values, int64_t *step)
{
    strided_view blocks = *values;
    int last = blocks.ndim - 1;
    *step = blocks.stride[last];
    blocks.extent[last] /= STRIDED_BLOCK;
    blocks.stride[last] *= STRIDED_BLOCK;
    blocks.elems /= STRIDED_BLOCK;
    blocks.elem_bytes *= STRIDED_BLOCK;
    if (blocks.extent[last] == 1)
        blocks.ndim--;
    return blocks;
}

static banyan_status direct_moves_add_whole_box(direct_moves *moves, const strided_view *to,
                                                const strided_view *from, direct_move whole)
{
    if (to->elems == 0)
        return BANYAN_OK;
    if (to->format != from->format) {
        whole.to_format = to->format;
        whole.from_format = from->format;
    }
    strided_grid grid;
    if (strided_grid_of(to, from, &grid)) {
        RETURN_IF_FAILED(plan_move(moves, &grid, to, from, &whole.move));
    } else {
        direct_walk *walk = arena_take(&moves->loops, sizeof *walk);
        RETURN_IF_NO_MEMORY(walk);
        *walk = (direct_walk){*to, *from, 0, to->elems};
        whole.walk = walk;
    }
    moves->bytes += to->elems * to->elem_bytes;
    return array_push(&moves->list, whole) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

banyan_status direct_moves_add_whole(direct_moves *moves, const strided_view *to,
                                     const strided_view *from)
{
    direct_move whole = {0};
    if (to->elems == 0 || to->format == from->format || !strided_is_mxfp8(to->format))
        return direct_moves_add_whole_box(moves, to, from, whole);
    strided_view values = direct_moves_blocks_of(from, &whole.from_step), elements = *to;
    if (!strided_is_scales(to->format))
        elements = direct_moves_blocks_of(to, &whole.to_step);
    return direct_moves_add_whole_box(moves, &elements, &values, whole);
}

void direct_moves_run_chunk(const direct_moves *moves, size_t chunk, bool streaming)
{
    size_t first = chunk > 0 ? moves->chunk_ends.data[chunk - 1] : 0;
    for (size_t i = first; i < moves->chunk_ends.data[chunk]; i++) {
        const direct_move *move = &moves->list.data[i];
        if (move->walk)
            strided_copy(&move->walk->to, move->walk->first, &move->walk->from, move->walk->first,
                         move->walk->count);
        else
            strided_move_run(&move->move, streaming);
    }
}

void direct_moves_free(direct_moves *moves)
{
    array_free(&moves->list);
    array_free(&moves->chunk_ends);
    arena_free(&moves->loops);
}
