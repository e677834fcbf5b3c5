/* Checks of a layout as a whole. */
#include <stdlib.h>
#include <string.h>

#include "core/containers.h"
#include "core/error.h"
#include "reshard/layout/box.h"
#include "reshard/layout/layout.h"

/* Pieces, padding and boxes left alone of all local tensors, in local coordinates, sorted by local
 * tensor. */
struct tensor_places {
    banyan_box *boxes;
    size_t *items; /* index of a piece; then of a padding; then of a box left alone */
    size_t *first; /* of each local tensor, and the end of the last one's */
};

static void places_free(struct tensor_places *places)
{
    free(places->boxes);
    free(places->items);
    free(places->first);
}

static banyan_box item_box(const banyan_layout *layout, size_t item, int *tensor)
{
    size_t pieces = banyan_layout_piece_count(layout);
    size_t filled = pieces + banyan_layout_padding_count(layout);
    if (item >= filled)
        return *banyan_layout_left_alone(layout, item - filled, tensor);
    if (item >= pieces)
        return *banyan_layout_padding(layout, item - pieces, tensor);
    const banyan_piece *piece = banyan_layout_piece(layout, item);
    *tensor = piece->tensor;
    int local_ndim = banyan_layout_tensor(layout, (size_t)piece->tensor)->ndim;
    return piece_local_box(piece, local_ndim, &piece->box);
}

static banyan_status places_sort(const banyan_layout *layout, struct tensor_places *places)
{
    size_t tensors = banyan_layout_tensor_count(layout);
    size_t items = banyan_layout_piece_count(layout) + banyan_layout_padding_count(layout) +
                   banyan_layout_left_alone_count(layout);
    *places = (struct tensor_places){
        .boxes = calloc(items + 1, sizeof(banyan_box)),
        .items = calloc(items + 1, sizeof(size_t)),
        .first = calloc(tensors + 3, sizeof(size_t)),
    };
    if (!places->boxes || !places->items || !places->first) {
        places_free(places);
        return error_no_memory((items + 1) * sizeof(banyan_box), "a layout's check");
    }
    /* first[t + 2] counts tensor t's items, then first[t + 1] is the position of its next item. */
    int tensor;
    for (size_t i = 0; i < items; i++) {
        item_box(layout, i, &tensor);
        places->first[tensor + 2]++;
    }
    for (size_t t = 2; t < tensors + 2; t++)
        places->first[t] += places->first[t - 1];
    for (size_t i = 0; i < items; i++) {
        banyan_box box = item_box(layout, i, &tensor);
        size_t place = places->first[tensor + 1]++;
        places->boxes[place] = box;
        places->items[place] = i;
    }
    return BANYAN_OK;
}

static const char *item_name(const banyan_layout *layout, size_t item)
{
    size_t pieces = banyan_layout_piece_count(layout);
    if (item < pieces)
        return banyan_layout_piece(layout, item)->name;
    return item < pieces + banyan_layout_padding_count(layout) ? "(padding)" : "(left alone)";
}

static banyan_status report_overlap(const banyan_layout *layout, size_t tensor,
                                    const struct tensor_places *places, size_t a, size_t b)
{
    char a_text[BOX_TEXT_BYTES], b_text[BOX_TEXT_BYTES];
    return error_set(BANYAN_ERR_INVALID,
                     "local tensor \"%s\": %s of \"%s\" and %s of \"%s\" overlap in memory",
                     banyan_layout_tensor(layout, tensor)->name,
                     banyan_box_format(&places->boxes[a], a_text, sizeof a_text),
                     item_name(layout, places->items[a]),
                     banyan_box_format(&places->boxes[b], b_text, sizeof b_text),
                     item_name(layout, places->items[b]));
}

static banyan_status layout_check_overlap(const banyan_layout *layout, size_t t,
                                          const struct tensor_places *places)
{
    size_t first = places->first[t], a, b;
    bool found;
    RETURN_IF_FAILED(
        boxes_find_overlap(places->boxes + first, places->first[t + 1] - first, &found, &a, &b));
    return found ? report_overlap(layout, t, places, first + a, first + b) : BANYAN_OK;
}

static banyan_status report_hole(const banyan_local_tensor *tensor, size_t places,
                                 const banyan_box *hole)
{
    char text[BOX_TEXT_BYTES];
    if (places == 0)
        return error_set(BANYAN_ERR_INVALID,
                         "local tensor \"%s\" of a destination has no piece, and is not declared "
                         "padding or left alone",
                         tensor->name);
    return error_set(BANYAN_ERR_INVALID,
                     "local tensor \"%s\" of a destination: %s belongs to no piece, and is not "
                     "declared padding or left alone",
                     tensor->name, banyan_box_format(hole, text, sizeof text));
}

