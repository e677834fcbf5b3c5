#include "reshard/planner/once.h"

#include <string.h>

void once_work_free(once_work *work)
{
    array_free(&work->shares);
    array_free(&work->boxes);
    array_free(&work->rest);
    array_free(&work->overlapping);
    array_free(&work->others);
    array_free(&work->members);
    array_free(&work->sources);
    array_free(&work->ranks);
}

/* Steps of sequences that fill [0, 1) evenly, together and each alone, in units of 2^-32: powers of
 * the root of x³ = x + 1. The first is for layers, the next for experts. */
static const uint32_t turn_steps[] = {3242174889, 2447445414, 1847522138};
#define TURN_STEPS (sizeof turn_steps / sizeof turn_steps[0])

uint32_t once_turn_of(const char *name)
{
    uint32_t turn = 0;
    uint64_t words = 0;
    size_t numbers = 0;
    while (*name) {
        size_t length = strcspn(name, "0123456789");
        words = hash_bytes(name, length, words);
        name += length;
        char *end = (char *)name;
        if (*name)
            turn += (uint32_t)strtoull(name, &end, 10) *
                    turn_steps[numbers++ < TURN_STEPS - 1 ? numbers - 1 : TURN_STEPS - 1];
        name = end;
    }
    return turn + (uint32_t)words;
}

/* More turns shorten the last wave, in which only stage 1 is left, and make messages smaller. A
 * turn moves about this much of a rank's stage 0. */
#define TURN_BYTES (UINT64_C(32) << 20)
#define TURNS_LEAST 2
#define TURNS_MOST 12
/* Data moves several times faster inside a node. With so many turns for equal bytes in both stages,
 * the last wave adds about one per cent. */
#define TURNS_FOR_EQUAL_STAGES 16

uint64_t planner_turns_wanted(const planner_result *transfers, int rank)
{
    uint64_t bytes[2] = {0};
    for (size_t i = 0; i < transfers->recv_count; i++)
        if (transfers->recvs[i].source_rank != rank)
            bytes[transfers->recvs[i].stage] += transfers->recvs[i].bytes;
    for (size_t i = 0; i < transfers->recv_count && bytes[1] == 0; i++)
        bytes[1] = transfers->recvs[i].stage; /* between two boxes of this rank */
    if (bytes[1] == 0)
        return 0;
    double stages = (double)bytes[1] / (double)(bytes[0] > 0 ? bytes[0] : 1);
    uint64_t turns = bytes[0] / TURN_BYTES;
    if ((double)turns > stages * TURNS_FOR_EQUAL_STAGES)
        turns = (uint64_t)(stages * TURNS_FOR_EQUAL_STAGES);
    return turns < TURNS_LEAST ? TURNS_LEAST : turns > TURNS_MOST ? TURNS_MOST : turns;
}

uint64_t planner_wave_of(uint32_t stage, uint32_t turn, uint64_t turns)
{
    return turns > 0 ? (turn * turns >> 32) + stage : 0;
}

/* One source and one node: where parts come from and go to. */
typedef struct once_pair {
    const once_tensor *tensor;
    once_work *work;
    size_t source, box; /* the box at hand; parts lie in it */
    int node;
    bool leads; /* only parts of which the box is the first that contains them */
    /* Take the parts of work->boxes, which the boxes of work->members, and no others, contain. */
    bool (*take)(struct once_pair *pair);
    void *context;
} once_pair;

static bool box_on_node(const once_box *box, int node)
{
    return planner_group_find(box->group, node) != SIZE_MAX;
}

/* Find the other boxes of the node and kind that intersect the box at hand. */
static bool find_others(once_pair *pair)
{
    const once_tensor *tensor = pair->tensor;
    const once_box *mine = &tensor->boxes[pair->box];
    planner_indices *others = &pair->work->others;
    banyan_box common;
    others->count = 0;
    for (size_t i = 0; i < tensor->box_count; i++) {
        const once_box *other = &tensor->boxes[i];
        if (i != pair->box && other->kind == mine->kind &&
            banyan_box_intersect(&other->held.box, &mine->held.box, &common) &&
            box_on_node(other, pair->node) && !array_push(others, i))
            return false;
    }
    return true;
}

