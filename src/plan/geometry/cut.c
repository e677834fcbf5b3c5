#include <stdlib.h>

#include "plan/geometry/geometry.h"

/* Operands up to which nothing is allocated. */
#define FEW 32

/* The bytes of an operand, by their position in its chunks, counted without clipping. */
typedef struct operand_map {
    uint64_t index; /* its first chunk */
    bool scratch;
    uint64_t base; /* start of scratch chunk 0 */
    /* Set when scratch is reused and too short. Then the operand's share begins at `begin`, has
     * `bytes` of scratch, and wraps around within them. */
    bool wraps;
    uint64_t begin, bytes;
} operand_map;

/* The bytes of one operand at a position. */
typedef struct operand_run {
    bool there;
    uint64_t offset;
    uint64_t bytes; /* how many bytes this holds for */
} operand_run;

typedef struct cutter {
    const plan_geometry *geometry;
    const banyan_plan *plan;
    int rank;
    const plan_thread_block *block;
    const plan_op *op;
    plan_share share; /* the operation's bytes to visit */
    bool pads;        /* visit the omitted bytes instead */
    plan_piece_visit visit;
    void *context;
    operand_map *maps;
    uint32_t count;
    plan_piece *piece;
    uint64_t *offsets; /* space for one per operand */
} cutter;

static operand_run run_in_blocks(const cutter *cut, const operand_map *map, uint64_t position)
{
    uint64_t stride = cut->geometry->chunk_bytes;
    uint64_t block_bytes = cut->geometry->buffers[PLAN_INPUT].block_bytes;
    uint64_t block_chunks = cut->geometry->buffers[PLAN_INPUT].block_chunks;
    uint64_t chunk = map->index + position / stride;
    uint64_t within = chunk % block_chunks * stride + position % stride;
    if (within >= block_bytes)
        return (operand_run){false, 0, block_chunks * stride - within};
    return (operand_run){true, chunk / block_chunks * block_bytes + within, block_bytes - within};
}

static operand_run run_in_scratch(const cutter *cut, const operand_map *map, uint64_t position)
{
    uint64_t stride = cut->geometry->chunk_bytes, apart = cut->geometry->scratch_stride;
    if (map->wraps) {
        uint64_t at = (position - cut->share.begin) % map->bytes;
        uint64_t offset = map->base + map->index * apart + map->begin + at;
        return (operand_run){true, offset, map->bytes - at};
    }
    uint64_t chunk = map->index + position / stride, within = position % stride;
    uint64_t bytes = apart == stride ? UINT64_MAX : stride - within;
    return (operand_run){true, map->base + chunk * apart + within, bytes};
}

static uint64_t geometry_cut_lesser(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Find out whether every operand has bytes at `position`, and for how many bytes that holds. */
static bool find_run(const cutter *cut, uint64_t position, uint64_t most, uint64_t *bytes)
{
    uint64_t all = most, in_scratch = most, missing = 0;
    for (uint32_t i = 0; i < cut->count; i++) {
        const operand_map *map = &cut->maps[i];
        operand_run run =
            map->scratch ? run_in_scratch(cut, map, position) : run_in_blocks(cut, map, position);
        cut->offsets[i] = run.offset;
        if (!run.there)
            missing = run.bytes > missing ? run.bytes : missing;
        else
            all = geometry_cut_lesser(all, run.bytes);
        if (map->scratch)
            in_scratch = geometry_cut_lesser(in_scratch, run.bytes);
    }
    *bytes = missing == 0 ? all : geometry_cut_lesser(missing, in_scratch);
    return missing == 0;
}

static bool geometry_cut_touches(const plan_piece *piece, const uint64_t *offsets, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (piece->offsets[i] + piece->bytes != offsets[i])
            return false;
    }
    return true;
}

/* Visit a range of the operation's bytes, counted without clipping. */
static banyan_status visit_range(const cutter *cut, plan_share range)
{
    plan_piece *piece = cut->piece;
    uint64_t bytes;
    piece->bytes = 0;
    for (uint64_t at = range.begin; at < range.end; at += bytes) {
        bool there = find_run(cut, at, range.end - at, &bytes);
        if (there == cut->pads)
            continue;
        if (piece->bytes > 0 && geometry_cut_touches(piece, cut->offsets, cut->count)) {
            piece->bytes += bytes;
            continue;
        }
        if (piece->bytes > 0)
            RETURN_IF_FAILED(cut->visit(cut->context, piece));
        piece->bytes = bytes;
        for (uint32_t i = 0; i < cut->count; i++)
            piece->offsets[i] = cut->offsets[i];
    }
    return piece->bytes > 0 ? cut->visit(cut->context, piece) : BANYAN_OK;
}

