#include "cuda/copy/layout.h"

#include <stdlib.h>
#include <string.h>

/* Loops of a move, plus its run as a loop, plus one for a split dimension. */
#define DIMS_MAX (STRIDED_MAX_LOOPS + 2)

/* Longer dimensions are split, so that positions in one fit 32 bits. */
#define EXTENT_MAX ((uint64_t)1 << 30)

/* A tile of a transpose is a square with this many columns. */
#define TRANSPOSE_COLUMNS 32
#define UNIT_BYTES_MAX 16

/* Slowest dimension first, in units of `width` bytes. */
typedef struct box {
    char *to;
    const char *from;
    uint32_t width;
    uint8_t cast;
    int64_t to_step, from_step;
    int count;
    struct box_dim {
        uint64_t extent;
        int64_t to, from;
    } dims[DIMS_MAX];
} box;

static banyan_status copy_layout_no_memory(size_t bytes)
{
    return banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: out of memory: %zu bytes for a schedule",
                            bytes);
}

static banyan_status copy_layout_make_room(void **list, size_t count, size_t *room,
                                           size_t bytes_each)
{
    if (count < *room)
        return BANYAN_OK;
    size_t wanted = *room > 0 ? 2 * *room : 64;
    void *grown = realloc(*list, wanted * bytes_each);
    if (!grown)
        return copy_layout_no_memory(wanted * bytes_each);
    *list = grown;
    *room = wanted;
    return BANYAN_OK;
}

static void keep_tiles(copy_layout *layout, size_t lane, const copy_move *move)
{
    layout->moves[layout->move_count++] = *move;
    layout->lanes[lane].tiles += move->tiles;
    layout->tiles += move->tiles;
    layout->converts |= move->cast != COPY_AS_IT_IS;
}

static banyan_status add_dims(copy_layout *layout, const box *of)
{
    for (int i = 0; i < of->count; i++) {
        banyan_status status = copy_layout_make_room((void **)&layout->dims, layout->dim_count,
                                                     &layout->dim_room, sizeof *layout->dims);
        if (status != BANYAN_OK)
            return status;
        uint32_t extent = (uint32_t)of->dims[i].extent;
        layout->dims[layout->dim_count++] = (copy_dim){
            .extent = extent,
            .inverse = ((UINT32_C(1) << COPY_INVERSE_SHIFT) + extent - 1) / extent,
            .to = of->dims[i].to,
            .from = of->dims[i].from,
        };
    }
    return BANYAN_OK;
}

/* A tile contains as many of the fastest dimensions as fit, and a part of the next one. */
static void cut_into_tiles(const box *of, copy_move *move)
{
    uint64_t inner_units = 1, outer = 1;
    uint64_t units = of->cast & COPY_QUANTIZE ? COPY_TILE_BLOCKS : COPY_TILE_UNITS;
    int cut = of->count - 1;
    while (cut > 0 && inner_units * of->dims[cut].extent <= units)
        inner_units *= of->dims[cut--].extent;
    uint64_t extent = of->dims[cut].extent, most = units / inner_units;
    uint64_t chunks = (extent + most - 1) / most, chunk = (extent + chunks - 1) / chunks;
    if (inner_units == 1 && chunks > 1)
        chunk = (chunk + COPY_WARP - 1) / COPY_WARP * COPY_WARP;
    chunks = (extent + chunk - 1) / chunk;
    for (int i = 0; i < cut; i++)
        outer *= of->dims[i].extent;
    move->outer_count = (uint16_t)cut;
    move->inner_count = (uint16_t)(of->count - 1 - cut);
    move->inner_units = (uint32_t)inner_units;
    move->chunk = (uint32_t)chunk;
    move->chunks = (uint32_t)chunks;
    move->tiles = outer * chunks;
}

static banyan_status copy_layout_add_box(copy_layout *layout, size_t lane, const box *of)
{
    banyan_status status = copy_layout_make_room((void **)&layout->moves, layout->move_count,
                                                 &layout->move_room, sizeof *layout->moves);
    copy_move move = {
        .to = of->to,
        .from = of->from,
        .first_dim = (uint32_t)layout->dim_count,
        .width = (uint16_t)of->width,
        .cast = of->cast,
        .to_step = of->to_step,
        .from_step = of->from_step,
    };
    if (status == BANYAN_OK && layout->dim_count > UINT32_MAX - DIMS_MAX)
        status =
            banyan_error_set(BANYAN_ERR_UNSUPPORTED, "cuda: a schedule of more than %zu dimensions",
                             layout->dim_count);
    if (status == BANYAN_OK)
        status = add_dims(layout, of);
    if (status != BANYAN_OK)
        return status;
    cut_into_tiles(of, &move);
    keep_tiles(layout, lane, &move);
    return BANYAN_OK;
}