static bool is_member(const once_work *work, size_t box)
{
    for (size_t i = 0; i < work->members.count; i++)
        if (work->members.data[i] == box)
            return true;
    return false;
}

/* Make work->boxes of everything that the source and all members contain, and neither an earlier
 * source nor another box of the node and kind: the result depends on these alone. */
static bool make_boxes(once_pair *pair)
{
    const once_tensor *tensor = pair->tensor;
    once_work *work = pair->work;
    banyan_box common = tensor->all->sources[pair->source].box;
    work->boxes.count = 0;
    for (size_t i = 0; i < work->members.count; i++)
        if (!banyan_box_intersect(&common, &tensor->boxes[work->members.data[i]].held.box, &common))
            return true;
    if (!array_push(&work->boxes, common) ||
        !planner_sources_intersecting(tensor->all, &common, pair->source, &work->overlapping))
        return false;
    for (size_t i = 0; i < work->overlapping.count && work->boxes.count > 0; i++)
        if (!planner_boxes_subtract(&work->boxes,
                                    &tensor->all->sources[work->overlapping.data[i]].box))
            return false;
    size_t kind = tensor->boxes[pair->box].kind;
    for (size_t i = 0; work->others.count > 0 && i < tensor->box_count; i++) {
        const once_box *other = &tensor->boxes[i];
        banyan_box both;
        if (other->kind == kind && !is_member(work, i) &&
            banyan_box_intersect(&other->held.box, &common, &both) &&
            box_on_node(other, pair->node) &&
            !planner_boxes_subtract(&work->boxes, &other->held.box))
            return false;
    }
    return true;
}

/* Divide `region` by the others from `at` on: each is a member, or not, where it intersects. */
static bool divide_by_others(once_pair *pair, size_t at, const planner_boxes *region)
{
    const once_tensor *tensor = pair->tensor;
    once_work *work = pair->work;
    planner_boxes inside = {0}, outside = {0};
    banyan_box common;
    for (; at < work->others.count && inside.count == 0; at++)
        for (size_t i = 0; i < region->count; i++)
            if (banyan_box_intersect(&region->data[i],
                                     &tensor->boxes[work->others.data[at]].held.box, &common) &&
                !array_push(&inside, common)) {
                array_free(&inside);
                return false;
            }
    if (inside.count == 0)
        return make_boxes(pair) && pair->take(pair);
    size_t other = work->others.data[at - 1];
    bool ok = array_reserve(&outside, region->count);
    for (size_t i = 0; ok && i < region->count; i++)
        outside.data[outside.count++] = region->data[i];
    ok = ok && planner_boxes_subtract(&outside, &tensor->boxes[other].held.box);
    if (ok && !(pair->leads && other < pair->box)) {
        ok = array_push(&work->members, other) && divide_by_others(pair, at, &inside);
        work->members.count--;
    }
    if (ok && outside.count > 0)
        ok = divide_by_others(pair, at, &outside);
    array_free(&inside);
    array_free(&outside);
    return ok;
}

/* Visit the parts of the box that the source gives. */
static bool visit_parts(once_pair *pair)
{
    const once_tensor *tensor = pair->tensor;
    banyan_box common;
    if (!banyan_box_intersect(&tensor->all->sources[pair->source].box,
                              &tensor->boxes[pair->box].held.box, &common))
        return true;
    planner_boxes region = {.data = &common, .count = 1, .capacity = 1};
    pair->work->members.count = 0;
    return array_push(&pair->work->members, pair->box) && divide_by_others(pair, 0, &region);
}

/* Make work->rest of the part, without what sources of the node hold. */
static bool make_rest(const once_pair *pair, const banyan_box *part)
{
    const once_tensor *tensor = pair->tensor;
    once_work *work = pair->work;
    work->rest.count = 0;
    if (planner_group_find(tensor->sources[pair->source], pair->node) != SIZE_MAX)
        return true;
    if (!array_push(&work->rest, *part) ||
        !planner_sources_intersecting(tensor->all, part, SIZE_MAX, &work->overlapping))
        return false;
    for (size_t i = 0; i < work->overlapping.count && work->rest.count > 0; i++) {
        size_t source = work->overlapping.data[i];
        if (planner_group_find(tensor->sources[source], pair->node) != SIZE_MAX &&
            !planner_boxes_subtract(&work->rest, &tensor->all->sources[source].box))
            return false;
    }
    return true;
}

