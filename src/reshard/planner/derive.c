#include "reshard/planner/rank.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "reshard/layout/box.h"
#include "reshard/layout/value_map.h"
#include "reshard/planner/share.h"
#include "reshard/planner/state.h"
#include "reshard/planner/view.h"
#include "reshard/run/convert.h"
#include "reshard/transform/mxfp8.h"
#include "reshard/transform/object.h"

typedef struct deriving {
    planner *planning;
    name_claims *claims; /* of each name */
    planner_view view;   /* of the name at hand */
    planner_shares shares;
    once_shares received, passed;
    uint64_t fetched_again;
    ARRAY(planner_move) sends;
    ARRAY(planner_move) recvs;
    const char **destination_names;
    DLDataType *piece_dtypes; /* of the source, for each destination piece by number */
} deriving;

static int compare_claims(const void *left, const void *right)
{
    const planner_claim *a = left, *b = right;
    RETURN_IF_UNEQUAL(a->name, b->name);
    RETURN_IF_UNEQUAL(a->side, b->side);
    int order = planner_box_compare(&a->claim.box, &b->claim.box);
    if (order == 0)
        order = COMPARE(a->claim.ordinal, b->claim.ordinal);
    if (order == 0 && a->wanted != b->wanted)
        order = strcmp(a->wanted ? a->wanted : "", b->wanted ? b->wanted : "");
    if (order == 0)
        order = COMPARE(a->flags, b->flags);
    if (order == 0)
        order = memcmp(&a->dtype, &b->dtype, sizeof a->dtype);
    if (order == 0)
        order = COMPARE(a->whole_blocks, b->whole_blocks);
    return order;
}

/* A record of a box across two slabs was received twice. */
static void settle_claims(planner *planning)
{
    planner_claim *claims = planning->claims.data;
    size_t count = planning->claims.count, kept = 0;
    array_sort(&planning->claims, compare_claims);
    for (size_t i = 0; i < count; i++) {
        if (kept > 0 && compare_claims(&claims[kept - 1], &claims[i]) == 0)
            continue;
        claims[kept] = claims[i];
        claims[kept].claim.holders.sets = planning->sets.data + claims[i].first_set;
        kept++;
    }
    planning->claims.count = kept;
}

static banyan_status find_name_claims(deriving *work)
{
    const planner *planning = work->planning;
    RETURN_IF_NO_MEMORY(work->claims = alloc_zeroed(planning->names.count + 1, sizeof *work->claims,
                                                    "a planner's claims"));
    size_t at = 0;
    for (size_t name = 0; name < planning->names.count; name++) {
        name_claims *range = &work->claims[name];
        range->first_source = at;
        while (at < planning->claims.count && planning->claims.data[at].name == name &&
               planning->claims.data[at].side == PLAN_SOURCE)
            at++;
        range->first_destination = at;
        while (at < planning->claims.count && planning->claims.data[at].name == name)
            at++;
        range->end = at;
    }
    return BANYAN_OK;
}

static banyan_status view_tensor(deriving *work, uint32_t index)
{
    return planner_view_name(&work->view, work->planning, &work->claims[index], index);
}

/* The claim of a piece, and this rank's place among those that make it. A piece that falls back
 * looks where the senders look, since the order of the ranks is theirs. */
static banyan_status derive_find_own(const deriving *work, const planner_piece *own,
                                     const planner_claim **found, int64_t *index)
{
    const planner *planning = work->planning;
    uint32_t from = own->side == PLAN_SOURCE ? own->name : planner_from(planning, own);
    const char *wanted = from == own->name ? NULL : planning->names.data[own->name].text;
    const name_claims *range = &work->claims[from];
    bool is_source = own->side == PLAN_SOURCE;
    size_t first = is_source ? range->first_source : range->first_destination;
    size_t end = is_source ? range->first_destination : range->end;
    int times = 0;
    const planner_claim *claims = planning->claims.data;
    first = BISECT(i, first, end, planner_box_compare(&claims[i].claim.box, &own->piece->box) < 0);
    for (size_t i = first; i < end; i++) {
        const planner_claim *claim = &claims[i];
        if (!banyan_box_equal(&claim->claim.box, &own->piece->box))
            break;
        if (claim->wanted != wanted || claim->claim.ordinal != own->ordinal)
            continue;
        int64_t place = planner_holders_find(&claim->claim.holders, planning->rank);
        if (place < 0 || claim->flags != own->piece->flags ||
            claim->whole_blocks != own->whole_blocks ||
            !banyan_dtype_equal(claim->dtype, own->dtype))
            continue;
        *found = claim;
        *index = place;
        times++;
    }
    if (times == 1)
        return BANYAN_OK;
    char text[BOX_TEXT_BYTES];
    return error_set(BANYAN_ERR_MISMATCH,
                     "rank %d holds %s of \"%s\" in the %s, but its replicas, as they name each "
                     "other, include it %d times: all of them must name the same set",
                     planning->rank, banyan_box_format(&own->piece->box, text, sizeof text),
                     own->piece->name, is_source ? "source" : "destination", times);
}

