/* Random layouts of random tensors over a world: every rank can make every rank's, from the
 * seed. */
#ifndef TESTS_RESHARD_RANDOM_CASE_H
#define TESTS_RESHARD_RANDOM_CASE_H

#include <inttypes.h>

#include "support/test.h"

#include "reshard/layout/box.h"

enum { CASE_MAX_TENSORS = 8, CASE_MAX_HOLDINGS = 160 };

typedef struct case_tensor {
    char name[32];
    DLDataType dtype;
    int ndim;
    int64_t shape[BANYAN_MAX_DIMS];
} case_tensor;

/* A box that a set of ranks holds on one side. */
typedef struct case_holding {
    int tensor;
    bool is_destination;
    banyan_box box;
    banyan_rank_set ranks;
    bool replicas_known; /* the layouts name the replicas */
    uint64_t seed;       /* for its place in memory */
} case_holding;

typedef struct random_case {
    uint64_t seed;
    int world_size;
    int tensor_count;
    case_tensor tensors[CASE_MAX_TENSORS];
    int holding_count;
    case_holding holdings[CASE_MAX_HOLDINGS];
} random_case;

typedef struct case_options {
    int world_size;
    int first_destination_rank; /* sources are below it; 0: both sides on all ranks */
    int64_t max_elems;          /* of a tensor */
} case_options;

static inline banyan_rank_set case_random_set(random_state *random, int low, int high)
{
    banyan_rank_set set = banyan_rank_set_one((int)random_between(random, low, high));
    int64_t end = set.first, used = 1;
    for (int level = BANYAN_RANK_SET_LEVELS - 1; level >= BANYAN_RANK_SET_LEVELS - 2; level--) {
        int64_t stride = used * random_between(random, 1, 3);
        int64_t count = random_between(random, 1, 4);
        while (end + (count - 1) * stride > high)
            count--;
        if (count == 1)
            continue;
        set.count[level] = (int)count;
        set.stride[level] = (int)stride;
        end += (count - 1) * stride;
        used = stride * count;
    }
    return set;
}

static inline void case_hold(random_case *made, random_state *random, const case_options *options,
                             int tensor, bool is_destination, const banyan_box *box)
{
    CHECK(made->holding_count < CASE_MAX_HOLDINGS);
    bool apart = options->first_destination_rank > 0;
    int low = apart && is_destination ? options->first_destination_rank : 0;
    int high =
        apart && !is_destination ? options->first_destination_rank - 1 : options->world_size - 1;
    case_holding holding = {.tensor = tensor,
                            .is_destination = is_destination,
                            .box = *box,
                            .ranks = case_random_set(random, low, high),
                            .replicas_known = random_next(random) % 2,
                            .seed = random_next(random)};
    /* A known set of replicas is complete: if the box is held elsewhere too, no set is known. */
    for (int i = 0; i < made->holding_count; i++) {
        case_holding *other = &made->holdings[i];
        if (other->tensor == tensor && other->is_destination == is_destination &&
            banyan_box_equal(&other->box, box))
            other->replicas_known = holding.replicas_known = false;
    }
    made->holdings[made->holding_count++] = holding;
}

static inline banyan_box case_random_box(random_state *random, const banyan_box *in)
{
    banyan_box box = *in;
    for (int d = 0; d < in->ndim; d++) {
        if (random_next(random) % 3 == 0)
            continue;
        box.extent[d] = random_between(random, 1, in->extent[d]);
        box.start[d] += random_between(random, 0, in->extent[d] - box.extent[d]);
    }
    return box;
}

/* Cut the box into `parts` boxes, each held by some ranks. */
static inline void case_hold_parts(random_case *made, random_state *random,
                                   const case_options *options, int tensor, bool is_destination,
                                   banyan_box box, int parts)
{
    int d = box.ndim > 0 ? (int)random_between(random, 0, box.ndim - 1) : 0;
    if (parts <= 1 || box.ndim == 0 || box.extent[d] < 2) {
        case_hold(made, random, options, tensor, is_destination, &box);
        return;
    }
    banyan_box low = box, high = box;
    low.extent[d] = random_next(random) % 2 ? (box.extent[d] + 1) / 2
                                            : random_between(random, 1, box.extent[d] - 1);
    high.start[d] += low.extent[d];
    high.extent[d] -= low.extent[d];
    case_hold_parts(made, random, options, tensor, is_destination, low, parts / 2);
    case_hold_parts(made, random, options, tensor, is_destination, high, parts - parts / 2);
}