/* The box that leads the members: the first. */
static size_t lead_of(const once_work *work)
{
    size_t lead = work->members.data[0];
    for (size_t i = 1; i < work->members.count; i++)
        lead = work->members.data[i] < lead ? work->members.data[i] : lead;
    return lead;
}

static bool holds(const once_box *box, int node, int rank)
{
    size_t at = planner_group_find(box->group, node);
    for (size_t i = box->group->first[at]; i < box->group->first[at + 1]; i++)
        if (box->group->ranks[i] == rank)
            return true;
    return false;
}

/* List the ranks of the node that hold a member, in ascending order. */
static bool list_ranks(const once_pair *pair)
{
    once_work *work = pair->work;
    work->ranks.count = 0;
    for (size_t m = 0; m < work->members.count; m++) {
        const planner_group *group = pair->tensor->boxes[work->members.data[m]].group;
        size_t at = planner_group_find(group, pair->node);
        for (size_t i = group->first[at]; i < group->first[at + 1]; i++) {
            int rank = group->ranks[i];
            size_t place = BISECT(r, 0, work->ranks.count, work->ranks.data[r] < rank);
            if (place < work->ranks.count && work->ranks.data[place] == rank)
                continue;
            if (!array_push(&work->ranks, rank))
                return false;
            memmove(work->ranks.data + place + 1, work->ranks.data + place,
                    (work->ranks.count - 1 - place) * sizeof rank);
            work->ranks.data[place] = rank;
        }
    }
    return true;
}

/* Return the first of the members that the rank holds. */
static size_t place_of(const once_pair *pair, int rank)
{
    const once_work *work = pair->work;
    size_t place = SIZE_MAX;
    for (size_t m = 0; m < work->members.count; m++)
        if (work->members.data[m] < place &&
            holds(&pair->tensor->boxes[work->members.data[m]], pair->node, rank))
            place = work->members.data[m];
    return place;
}

static planner_division divide(const once_pair *pair, const banyan_box *box)
{
    const once_tensor *tensor = pair->tensor;
    const once_box *lead = &tensor->boxes[lead_of(pair->work)];
    return planner_divide(tensor->all, &tensor->all->sources[pair->source], &lead->held,
                          (int64_t)lead->group->node_count, (int64_t)lead->group->most, box);
}

/* Return the rank by which a part enters the node. */
static int entering_rank(const once_work *work, const planner_division *division, int64_t part)
{
    return work->ranks.data[(division->first_rank + part) % (int64_t)work->ranks.count];
}

static planner_share share_of(const once_pair *pair, int64_t part, int rank, uint32_t stage)
{
    int64_t each = (int64_t)pair->tensor->boxes[lead_of(pair->work)].group->most;
    return (planner_share){.rank = rank,
                           .source = pair->source,
                           .stage = stage,
                           .turn = pair->tensor->turn + (uint32_t)(part / each) * turn_steps[0]};
}

/* Append one share for every box of work->rest. */
static bool append_rest(const once_work *work, planner_share share, size_t box, once_shares *to)
{
    for (size_t i = 0; i < work->rest.count; i++) {
        share.box = work->rest.data[i];
        if (!array_push(to, (once_share){share, box}))
            return false;
    }
    return true;
}

/* Sends of one holder of a source to a node. */
typedef struct sending {
    int64_t index;
    int64_t node_index; /* of the node, among those of the leading box */
    once_shares *sent;
} sending;

static bool add_part(const once_pair *pair, const planner_division *division, int64_t part)
{
    const sending *of = pair->context;
    banyan_box box = planner_grid_part(&division->grid, &division->box, part);
    if (!make_rest(pair, &box))
        return false;
    if (pair->work->rest.count == 0)
        return true;
    int rank = entering_rank(pair->work, division, part);
    return append_rest(pair->work, share_of(pair, part, rank, 0), place_of(pair, rank), of->sent);
}