/* The first of this rank's source pieces that is this box. */
static const planner_piece *own_source(const planner *planning, uint32_t name,
                                       const banyan_box *box)
{
    const planner_piece *own = planning->pieces.data;
    size_t low = BISECT(i, 0, planning->pieces.count,
                        own[i].name != name ? own[i].name < name
                                            : own[i].side == PLAN_SOURCE &&
                                                  planner_box_compare(&own[i].piece->box, box) < 0);
    return &own[low];
}

/* The destination piece of this rank that makes the claim. */
static const planner_piece *own_destination(const planner *planning, const planner_claim *claim)
{
    uint64_t wanted = claim->name;
    if (claim->wanted)
        map_get_string(&planning->name_index, claim->wanted, &wanted);
    const planner_piece *own = planning->pieces.data;
    size_t low =
        BISECT(i, 0, planning->pieces.count,
               own[i].name != wanted ? own[i].name < wanted
               : own[i].side != PLAN_DESTINATION
                   ? own[i].side < PLAN_DESTINATION
                   : planner_box_compare(&own[i].piece->box, &claim->claim.box) < 0 ||
                         (planner_box_compare(&own[i].piece->box, &claim->claim.box) == 0 &&
                          own[i].ordinal < claim->claim.ordinal));
    return &own[low];
}

static DLDataType landing_dtype(uint32_t flags, DLDataType declared, DLDataType source)
{
    return flags & BANYAN_PIECE_PERSISTENT_BUFFER ? source : declared;
}

static planner_move derive_move_of(const deriving *work, const planner_share *share,
                                   const char *name, const planner_held *destination)
{
    const planner *planning = work->planning;
    planner_move move = {
        .transfer =
            {
                .name = name,
                .box = share->box,
                .bytes = banyan_box_elems(&share->box) * work->view.all.elem_bytes,
                .source_piece = SIZE_MAX,
                .destination_piece = SIZE_MAX,
                .source_dtype = planning->names.data[work->view.name].source_dtype,
                .stage = share->stage,
                .turn = share->turn,
            },
        .destination = destination->box,
        .ordinal = destination->ordinal,
    };
    return move;
}

/* In stage 1 the destination's bytes travel as they are. */
static void derive_settle_stage(banyan_transfer *transfer)
{
    transfer->origin_dtype = transfer->source_dtype;
    transfer->origin_map = transfer->value_map;
    if (transfer->stage == 0)
        return;
    transfer->source_dtype = transfer->destination_dtype;
    transfer->bytes =
        banyan_box_elems(&transfer->box) * banyan_dtype_bytes(transfer->destination_dtype);
    transfer->value_map = 0;
}

/* Complete a transfer whose two ends are known, to a piece of the destination with this box. */
static void settle_ends(const deriving *work, bool whole_blocks, const banyan_box *piece,
                        banyan_transfer *transfer)
{
    const int *node_of = work->planning->node_of;
    transfer->between_nodes =
        node_of && node_of[transfer->source_rank] != node_of[transfer->destination_rank];
    bool quantizes = !banyan_dtype_equal(transfer->source_dtype, transfer->destination_dtype);
    transfer->whole_blocks = quantizes && whole_blocks && mxfp8_keeps_blocks(piece, &transfer->box);
    derive_settle_stage(transfer);
    transfer->wire_bytes = transform_wire_bytes(work->planning->transform, transfer);
}

