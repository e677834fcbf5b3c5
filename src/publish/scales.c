#include "publish/scales.h"

#include <inttypes.h>
#include <stdio.h>

#include "core/containers.h"
#include "reshard/layout/box.h"
#include "reshard/transform/mxfp8_box.h"
#include "reshard/transform/object.h"

#define NAME_BYTES 512

/* The local tensors and pieces of a layout, to look for scales. */
struct scales_search {
    const banyan_layout *layout;
    const banyan_transform *transform;
    const char *suffix;
    hash_map by_name;  /* local tensors */
    size_t *by_tensor; /* pieces, in the order of their local tensors */
    size_t *first;     /* in `by_tensor`, of each local tensor, and the end */
};

static banyan_status scales_search_open(struct scales_search *search)
{
    const banyan_layout *layout = search->layout;
    size_t tensors = banyan_layout_tensor_count(layout), pieces = banyan_layout_piece_count(layout);
    search->by_tensor = alloc_zeroed(pieces, sizeof *search->by_tensor, "a list of pieces");
    search->first = alloc_zeroed(tensors + 2, sizeof *search->first, "a list of pieces");
    if (!search->by_tensor || !search->first)
        return BANYAN_ERR_NO_MEMORY;
    for (size_t i = 0; i < tensors; i++)
        RETURN_IF_NO_MEMORY(
            map_put_string(&search->by_name, banyan_layout_tensor(layout, i)->name, i));
    /* Count each tensor's pieces two places behind it, so that filling moves its end into place. */
    for (size_t i = 0; i < pieces; i++)
        search->first[banyan_layout_piece(layout, i)->tensor + 2]++;
    for (size_t i = 2; i < tensors + 2; i++)
        search->first[i] += search->first[i - 1];
    for (size_t i = 0; i < pieces; i++)
        search->by_tensor[search->first[banyan_layout_piece(layout, i)->tensor + 1]++] = i;
    return BANYAN_OK;
}

static void scales_search_close(struct scales_search *search)
{
    map_free(&search->by_name);
    free(search->by_tensor);
    free(search->first);
}

static const banyan_piece *scales_piece(const struct scales_search *search, size_t tensor, size_t i)
{
    size_t at = search->first[tensor] + i;
    return at < search->first[tensor + 1]
               ? banyan_layout_piece(search->layout, search->by_tensor[at])
               : NULL;
}

/* True if the transform may fill the tensor with MXFP8. */
static bool is_mxfp8_tensor(const struct scales_search *search, size_t tensor)
{
    const transform_object *object = (const transform_object *)search->transform;
    const banyan_piece *piece;
    if (!banyan_dtype_equal(banyan_layout_tensor(search->layout, tensor)->dtype, BANYAN_F8_E4M3))
        return false;
    for (size_t i = 0; (piece = scales_piece(search, tensor, i)); i++) {
        if (transform_accepts(object, piece->name))
            return true;
    }
    return false;
}

/* Compute the piece of the scales, by its box and place alone, that belongs to a piece of elements.
 * False if it begins or ends within a block. */
static bool scales_piece_of(const banyan_piece *elements, int local_ndim, banyan_piece *scales)
{
    int last = local_ndim - 1, along = -1;
    for (int d = 0; d < elements->ndim; d++)
        along = elements->dim_map[d] == last ? d : along;
    if (along < 0)
        return false;
    int64_t start = elements->box.start[along], end = start + elements->box.extent[along];
    *scales = *elements;
    if (start % MXFP8_BLOCK != 0 || elements->local_start[last] % MXFP8_BLOCK != 0 ||
        (end % MXFP8_BLOCK != 0 && end != elements->shape[along]))
        return false;
    scales->shape[along] = mxfp8_blocks(elements->shape[along]);
    scales->box.start[along] = start / MXFP8_BLOCK;
    scales->box.extent[along] = mxfp8_blocks(end) - start / MXFP8_BLOCK;
    scales->local_start[last] /= MXFP8_BLOCK;
    return true;
}

static bool scales_piece_is(const banyan_piece *found, const banyan_piece *wanted,
                            const char *suffix, int local_ndim)
{
    size_t length = strlen(wanted->name);
    bool is_it = strncmp(found->name, wanted->name, length) == 0 &&
                 strcmp(found->name + length, suffix) == 0 && found->ndim == wanted->ndim &&
                 banyan_box_equal(&found->box, &wanted->box);
    for (int d = 0; is_it && d < wanted->ndim; d++)
        is_it = found->shape[d] == wanted->shape[d] && found->dim_map[d] == wanted->dim_map[d];
    for (int d = 0; is_it && d < local_ndim; d++)
        is_it = found->local_start[d] == wanted->local_start[d];
    return is_it;
}

