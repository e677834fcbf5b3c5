#include "reshard/planner/share.h"

#include <string.h>

#include "core/containers/map.h"

/* Cuts keep to whole blocks of this many elements of the global tensor, along the fastest dimension
 * and along others: runs stay long, and no block of a block-scaled format is cut by us. */
#define FASTEST_BLOCK_ELEMS 128
#define BLOCK_ELEMS 32
/* With so many blocks a part, one more or less is still even. */
#define EVEN_BLOCKS 8

/* With so many parts of a box for each sender, more would not spread the work better. */
#define SHARES_A_SENDER 8

typedef ARRAY(banyan_box) box_list;
typedef ARRAY(size_t) index_list;

/* ---- holders ---- */

int plan_holders_at(const plan_holders *holders, int64_t index)
{
    for (size_t i = 0; i < holders->set_count; i++) {
        int64_t size = banyan_rank_set_size(&holders->sets[i]);
        if (index < size)
            return banyan_rank_set_at(&holders->sets[i], index);
        index -= size;
    }
    return -1;
}

int64_t plan_holders_find(const plan_holders *holders, int rank)
{
    int64_t before = 0;
    for (size_t i = 0; i < holders->set_count; i++) {
        int64_t index = banyan_rank_set_find(&holders->sets[i], rank);
        if (index >= 0)
            return before + index;
        before += banyan_rank_set_size(&holders->sets[i]);
    }
    return -1;
}

/* ---- boxes ---- */

int plan_box_compare(const banyan_box *a, const banyan_box *b)
{
    if (a->ndim != b->ndim)
        return a->ndim < b->ndim ? -1 : 1;
    for (int d = 0; d < a->ndim; d++)
        if (a->start[d] != b->start[d])
            return a->start[d] < b->start[d] ? -1 : 1;
    for (int d = 0; d < a->ndim; d++)
        if (a->extent[d] != b->extent[d])
            return a->extent[d] < b->extent[d] ? -1 : 1;
    return 0;
}

static int64_t slab_start(const banyan_box *box)
{
    return box->ndim > 0 ? box->start[0] : 0;
}

static int64_t slab_end(const banyan_box *box)
{
    return box->ndim > 0 ? box->start[0] + box->extent[0] : 1;
}

void plan_reach_of(const plan_claim *sources, size_t count, int64_t *reach)
{
    for (size_t i = 0; i < count; i++) {
        int64_t end = slab_end(&sources[i].box);
        reach[i] = i > 0 && reach[i - 1] > end ? reach[i - 1] : end;
    }
}

/* The sources from `*first` to before `*last` are all that can meet the box: those behind start
 * after its end, and those in front all end before its start. */
static void sources_near(const plan_tensor *tensor, const banyan_box *box, size_t *first,
                         size_t *last)
{
    int64_t start = slab_start(box), end = slab_end(box);
    size_t low = 0, high = tensor->source_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (tensor->reach[middle] > start)
            high = middle;
        else
            low = middle + 1;
    }
    *first = low;
    high = tensor->source_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (slab_start(&tensor->sources[middle].box) >= end)
            high = middle;
        else
            low = middle + 1;
    }
    *last = low;
}

/* Take `cut` out of every box of the list. */
static bool boxes_subtract(box_list *boxes, const banyan_box *cut)
{
    size_t count = boxes->count;
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        banyan_box box = boxes->data[i], common, rest[2 * BANYAN_MAX_DIMS];
        if (!banyan_box_intersect(&box, cut, &common)) {
            boxes->data[kept++] = box;
            continue;
        }
        int pieces = banyan_box_subtract(&box, cut, rest);
        for (int p = 0; p < pieces; p++)
            if (!array_push(boxes, rest[p]))
                return false;
    }
    size_t added = boxes->count - count;
    memmove(boxes->data + kept, boxes->data + count, added * sizeof boxes->data[0]);
    boxes->count = kept + added;
    return true;
}

/* ---- even cuts ---- */

/* Along the fastest dimension cuts keep to whole blocks, along others where that costs no evenness:
 * a destination may hold them transposed. */
static int64_t block_elems(const banyan_box *box, int d, int64_t parts)
{
    if (d == box->ndim - 1)
        return FASTEST_BLOCK_ELEMS;
    return box->extent[d] / parts >= EVEN_BLOCKS * BLOCK_ELEMS ? BLOCK_ELEMS : 1;
}

/* How many blocks, the first and the last of them perhaps in part, the box has along d. */
static int64_t units_of(const banyan_box *box, int d, int64_t parts)
{
    int64_t block = block_elems(box, d, parts);
    return (box->start[d] + box->extent[d] - 1) / block - box->start[d] / block + 1;
}

/* Where, along dimension d, part `part` of `parts` starts. */
static int64_t part_start(const banyan_box *box, int d, int64_t parts, int64_t part)
{
    int64_t units = units_of(box, d, parts), whole = units / parts, rest = units % parts;
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
        int64_t units = units_of(box, d, wanted);
        if (units >= wanted && (units % wanted == 0 || units / wanted >= EVEN_BLOCKS))
            return d;
        if (units >= wanted && (most < 0 || units > units_of(box, most, wanted)))
            most = d;
    }
    return most;
}