/* Split into two boxes: `extent` places of dimension `i`, and the rest. */
static void copy_layout_split(const box *whole, int i, uint64_t extent, box *first, box *rest)
{
    *first = *rest = *whole;
    first->dims[i].extent = extent;
    rest->dims[i].extent -= extent;
    rest->to += (int64_t)extent * whole->dims[i].to;
    rest->from += (int64_t)extent * whole->dims[i].from;
}

static banyan_status add_within_extents(copy_layout *layout, size_t lane, const box *of)
{
    for (int i = 0; i < of->count; i++) {
        if (of->dims[i].extent <= EXTENT_MAX)
            continue;
        box first, rest;
        copy_layout_split(of, i, EXTENT_MAX, &first, &rest);
        banyan_status status = add_within_extents(layout, lane, &first);
        return status == BANYAN_OK ? add_within_extents(layout, lane, &rest) : status;
    }
    return copy_layout_add_box(layout, lane, of);
}

static uint64_t copy_layout_magnitude(int64_t stride)
{
    return stride < 0 ? 0 - (uint64_t)stride : (uint64_t)stride;
}

/* True if the two fastest dimensions are swapped in the source. */
static bool is_transpose(const box *of)
{
    const struct box_dim *inner = &of->dims[of->count - 1];
    return of->count > 1 && inner->extent > TRANSPOSE_COLUMNS && inner[-1].extent > 1 &&
           copy_layout_magnitude(inner[-1].from) < copy_layout_magnitude(inner->from);
}

/* Split the fastest dimension and move its slower part outwards, so that tiles are squares: then a
 * tile uses the whole of each cache line that it reads across. */
static banyan_status add_transpose(copy_layout *layout, size_t lane, const box *of)
{
    int last = of->count - 1;
    uint64_t extent = of->dims[last].extent;
    uint64_t whole = extent / TRANSPOSE_COLUMNS * TRANSPOSE_COLUMNS;
    box squares = *of;
    if (whole < extent) {
        box rest;
        copy_layout_split(of, last, whole, &squares, &rest);
        banyan_status status = add_within_extents(layout, lane, &rest);
        if (status != BANYAN_OK)
            return status;
    }
    struct box_dim columns = squares.dims[last], blocks = columns;
    columns.extent = TRANSPOSE_COLUMNS;
    blocks.extent = whole / TRANSPOSE_COLUMNS;
    blocks.to *= TRANSPOSE_COLUMNS;
    blocks.from *= TRANSPOSE_COLUMNS;
    squares.dims[last] = squares.dims[last - 1];
    squares.dims[last - 1] = blocks;
    squares.dims[squares.count++] = columns;
    return add_within_extents(layout, lane, &squares);
}

/* Return the widest unit that divides all places. */
static uint32_t unit_of(uint64_t places)
{
    uint64_t lowest = (places | UNIT_BYTES_MAX) & (0 - (places | UNIT_BYTES_MAX));
    return (uint32_t)lowest;
}

static uint32_t move_unit(const strided_move *move)
{
    uint64_t places = (uintptr_t)move->to | (uintptr_t)move->from | move->run_bytes;
    for (int i = 0; i < move->count; i++)
        if (move->loops[i].extent > 1)
            places |= (uint64_t)move->loops[i].to | (uint64_t)move->loops[i].from;
    return unit_of(places);
}

static banyan_status copy_layout_add_move(copy_layout *layout, size_t lane,
                                          const strided_move *move)
{
    box made = {.to = move->to, .from = move->from, .width = move_unit(move)};
    uint64_t run_units = move->run_bytes / made.width;
    for (int i = 0; i < move->count; i++)
        if (move->loops[i].extent > 1)
            made.dims[made.count++] =
                (struct box_dim){move->loops[i].extent, move->loops[i].to, move->loops[i].from};
    if (run_units > 1 || made.count == 0)
        made.dims[made.count++] =
            (struct box_dim){run_units, (int64_t)made.width, (int64_t)made.width};
    return is_transpose(&made) ? add_transpose(layout, lane, &made)
                               : add_within_extents(layout, lane, &made);
}

#define CAST_ELEMENTS 4 /* elements of a unit, if they are contiguous */