/* Check that every piece of elements has its piece of scales, so that an engine that takes a slice
 * of both takes what belongs together. */
static banyan_status scales_check_pieces(const struct scales_search *search, size_t tensor,
                                         size_t scales)
{
    const banyan_local_tensor *of = banyan_layout_tensor(search->layout, tensor);
    const char *name = banyan_layout_tensor(search->layout, scales)->name;
    char box[BOX_TEXT_BYTES], expected[BOX_TEXT_BYTES], shape[BOX_TEXT_BYTES];
    const banyan_piece *piece, *found;
    for (size_t i = 0; (piece = scales_piece(search, tensor, i)); i++) {
        banyan_piece wanted;
        bool is_there = false;
        if (!scales_piece_of(piece, of->ndim, &wanted))
            return error_set(BANYAN_ERR_INVALID,
                             "%s of \"%s\", in the published local tensor \"%s\", begins or ends "
                             "within an MXFP8 block of 32",
                             banyan_box_format(&piece->box, box, sizeof box), piece->name,
                             of->name);
        for (size_t k = 0; !is_there && (found = scales_piece(search, scales, k)); k++)
            is_there = scales_piece_is(found, &wanted, search->suffix, of->ndim);
        if (!is_there)
            return error_set(BANYAN_ERR_INVALID,
                             "%s of \"%s\", in the published local tensor \"%s\", needs the scales "
                             "%s of \"%s%s\", of shape %s, at its place in \"%s\", which has no "
                             "such piece",
                             banyan_box_format(&piece->box, box, sizeof box), piece->name, of->name,
                             banyan_box_format(&wanted.box, expected, sizeof expected), piece->name,
                             search->suffix,
                             shape_format(wanted.ndim, wanted.shape, shape, sizeof shape), name);
    }
    return BANYAN_OK;
}

static banyan_status scales_check(const struct scales_search *search, size_t tensor, size_t scales)
{
    const banyan_local_tensor *of = banyan_layout_tensor(search->layout, tensor);
    const banyan_local_tensor *found = banyan_layout_tensor(search->layout, scales);
    banyan_mxfp8_layout order = mxfp8_scales_layout_of(search->transform);
    DLTensor described = {
        .ndim = found->ndim, .dtype = found->dtype, .shape = (int64_t *)found->shape};
    mxfp8_scales view;
    RETURN_IF_FAILED(mxfp8_scales_of(order, of->name, of->ndim, of->shape, &described, &view));
    return order == BANYAN_MXFP8_PLAIN ? scales_check_pieces(search, tensor, scales) : BANYAN_OK;
}

static banyan_status scales_search_tensor(const struct scales_search *search, size_t tensor,
                                          size_t *scales)
{
    const char *name = banyan_layout_tensor(search->layout, tensor)->name;
    char wanted[NAME_BYTES];
    uint64_t found;
    if (!is_mxfp8_tensor(search, tensor))
        return BANYAN_OK;
    int length = snprintf(wanted, sizeof wanted, "%s%s", name, search->suffix);
    if (length >= (int)sizeof wanted || !map_get_string(&search->by_name, wanted, &found))
        return error_set(BANYAN_ERR_NOT_FOUND,
                         "local tensor \"%s\" is published in MXFP8, and the published layout has "
                         "no local tensor \"%s%s\" for its scales",
                         name, name, search->suffix);
    RETURN_IF_FAILED(scales_check(search, tensor, found));
    *scales = found;
    return BANYAN_OK;
}

banyan_status scales_find(const banyan_layout *layout, const banyan_transform *transform,
                          const char *suffix, size_t **scales_of)
{
    struct scales_search search = {.layout = layout, .transform = transform, .suffix = suffix};
    size_t count = banyan_layout_tensor_count(layout);
    size_t *made = alloc_zeroed(count, sizeof *made, "a list of scales");
    RETURN_IF_NO_MEMORY(made);
    for (size_t i = 0; i < count; i++)
        made[i] = NO_SCALES;
    banyan_status status = BANYAN_OK;
    if (transform_is_mxfp8(transform)) {
        status = scales_search_open(&search);
        for (size_t i = 0; i < count && status == BANYAN_OK; i++)
            status = scales_search_tensor(&search, i, &made[i]);
        scales_search_close(&search);
    }
    if (status == BANYAN_OK)
        *scales_of = made;
    else
        free(made);
    return status;
}