/* Send those of the parts whose number falls to this holder. */
static bool send_boxes(once_pair *pair)
{
    const sending *of = pair->context;
    once_work *work = pair->work;
    if (work->boxes.count > 0 && !list_ranks(pair))
        return false;
    for (size_t b = 0; b < work->boxes.count; b++) {
        planner_division division = divide(pair, &work->boxes.data[b]);
        int64_t before = of->node_index * division.grid.count;
        int64_t part = (of->index - division.base - before) % division.holders;
        for (part += part < 0 ? division.holders : 0; part < division.grid.count;
             part += division.holders)
            if (!add_part(pair, &division, part))
                return false;
    }
    return true;
}

/* True if another box of this kind intersects the part that the source gives of this one. */
static bool overlaps_others(const once_tensor *tensor, size_t source, size_t box)
{
    banyan_box common, both;
    if (!banyan_box_intersect(&tensor->all->sources[source].box, &tensor->boxes[box].held.box,
                              &common))
        return false;
    for (size_t i = 0; i < tensor->box_count; i++)
        if (i != box && tensor->boxes[i].kind == tensor->boxes[box].kind &&
            banyan_box_intersect(&tensor->boxes[i].held.box, &common, &both))
            return true;
    return false;
}

/* No box of this kind overlaps this one: all nodes have the same parts, so the rank finds those
 * that it sends without a walk over all nodes. */
static bool send_alone(once_pair *pair)
{
    sending *of = pair->context;
    once_work *work = pair->work;
    const planner_group *group = pair->tensor->boxes[pair->box].group;
    work->others.count = work->members.count = 0;
    if (!array_push(&work->members, pair->box) || !make_boxes(pair))
        return false;
    for (size_t b = 0; b < work->boxes.count; b++) {
        planner_division division = divide(pair, &work->boxes.data[b]);
        int64_t numbers = (int64_t)group->node_count * division.grid.count;
        int64_t number = (of->index - division.base + division.holders) % division.holders;
        for (; number < numbers; number += division.holders) {
            pair->node = group->nodes[number / division.grid.count];
            if (!list_ranks(pair) || !add_part(pair, &division, number % division.grid.count))
                return false;
        }
    }
    return true;
}

static bool send_over_network(const once_tensor *tensor, size_t source, int64_t index, size_t box,
                              once_work *work, once_shares *sent)
{
    sending of = {.index = index, .sent = sent};
    once_pair pair = {.tensor = tensor,
                      .work = work,
                      .source = source,
                      .box = box,
                      .leads = true,
                      .take = send_boxes,
                      .context = &of};
    const planner_group *group = tensor->boxes[box].group;
    if (!overlaps_others(tensor, source, box))
        return send_alone(&pair);
    for (size_t n = 0; n < group->node_count; n++) {
        pair.node = group->nodes[n];
        of.node_index = (int64_t)n;
        if (!find_others(&pair) || !visit_parts(&pair))
            return false;
    }
    return true;
}

/* The holders of the box on this rank's node, and this rank's place among them (-1: none). */
static planner_held held_here(const once_tensor *tensor, size_t box, int64_t *index)
{
    planner_held held = tensor->boxes[box].held;
    held.holders = tensor->boxes[box].group->own;
    *index = planner_holders_find(&held.holders, tensor->rank);
    return held;
}

/* `numbers`, if not NULL, are those of local sources among all. */
static bool append_shares(const planner_shares *shares, uint32_t turn, const size_t *numbers,
                          size_t box, once_shares *to)
{
    for (size_t i = 0; i < shares->count; i++) {
        once_share share = {shares->data[i], box};
        share.share.turn = turn;
        if (numbers)
            share.share.source = numbers[share.share.source];
        if (!array_push(to, share))
            return false;
    }
    return true;
}

