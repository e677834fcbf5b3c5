#include "cuda/copy/layout.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/copy/blocks.h"
#include "cuda/copy/box.h"

/* Longer dimensions are split, so that positions in one fit 32 bits. */
#define EXTENT_MAX ((uint64_t)1 << 30)

/* A tile of a transpose is a square with this many columns. */
#define TRANSPOSE_COLUMNS 32
#define UNIT_BYTES_MAX 16

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
    layout->converts |= move->cast != COPY_AS_IT_IS || move->run_bytes > 0;
}

static banyan_status add_dims(copy_layout *layout, const copy_box *of)
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
            .scale = of->dims[i].scale,
        };
    }
    return BANYAN_OK;
}

/* A tile contains as many of the fastest dimensions as fit, and a part of the next one. */
static void cut_into_tiles(const copy_box *of, copy_move *move)
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

static banyan_status copy_layout_add_box(copy_layout *layout, size_t lane, const copy_box *of)
{
    banyan_status status = copy_layout_make_room((void **)&layout->moves, layout->move_count,
                                                 &layout->move_room, sizeof *layout->moves);
    copy_move move = {
        .to = of->to,
        .from = of->from,
        .scales = of->scales,
        .run_bytes = of->run_bytes,
        .first_dim = (uint32_t)layout->dim_count,
        .width = (uint16_t)of->width,
        .cast = of->cast,
        .to_step = of->to_step,
        .from_step = of->from_step,
    };
    if (status == BANYAN_OK && layout->dim_count > UINT32_MAX - COPY_BOX_DIMS)
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
static void copy_layout_split(const copy_box *whole, int i, uint64_t extent, copy_box *first,
                              copy_box *rest)
{
    *first = *rest = *whole;
    first->dims[i].extent = extent;
    rest->dims[i].extent -= extent;
    rest->to += (int64_t)extent * whole->dims[i].to;
    rest->from += (int64_t)extent * whole->dims[i].from;
    if (whole->scales)
        rest->scales += (int64_t)extent * whole->dims[i].scale;
}

static banyan_status add_within_extents(copy_layout *layout, size_t lane, const copy_box *of)
{
    for (int i = 0; i < of->count; i++) {
        if (of->dims[i].extent <= EXTENT_MAX)
            continue;
        copy_box first, rest;
        copy_layout_split(of, i, EXTENT_MAX, &first, &rest);
        banyan_status status = add_within_extents(layout, lane, &first);
        return status == BANYAN_OK ? add_within_extents(layout, lane, &rest) : status;
    }
    return copy_layout_add_box(layout, lane, of);
}

/* True if the two fastest dimensions are swapped in the source. */
static bool is_transpose(const copy_box *of)
{
    const struct copy_box_dim *inner = &of->dims[of->count - 1];
    return of->count > 1 && inner->extent > TRANSPOSE_COLUMNS && inner[-1].extent > 1 &&
           copy_box_magnitude(inner[-1].from) < copy_box_magnitude(inner->from);
}

/* Split the fastest dimension and move its slower part outwards, so that tiles are squares: then a
 * tile uses the whole of each cache line that it reads across. */
static banyan_status add_transpose(copy_layout *layout, size_t lane, const copy_box *of)
{
    int last = of->count - 1;
    uint64_t extent = of->dims[last].extent;
    uint64_t whole = extent / TRANSPOSE_COLUMNS * TRANSPOSE_COLUMNS;
    copy_box squares = *of;
    if (whole < extent) {
        copy_box rest;
        copy_layout_split(of, last, whole, &squares, &rest);
        banyan_status status = add_within_extents(layout, lane, &rest);
        if (status != BANYAN_OK)
            return status;
    }
    struct copy_box_dim columns = squares.dims[last], blocks = columns;
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

#define RUN_BYTES_MIN 64
#define RUN_UNIT_MAX 2

/* True for long runs that have no wide units: only these are worth putting words together. */
static bool is_run(const copy_box *of)
{
    const struct copy_box_dim *run = &of->dims[of->count - 1];
    return of->width <= RUN_UNIT_MAX && run->to == (int64_t)of->width && run->from == run->to &&
           run->extent * of->width >= RUN_BYTES_MIN &&
           run->extent * of->width / UNIT_BYTES_MAX < EXTENT_MAX;
}

/* Divide runs into the aligned words of their destinations. The words are counted from the one that
 * has the run's first byte; the last may be unused. */
static banyan_status add_runs(copy_layout *layout, size_t lane, const copy_box *of)
{
    copy_box runs = *of;
    struct copy_box_dim *run = &runs.dims[runs.count - 1];
    uint64_t places = (uintptr_t)of->to;
    for (int i = 0; i < of->count - 1; i++)
        places |= (uint64_t)of->dims[i].to;
    runs.run_bytes = run->extent * of->width;
    uint64_t most = runs.run_bytes + (places % UNIT_BYTES_MAX ? UNIT_BYTES_MAX - 1 : 0);
    runs.width = UNIT_BYTES_MAX;
    run->extent = (most + UNIT_BYTES_MAX - 1) / UNIT_BYTES_MAX;
    run->to = run->from = UNIT_BYTES_MAX;
    return add_within_extents(layout, lane, &runs);
}

static banyan_status copy_layout_add_move(copy_layout *layout, size_t lane,
                                          const strided_move *move)
{
    copy_box made = {.to = move->to, .from = move->from, .width = move_unit(move)};
    uint64_t run_units = move->run_bytes / made.width;
    for (int i = 0; i < move->count; i++)
        if (move->loops[i].extent > 1)
            made.dims[made.count++] = (struct copy_box_dim){
                move->loops[i].extent, move->loops[i].to, move->loops[i].from, 0};
    if (run_units > 1 || made.count == 0)
        made.dims[made.count++] =
            (struct copy_box_dim){run_units, (int64_t)made.width, (int64_t)made.width, 0};
    if (is_run(&made))
        return add_runs(layout, lane, &made);
    return is_transpose(&made) ? add_transpose(layout, lane, &made)
                               : add_within_extents(layout, lane, &made);
}

#define CAST_ELEMENTS 4 /* elements of a unit, if they are contiguous */

static uint8_t cast_of(const direct_move *move)
{
    static const uint8_t casts[][4] = {
        [STRIDED_F32] = {[STRIDED_F16] = COPY_F32_TO_F16, [STRIDED_BF16] = COPY_F32_TO_BF16},
        [STRIDED_F16] = {[STRIDED_F32] = COPY_F16_TO_F32, [STRIDED_BF16] = COPY_F16_TO_BF16},
        [STRIDED_BF16] = {[STRIDED_F32] = COPY_BF16_TO_F32, [STRIDED_F16] = COPY_BF16_TO_F16},
    };
    if (strided_is_mxfp8(move->to_format))
        return copy_blocks_cast(move);
    return casts[move->from_format][move->to_format];
}

/* True if four elements can be read and written at once everywhere in the box. */
static bool is_wide(const copy_box *of, int64_t to_bytes, int64_t from_bytes)
{
    const struct copy_box_dim *run = &of->dims[of->count - 1];
    uint64_t to = (uintptr_t)of->to, from = (uintptr_t)of->from;
    for (int i = 0; i < of->count - 1; i++) {
        to |= (uint64_t)of->dims[i].to;
        from |= (uint64_t)of->dims[i].from;
    }
    return run->extent % CAST_ELEMENTS == 0 && run->to == to_bytes && run->from == from_bytes &&
           to % (uint64_t)(CAST_ELEMENTS * to_bytes) == 0 &&
           from % (uint64_t)(CAST_ELEMENTS * from_bytes) == 0;
}

/* Return the move's loops over elements of `bytes` bytes at the destination. A run of several
 * elements becomes a loop, with a distance of `bytes` on both sides: the planner forms no other
 * runs. */
static copy_box converting_box(const direct_move *of, uint64_t bytes)
{
    const strided_move *move = &of->move;
    copy_box made = {.to = move->to, .from = move->from, .width = 1, .cast = cast_of(of)};
    for (int i = 0; i < move->count; i++)
        if (move->loops[i].extent > 1)
            made.dims[made.count++] = (struct copy_box_dim){
                move->loops[i].extent, move->loops[i].to, move->loops[i].from, 0};
    if (move->run_bytes > bytes || made.count == 0)
        made.dims[made.count++] =
            (struct copy_box_dim){move->run_bytes / bytes, (int64_t)bytes, (int64_t)bytes, 0};
    return made;
}

static banyan_status add_cast(copy_layout *layout, size_t lane, const direct_move *of)
{
    int64_t to_bytes = (int64_t)strided_format_bytes(of->to_format);
    int64_t from_bytes = (int64_t)strided_format_bytes(of->from_format);
    copy_box made = converting_box(of, (uint64_t)to_bytes);
    if (!is_wide(&made, to_bytes, from_bytes))
        return is_transpose(&made) ? add_transpose(layout, lane, &made)
                                   : add_within_extents(layout, lane, &made);
    struct copy_box_dim *inner = &made.dims[made.count - 1];
    made.width = CAST_ELEMENTS;
    inner->extent /= CAST_ELEMENTS;
    inner->to *= CAST_ELEMENTS;
    inner->from *= CAST_ELEMENTS;
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

static banyan_status add_blocks(copy_layout *layout, size_t lane, const direct_move *of,
                                const direct_move *scales)
{
    copy_box made;
    if (scales)
        copy_blocks_join(of, scales, &made);
    else
        made = copy_blocks_of(of);
    return add_within_extents(layout, lane, &made);
}

static banyan_status copy_layout_add_any(copy_layout *layout, const gpu_copy_lane *lane,
                                         size_t number, uint64_t engine_bytes, size_t i,
                                         const copy_block_pair *pairs)
{
    const direct_move *list = lane->moves->list.data, *move = &list[i];
    bool leaves = lane->my_entered != NULL;
    if (move->walk)
        return copy_layout_add_walk(layout, number, move);
    if (strided_is_mxfp8(move->to_format)) {
        bool is_pair = pairs[i].scales != SIZE_MAX;
        return pairs[i].is_taken
                   ? BANYAN_OK
                   : add_blocks(layout, number, move, is_pair ? &list[pairs[i].scales] : NULL);
    }
    if (move->to_format != move->from_format)
        return add_cast(layout, number, move);
    if (leaves && engine_bytes > 0 && move->move.run_bytes >= engine_bytes)
        return add_engine_runs(layout, number, &move->move, 0, move->move.to, move->move.from);
    return copy_layout_add_move(layout, number, &move->move);
}

static banyan_status copy_layout_add_lane(copy_layout *layout, const gpu_copy_lane *lane,
                                          size_t number, uint64_t engine_bytes)
{
    copy_block_pair *pairs;
    RETURN_IF_FAILED(copy_blocks_pair(lane->moves, &pairs));
    banyan_status status = BANYAN_OK;
    layout->lanes[number].first_move = (uint32_t)layout->move_count;
    for (size_t i = 0; i < lane->moves->list.count && status == BANYAN_OK; i++)
        status = copy_layout_add_any(layout, lane, number, engine_bytes, i, pairs);
    free(pairs);
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
