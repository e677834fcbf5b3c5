/* Is a plan right? Asked of what it says, not of how it came about. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "reshard/box.h"
#include "reshard/plan.h"

static bool lies_in(const banyan_box *inner, const banyan_box *outer)
{
    banyan_box common;
    return inner->ndim == outer->ndim && banyan_box_intersect(inner, outer, &common) &&
           banyan_box_equal(inner, &common);
}

/* A transfer has its destination's name: what fills that may be a tensor of another. */
static bool is_named(const banyan_reshard_plan *plan, const plan_holding *holding,
                     const banyan_piece *piece, const char *name)
{
    return holding == &plan->source || strcmp(piece->name, name) == 0;
}

/* The piece that an end of a transfer names holds all of its box. */
static banyan_status prove_end(const banyan_reshard_plan *plan, const plan_holding *holding,
                               const banyan_transfer *transfer, size_t piece, const char *verb)
{
    char box[BOX_TEXT_BYTES], held[BOX_TEXT_BYTES] = "";
    const banyan_piece *of = piece < holding->piece_count ? &holding->pieces[piece] : NULL;
    if (of && is_named(plan, holding, of, transfer->name) && lies_in(&transfer->box, &of->box))
        return BANYAN_OK;
    if (of)
        banyan_box_format(&of->box, held, sizeof held);
    return error_set(
        BANYAN_ERR_INVALID,
        "rank %d %s %s%s with rank %d, but its piece %zu (%s%s) does not hold that", plan->rank,
        verb, transfer->name, banyan_box_format(&transfer->box, box, sizeof box),
        transfer->source_rank == plan->rank ? transfer->destination_rank : transfer->source_rank,
        piece, of ? of->name : "none", held);
}

static banyan_status prove_ends(const banyan_reshard_plan *plan)
{
    for (size_t i = 0; i < plan->transfers.send_count; i++) {
        const banyan_transfer *send = &plan->transfers.sends[i];
        RETURN_IF_FAILED(prove_end(plan, &plan->source, send, send->source_piece, "sends"));
    }
    for (size_t i = 0; i < plan->transfers.recv_count; i++) {
        const banyan_transfer *recv = &plan->transfers.recvs[i];
        if (recv->source_rank == plan->rank)
            RETURN_IF_FAILED(prove_end(plan, &plan->source, recv, recv->source_piece, "copies"));
        RETURN_IF_FAILED(
            prove_end(plan, &plan->destination, recv, recv->destination_piece, "receives"));
    }
    return BANYAN_OK;
}

/* The boxes that one destination piece receives: apart, and as many elements as it has. */
static banyan_status prove_boxes(const banyan_reshard_plan *plan, size_t piece,
                                 const banyan_box *boxes, size_t count)
{
    char first[BOX_TEXT_BYTES], second[BOX_TEXT_BYTES];
    const banyan_piece *of = &plan->destination.pieces[piece];
    uint64_t wanted = banyan_box_elems(&of->box), elems = 0;
    for (size_t i = 0; i < count; i++)
        elems += banyan_box_elems(&boxes[i]);
    bool found = false;
    size_t a = 0, b = 0;
    RETURN_IF_FAILED(boxes_find_overlap(boxes, count, &found, &a, &b));
    if (found)
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d receives elements of %s twice: in %s and in %s", plan->rank,
                         of->name, banyan_box_format(&boxes[a], first, sizeof first),
                         banyan_box_format(&boxes[b], second, sizeof second));
    if (elems != wanted)
        return error_set(
            BANYAN_ERR_INVALID, "rank %d receives %" PRIu64 " of the %" PRIu64 " elements of %s%s",
            plan->rank, elems, wanted, of->name, banyan_box_format(&of->box, first, sizeof first));
    return BANYAN_OK;
}

/* Where each piece's boxes begin in the list, once they lie in it by piece. */
static void sort_boxes(const banyan_reshard_plan *plan, banyan_box *boxes, size_t *begins)
{
    const planner_result *transfers = &plan->transfers;
    size_t pieces = plan->destination.piece_count;
    for (size_t i = 0; i < transfers->recv_count; i++)
        begins[transfers->recvs[i].destination_piece + 1]++;
    for (size_t i = 0; i < pieces; i++)
        begins[i + 1] += begins[i];
    for (size_t i = transfers->recv_count; i-- > 0;) {
        const banyan_transfer *recv = &transfers->recvs[i];
        boxes[--begins[recv->destination_piece + 1]] = recv->box;
    }
    /* Each count was taken down to where its piece begins. */
    memmove(begins, begins + 1, pieces * sizeof *begins);
    begins[pieces] = transfers->recv_count;
}

banyan_status banyan_reshard_plan_prove(const banyan_reshard_plan *plan)
{
    size_t count = plan->transfers.recv_count, pieces = plan->destination.piece_count;
    RETURN_IF_FAILED(prove_ends(plan));
    banyan_box *boxes = malloc((count + 1) * sizeof *boxes);
    size_t *begins = calloc(pieces + 2, sizeof *begins);
    banyan_status status = boxes && begins
                               ? BANYAN_OK
                               : error_no_memory((count + 1) * sizeof *boxes, "a plan's boxes");
    if (status == BANYAN_OK)
        sort_boxes(plan, boxes, begins);
    for (size_t i = 0; i < pieces && status == BANYAN_OK; i++)
        status = prove_boxes(plan, i, boxes + begins[i], begins[i + 1] - begins[i]);
    free(boxes);
    free(begins);
    return status;
}