static uint8_t quantize_of(const direct_move *move)
{
    bool ocp = move->to_format == STRIDED_E4M3_OCP || move->to_format == STRIDED_SCALES_OCP;
    uint32_t from = move->from_format == STRIDED_F32   ? COPY_FROM_F32
                    : move->from_format == STRIDED_F16 ? COPY_FROM_F16
                                                       : 0;
    return (uint8_t)(COPY_QUANTIZE | from | (ocp ? 0 : COPY_ROUND_UP) |
                     (strided_is_scales(move->to_format) ? COPY_TO_SCALES : 0));
}

static uint8_t cast_of(const direct_move *move)
{
    static const uint8_t casts[][4] = {
        [STRIDED_F32] = {[STRIDED_F16] = COPY_F32_TO_F16, [STRIDED_BF16] = COPY_F32_TO_BF16},
        [STRIDED_F16] = {[STRIDED_F32] = COPY_F16_TO_F32, [STRIDED_BF16] = COPY_F16_TO_BF16},
        [STRIDED_BF16] = {[STRIDED_F32] = COPY_BF16_TO_F32, [STRIDED_F16] = COPY_BF16_TO_F16},
    };
    if (strided_is_mxfp8(move->to_format))
        return quantize_of(move);
    return casts[move->from_format][move->to_format];
}

/* True if four elements can be read and written at once everywhere in the box. */
static bool is_wide(const box *of, int64_t to_bytes, int64_t from_bytes)
{
    const struct box_dim *run = &of->dims[of->count - 1];
    uint64_t to = (uintptr_t)of->to, from = (uintptr_t)of->from;
    for (int i = 0; i < of->count - 1; i++) {
        to |= (uint64_t)of->dims[i].to;
        from |= (uint64_t)of->dims[i].from;
    }
    return run->extent % CAST_ELEMENTS == 0 && run->to == to_bytes && run->from == from_bytes &&
           to % (uint64_t)(CAST_ELEMENTS * to_bytes) == 0 &&
           from % (uint64_t)(CAST_ELEMENTS * from_bytes) == 0;
}

/* Return the move's loops over elements, or blocks, of `bytes` bytes at the destination. A run of
 * several elements becomes a loop, with a distance of `bytes` on both sides: the planner forms no
 * other runs. */
static box converting_box(const direct_move *of, uint64_t bytes)
{
    const strided_move *move = &of->move;
    box made = {.to = move->to,
                .from = move->from,
                .width = 1,
                .cast = cast_of(of),
                .to_step = of->to_step,
                .from_step = of->from_step};
    for (int i = 0; i < move->count; i++)
        if (move->loops[i].extent > 1)
            made.dims[made.count++] =
                (struct box_dim){move->loops[i].extent, move->loops[i].to, move->loops[i].from};
    if (move->run_bytes > bytes || made.count == 0)
        made.dims[made.count++] =
            (struct box_dim){move->run_bytes / bytes, (int64_t)bytes, (int64_t)bytes};
    return made;
}

static banyan_status add_cast(copy_layout *layout, size_t lane, const direct_move *of)
{
    int64_t to_bytes = (int64_t)strided_format_bytes(of->to_format);
    int64_t from_bytes = (int64_t)strided_format_bytes(of->from_format);
    box made = converting_box(of, (uint64_t)to_bytes);
    if (!is_wide(&made, to_bytes, from_bytes))
        return is_transpose(&made) ? add_transpose(layout, lane, &made)
                                   : add_within_extents(layout, lane, &made);
    struct box_dim *inner = &made.dims[made.count - 1];
    made.width = CAST_ELEMENTS;
    inner->extent /= CAST_ELEMENTS;
    inner->to *= CAST_ELEMENTS;
    inner->from *= CAST_ELEMENTS;
    return add_within_extents(layout, lane, &made);
}

/* True if all blocks are contiguous enough for several threads to share them. */
static bool copy_layout_is_shared(const box *of, bool to_scales)
{
    bool words = (of->cast & COPY_FROM_F32) != 0;
    uint64_t to = (uintptr_t)of->to, from = (uintptr_t)of->from;
    for (int i = 0; i < of->count; i++) {
        to |= (uint64_t)of->dims[i].to;
        from |= (uint64_t)of->dims[i].from;
    }
    bool writes = to_scales || (of->to_step == 1 && to % (words ? 4 : 8) == 0);
    return writes && of->from_step == (words ? 4 : 2) && from % UNIT_BYTES_MAX == 0;
}

