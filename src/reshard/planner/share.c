#include "reshard/planner/share.h"

#include <stdlib.h>
#include <string.h>

#include "core/containers.h"

/* Cuts keep to whole blocks of this many elements of the global tensor, along the fastest dimension
 * and along others: runs stay long, and no block of a block-scaled format is cut by us. */
#define FASTEST_BLOCK_ELEMS 128
#define BLOCK_ELEMS 32
/* With so many blocks a part, one more or less is still even. */
#define EVEN_BLOCKS 8

/* With so many parts of a box for each sender, more would not balance the work better. */
#define SHARES_A_SENDER 8

/* Along the fastest dimension cuts keep to whole blocks, along others where that costs no evenness:
 * a destination may hold them transposed. */
static int64_t block_elems(const banyan_box *box, int d, int64_t parts)
{
    if (d == box->ndim - 1)
        return FASTEST_BLOCK_ELEMS;
    return box->extent[d] / parts >= EVEN_BLOCKS * BLOCK_ELEMS ? BLOCK_ELEMS : 1;
}

/* Return the number of blocks that the box touches along dimension d. */
static int64_t planner_share_units_of(const banyan_box *box, int d, int64_t parts)
{
    int64_t block = block_elems(box, d, parts);
    return (box->start[d] + box->extent[d] - 1) / block - box->start[d] / block + 1;
}

/* Return the start of part `part` of `parts` along dimension d. */
static int64_t part_start(const banyan_box *box, int d, int64_t parts, int64_t part)
{
    int64_t units = planner_share_units_of(box, d, parts), whole = units / parts,
            rest = units % parts;
    int64_t block = block_elems(box, d, parts), end = box->start[d] + box->extent[d];
    int64_t unit = part * whole + (part < rest ? part : rest);
    int64_t at = (box->start[d] / block + unit) * block;
    return at < box->start[d] ? box->start[d] : at > end ? end : at;
}

/* One dimension is as good as even when it divides or has many units for a part. */
static int single_dimension(const banyan_box *box, int64_t wanted)
{
    int most = -1;
    for (int d = 0; d < box->ndim; d++) {
        int64_t units = planner_share_units_of(box, d, wanted);
        if (units >= wanted && (units % wanted == 0 || units / wanted >= EVEN_BLOCKS))
            return d;
        if (units >= wanted && (most < 0 || units > planner_share_units_of(box, most, wanted)))
            most = d;
    }
    return most;
}

static planner_grid grid_of_parts(const banyan_box *box, int64_t wanted)
{
    planner_grid grid = {.count = 1};
    int single = single_dimension(box, wanted);
    for (int d = 0; d < box->ndim; d++) {
        int64_t units = planner_share_units_of(box, d, wanted), left = wanted / grid.count;
        grid.parts[d] = single >= 0 ? (d == single ? wanted : 1) : units < left ? units : left;
        grid.count *= grid.parts[d];
    }
    return grid;
}

/* Only the outer parts of a dimension can be smaller than the share of the others. */
static uint64_t smallest_part(const planner_grid *grid, const banyan_box *box)
{
    uint64_t elems = 1;
    for (int d = 0; d < box->ndim; d++) {
        int64_t parts = grid->parts[d], smallest = box->extent[d];
        int64_t tried[] = {0, planner_share_units_of(box, d, parts) % parts, parts - 1};
        for (size_t i = 0; i < sizeof tried / sizeof tried[0]; i++) {
            int64_t extent =
                part_start(box, d, parts, tried[i] + 1) - part_start(box, d, parts, tried[i]);
            smallest = extent < smallest ? extent : smallest;
        }
        elems *= (uint64_t)smallest;
    }
    return elems;
}

planner_grid planner_grid_of(const banyan_box *box, int64_t wanted, uint64_t min_elems)
{
    uint64_t most = min_elems > 0 ? banyan_box_elems(box) / min_elems : banyan_box_elems(box);
    if ((uint64_t)wanted > most)
        wanted = (int64_t)most;
    for (;; wanted -= wanted / 8 > 1 ? wanted / 8 : 1) {
        planner_grid grid = grid_of_parts(box, wanted > 1 ? wanted : 1);
        if (wanted <= 1 || smallest_part(&grid, box) >= min_elems)
            return grid;
    }
}

