#include "copy/strided/loops.h"

static void loops_reverse(strided_loop *loops, int count)
{
    for (int low = 0, high = count - 1; low < high; low++, high--) {
        strided_loop swap = loops[low];
        loops[low] = loops[high];
        loops[high] = swap;
    }
}

/* From the fastest dimension on, the smaller extent splits the larger one. */
bool strided_grid_of(const strided_view *to, const strided_view *from, strided_grid *grid)
{
    int a = to->ndim - 1, b = from->ndim - 1, count = 0;
    uint64_t a_left = 1, b_left = 1;
    int64_t a_stride = 0, b_stride = 0;
    for (;;) {
        if (a_left == 1 && a >= 0) {
            a_left = (uint64_t)to->extent[a];
            a_stride = to->stride[a--];
        }
        if (b_left == 1 && b >= 0) {
            b_left = (uint64_t)from->extent[b];
            b_stride = from->stride[b--];
        }
        uint64_t cut = a_left < b_left ? a_left : b_left;
        if (cut == 1)
            break;
        if (a_left % cut != 0 || b_left % cut != 0)
            return false;
        grid->loop[count++] = (strided_loop){cut, a_stride, b_stride};
        a_left /= cut;
        b_left /= cut;
        a_stride *= (int64_t)cut;
        b_stride *= (int64_t)cut;
    }
    loops_reverse(grid->loop, count);
    grid->count = count;
    grid->elem_bytes = to->elem_bytes;
    return true;
}

static uint64_t loops_magnitude(int64_t stride)
{
    return stride < 0 ? 0 - (uint64_t)stride : (uint64_t)stride;
}

static bool is_slower(const strided_loop *a, const strided_loop *b)
{
    if (a->to != b->to)
        return a->to > b->to;
    return loops_magnitude(a->from) > loops_magnitude(b->from);
}

/* Make all strides of the destination positive and sort them, the largest first. */
static void order_by_destination(strided_move *move, strided_loop *loops)
{
    for (int i = 0; i < move->count; i++) {
        strided_loop loop = loops[i];
        if (loop.to < 0) {
            move->to += (int64_t)(loop.extent - 1) * loop.to;
            move->from += (int64_t)(loop.extent - 1) * loop.from;
            loop.to = -loop.to;
            loop.from = -loop.from;
        }
        int at = i;
        for (; at > 0 && is_slower(&loop, &loops[at - 1]); at--)
            loops[at] = loops[at - 1];
        loops[at] = loop;
    }
}

static void loops_merge(strided_move *move, strided_loop *loops)
{
    int kept = 0;
    for (int i = 0; i < move->count; i++) {
        strided_loop *outer = kept > 0 ? &loops[kept - 1] : NULL;
        int64_t extent = (int64_t)loops[i].extent;
        if (loops[i].extent == 1)
            continue;
        if (outer && outer->to == extent * loops[i].to && outer->from == extent * loops[i].from)
            *outer = (strided_loop){outer->extent * loops[i].extent, loops[i].to, loops[i].from};
        else
            loops[kept++] = loops[i];
    }
    if (kept > 0) {
        const strided_loop *inner = &loops[kept - 1];
        int64_t run = (int64_t)move->run_bytes;
        if (inner->to == run && inner->from == run) {
            move->run_bytes *= inner->extent;
            kept--;
        }
    }
    move->count = kept;
}

/* If a loop other than the innermost walks the source in small steps, make the two neighbours, so
 * that the kernel can go through both in tiles. */
static void join_transposed(strided_move *move, strided_loop *loops)
{
    int last = move->count - 1, nearest = last;
    for (int i = 0; i < last; i++)
        if (loops[i].from != 0 &&
            loops_magnitude(loops[i].from) < loops_magnitude(loops[nearest].from))
            nearest = i;
    if (nearest == last)
        return;
    strided_loop moved = loops[nearest];
    for (int i = nearest; i < last - 1; i++)
        loops[i] = loops[i + 1];
    loops[last - 1] = moved;
}

void strided_move_plan(const strided_grid *grid, char *to, const char *from, strided_loop *loops,
                       strided_move *move)
{
    *move = (strided_move){to, from, grid->elem_bytes, grid->count, loops};
    for (int i = 0; i < grid->count; i++)
        loops[i] = grid->loop[i];
    order_by_destination(move, loops);
    loops_merge(move, loops);
    join_transposed(move, loops);
}

uint64_t strided_move_bytes(const strided_move *move)
{
    uint64_t bytes = move->run_bytes;
    for (int i = 0; i < move->count; i++)
        bytes *= move->loops[i].extent;
    return bytes;
}