static bool push_send(deriving *work, const planner_piece *own, const planner_claim *destination,
                      const planner_share *share)
{
    const planner *planning = work->planning;
    const char *name = destination->wanted ? destination->wanted : work->view.all.name;
    planner_move move = derive_move_of(work, share, name, &destination->claim);
    banyan_transfer *transfer = &move.transfer;
    transfer->source_rank = planning->rank;
    transfer->destination_rank = share->rank;
    transfer->source_piece = own->number;
    transfer->destination_dtype =
        landing_dtype(destination->flags, destination->dtype, transfer->source_dtype);
    value_map_between(planning->names.data[work->view.name].source_flags, destination->flags,
                      &transfer->value_map);
    settle_ends(work, destination->whole_blocks, &destination->claim.box, transfer);
    transfer->task_id = planner_id_of(&move);
    return array_push(&work->sends, move);
}

/* Append the sends of `shares` from an own piece: of the source, or of stage 1. */
static bool push_sends(deriving *work, const planner_piece *own, const once_shares *shares)
{
    for (size_t i = 0; i < shares->count; i++) {
        const planner_claim *claim = work->view.claims.data[shares->data[i].box];
        if (!push_send(work, own, claim, &shares->data[i].share))
            return false;
    }
    return true;
}

/* Send to one destination by the rule for one node, or where every holder fetches its own. */
static banyan_status derive_sends_alone(deriving *work, const planner_piece *own, size_t source,
                                        int64_t index, const planner_claim *destination)
{
    work->shares.count = 0;
    RETURN_IF_FAILED(planner_shares_sent(&work->view.all, source, index, work->planning->rank,
                                         &destination->claim, &work->shares));
    for (size_t s = 0; s < work->shares.count; s++) {
        work->shares.data[s].turn = work->view.once.turn;
        RETURN_IF_NO_MEMORY(push_send(work, own, destination, &work->shares.data[s]));
    }
    return BANYAN_OK;
}

static banyan_status derive_sends(deriving *work, const planner_piece *own)
{
    const planner *planning = work->planning;
    if (own->ordinal > 0 || !planning->names.data[own->name].has_destination)
        return BANYAN_OK;
    const planner_claim *claim;
    int64_t index;
    RETURN_IF_FAILED(derive_find_own(work, own, &claim, &index));
    RETURN_IF_FAILED(view_tensor(work, own->name));
    planner_view *view = &work->view;
    size_t source = (size_t)(claim - planning->claims.data) - work->claims[own->name].first_source;
    for (size_t i = 0; i < view->claims.count; i++) {
        if (!planner_view_once(view, i)) {
            RETURN_IF_FAILED(derive_sends_alone(work, own, source, index, view->claims.data[i]));
            continue;
        }
        work->passed.count = 0;
        RETURN_IF_NO_MEMORY(once_sent(&view->once, source, index, view->local_of.data[source], i,
                                      &view->work, &work->passed) &&
                            push_sends(work, own, &work->passed));
    }
    return BANYAN_OK;
}

static banyan_status fail_piece(const deriving *work, const planner_piece *own,
                                banyan_status status, const char *what)
{
    char text[BOX_TEXT_BYTES];
    return error_set(status, "rank %d needs %s of \"%s\": %s", work->planning->rank,
                     banyan_box_format(&own->piece->box, text, sizeof text), own->piece->name,
                     what);
}

static banyan_status check_shapes(const deriving *work, const planner_piece *own,
                                  const planner_name *from)
{
    const banyan_piece *piece = own->piece;
    bool own_differs = !shape_equal(from->ndim, from->shape, piece->ndim, piece->shape);
    if (!own_differs && !from->shape_differs)
        return BANYAN_OK;
    char mine[BOX_TEXT_BYTES], theirs[BOX_TEXT_BYTES], what[3 * BOX_TEXT_BYTES];
    int ndim = from->shape_differs ? from->differing_ndim : from->ndim;
    const int64_t *shape = from->shape_differs ? from->differing_shape : from->shape;
    snprintf(what, sizeof what, "its global shape is %s here and %s at rank %d, in the source",
             shape_format(piece->ndim, piece->shape, mine, sizeof mine),
             shape_format(ndim, shape, theirs, sizeof theirs),
             from->shape_differs ? from->differing_rank : from->source_rank);
    return fail_piece(work, own, BANYAN_ERR_MISMATCH, what);
}