static banyan_status copy_layout_add_blocks(copy_layout *layout, size_t lane, const direct_move *of)
{
    bool to_scales = strided_is_scales(of->to_format);
    box made = converting_box(of, to_scales ? 1 : STRIDED_BLOCK);
    made.cast |= copy_layout_is_shared(&made, to_scales) ? COPY_SHARED : 0;
    return add_within_extents(layout, lane, &made);
}

static copy_walk_side copy_layout_side_of(const strided_view *view, uint64_t *places)
{
    copy_walk_side side = {.data = view->data, .count = (uint32_t)view->ndim};
    *places |= (uintptr_t)view->data;
    for (int i = 0; i < view->ndim; i++) {
        side.extent[i] = (uint64_t)view->extent[i];
        side.stride[i] = view->stride[i];
        *places |= (uint64_t)view->stride[i];
    }
    return side;
}

static banyan_status copy_layout_add_walk(copy_layout *layout, size_t lane,
                                          const direct_move *moved)
{
    const direct_walk *of = moved->walk;
    RETURN_IF_FAILED(copy_layout_make_room((void **)&layout->walks, layout->walk_count,
                                           &layout->walk_room, sizeof *layout->walks));
    RETURN_IF_FAILED(copy_layout_make_room((void **)&layout->moves, layout->move_count,
                                           &layout->move_room, sizeof *layout->moves));
    uint64_t places = of->to.elem_bytes;
    copy_walk walk = {.elems = of->to.elems};
    walk.to = copy_layout_side_of(&of->to, &places);
    walk.from = copy_layout_side_of(&of->from, &places);
    uint32_t width = unit_of(places);
    if (moved->to_format != moved->from_format)
        width = (uint32_t)of->to.elem_bytes;
    walk.elem_units = (uint32_t)of->to.elem_bytes / width;
    copy_move move = {
        .tiles = (walk.elems * walk.elem_units + COPY_TILE_UNITS - 1) / COPY_TILE_UNITS,
        .first_dim = (uint32_t)layout->walk_count,
        .width = (uint16_t)width,
        .is_walk = 1,
        .cast = cast_of(moved),
        .to_step = moved->to_step,
        .from_step = moved->from_step,
    };
    if (move.cast != COPY_AS_IT_IS)
        move.width = 1;
    layout->walks[layout->walk_count++] = walk;
    keep_tiles(layout, lane, &move);
    return BANYAN_OK;
}

static banyan_status add_engine_move(copy_layout *layout, size_t lane, char *to, const char *from,
                                     uint64_t bytes)
{
    RETURN_IF_FAILED(copy_layout_make_room((void **)&layout->engine_moves, layout->engine_count,
                                           &layout->engine_room, sizeof *layout->engine_moves));
    layout->engine_moves[layout->engine_count++] = (copy_engine_move){to, from, bytes, lane};
    layout->engine_bytes += bytes;
    return BANYAN_OK;
}

static banyan_status add_engine_runs(copy_layout *layout, size_t lane, const strided_move *move,
                                     int level, char *to, const char *from)
{
    if (level == move->count)
        return add_engine_move(layout, lane, to, from, move->run_bytes);
    const strided_loop *loop = &move->loops[level];
    for (uint64_t i = 0; i < loop->extent; i++) {
        banyan_status status =
            add_engine_runs(layout, lane, move, level + 1, to + (int64_t)i * loop->to,
                            from + (int64_t)i * loop->from);
        if (status != BANYAN_OK)
            return status;
    }
    return BANYAN_OK;
}

static banyan_status copy_layout_add_lane(copy_layout *layout, const gpu_copy_lane *lane,
                                          size_t number, uint64_t engine_bytes)
{
    banyan_status status = BANYAN_OK;
    bool leaves = lane->my_entered != NULL;
    layout->lanes[number].first_move = (uint32_t)layout->move_count;
    for (size_t i = 0; i < lane->moves->list.count && status == BANYAN_OK; i++) {
        const direct_move *move = &lane->moves->list.data[i];
        if (move->walk)
            status = copy_layout_add_walk(layout, number, move);
        else if (strided_is_mxfp8(move->to_format))
            status = copy_layout_add_blocks(layout, number, move);
        else if (move->to_format != move->from_format)
            status = add_cast(layout, number, move);
        else if (leaves && engine_bytes > 0 && move->move.run_bytes >= engine_bytes)
            status =
                add_engine_runs(layout, number, &move->move, 0, move->move.to, move->move.from);
        else
            status = copy_layout_add_move(layout, number, &move->move);
    }
    if (status == BANYAN_OK && layout->move_count > UINT32_MAX)
        status = banyan_error_set(BANYAN_ERR_UNSUPPORTED, "cuda: a schedule of %zu moves",
                                  layout->move_count);
    return status;
}