banyan_box planner_grid_part(const planner_grid *grid, const banyan_box *box, int64_t part)
{
    banyan_box cut = *box;
    for (int d = box->ndim - 1; d >= 0; d--) {
        int64_t along = part % grid->parts[d];
        part /= grid->parts[d];
        cut.start[d] = part_start(box, d, grid->parts[d], along);
        cut.extent[d] = part_start(box, d, grid->parts[d], along + 1) - cut.start[d];
    }
    return cut;
}

/* Return the number of the box among boxes of its size that tile the tensor. With it, the boxes of
 * a regular layout begin at consecutive holders. */
static uint64_t tile_number(const planner_tensor *tensor, const banyan_box *box)
{
    uint64_t number = 0;
    for (int d = 0; d < box->ndim; d++) {
        uint64_t extent = (uint64_t)box->extent[d];
        uint64_t tiles = ((uint64_t)tensor->shape[d] + extent - 1) / extent;
        number = number * tiles + (uint64_t)box->start[d] / extent;
    }
    return number;
}

static int64_t greatest_divisor(int64_t a, int64_t b)
{
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Into how many parts a box is cut for each of its receivers: one a sender, or fewer when there are
 * receivers enough to keep all senders equally busy without. A receiver of several ranks gets a
 * multiple of their number. */
static int64_t parts_wanted(int64_t senders, int64_t receivers, int64_t ranks_each)
{
    int64_t even = senders / greatest_divisor(senders, receivers);
    int64_t least = (senders * SHARES_A_SENDER + receivers - 1) / receivers;
    int64_t parts = (least + even - 1) / even * even;
    parts = parts < senders ? parts : senders;
    return (parts + ranks_each - 1) / ranks_each * ranks_each;
}

planner_division planner_divide(const planner_tensor *tensor, const planner_held *source,
                                const planner_held *destination, int64_t receivers,
                                int64_t ranks_each, const banyan_box *box)
{
    uint64_t min_elems = tensor->min_split_bytes / tensor->elem_bytes +
                         (tensor->min_split_bytes % tensor->elem_bytes != 0);
    int64_t wanted = parts_wanted(source->holders.count, receivers, ranks_each);
    planner_division made = {
        .box = *box,
        .grid = planner_grid_of(box, wanted, min_elems),
        .holders = source->holders.count,
    };
    uint64_t seed = hash_bytes(source->box.start, (size_t)box->ndim * sizeof source->box.start[0],
                               hash_string(tensor->name, destination->ordinal));
    uint64_t tile = tile_number(tensor, &destination->box);
    uint64_t turn = tile * (uint64_t)receivers * (uint64_t)made.grid.count;
    made.base = (int64_t)((seed + turn) % (uint64_t)made.holders);
    made.first_rank = (int64_t)(((seed >> 32) + tile) % (uint64_t)ranks_each);
    return made;
}

/* Memory for one call, used again for each box. */
typedef struct share_work {
    const planner_tensor *tensor;
    planner_shares *shares;
    planner_boxes given, rest;
    planner_indices own;         /* sources that the receiver holds */
    planner_indices overlapping; /* sources that intersect the box at hand */
} share_work;

static void sharing_free(share_work *work)
{
    array_free(&work->given);
    array_free(&work->rest);
    array_free(&work->own);
    array_free(&work->overlapping);
}

/* Find the parts of `needed` that `source` gives: all that it holds and no source before it holds.
 */
static bool find_given(share_work *work, size_t source, const banyan_box *needed)
{
    const planner_held *sources = work->tensor->sources;
    banyan_box common;
    work->given.count = 0;
    if (!banyan_box_intersect(needed, &sources[source].box, &common))
        return true;
    if (!array_push(&work->given, common) ||
        !planner_sources_intersecting(work->tensor, &common, source, &work->overlapping))
        return false;
    for (size_t i = 0; i < work->overlapping.count && work->given.count > 0; i++)
        if (!planner_boxes_subtract(&work->given, &sources[work->overlapping.data[i]].box))
            return false;
    return true;
}

static bool share_is_own(const share_work *work, size_t source)
{
    size_t low = BISECT(i, 0, work->own.count, work->own.data[i] < source);
    return low < work->own.count && work->own.data[low] == source;
}

/* Append `box` without what the receiver holds itself in sources before `end`. */
static bool append_share(share_work *work, const banyan_box *box, size_t end, int rank,
                         size_t source)
{
    planner_boxes *rest = &work->rest;
    rest->count = 0;
    if (!array_push(rest, *box) ||
        (work->own.count > 0 &&
         !planner_sources_intersecting(work->tensor, box, end, &work->overlapping)))
        return false;
    for (size_t i = 0; work->own.count > 0 && i < work->overlapping.count && rest->count > 0; i++)
        if (share_is_own(work, work->overlapping.data[i]) &&
            !planner_boxes_subtract(rest, &work->tensor->sources[work->overlapping.data[i]].box))
            return false;
    for (size_t i = 0; i < rest->count; i++)
        if (!array_push(work->shares,
                        (planner_share){.box = rest->data[i], .rank = rank, .source = source}))
            return false;
    return true;
}

/* The sources that intersect the box and are held by the rank. */
static bool share_find_own(share_work *work, const banyan_box *box, int rank)
{
    planner_indices *own = &work->own;
    size_t kept = 0;
    if (!planner_sources_intersecting(work->tensor, box, SIZE_MAX, own))
        return false;
    for (size_t i = 0; i < own->count; i++)
        if (planner_holders_find(&work->tensor->sources[own->data[i]].holders, rank) >= 0)
            own->data[kept++] = own->data[i];
    own->count = kept;
    return true;
}

static bool append_own(share_work *work, const banyan_box *needed, int rank)
{
    for (size_t o = 0; o < work->own.count; o++) {
        size_t source = work->own.data[o];
        banyan_box common;
        banyan_box_intersect(needed, &work->tensor->sources[source].box, &common);
        if (!append_share(work, &common, source, rank, source))
            return false;
    }
    return true;
}

static bool append_received(share_work *work, const planner_held *destination, int64_t index,
                            size_t source)
{
    const planner_held *from = &work->tensor->sources[source];
    for (size_t g = 0; g < work->given.count; g++) {
        planner_division division = planner_divide(
            work->tensor, from, destination, destination->holders.count, 1, &work->given.data[g]);
        for (int64_t p = 0; p < division.grid.count; p++) {
            int64_t number = index * division.grid.count + p;
            int sender =
                planner_holders_at(&from->holders, (division.base + number) % division.holders);
            banyan_box part = planner_grid_part(&division.grid, &division.box, p);
            if (!append_share(work, &part, SIZE_MAX, sender, source))
                return false;
        }
    }
    return true;
}

banyan_status planner_shares_received(const planner_tensor *tensor, const planner_held *destination,
                                      int64_t index, int rank, planner_shares *shares,
                                      uint64_t *covered_elems)
{
    share_work work = {.tensor = tensor, .shares = shares};
    planner_indices sources = {0};
    uint64_t covered = 0;
    bool ok = share_find_own(&work, &destination->box, rank) &&
              append_own(&work, &destination->box, rank) &&
              planner_sources_intersecting(tensor, &destination->box, SIZE_MAX, &sources);
    for (size_t i = 0; i < sources.count && ok; i++) {
        ok = find_given(&work, sources.data[i], &destination->box);
        for (size_t g = 0; g < work.given.count && ok; g++)
            covered += banyan_box_elems(&work.given.data[g]);
        ok = ok && append_received(&work, destination, index, sources.data[i]);
    }
    array_free(&sources);
    sharing_free(&work);
    RETURN_IF_NO_MEMORY(ok);
    *covered_elems = covered;
    return BANYAN_OK;
}

static bool append_sent(share_work *work, size_t source, int64_t index, int rank,
                        const planner_held *destination, const planner_division *division)
{
    int64_t numbers = destination->holders.count * division->grid.count;
    int64_t number = (index - division->base + division->holders) % division->holders;
    for (; number < numbers; number += division->holders) {
        int receiver = planner_holders_at(&destination->holders, number / division->grid.count);
        if (receiver == rank)
            continue;
        banyan_box part =
            planner_grid_part(&division->grid, &division->box, number % division->grid.count);
        if (!share_find_own(work, &part, receiver) ||
            !append_share(work, &part, SIZE_MAX, receiver, source))
            return false;
    }
    return true;
}

banyan_status planner_shares_sent(const planner_tensor *tensor, size_t source, int64_t index,
                                  int rank, const planner_held *destination, planner_shares *shares)
{
    share_work work = {.tensor = tensor, .shares = shares};
    bool ok = find_given(&work, source, &destination->box);
    for (size_t g = 0; g < work.given.count && ok; g++) {
        planner_division division =
            planner_divide(tensor, &tensor->sources[source], destination,
                           destination->holders.count, 1, &work.given.data[g]);
        ok = append_sent(&work, source, index, rank, destination, &division);
    }
    sharing_free(&work);
    return ok ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

bool planner_hole_of(const planner_tensor *tensor, const banyan_box *box, banyan_box *hole)
{
    planner_boxes holes = {0};
    bool ok = array_push(&holes, *box);
    for (size_t i = 0; i < tensor->source_count && ok; i++)
        ok = planner_boxes_subtract(&holes, &tensor->sources[i].box);
    bool found = ok && holes.count > 0;
    if (found)
        *hole = holes.data[0];
    array_free(&holes);
    return found;
}

uint64_t planner_id_of(const planner_move *move)
{
    int ndim = move->transfer.box.ndim;
    int64_t place[2 + 4 * BANYAN_MAX_DIMS] = {move->transfer.destination_rank, move->ordinal};
    size_t count = 2, bytes = (size_t)ndim * sizeof place[0];
    const int64_t *parts[] = {move->destination.start, move->destination.extent,
                              move->transfer.box.start, move->transfer.box.extent};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++, count += (size_t)ndim)
        memcpy(place + count, parts[i], bytes);
    return hash_bytes(place, count * sizeof place[0], hash_string(move->transfer.name, 0));
}

static int compare_ints(int a, int b)
{
    return COMPARE(a, b);
}

/* Break ties between equal ids by everything that the id is derived from. */
static int compare_moves(const void *left, const void *right)
{
    const planner_move *a = left, *b = right;
    int order = compare_ints(a->transfer.source_rank, b->transfer.source_rank);
    if (order == 0)
        order = compare_ints(a->transfer.destination_rank, b->transfer.destination_rank);
    if (order == 0)
        order = COMPARE(a->transfer.task_id, b->transfer.task_id);
    if (order == 0)
        order = strcmp(a->transfer.name, b->transfer.name);
    if (order == 0)
        order = planner_box_compare(&a->destination, &b->destination);
    if (order == 0)
        order = planner_box_compare(&a->transfer.box, &b->transfer.box);
    if (order == 0)
        order = COMPARE(a->ordinal, b->ordinal);
    return order;
}

static bool same_pair(const planner_move *a, const planner_move *b)
{
    return a->transfer.source_rank == b->transfer.source_rank &&
           a->transfer.destination_rank == b->transfer.destination_rank;
}

/* In sorted order, an id that is not above the one before it takes the next free one. The few ids
 * at the top of the range move to the bottom first, so that counting up never overflows. */
void planner_ids_settle(planner_move *moves, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (moves[i].transfer.task_id >= BANYAN_TASK_ID_NONE - UINT32_MAX)
            moves[i].transfer.task_id -= BANYAN_TASK_ID_NONE - UINT32_MAX;
    sort_elements(moves, count, sizeof *moves, compare_moves);
    for (size_t i = 1; i < count; i++)
        if (same_pair(&moves[i - 1], &moves[i]) &&
            moves[i].transfer.task_id <= moves[i - 1].transfer.task_id)
            moves[i].transfer.task_id = moves[i - 1].transfer.task_id + 1;
}