bool once_sent(const once_tensor *tensor, size_t source, int64_t index, size_t local_source,
               size_t box, once_work *work, once_shares *sent)
{
    if (tensor->boxes[box].group->own.count > 0 && local_source != SIZE_MAX) {
        int64_t unused, place = planner_holders_find(&tensor->local->sources[local_source].holders,
                                                     tensor->rank);
        planner_held held = held_here(tensor, box, &unused);
        work->shares.count = 0;
        if (planner_shares_sent(tensor->local, local_source, place, tensor->rank, &held,
                                &work->shares) != BANYAN_OK ||
            !append_shares(&work->shares, tensor->turn, NULL, box, sent))
            return false;
    }
    return send_over_network(tensor, source, index, box, work, sent);
}

/* Receives of a rank into one box. */
typedef struct receiving {
    once_shares *received, *passed;
    uint64_t covered_elems;
} receiving;

/* Pass work->rest on to every other place of the node: other ranks, and other boxes of this one. */
static bool pass_on(const once_pair *pair, planner_share share, once_shares *passed)
{
    const once_tensor *tensor = pair->tensor;
    const once_work *work = pair->work;
    share.stage = 1;
    for (size_t m = 0; m < work->members.count; m++) {
        size_t member = work->members.data[m];
        const planner_group *group = tensor->boxes[member].group;
        size_t at = planner_group_find(group, pair->node);
        for (size_t i = group->first[at]; i < group->first[at + 1]; i++) {
            share.rank = group->ranks[i];
            if (share.rank != tensor->rank && !append_rest(work, share, member, passed))
                return false;
        }
    }
    return true;
}

static bool receive_part(once_pair *pair, const planner_division *division, int64_t part)
{
    const once_tensor *tensor = pair->tensor;
    const receiving *to = pair->context;
    const planner_held *from = &tensor->all->sources[pair->source];
    const planner_group *lead = tensor->boxes[lead_of(pair->work)].group;
    int entering = entering_rank(pair->work, division, part);
    size_t place = place_of(pair, entering);
    if (entering != tensor->rank || place != pair->box) {
        planner_share share = share_of(pair, part, entering, 1);
        share.source = place;
        return append_rest(pair->work, share, pair->box, to->received);
    }
    int64_t number = (int64_t)planner_group_find(lead, pair->node) * division->grid.count + part;
    int sender = planner_holders_at(&from->holders, (division->base + number) % division->holders);
    planner_share share = share_of(pair, part, sender, 0);
    return append_rest(pair->work, share, pair->box, to->received) &&
           pass_on(pair, share, to->passed);
}

static bool receive_boxes(once_pair *pair)
{
    receiving *to = pair->context;
    once_work *work = pair->work;
    if (work->boxes.count > 0 && !list_ranks(pair))
        return false;
    for (size_t b = 0; b < work->boxes.count; b++) {
        to->covered_elems += banyan_box_elems(&work->boxes.data[b]);
        planner_division division = divide(pair, &work->boxes.data[b]);
        for (int64_t part = 0; part < division.grid.count; part++) {
            banyan_box box = planner_grid_part(&division.grid, &division.box, part);
            if (!make_rest(pair, &box) ||
                (work->rest.count > 0 && !receive_part(pair, &division, part)))
                return false;
        }
    }
    return true;
}

bool once_received(const once_tensor *tensor, size_t box, once_work *work, once_shares *received,
                   once_shares *passed, uint64_t *covered_elems)
{
    int64_t index;
    uint64_t unused;
    planner_held held = held_here(tensor, box, &index);
    work->shares.count = 0;
    if (planner_shares_received(tensor->local, &held, index, tensor->rank, &work->shares,
                                &unused) != BANYAN_OK ||
        !append_shares(&work->shares, tensor->turn, tensor->local_numbers, box, received))
        return false;
    receiving to = {received, passed, 0};
    once_pair pair = {.tensor = tensor,
                      .work = work,
                      .box = box,
                      .node = tensor->node,
                      .take = receive_boxes,
                      .context = &to};
    if (!find_others(&pair) ||
        !planner_sources_intersecting(tensor->all, &held.box, SIZE_MAX, &work->sources))
        return false;
    for (size_t i = 0; i < work->sources.count; i++) {
        pair.source = work->sources.data[i];
        if (!visit_parts(&pair))
            return false;
    }
    *covered_elems = to.covered_elems;
    return true;
}