static inline void case_add_tensor(random_case *made, random_state *random,
                                   const case_options *options)
{
    static const DLDataType dtypes[] = {{kDLFloat, 32, 1}, {kDLBfloat, 16, 1}, {kDLUInt, 8, 1}};
    int t = made->tensor_count++;
    case_tensor *tensor = &made->tensors[t];
    snprintf(tensor->name, sizeof tensor->name, "layer.%d.weight", t);
    tensor->dtype = dtypes[random_next(random) % 3];
    tensor->ndim = (int)random_between(random, 0, 4);
    int64_t left = options->max_elems;
    for (int d = tensor->ndim - 1; d >= 0; d--) {
        int64_t most = d == 0 || tensor->ndim == 1 ? left : left < 24 ? left : 24;
        tensor->shape[d] = random_between(random, 1, most > 1 ? most : 1);
        left /= tensor->shape[d];
    }
    banyan_box whole = box_whole(tensor->ndim, tensor->shape);
    case_hold_parts(made, random, options, t, false, whole, (int)random_between(random, 1, 6));
    for (int64_t extra = random_between(random, -2, 3); extra > 0; extra--) {
        banyan_box box = case_random_box(random, &whole);
        case_hold(made, random, options, t, false, &box);
    }
    if (random_next(random) % 2)
        case_hold_parts(made, random, options, t, true, whole, (int)random_between(random, 1, 6));
    for (int64_t more = random_between(random, 0, 4); more > 0; more--) {
        banyan_box box = case_random_box(random, &whole);
        case_hold(made, random, options, t, true, &box);
    }
}

static inline random_case *case_make(uint64_t seed, const case_options *options)
{
    random_case *made = calloc(1, sizeof *made);
    CHECK(made != NULL);
    random_state random = random_from(seed);
    made->seed = seed;
    made->world_size = options->world_size;
    for (int64_t t = random_between(&random, 1, CASE_MAX_TENSORS); t > 0; t--)
        case_add_tensor(made, &random, options);
    return made;
}

/* Space before a piece, along each dimension: padding of zeros, padding of another value, or left
 * alone. */
static inline void case_add_room(const banyan_piece *piece, int ndim, const int64_t *shape,
                                 size_t elem_bytes, random_state *random, banyan_layout *layout)
{
    banyan_box rest = box_whole(ndim, shape);
    for (int d = 0; d < ndim; d++) {
        banyan_box room = rest;
        unsigned char fill[16];
        room.extent[d] = piece->local_start[d];
        for (size_t b = 0; b < elem_bytes; b++)
            fill[b] = (unsigned char)random_next(random);
        switch (random_next(random) % 3) {
        case 0:
            banyan_layout_add_padding(layout, piece->tensor, &room);
            break;
        case 1:
            banyan_layout_add_filled_padding(layout, piece->tensor, &room, fill);
            break;
        default:
            banyan_layout_leave_alone(layout, piece->tensor, &room);
        }
        rest.start[d] = piece->local_start[d];
        rest.extent[d] -= piece->local_start[d];
    }
}

/* A holding in its own local tensor: its dimensions in any order, without some of those of one
 * element, and space before it. */
static inline void case_add_local(const random_case *of, int index, banyan_layout *layout)
{
    const case_holding *holding = &of->holdings[index];
    const case_tensor *tensor = &of->tensors[holding->tensor];
    random_state random = random_from(holding->seed);
    char name[48];
    snprintf(name, sizeof name, "local.%d", index);
    banyan_piece piece = {.name = tensor->name, .ndim = tensor->ndim, .box = holding->box};
    memcpy(piece.shape, tensor->shape, sizeof piece.shape);
    int64_t shape[BANYAN_MAX_DIMS];
    bool turned = random_next(&random) % 3 == 0, roomy = random_next(&random) % 3 == 0;
    int order[BANYAN_MAX_DIMS], ndim = 0;
    for (int i = 0; i < tensor->ndim; i++) {
        int d = turned ? tensor->ndim - 1 - i : i;
        piece.dim_map[d] = BANYAN_NO_DIM;
        if (holding->box.extent[d] > 1 || random_next(&random) % 2)
            order[ndim++] = d;
    }
    for (int local = 0; local < ndim; local++) {
        int d = order[local];
        piece.dim_map[d] = local;
        piece.local_start[local] = roomy ? random_between(&random, 0, 2) : 0;
        shape[local] = piece.local_start[local] + holding->box.extent[d];
    }
    piece.tensor = banyan_layout_add_tensor(layout, name, tensor->dtype, ndim, shape);
    if (holding->replicas_known)
        piece.replicas = holding->ranks;
    banyan_layout_add_piece(layout, &piece);
    case_add_room(&piece, ndim, shape, banyan_dtype_bytes(tensor->dtype), &random, layout);
}

static inline banyan_layout *case_layout(const random_case *of, int rank, bool is_destination)
{
    banyan_layout *layout;
    CHECK_OK(banyan_layout_create(&layout));
    for (int i = 0; i < of->holding_count; i++)
        if (of->holdings[i].is_destination == is_destination &&
            banyan_rank_set_find(&of->holdings[i].ranks, rank) >= 0)
            case_add_local(of, i, layout);
    CHECK_OK(banyan_layout_check_as(layout, is_destination ? BANYAN_DESTINATION : BANYAN_SOURCE));
    return layout;
}

#endif