/* The boxes do not overlap, so they cover the tensor if they have as many elements as it has. */
static banyan_status layout_check_covered(const banyan_layout *layout, size_t t,
                                          const struct tensor_places *places)
{
    const banyan_local_tensor *tensor = banyan_layout_tensor(layout, t);
    banyan_box whole = box_whole(tensor->ndim, tensor->shape), hole;
    size_t first = places->first[t], count = places->first[t + 1] - first;
    uint64_t elems = 0;
    for (size_t i = 0; i < count; i++)
        elems += banyan_box_elems(&places->boxes[first + i]);
    if (elems == banyan_box_elems(&whole))
        return BANYAN_OK;
    bool found;
    RETURN_IF_FAILED(boxes_find_hole(&whole, places->boxes + first, count, &found, &hole));
    return report_hole(tensor, count, found ? &hole : &whole);
}

static banyan_status layout_check_places(const banyan_layout *layout, banyan_side side)
{
    struct tensor_places places;
    RETURN_IF_FAILED(places_sort(layout, &places));
    size_t tensors = banyan_layout_tensor_count(layout);
    banyan_status status = BANYAN_OK;
    for (size_t t = 0; t < tensors && status == BANYAN_OK; t++)
        status = layout_check_overlap(layout, t, &places);
    for (size_t t = 0; t < tensors && status == BANYAN_OK && side == BANYAN_DESTINATION; t++)
        status = layout_check_covered(layout, t, &places);
    places_free(&places);
    return status;
}

static banyan_status check_global_shapes(const banyan_layout *layout)
{
    hash_map first = {0};
    banyan_status status = BANYAN_OK;
    for (size_t i = 0; i < banyan_layout_piece_count(layout) && status == BANYAN_OK; i++) {
        const banyan_piece *piece = banyan_layout_piece(layout, i);
        uint64_t known;
        if (!map_get_string(&first, piece->name, &known)) {
            status = map_put_string(&first, piece->name, i) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
            continue;
        }
        const banyan_piece *other = banyan_layout_piece(layout, known);
        if (!shape_equal(piece->ndim, piece->shape, other->ndim, other->shape)) {
            char a[BOX_TEXT_BYTES], b[BOX_TEXT_BYTES];
            status = error_set(BANYAN_ERR_INVALID,
                               "tensor \"%s\" has the shape %s in one piece and %s in another",
                               piece->name, shape_format(other->ndim, other->shape, a, sizeof a),
                               shape_format(piece->ndim, piece->shape, b, sizeof b));
        }
    }
    map_free(&first);
    return status;
}

static banyan_status pad_around(banyan_layout *layout, int tensor, const banyan_box *boxes,
                                size_t count)
{
    const banyan_local_tensor *local = banyan_layout_tensor(layout, (size_t)tensor);
    banyan_box whole = box_whole(local->ndim, local->shape), *holes;
    size_t found;
    RETURN_IF_FAILED(boxes_find_holes(&whole, boxes, count, SIZE_MAX, &holes, &found));
    for (size_t i = 0; i < found; i++)
        banyan_layout_add_padding(layout, tensor, &holes[i]);
    free(holes);
    return BANYAN_OK;
}

void layout_pad_rest(banyan_layout *layout, int first)
{
    struct tensor_places places;
    if (layout_failed(layout))
        return;
    banyan_status status = places_sort(layout, &places);
    if (status == BANYAN_OK) {
        size_t tensors = banyan_layout_tensor_count(layout);
        for (size_t t = (size_t)first; t < tensors && status == BANYAN_OK; t++)
            status = pad_around(layout, (int)t, places.boxes + places.first[t],
                                places.first[t + 1] - places.first[t]);
        places_free(&places);
    }
    if (status != BANYAN_OK)
        layout_fail(layout, status, "%s", banyan_last_error());
}

banyan_status banyan_layout_check_as(const banyan_layout *layout, banyan_side side)
{
    if (side != BANYAN_SOURCE && side != BANYAN_DESTINATION)
        return error_set(BANYAN_ERR_INVALID, "a layout has no side %d", (int)side);
    RETURN_IF_FAILED(banyan_layout_status(layout));
    RETURN_IF_FAILED(check_global_shapes(layout));
    return layout_check_places(layout, side);
}

banyan_status banyan_layout_check(const banyan_layout *layout)
{
    return banyan_layout_check_as(layout, BANYAN_SOURCE);
}