static plan_grid grid_of_parts(const banyan_box *box, int64_t wanted)
{
    plan_grid grid = {.count = 1};
    int single = single_dimension(box, wanted);
    for (int d = 0; d < box->ndim; d++) {
        int64_t units = units_of(box, d, wanted), left = wanted / grid.count;
        grid.parts[d] = single >= 0 ? (d == single ? wanted : 1) : units < left ? units : left;
        grid.count *= grid.parts[d];
    }
    return grid;
}

/* Only the outer parts of a dimension can be smaller than the share of the others. */
static uint64_t smallest_part(const plan_grid *grid, const banyan_box *box)
{
    uint64_t elems = 1;
    for (int d = 0; d < box->ndim; d++) {
        int64_t parts = grid->parts[d], smallest = box->extent[d];
        int64_t tried[] = {0, units_of(box, d, parts) % parts, parts - 1};
        for (size_t i = 0; i < sizeof tried / sizeof tried[0]; i++) {
            int64_t extent =
                part_start(box, d, parts, tried[i] + 1) - part_start(box, d, parts, tried[i]);
            smallest = extent < smallest ? extent : smallest;
        }
        elems *= (uint64_t)smallest;
    }
    return elems;
}

plan_grid plan_grid_of(const banyan_box *box, int64_t wanted, uint64_t min_elems)
{
    uint64_t most = min_elems > 0 ? banyan_box_elems(box) / min_elems : banyan_box_elems(box);
    if ((uint64_t)wanted > most)
        wanted = (int64_t)most;
    for (;; wanted -= wanted / 8 > 1 ? wanted / 8 : 1) {
        plan_grid grid = grid_of_parts(box, wanted > 1 ? wanted : 1);
        if (wanted <= 1 || smallest_part(&grid, box) >= min_elems)
            return grid;
    }
}

banyan_box plan_grid_part(const plan_grid *grid, const banyan_box *box, int64_t part)
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

/* ---- who sends ---- */

/* How one box, which the holders of a source share, is dealt to the holders of a destination:
 * part p for the t-th destination is number t · parts + p, and is sent by the source's holder
 * (base + number) mod holders. Each holder so sends ⌊n ÷ holders⌋ or one more of n parts. */
typedef struct deal {
    banyan_box box;
    plan_grid grid;
    int64_t base;
    int64_t holders;
} deal;

/* Where the box stands when boxes of its size tile the tensor: tiles of a regular layout so take
 * their turns one after another. */
static uint64_t tile_number(const plan_tensor *tensor, const banyan_box *box)
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
 * receivers enough to keep all senders equally busy without. */
static int64_t parts_wanted(int64_t senders, int64_t receivers)
{
    int64_t even = senders / greatest_divisor(senders, receivers);
    int64_t least = (senders * SHARES_A_SENDER + receivers - 1) / receivers;
    int64_t parts = (least + even - 1) / even * even;
    return parts < senders ? parts : senders;
}

static deal deal_of(const plan_tensor *tensor, const plan_claim *source,
                    const plan_claim *destination, const banyan_box *box)
{
    uint64_t min_elems = tensor->min_split_bytes / tensor->elem_bytes +
                         (tensor->min_split_bytes % tensor->elem_bytes != 0);
    deal made = {
        .box = *box,
        .grid = plan_grid_of(box, parts_wanted(source->holders.count, destination->holders.count),
                             min_elems),
        .holders = source->holders.count,
    };
    uint64_t seed = hash_bytes(source->box.start, (size_t)box->ndim * sizeof source->box.start[0],
                               hash_string(tensor->name, destination->ordinal));
    uint64_t turn = tile_number(tensor, &destination->box) * (uint64_t)destination->holders.count *
                    (uint64_t)made.grid.count;
    made.base = (int64_t)((seed + turn) % (uint64_t)made.holders);
    return made;
}

/* What of `needed` source `source` gives: all that it holds and no source before it does. */
static bool given_boxes(const plan_tensor *tensor, size_t source, const banyan_box *needed,
                        box_list *given)
{
    given->count = 0;
    banyan_box common;
    if (!banyan_box_intersect(needed, &tensor->sources[source].box, &common))
        return true;
    if (!array_push(given, common))
        return false;
    size_t first, last;
    sources_near(tensor, &common, &first, &last);
    for (size_t i = first; i < source && given->count > 0; i++)
        if (!boxes_subtract(given, &tensor->sources[i].box))
            return false;
    return true;
}

/* Append `box` without what the receiver holds itself. */
static bool append_share(const plan_tensor *tensor, const banyan_box *box, const index_list *own,
                         int rank, size_t source, box_list *rest, plan_shares *shares)
{
    rest->count = 0;
    if (!array_push(rest, *box))
        return false;
    for (size_t i = 0; i < own->count && rest->count > 0; i++)
        if (!boxes_subtract(rest, &tensor->sources[own->data[i]].box))
            return false;
    for (size_t i = 0; i < rest->count; i++)
        if (!array_push(shares, (plan_share){rest->data[i], rank, source}))
            return false;
    return true;
}