static banyan_status map_operand(cutter *cut, uint32_t i)
{
    const plan_geometry *geometry = cut->geometry;
    const plan_op *op = cut->op;
    const plan_operand *operand = plan_operand_at(op, i);
    plan_where where = plan_operand_where(cut->plan, cut->rank, cut->block, op, operand);
    operand_map *map = &cut->maps[i];
    *map = (operand_map){.index = operand->index, .scratch = where.buffer == PLAN_SCRATCH};
    if (!map->scratch)
        return BANYAN_OK;
    if (!plan_operand_is_packets(op, i))
        map->base = geometry->scratch_data_chunks * geometry->scratch_stride;
    map->wraps = geometry->scratch_stride < geometry->chunk_bytes;
    plan_share room = plan_share_of(operand->size * geometry->scratch_stride,
                                    cut->plan->buffer_alignment, op->group_index, op->group_size);
    map->begin = room.begin;
    map->bytes = room.end - room.begin;
    if (map->wraps && map->bytes == 0)
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d, thread block %u: there is no scratch for its share of %s",
                         cut->rank, cut->block->id, plan_op_name(op->kind));
    return BANYAN_OK;
}

/* Return the part of the share that an iteration processes. */
static plan_share range_of(plan_share share, const plan_op *loop, uint64_t iteration)
{
    uint64_t bytes = share.end - share.begin, before;
    if (!loop)
        return share;
    if (__builtin_mul_overflow(iteration, loop->unit_bytes, &before) || before >= bytes)
        return (plan_share){share.end, share.end};
    uint64_t begin = share.begin + before;
    return (plan_share){begin, begin + geometry_cut_lesser(loop->unit_bytes, bytes - before)};
}

static banyan_status cut_op(cutter *cut, const plan_op *loop, uint64_t iteration)
{
    const plan_op *op = cut->op;
    cut->count = plan_operand_count(op);
    if (op->source_count == 0)
        return BANYAN_OK;
    cut->share = plan_share_of(op->sources[0].size * cut->geometry->chunk_bytes,
                               cut->plan->buffer_alignment, op->group_index, op->group_size);
    plan_share range = range_of(cut->share, loop, iteration);
    if (range.begin == range.end)
        return BANYAN_OK;
    uint64_t few_words[1 + 2 * FEW];
    operand_map few_maps[FEW];
    bool few = cut->count <= FEW;
    size_t map_bytes = cut->count * sizeof *cut->maps;
    size_t bytes = map_bytes + (1 + 2 * (size_t)cut->count) * sizeof(uint64_t);
    char *taken = few ? NULL : malloc(bytes);
    if (!few && !taken)
        return error_no_memory(bytes, "an operation's operands");
    uint64_t *words = few ? few_words : (uint64_t *)(taken + map_bytes);
    cut->maps = few ? few_maps : (operand_map *)taken;
    cut->piece = (plan_piece *)words;
    cut->offsets = words + 1 + cut->count;
    banyan_status status = BANYAN_OK;
    for (uint32_t i = 0; i < cut->count && status == BANYAN_OK; i++)
        status = map_operand(cut, i);
    if (status == BANYAN_OK)
        status = visit_range(cut, range);
    free(taken);
    return status;
}

banyan_status plan_geometry_cut(const plan_geometry *geometry, const banyan_plan *plan, int rank,
                                const plan_thread_block *block, const plan_op *op,
                                const plan_op *loop, uint64_t iteration, plan_piece_visit visit,
                                void *context)
{
    cutter cut = {.geometry = geometry,
                  .plan = plan,
                  .rank = rank,
                  .block = block,
                  .op = op,
                  .visit = visit,
                  .context = context};
    return cut_op(&cut, loop, iteration);
}

banyan_status plan_geometry_pad(const plan_geometry *geometry, const banyan_plan *plan, int rank,
                                const plan_thread_block *block, const plan_op *op,
                                const plan_op *loop, uint64_t iteration, plan_piece_visit visit,
                                void *context)
{
    cutter cut = {.geometry = geometry,
                  .plan = plan,
                  .rank = rank,
                  .block = block,
                  .op = op,
                  .pads = true,
                  .visit = visit,
                  .context = context};
    bool packets = plan_op_writes_packets(op->kind) || plan_op_reads_packets(op->kind);
    return packets ? cut_op(&cut, loop, iteration) : BANYAN_OK;
}
