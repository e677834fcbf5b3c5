#include "copy/strided/loops.h"

#include <string.h>

#include "memory/stream.h"

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

#define LINE_BYTES 64

/* Shorter runs copy faster without a choice of method. */
#define STREAMED_RUN_BYTES 128

void strided_fence(void)
{
    stream_fence();
}

/* `unit` is a constant wherever this is inlined: each copy is one load and one store. */
static inline __attribute__((always_inline)) void copy_plane(char *to, const char *from,
                                                             const strided_loop *outer,
                                                             const strided_loop *inner, size_t unit)
{
    for (uint64_t i = 0; i < outer->extent; i++) {
        char *row_to = to + (int64_t)i * outer->to;
        const char *row_from = from + (int64_t)i * outer->from;
        for (uint64_t j = 0; j < inner->extent; j++) {
            memcpy(row_to, row_from, unit);
            row_to += inner->to;
            row_from += inner->from;
        }
    }
}

/* Copy in squares, so that lines read along one side are still cached for the next column. */
static inline __attribute__((always_inline)) void copy_plane_tiled(char *to, const char *from,
                                                                   const strided_loop *outer,
                                                                   const strided_loop *inner,
                                                                   size_t unit)
{
    const uint64_t side = unit < 16 ? LINE_BYTES / unit : 4;
    for (uint64_t i = 0; i < outer->extent; i += side) {
        strided_loop rows = *outer;
        rows.extent = outer->extent - i < side ? outer->extent - i : side;
        for (uint64_t j = 0; j < inner->extent; j += side) {
            strided_loop columns = *inner;
            columns.extent = inner->extent - j < side ? inner->extent - j : side;
            copy_plane(to + (int64_t)i * outer->to + (int64_t)j * inner->to,
                       from + (int64_t)i * outer->from + (int64_t)j * inner->from, &rows, &columns,
                       unit);
        }
    }
}

#define LOW_8(a, b)                                                                                \
    __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define HIGH_8(a, b)                                                                               \
    __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#define LOW_16(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define HIGH_16(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#define LOW_32(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define HIGH_32(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#define LOW_64(a, b) __builtin_shufflevector(a, b, 0, 2)
#define HIGH_64(a, b) __builtin_shufflevector(a, b, 1, 3)

/* Interleaving row i with row i + lanes / 2 rotates the bits of (row, column) by one: log2(lanes)
 * times exchange rows and columns. */
#define DEFINE_TRANSPOSE(bits)                                                                     \
    typedef uint##bits##_t lanes_##bits __attribute__((vector_size(16)));                          \
    static inline void transpose_square_##bits(char *to, const char *from, int64_t from_stride)    \
    {                                                                                              \
        enum { lanes = 128 / bits };                                                               \
        lanes_##bits rows[lanes], mixed[lanes];                                                    \
        for (int i = 0; i < lanes; i++)                                                            \
            memcpy(&rows[i], from + i * from_stride, 16);                                          \
        for (int round = 1; round < lanes; round *= 2) {                                           \
            for (int i = 0; i < lanes / 2; i++) {                                                  \
                mixed[2 * i] = LOW_##bits(rows[i], rows[i + lanes / 2]);                           \
                mixed[2 * i + 1] = HIGH_##bits(rows[i], rows[i + lanes / 2]);                      \
            }                                                                                      \
            memcpy(rows, mixed, sizeof rows);                                                      \
        }                                                                                          \
        for (int i = 0; i < lanes; i++)                                                            \
            memcpy(to + i * LINE_BYTES, &rows[i], 16);                                             \
    }

DEFINE_TRANSPOSE(8)
DEFINE_TRANSPOSE(16)
DEFINE_TRANSPOSE(32)
DEFINE_TRANSPOSE(64)

static inline __attribute__((always_inline)) void transpose_square(char *to, const char *from,
                                                                   int64_t from_stride, size_t unit)
{
    switch (unit) {
    case 1:
        transpose_square_8(to, from, from_stride);
        break;
    case 2:
        transpose_square_16(to, from, from_stride);
        break;
    case 4:
        transpose_square_32(to, from, from_stride);
        break;
    default:
        transpose_square_64(to, from, from_stride);
        break;
    }
}

/* Transpose when both sides are contiguous, in different loops. A tile is a line wide on both
 * sides; it is transposed in a buffer, since lines at power-of-two strides would evict each other
 * from the first-level cache. */