/* The sources that meet the box and are held by the rank. */
static bool list_own(const plan_tensor *tensor, const banyan_box *box, int rank, index_list *own)
{
    own->count = 0;
    size_t first, last;
    sources_near(tensor, box, &first, &last);
    for (size_t i = first; i < last; i++) {
        banyan_box common;
        if (banyan_box_intersect(box, &tensor->sources[i].box, &common) &&
            plan_holders_find(&tensor->sources[i].holders, rank) >= 0 && !array_push(own, i))
            return false;
    }
    return true;
}

static bool append_own(const plan_tensor *tensor, const banyan_box *needed, const index_list *own,
                       int rank, box_list *rest, plan_shares *shares)
{
    for (size_t o = 0; o < own->count; o++) {
        banyan_box common;
        banyan_box_intersect(needed, &tensor->sources[own->data[o]].box, &common);
        index_list before = {.data = own->data, .count = o};
        if (!append_share(tensor, &common, &before, rank, own->data[o], rest, shares))
            return false;
    }
    return true;
}

static bool append_received(const plan_tensor *tensor, const plan_claim *destination, int64_t index,
                            size_t source, const box_list *given, const index_list *own,
                            box_list *rest, plan_shares *shares)
{
    const plan_holders *holders = &tensor->sources[source].holders;
    for (size_t g = 0; g < given->count; g++) {
        deal dealt = deal_of(tensor, &tensor->sources[source], destination, &given->data[g]);
        for (int64_t p = 0; p < dealt.grid.count; p++) {
            int64_t number = index * dealt.grid.count + p;
            int sender = plan_holders_at(holders, (dealt.base + number) % dealt.holders);
            banyan_box part = plan_grid_part(&dealt.grid, &dealt.box, p);
            if (!append_share(tensor, &part, own, sender, source, rest, shares))
                return false;
        }
    }
    return true;
}

banyan_status plan_shares_received(const plan_tensor *tensor, const plan_claim *destination,
                                   int64_t index, int rank, plan_shares *shares,
                                   uint64_t *covered_elems)
{
    box_list given = {0}, rest = {0};
    index_list own = {0};
    uint64_t covered = 0;
    bool ok = list_own(tensor, &destination->box, rank, &own) &&
              append_own(tensor, &destination->box, &own, rank, &rest, shares);
    size_t first, last;
    sources_near(tensor, &destination->box, &first, &last);
    for (size_t i = first; i < last && ok; i++) {
        ok = given_boxes(tensor, i, &destination->box, &given);
        for (size_t g = 0; g < given.count && ok; g++)
            covered += banyan_box_elems(&given.data[g]);
        ok = ok && append_received(tensor, destination, index, i, &given, &own, &rest, shares);
    }
    array_free(&given);
    array_free(&rest);
    array_free(&own);
    if (!ok)
        return BANYAN_ERR_NO_MEMORY;
    *covered_elems = covered;
    return BANYAN_OK;
}

static bool append_sent(const plan_tensor *tensor, size_t source, int64_t index, int rank,
                        const plan_claim *destination, const deal *dealt, index_list *own,
                        box_list *rest, plan_shares *shares)
{
    int64_t numbers = destination->holders.count * dealt->grid.count;
    int64_t number = (index - dealt->base + dealt->holders) % dealt->holders;
    for (; number < numbers; number += dealt->holders) {
        int receiver = plan_holders_at(&destination->holders, number / dealt->grid.count);
        if (receiver == rank)
            continue;
        banyan_box part = plan_grid_part(&dealt->grid, &dealt->box, number % dealt->grid.count);
        if (!list_own(tensor, &part, receiver, own) ||
            !append_share(tensor, &part, own, receiver, source, rest, shares))
            return false;
    }
    return true;
}

banyan_status plan_shares_sent(const plan_tensor *tensor, size_t source, int64_t index, int rank,
                               const plan_claim *destination, plan_shares *shares)
{
    box_list given = {0}, rest = {0};
    index_list own = {0};
    bool ok = given_boxes(tensor, source, &destination->box, &given);
    for (size_t g = 0; g < given.count && ok; g++) {
        deal dealt = deal_of(tensor, &tensor->sources[source], destination, &given.data[g]);
        ok = append_sent(tensor, source, index, rank, destination, &dealt, &own, &rest, shares);
    }
    array_free(&given);
    array_free(&rest);
    array_free(&own);
    return ok ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

bool plan_hole_of(const plan_tensor *tensor, const banyan_box *box, banyan_box *hole)
{
    box_list holes = {0};
    bool ok = array_push(&holes, *box);
    for (size_t i = 0; i < tensor->source_count && ok; i++)
        ok = boxes_subtract(&holes, &tensor->sources[i].box);
    bool found = ok && holes.count > 0;
    if (found)
        *hole = holes.data[0];
    array_free(&holes);
    return found;
}