/* Every rank of the source has the tensor under one map, and it leads to the destination's. */
static banyan_status derive_check_maps(const deriving *work, const planner_piece *own,
                                       const planner_name *from)
{
    char what[512];
    uint32_t flag;
    const char *theirs = value_map_name(from->source_flags);
    const char *mine = value_map_name(own->piece->flags);
    if (from->map_differs)
        snprintf(what, sizeof what,
                 "the source has it as %s at rank %d, and otherwise at rank %d: all pieces of a "
                 "tensor have one value map",
                 theirs ? theirs : "it is", from->source_rank, from->differing_map_rank);
    else if (value_map_between(from->source_flags, own->piece->flags, &flag))
        return BANYAN_OK;
    else
        snprintf(what, sizeof what,
                 "the source keeps %s of it (rank %d), this rank %s: no value map is undone",
                 theirs, from->source_rank, mine ? mine : "its own values");
    return fail_piece(work, own, BANYAN_ERR_MISMATCH, what);
}

static banyan_status derive_check_source(const deriving *work, const planner_piece *own,
                                         const planner_name *from)
{
    char what[512];
    if (!from->has_source) {
        snprintf(what, sizeof what, "no rank holds it in the source%s%.200s%s",
                 own->fallback == NO_NAME ? "" : ", nor \"",
                 own->fallback == NO_NAME ? "" : own->piece->fallback_name,
                 own->fallback == NO_NAME ? "" : "\" to fall back on");
        return fail_piece(work, own, BANYAN_ERR_NOT_FOUND, what);
    }
    RETURN_IF_FAILED(check_shapes(work, own, from));
    RETURN_IF_FAILED(derive_check_maps(work, own, from));
    if (!from->dtype_differs)
        return BANYAN_OK;
    snprintf(what, sizeof what, "the source has it in %s at rank %d and in %s at rank %d",
             banyan_dtype_name(from->source_dtype), from->source_rank,
             banyan_dtype_name(from->differing_dtype), from->differing_rank);
    return fail_piece(work, own, BANYAN_ERR_MISMATCH, what);
}

static banyan_status fail_uncovered(const deriving *work, const planner_piece *own)
{
    banyan_box hole = own->piece->box;
    char text[BOX_TEXT_BYTES], what[2 * BOX_TEXT_BYTES];
    planner_hole_of(&work->view.all, &own->piece->box, &hole);
    snprintf(what, sizeof what, "no rank holds %s of it in the source",
             banyan_box_format(&hole, text, sizeof text));
    return fail_piece(work, own, BANYAN_ERR_INVALID, what);
}

/* A change of type, or of values, must be one that a run can make. */
static banyan_status check_change(const deriving *work, const planner_piece *own,
                                  const banyan_transfer *transfer)
{
    const banyan_transform *transform = work->planning->transform;
    const char *why = NULL;
    if (transfer->value_map) {
        if (!convert_is_float(transfer->source_dtype) ||
            !convert_is_float(transfer->destination_dtype))
            why = "value maps are between F32, F16 and BF16";
    } else if (!banyan_dtype_equal(transfer->source_dtype, transfer->destination_dtype)) {
        if (!transform)
            why = "there is no transform";
        else if (!transform->should_transform(transform->context, transfer))
            why = "the transform does not take it";
    }
    if (!why)
        return BANYAN_OK;
    char text[BOX_TEXT_BYTES], what[2 * BOX_TEXT_BYTES];
    snprintf(what, sizeof what, "%s comes from rank %d in %s, is declared %s, and %s",
             banyan_box_format(&transfer->box, text, sizeof text), transfer->source_rank,
             banyan_dtype_name(transfer->source_dtype),
             banyan_dtype_name(transfer->destination_dtype), why);
    return fail_piece(work, own, BANYAN_ERR_MISMATCH, what);
}

