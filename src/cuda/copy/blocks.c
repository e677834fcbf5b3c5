#include "cuda/copy/blocks.h"

#include <stdlib.h>

uint8_t copy_blocks_cast(const direct_move *move)
{
    bool ocp = move->to_format == STRIDED_E4M3_OCP || move->to_format == STRIDED_SCALES_OCP;
    uint32_t from = move->from_format == STRIDED_F32   ? COPY_FROM_F32
                    : move->from_format == STRIDED_F16 ? COPY_FROM_F16
                                                       : 0;
    return (uint8_t)(COPY_QUANTIZE | from | (ocp ? 0 : COPY_ROUND_UP) |
                     (strided_is_scales(move->to_format) ? COPY_TO_SCALES : 0));
}

/* True if all blocks are contiguous enough for several threads to share them. */
static bool blocks_are_shared(const copy_box *of, bool to_scales)
{
    bool words = (of->cast & COPY_FROM_F32) != 0;
    uint64_t to = (uintptr_t)of->to, from = (uintptr_t)of->from;
    for (int i = 0; i < of->count; i++) {
        to |= (uint64_t)of->dims[i].to;
        from |= (uint64_t)of->dims[i].from;
    }
    bool writes = to_scales || (of->to_step == 1 && to % (words ? 4 : 8) == 0);
    return writes && of->from_step == (words ? 4 : 2) && from % 16 == 0;
}

/* Blocks are further apart in the source than at the destination, so they form no runs. */
copy_box copy_blocks_of(const direct_move *of)
{
    const strided_move *move = &of->move;
    copy_box made = {.to = move->to,
                     .from = move->from,
                     .width = 1,
                     .cast = copy_blocks_cast(of),
                     .to_step = of->to_step,
                     .from_step = of->from_step};
    for (int i = 0; i < move->count; i++)
        if (move->loops[i].extent > 1)
            made.dims[made.count++] = (struct copy_box_dim){.extent = move->loops[i].extent,
                                                            .to = move->loops[i].to,
                                                            .from = move->loops[i].from};
    if (made.count == 0)
        made.dims[made.count++] = (struct copy_box_dim){.extent = 1};
    made.cast |= blocks_are_shared(&made, strided_is_scales(of->to_format)) ? COPY_SHARED : 0;
    return made;
}

/* A quantizing move in the order in which pairs are neighbours. */
typedef struct block_move {
    const char *from;
    int64_t from_step;
    uint8_t kind; /* source type and rounding rule */
    bool to_scales;
    size_t place;
} block_move;

static int compare_keys(const block_move *a, const block_move *b)
{
    if (a->from != b->from)
        return a->from < b->from ? -1 : 1;
    if (a->from_step != b->from_step)
        return a->from_step < b->from_step ? -1 : 1;
    return a->kind - b->kind;
}

static int compare_block_moves(const void *one, const void *other)
{
    const block_move *a = one, *b = other;
    int order = compare_keys(a, b);
    if (order == 0)
        order = a->to_scales - b->to_scales;
    return order != 0 ? order : (a->place > b->place) - (a->place < b->place);
}

static size_t list_block_moves(const direct_moves *moves, block_move *listed)
{
    size_t count = 0;
    for (size_t i = 0; i < moves->list.count; i++) {
        const direct_move *move = &moves->list.data[i];
        if (move->walk || !strided_is_mxfp8(move->to_format))
            continue;
        if (listed)
            listed[count] = (block_move){.from = move->move.from,
                                         .from_step = move->from_step,
                                         .kind = copy_blocks_cast(move) & (uint8_t)~COPY_TO_SCALES,
                                         .to_scales = strided_is_scales(move->to_format),
                                         .place = i};
        count++;
    }
    return count;
}

static void pair_neighbours(const direct_moves *moves, const block_move *listed, size_t count,
                            copy_block_pair *pairs)
{
    copy_box joined;
    for (size_t i = 0; i < moves->list.count; i++)
        pairs[i] = (copy_block_pair){.scales = SIZE_MAX};
    for (size_t i = 0; i + 1 < count; i++) {
        const block_move *a = &listed[i], *b = &listed[i + 1];
        if (a->to_scales || !b->to_scales || compare_keys(a, b) != 0 ||
            !copy_blocks_join(&moves->list.data[a->place], &moves->list.data[b->place], &joined))
            continue;
        pairs[a->place].scales = b->place;
        pairs[b->place].is_taken = true;
    }
}

banyan_status copy_blocks_pair(const direct_moves *moves, copy_block_pair **pairs)
{
    size_t count = list_block_moves(moves, NULL), room = moves->list.count;
    *pairs = NULL;
    if (count == 0)
        return BANYAN_OK;
    block_move *listed = malloc(count * sizeof *listed);
    *pairs = malloc(room * sizeof **pairs);
    if (listed && *pairs) {
        list_block_moves(moves, listed);
        qsort(listed, count, sizeof *listed, compare_block_moves);
        pair_neighbours(moves, listed, count, *pairs);
    }
    free(listed);
    if (listed && *pairs)
        return BANYAN_OK;
    free(*pairs);
    *pairs = NULL;
    return banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: out of memory: %zu bytes for a schedule",
                            count * sizeof *listed + room * sizeof **pairs);
}

static int compare_from(const void *one, const void *other)
{
    const struct copy_box_dim *a = one, *b = other;
    uint64_t x = copy_box_magnitude(a->from), y = copy_box_magnitude(b->from);
    return (x > y) - (x < y);
}

static int compare_scale(const void *one, const void *other)
{
    const struct copy_box_dim *a = one, *b = other;
    uint64_t x = copy_box_magnitude(a->scale), y = copy_box_magnitude(b->scale);
    return (x < y) - (x > y);
}

/* Split the part of a loop with the `extent` fastest places off. */
static void take_fastest(struct copy_box_dim *loop, uint64_t extent)
{
    loop->extent /= extent;
    loop->to *= (int64_t)extent;
    loop->from *= (int64_t)extent;
}

/* Divide the loops of both until they are equal in the source. Splitting a loop leaves the move as
 * it is. */
static bool divide_loops(copy_box *a, copy_box *b, copy_box *joined)
{
    int i = 0, k = 0;
    qsort(a->dims, (size_t)a->count, sizeof a->dims[0], compare_from);
    qsort(b->dims, (size_t)b->count, sizeof b->dims[0], compare_from);
    joined->count = 0;
    while (i < a->count && k < b->count) {
        struct copy_box_dim *x = &a->dims[i], *y = &b->dims[k];
        uint64_t extent = x->extent < y->extent ? x->extent : y->extent;
        if (x->from != y->from || x->extent % extent != 0 || y->extent % extent != 0 ||
            joined->count == COPY_BOX_DIMS)
            return false;
        joined->dims[joined->count++] = (struct copy_box_dim){extent, x->to, x->from, y->to};
        take_fastest(x, extent);
        take_fastest(y, extent);
        i += x->extent == 1;
        k += y->extent == 1;
    }
    return i == a->count && k == b->count;
}

/* Neighbouring units write neighbouring scales. */
bool copy_blocks_join(const direct_move *elements, const direct_move *scales, copy_box *joined)
{
    copy_box a = copy_blocks_of(elements), b = copy_blocks_of(scales);
    *joined = a;
    joined->scales = b.to;
    joined->cast |= COPY_TO_BOTH;
    if (!(a.cast & COPY_SHARED) || !divide_loops(&a, &b, joined))
        return false;
    qsort(joined->dims, (size_t)joined->count, sizeof joined->dims[0], compare_scale);
    return true;
}