banyan_status copy_layout_make(const gpu_copy_lane *lanes, size_t count, uint64_t engine_bytes,
                               copy_layout *layout)
{
    copy_layout made = {.lane_count = count};
    made.lanes = calloc(count + 1, sizeof *made.lanes);
    banyan_status status =
        made.lanes ? BANYAN_OK : copy_layout_no_memory(count * sizeof *made.lanes);
    for (size_t i = 0; i < count && status == BANYAN_OK; i++)
        status = copy_layout_add_lane(&made, &lanes[i], i, engine_bytes);
    if (status == BANYAN_OK)
        *layout = made;
    else
        copy_layout_free(&made);
    return status;
}

void copy_layout_free(copy_layout *layout)
{
    free(layout->moves);
    free(layout->dims);
    free(layout->walks);
    free(layout->engine_moves);
    free(layout->lanes);
    *layout = (copy_layout){0};
}

/* Assign a part to a warp. Lanes begin at different warps, so that no warp gets one more tile of
 * every lane. */
static uint32_t warp_of(const copy_layout *layout, size_t lane, uint32_t part, uint32_t warps)
{
    uint64_t turn = (uint64_t)lane * warps / layout->lane_count;
    return (uint32_t)((part + turn) % warps);
}

void copy_layout_spans(const copy_layout *layout, uint32_t warps, copy_span *spans)
{
    for (size_t lane = 0; lane < layout->lane_count; lane++, spans += warps) {
        uint64_t tiles = layout->lanes[lane].tiles, each = tiles / warps, more = tiles % warps;
        uint32_t move = layout->lanes[lane].first_move;
        uint64_t tile = 0;
        for (uint32_t part = 0; part < warps; part++) {
            uint64_t left = each + (part < more);
            copy_span *span = &spans[warp_of(layout, lane, part, warps)];
            *span = (copy_span){.tile = tile, .tiles = left, .move = move};
            while (left > 0 && tile + left >= layout->moves[move].tiles) {
                left -= layout->moves[move++].tiles - tile;
                tile = 0;
            }
            tile += left;
        }
    }
}

#define ARRAYS_APART 128

static size_t image_place(size_t *bytes, size_t more)
{
    size_t at = *bytes;
    *bytes += (more + ARRAYS_APART - 1) / ARRAYS_APART * ARRAYS_APART;
    return at;
}

static void copy_list(char *to, const void *list, size_t bytes)
{
    if (bytes > 0)
        memcpy(to, list, bytes);
}

bool copy_image_make(const copy_layout *layout, uint32_t warps, copy_image *made)
{
    copy_image image = {0};
    image.lanes = image_place(&image.bytes, layout->lane_count * sizeof(copy_lane));
    image.moves = image_place(&image.bytes, layout->move_count * sizeof(copy_move));
    image.dims = image_place(&image.bytes, layout->dim_count * sizeof(copy_dim));
    image.walks = image_place(&image.bytes, layout->walk_count * sizeof(copy_walk));
    image.spans = image_place(&image.bytes, layout->lane_count * warps * sizeof(copy_span));
    image.bytes++; /* devices have no allocations of 0 bytes */
    image.data = calloc(1, image.bytes);
    *made = image;
    if (!image.data)
        return false;
    copy_list(image.data + image.moves, layout->moves, layout->move_count * sizeof(copy_move));
    copy_list(image.data + image.dims, layout->dims, layout->dim_count * sizeof(copy_dim));
    copy_list(image.data + image.walks, layout->walks, layout->walk_count * sizeof(copy_walk));
    if (warps > 0)
        copy_layout_spans(layout, warps, (copy_span *)(void *)(image.data + image.spans));
    return true;
}

copy_lane *copy_image_lanes(const copy_image *image)
{
    return (copy_lane *)(void *)(image->data + image->lanes);
}

void copy_image_point(const copy_image *image, const char *there, copy_args *args)
{
    args->lanes = (const copy_lane *)(const void *)(there + image->lanes);
    args->moves = (const copy_move *)(const void *)(there + image->moves);
    args->dims = (const copy_dim *)(const void *)(there + image->dims);
    args->walks = (const copy_walk *)(const void *)(there + image->walks);
    args->spans = (const copy_span *)(const void *)(there + image->spans);
}