static banyan_status push_recv(deriving *work, const planner_piece *own, uint32_t from,
                               const planner_share *share)
{
    const planner *planning = work->planning;
    planner_held destination = {.box = own->piece->box, .ordinal = own->ordinal};
    /* The text of the layout does not live as long as the plan. */
    planner_move move =
        derive_move_of(work, share, planning->names.data[own->name].text, &destination);
    banyan_transfer *transfer = &move.transfer;
    transfer->source_rank = share->rank;
    transfer->destination_rank = planning->rank;
    transfer->destination_piece = own->number;
    transfer->destination_dtype =
        landing_dtype(own->piece->flags, own->dtype, transfer->source_dtype);
    if (share->rank == planning->rank)
        transfer->source_piece =
            share->stage > 0
                ? own_destination(planning, work->view.claims.data[share->source])->number
                : own_source(planning, from, &work->view.all.sources[share->source].box)->number;
    value_map_between(planning->names.data[from].source_flags, own->piece->flags,
                      &transfer->value_map);
    settle_ends(work, own->whole_blocks, &own->piece->box, transfer);
    transfer->task_id = planner_id_of(&move);
    RETURN_IF_FAILED(check_change(work, own, transfer));
    return array_push(&work->recvs, move) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

/* Count what this rank fetches from other nodes beside other ranks of its node. */
static banyan_status count_again(deriving *work, const planner_claim *claim,
                                 const planner_shares *shares)
{
    planner *planning = work->planning;
    planner_groups *groups = &planning->groups;
    if (!groups->node_of)
        return BANYAN_OK;
    const planner_group *group = planner_group_of(groups, &claim->claim.holders);
    RETURN_IF_NO_MEMORY(group);
    for (size_t s = 0; s < shares->count && group->own.count > 1; s++)
        if (groups->node_of[shares->data[s].rank] != groups->node)
            work->fetched_again +=
                banyan_box_elems(&shares->data[s].box) * work->view.all.elem_bytes;
    return BANYAN_OK;
}

static banyan_status derive_recvs_alone(deriving *work, const planner_piece *own, uint32_t from,
                                        const planner_claim *claim, int64_t index,
                                        uint64_t *covered)
{
    work->shares.count = 0;
    RETURN_IF_FAILED(planner_shares_received(&work->view.all, &claim->claim, index,
                                             work->planning->rank, &work->shares, covered));
    for (size_t s = 0; s < work->shares.count; s++) {
        work->shares.data[s].turn = work->view.once.turn;
        RETURN_IF_FAILED(push_recv(work, own, from, &work->shares.data[s]));
    }
    return count_again(work, claim, &work->shares);
}

static banyan_status derive_recvs_once(deriving *work, const planner_piece *own, uint32_t from,
                                       size_t box, uint64_t *covered)
{
    work->received.count = work->passed.count = 0;
    RETURN_IF_NO_MEMORY(once_received(&work->view.once, box, &work->view.work, &work->received,
                                      &work->passed, covered));
    for (size_t s = 0; s < work->received.count; s++)
        RETURN_IF_FAILED(push_recv(work, own, from, &work->received.data[s].share));
    RETURN_IF_NO_MEMORY(push_sends(work, own, &work->passed));
    return BANYAN_OK;
}

static banyan_status derive_recvs(deriving *work, const planner_piece *own)
{
    const planner *planning = work->planning;
    uint32_t from = planner_from(planning, own);
    RETURN_IF_FAILED(derive_check_source(work, own, &planning->names.data[from]));
    const planner_claim *claim;
    int64_t index;
    RETURN_IF_FAILED(derive_find_own(work, own, &claim, &index));
    RETURN_IF_FAILED(view_tensor(work, from));
    uint64_t covered;
    size_t box = planner_view_find(&work->view, claim);
    if (planner_view_once(&work->view, box))
        RETURN_IF_FAILED(derive_recvs_once(work, own, from, box, &covered));
    else
        RETURN_IF_FAILED(derive_recvs_alone(work, own, from, claim, index, &covered));
    if (covered < banyan_box_elems(&own->piece->box))
        return fail_uncovered(work, own);
    work->piece_dtypes[own->number] = planning->names.data[from].source_dtype;
    work->destination_names[own->number] = planning->names.data[from].text;
    return BANYAN_OK;
}

static banyan_status derive_moves(deriving *work)
{
    planner *planning = work->planning;
    for (size_t i = 0; i < planning->pieces.count; i++) {
        const planner_piece *own = &planning->pieces.data[i];
        RETURN_IF_FAILED(own->side == PLAN_SOURCE ? derive_sends(work, own)
                                                  : derive_recvs(work, own));
    }
    return BANYAN_OK;
}

static int derive_compare_places(const void *left, const void *right)
{
    const banyan_transfer *a = left, *b = right;
    RETURN_IF_UNEQUAL(a->source_rank, b->source_rank);
    RETURN_IF_UNEQUAL(a->destination_rank, b->destination_rank);
    RETURN_IF_UNEQUAL(a->destination_piece, b->destination_piece);
    RETURN_IF_UNEQUAL(a->source_piece, b->source_piece);
    int order = planner_box_compare(&a->box, &b->box);
    return order != 0 ? order : COMPARE(a->task_id, b->task_id);
}

/* By partner and, for one partner, in the order of memory. */
static banyan_status take_moves(planner_move *moves, size_t count, banyan_transfer **transfers)
{
    planner_ids_settle(moves, count);
    banyan_transfer *taken = alloc_zeroed(count + 1, sizeof *taken, "a plan's transfers");
    RETURN_IF_NO_MEMORY(taken);
    for (size_t i = 0; i < count; i++)
        taken[i] = moves[i].transfer;
    qsort(taken, count, sizeof *taken, derive_compare_places);
    *transfers = taken;
    return BANYAN_OK;
}

/* A local tensor takes the source's type when all its pieces are persistent buffers. */
static banyan_status settle_dtypes(const deriving *work, size_t tensor_count, DLDataType *dtypes)
{
    const planner *planning = work->planning;
    bool *adopted = alloc_zeroed(tensor_count + 1, sizeof *adopted, "a plan's types");
    RETURN_IF_NO_MEMORY(adopted);
    banyan_status status = BANYAN_OK;
    for (size_t i = 0; i < planning->pieces.count && status == BANYAN_OK; i++) {
        const planner_piece *own = &planning->pieces.data[i];
        if (own->side != PLAN_DESTINATION)
            continue;
        int tensor = own->piece->tensor;
        DLDataType landing =
            landing_dtype(own->piece->flags, own->dtype, work->piece_dtypes[own->number]);
        if (adopted[tensor] && !banyan_dtype_equal(dtypes[tensor], landing))
            status = fail_piece(work, own, BANYAN_ERR_MISMATCH,
                                "a local tensor that takes the type of its source has pieces of "
                                "more than one type");
        dtypes[tensor] = landing;
        adopted[tensor] = true;
    }
    free(adopted);
    return status;
}

static banyan_status derive_all(deriving *work, planner_result *result)
{
    const planner *planning = work->planning;
    size_t tensors = planning->destination ? banyan_layout_tensor_count(planning->destination) : 0;
    work->piece_dtypes = calloc(planning->pieces.count + 1, sizeof *work->piece_dtypes);
    result->destination_dtypes = calloc(tensors + 1, sizeof *result->destination_dtypes);
    work->destination_names = result->destination_names =
        calloc(planning->pieces.count + 1, sizeof *result->destination_names);
    if (!work->piece_dtypes || !result->destination_dtypes || !result->destination_names)
        return error_no_memory(planning->pieces.count * sizeof *work->piece_dtypes,
                               "a plan's types and names");
    for (size_t i = 0; i < tensors; i++)
        result->destination_dtypes[i] = banyan_layout_tensor(planning->destination, i)->dtype;
    RETURN_IF_FAILED(find_name_claims(work));
    RETURN_IF_FAILED(derive_moves(work));
    RETURN_IF_FAILED(settle_dtypes(work, tensors, result->destination_dtypes));
    RETURN_IF_FAILED(take_moves(work->sends.data, work->sends.count, &result->sends));
    result->send_count = work->sends.count;
    RETURN_IF_FAILED(take_moves(work->recvs.data, work->recvs.count, &result->recvs));
    result->recv_count = work->recvs.count;
    result->fetched_again = work->fetched_again;
    return BANYAN_OK;
}

banyan_status planner_derive(planner *planning, planner_result *result)
{
    settle_claims(planning);
    deriving work = {.planning = planning, .view.name = NO_NAME};
    planner_result made = {0};
    banyan_status status = derive_all(&work, &made);
    free(work.claims);
    free(work.piece_dtypes);
    planner_view_free(&work.view);
    array_free(&work.shares);
    array_free(&work.received);
    array_free(&work.passed);
    array_free(&work.sends);
    array_free(&work.recvs);
    if (status != BANYAN_OK) {
        planner_result_free(&made);
        return status;
    }
    made.names = planning->pool;
    planning->pool = (names){0};
    *result = made;
    return BANYAN_OK;
}

void planner_result_free(planner_result *result)
{
    names_free(&result->names);
    free(result->sends);
    free(result->recvs);
    free(result->destination_dtypes);
    free(result->destination_names);
    *result = (planner_result){0};
}