static inline __attribute__((always_inline)) void transpose_plane(char *to, const char *from,
                                                                  const strided_loop *outer,
                                                                  const strided_loop *inner,
                                                                  size_t unit)
{
    const uint64_t side = LINE_BYTES / unit, lanes = 16 / unit;
    const uint64_t whole_rows = outer->extent / side * side;
    const uint64_t whole_columns = inner->extent / side * side;
    char tile[LINE_BYTES * LINE_BYTES] __attribute__((aligned(LINE_BYTES)));
    for (uint64_t i = 0; i < whole_rows; i += side) {
        for (uint64_t j = 0; j < whole_columns; j += side) {
            const char *corner = from + i * unit + (int64_t)j * inner->from;
            for (uint64_t b = 0; b < side; b += lanes)
                for (uint64_t a = 0; a < side; a += lanes)
                    transpose_square(tile + a * LINE_BYTES + b * unit,
                                     corner + a * unit + (int64_t)b * inner->from, inner->from,
                                     unit);
            char *line = to + (int64_t)i * outer->to + j * unit;
            for (uint64_t a = 0; a < side; a++, line += outer->to)
                memcpy(line, tile + a * LINE_BYTES, LINE_BYTES);
        }
    }
    strided_loop rows = *outer, columns = *inner;
    rows.extent = whole_rows;
    columns.extent -= whole_columns;
    copy_plane(to + whole_columns * unit, from + (int64_t)whole_columns * inner->from, &rows,
               &columns, unit);
    rows.extent = outer->extent - whole_rows;
    copy_plane_tiled(to + (int64_t)whole_rows * outer->to, from + whole_rows * unit, &rows, inner,
                     unit);
}

static bool is_transposed(const strided_loop *outer, const strided_loop *inner)
{
    int64_t a = outer->from < 0 ? -outer->from : outer->from;
    int64_t b = inner->from < 0 ? -inner->from : inner->from;
    return a != 0 && a < b;
}

static inline __attribute__((always_inline)) void copy_elements(char *to, const char *from,
                                                                const strided_loop *outer,
                                                                const strided_loop *inner,
                                                                size_t unit)
{
    if (!is_transposed(outer, inner))
        copy_plane(to, from, outer, inner, unit);
    else if (unit < 16 && inner->to == (int64_t)unit && outer->from == (int64_t)unit)
        transpose_plane(to, from, outer, inner, unit);
    else
        copy_plane_tiled(to, from, outer, inner, unit);
}

static void copy_runs(char *to, const char *from, const strided_loop *outer,
                      const strided_loop *inner, uint64_t bytes, bool streaming)
{
    for (uint64_t i = 0; i < outer->extent; i++) {
        char *row_to = to + (int64_t)i * outer->to;
        const char *row_from = from + (int64_t)i * outer->from;
        if (bytes < STREAMED_RUN_BYTES)
            for (uint64_t j = 0; j < inner->extent;
                 j++, row_to += inner->to, row_from += inner->from)
                memcpy(row_to, row_from, bytes);
        else
            (streaming ? stream_rows_past_cache : stream_rows_into_cache)(
                row_to, inner->to, row_from, inner->from, inner->extent, bytes);
    }
}

static void run_plane(char *to, const char *from, const strided_loop *outer,
                      const strided_loop *inner, uint64_t run_bytes, bool streaming)
{
    switch (run_bytes) {
    case 1:
        copy_elements(to, from, outer, inner, 1);
        break;
    case 2:
        copy_elements(to, from, outer, inner, 2);
        break;
    case 4:
        copy_elements(to, from, outer, inner, 4);
        break;
    case 8:
        copy_elements(to, from, outer, inner, 8);
        break;
    case 16:
        copy_elements(to, from, outer, inner, 16);
        break;
    case 32:
        copy_plane(to, from, outer, inner, 32);
        break;
    case 64:
        copy_plane(to, from, outer, inner, 64);
        break;
    default:
        copy_runs(to, from, outer, inner, run_bytes, streaming);
        break;
    }
}

void strided_move_run(const strided_move *move, bool streaming)
{
    static const strided_loop once = {1, 0, 0};
    char *to = move->to;
    const char *from = move->from;
    if (move->count == 0) {
        (streaming ? stream_past_cache : stream_into_cache)(to, from, move->run_bytes);
        return;
    }
    const strided_loop *inner = &move->loops[move->count - 1];
    const strided_loop *outer = move->count > 1 ? inner - 1 : &once;
    odometer at = {.loops = move->loops, .count = move->count - 2};
    do {
        run_plane(to + at.to, from + at.from, outer, inner, move->run_bytes, streaming);
    } while (odometer_step(&at));
}
