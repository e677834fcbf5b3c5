#include "reshard/layout/layout.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/containers.h"
#include "reshard/layout/box.h"
#include "reshard/layout/names.h"
#include "reshard/layout/value_map.h"
#include "reshard/model/facts.h"
#include "reshard/run/convert.h"

struct padding {
    int tensor;
    banyan_box box;
    bool is_filled; /* by an element other than zero */
    unsigned char fill[BANYAN_MAX_FILL_BYTES];
};

struct left_alone {
    int tensor;
    banyan_box box;
};

struct banyan_layout {
    ARRAY(banyan_local_tensor) tensors;
    ARRAY(banyan_piece) pieces;
    ARRAY(struct padding) paddings;
    ARRAY(struct left_alone) left_alone;
    ARRAY(const char *) skipped; /* names of global tensors */
    hash_map is_skipped;
    names names;
    hash_map tensor_by_name;
    facts facts;
    uint64_t bytes;
    banyan_status status;
    char *error; /* NULL if there is none, or if memory ran out while keeping it */
};

banyan_status banyan_layout_create(banyan_layout **layout)
{
    banyan_layout *created = alloc_zeroed(1, sizeof *created, "a layout");
    RETURN_IF_NO_MEMORY(created);
    *layout = created;
    return BANYAN_OK;
}

void banyan_layout_destroy(banyan_layout *layout)
{
    if (!layout)
        return;
    array_free(&layout->tensors);
    array_free(&layout->pieces);
    array_free(&layout->paddings);
    array_free(&layout->left_alone);
    array_free(&layout->skipped);
    map_free(&layout->is_skipped);
    names_free(&layout->names);
    map_free(&layout->tensor_by_name);
    facts_free(&layout->facts);
    free(layout->error);
    free(layout);
}

bool layout_fail(banyan_layout *layout, banyan_status status, const char *format, ...)
{
    if (layout->status != BANYAN_OK)
        return false;
    layout->status = status;
    va_list arguments;
    va_start(arguments, format);
    if (vasprintf(&layout->error, format, arguments) < 0)
        layout->error = NULL;
    va_end(arguments);
    return false;
}

bool layout_failed(const banyan_layout *layout)
{
    return layout->status != BANYAN_OK;
}

banyan_status banyan_layout_status(const banyan_layout *layout)
{
    if (layout->status == BANYAN_OK)
        return BANYAN_OK;
    return error_set(layout->status, "%s", layout->error ? layout->error : "out of memory");
}

static bool fail_no_memory(banyan_layout *layout)
{
    return layout_fail(layout, BANYAN_ERR_NO_MEMORY, "%s", banyan_last_error());
}

bool layout_keep_fact(banyan_layout *layout, const char *key, const char *text)
{
    if (layout_failed(layout))
        return false;
    const char *known = facts_find(&layout->facts, key);
    if (known && !facts_equal(known, text))
        return layout_fail(layout, BANYAN_ERR_INVALID,
                           "a layout of a model whose %s is %s, and of one whose %s is %s", key,
                           known, key, text);
    return known || facts_put(&layout->facts, key, text) == BANYAN_OK || fail_no_memory(layout);
}

const facts *layout_facts(const banyan_layout *layout)
{
    return &layout->facts;
}

bool layout_keep_skipped(banyan_layout *layout, const char *name)
{
    if (layout_failed(layout) || layout_skips(layout, name))
        return !layout_failed(layout);
    const char *kept = names_keep(&layout->names, name);
    return (kept && map_put_string(&layout->is_skipped, kept, layout->skipped.count) &&
            array_push(&layout->skipped, kept)) ||
           fail_no_memory(layout);
}

bool layout_skips(const banyan_layout *layout, const char *name)
{
    uint64_t known;
    return map_get_string(&layout->is_skipped, name, &known);
}

size_t layout_skipped_count(const banyan_layout *layout)
{
    return layout->skipped.count;
}

const char *layout_skipped(const banyan_layout *layout, size_t i)
{
    return layout->skipped.data[i];
}

bool layout_check_shape(banyan_layout *layout, const char *name, DLDataType dtype, int ndim,
                        const int64_t *shape, uint64_t *bytes)
{
    char text[BOX_TEXT_BYTES];
    size_t elem_bytes = banyan_dtype_bytes(dtype);
    if (elem_bytes == 0)
        return layout_fail(layout, BANYAN_ERR_INVALID,
                           "tensor \"%s\": its elements of %d × %d bits do not fill whole bytes",
                           name, dtype.lanes, dtype.bits);
    if (ndim < 0 || ndim > BANYAN_MAX_DIMS)
        return layout_fail(layout, BANYAN_ERR_INVALID,
                           "tensor \"%s\" has %d dimensions: 0 to %d are possible", name, ndim,
                           BANYAN_MAX_DIMS);
    if (!shape_bytes(ndim, shape, elem_bytes, bytes))
        return layout_fail(layout, BANYAN_ERR_INVALID,
                           "tensor \"%s\": no memory can hold the shape %s", name,
                           shape_format(ndim, shape, text, sizeof text));
    return true;
}

int banyan_layout_add_tensor(banyan_layout *layout, const char *name, DLDataType dtype, int ndim,
                             const int64_t *shape)
{
    if (layout_failed(layout))
        return -1;
    uint64_t bytes, total, number;
    if (!name) {
        layout_fail(layout, BANYAN_ERR_INVALID, "local tensor %zu has no name",
                    layout->tensors.count);
        return -1;
    }
    if (!layout_check_shape(layout, name, dtype, ndim, shape, &bytes))
        return -1;
    if (map_get_string(&layout->tensor_by_name, name, &number)) {
        layout_fail(layout, BANYAN_ERR_INVALID, "two local tensors have the name \"%s\"", name);
        return -1;
    }
    if (__builtin_add_overflow(layout->bytes, bytes, &total) || total > INT64_MAX ||
        layout->tensors.count >= INT32_MAX) {
        layout_fail(layout, BANYAN_ERR_INVALID,
                    "tensor \"%s\": the layout would be larger than any memory", name);
        return -1;
    }
    banyan_local_tensor tensor = {.dtype = dtype, .ndim = ndim};
    for (int d = 0; d < ndim; d++)
        tensor.shape[d] = shape[d];
    tensor.name = names_keep(&layout->names, name);
    if (!tensor.name || !map_put_string(&layout->tensor_by_name, tensor.name, 0) ||
        !array_push(&layout->tensors, tensor)) {
        fail_no_memory(layout);
        return -1;
    }
    layout->bytes = total;
    return (int)layout->tensors.count - 1;
}

static bool reshard_layout_check_tensor(banyan_layout *layout, int tensor, const char *held)
{
    if (tensor < 0 || (size_t)tensor >= layout->tensors.count)
        return layout_fail(layout, BANYAN_ERR_INVALID,
                           "a piece of \"%s\" lies in local tensor %d "
                           "of %zu",
                           held, tensor, layout->tensors.count);
    return true;
}

static bool check_flags(banyan_layout *layout, const banyan_piece *piece,
                        const banyan_local_tensor *local)
{
    const uint32_t known = BANYAN_PIECE_PERSISTENT_BUFFER | VALUE_MAPS;
    const char *name = value_map_name(piece->flags);
    if (piece->flags & ~known)
        return layout_fail(layout, BANYAN_ERR_INVALID, "piece of \"%s\": unknown flags 0x%x",
                           piece->name, (unsigned)(piece->flags & ~known));
    if (name && !convert_is_float(local->dtype))
        return layout_fail(layout, BANYAN_ERR_INVALID,
                           "piece of \"%s\": its %s in local tensor \"%s\" of type %s: F32, F16 "
                           "and BF16 are possible",
                           piece->name, name, local->name, banyan_dtype_name(local->dtype));
    if (name && piece->flags & BANYAN_PIECE_PERSISTENT_BUFFER)
        return layout_fail(layout, BANYAN_ERR_INVALID,
                           "piece of \"%s\": a persistent buffer takes what the source sends, and "
                           "has no %s of it",
                           piece->name, name);
    return true;
}

/* Check that dim_map is injective and maps into the local tensor's dimensions; extents of 1 may map
 * to none. */
static bool check_dim_map(banyan_layout *layout, const banyan_piece *piece,
                          const banyan_local_tensor *local)
{
    bool taken[BANYAN_MAX_DIMS] = {false};
    for (int d = 0; d < piece->ndim; d++) {
        int k = piece->dim_map[d];
        if (k == BANYAN_NO_DIM && piece->box.extent[d] > 1)
            return layout_fail(layout, BANYAN_ERR_INVALID,
                               "piece of \"%s\": its dimension %d maps to none of \"%s\", and the "
                               "box has %" PRId64 " elements along it, not 1",
                               piece->name, d, local->name, piece->box.extent[d]);
        if (k == BANYAN_NO_DIM)
            continue;
        if (k < 0 || k >= local->ndim)
            return layout_fail(layout, BANYAN_ERR_INVALID,
                               "piece of \"%s\": its dimension %d maps to dimension %d of \"%s\", "
                               "which has %d",
                               piece->name, d, k, local->name, local->ndim);
        if (taken[k])
            return layout_fail(layout, BANYAN_ERR_INVALID,
                               "piece of \"%s\": two of its dimensions map to dimension %d of "
                               "\"%s\"",
                               piece->name, k, local->name);
        taken[k] = true;
    }
    return true;
}

static bool reshard_layout_check_piece(banyan_layout *layout, const banyan_piece *piece)
{
    if (!piece->name)
        return layout_fail(layout, BANYAN_ERR_INVALID, "a piece has no global tensor's name");
    char text[BOX_TEXT_BYTES], shape[BOX_TEXT_BYTES];
    uint64_t bytes;
    if (!reshard_layout_check_tensor(layout, piece->tensor, piece->name))
        return false;
    const banyan_local_tensor *local = &layout->tensors.data[piece->tensor];
    if (!layout_check_shape(layout, piece->name, local->dtype, piece->ndim, piece->shape, &bytes) ||
        !check_flags(layout, piece, local))
        return false;
    if (piece->box.ndim != piece->ndim)
        return layout_fail(layout, BANYAN_ERR_INVALID,
                           "piece of \"%s\": a box of %d dimensions in a tensor of %d", piece->name,
                           piece->box.ndim, piece->ndim);
    if (!box_fits(&piece->box, piece->ndim, piece->shape))
        return layout_fail(layout, BANYAN_ERR_INVALID,
                           "piece %s of \"%s\" does not lie in its shape %s",
                           banyan_box_format(&piece->box, text, sizeof text), piece->name,
                           shape_format(piece->ndim, piece->shape, shape, sizeof shape));
    if (!check_dim_map(layout, piece, local))
        return false;
    banyan_box place = piece_local_box(piece, local->ndim, &piece->box);
    if (banyan_box_elems(&piece->box) > 0 && !box_fits(&place, local->ndim, local->shape))
        return layout_fail(layout, BANYAN_ERR_INVALID,
                           "piece of \"%s\": its place %s is not in local tensor \"%s\" of shape "
                           "%s",
                           piece->name, banyan_box_format(&place, text, sizeof text), local->name,
                           shape_format(local->ndim, local->shape, shape, sizeof shape));
    return true;
}

void banyan_layout_add_piece(banyan_layout *layout, const banyan_piece *piece)
{
    if (layout_failed(layout) || !reshard_layout_check_piece(layout, piece))
        return;
    if (banyan_box_elems(&piece->box) == 0)
        return;
    banyan_piece kept = *piece;
    kept.name = names_keep(&layout->names, piece->name);
    if (piece->fallback_name)
        kept.fallback_name = names_keep(&layout->names, piece->fallback_name);
    bool named = kept.name && (kept.fallback_name || !piece->fallback_name);
    if (!named || !array_push(&layout->pieces, kept))
        fail_no_memory(layout);
}

/* Check a box of a local tensor that is not a piece; `what` names its kind in the error. */
static bool check_unpieced(banyan_layout *layout, int tensor, const banyan_box *box,
                           const char *what)
{
    if (layout_failed(layout))
        return false;
    if (tensor < 0 || (size_t)tensor >= layout->tensors.count)
        return layout_fail(layout, BANYAN_ERR_INVALID, "%s lies in local tensor %d of %zu", what,
                           tensor, layout->tensors.count);
    const banyan_local_tensor *local = &layout->tensors.data[tensor];
    char text[BOX_TEXT_BYTES], shape[BOX_TEXT_BYTES];
    if (box->ndim != local->ndim)
        return layout_fail(layout, BANYAN_ERR_INVALID,
                           "%s of %d dimensions in local tensor \"%s\" of %d", what, box->ndim,
                           local->name, local->ndim);
    if (!box_fits(box, local->ndim, local->shape))
        return layout_fail(layout, BANYAN_ERR_INVALID,
                           "%s %s is not in local tensor \"%s\" of shape %s", what,
                           banyan_box_format(box, text, sizeof text), local->name,
                           shape_format(local->ndim, local->shape, shape, sizeof shape));
    return true;
}

static bool is_zero(const unsigned char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != 0)
            return false;
    return true;
}

void banyan_layout_add_filled_padding(banyan_layout *layout, int tensor, const banyan_box *box,
                                      const void *fill)
{
    if (!check_unpieced(layout, tensor, box, "padding") || banyan_box_elems(box) == 0)
        return;
    struct padding added = {.tensor = tensor, .box = *box};
    const banyan_local_tensor *local = &layout->tensors.data[tensor];
    size_t bytes = banyan_dtype_bytes(local->dtype);
    added.is_filled = fill && !is_zero(fill, bytes);
    if (added.is_filled && bytes > sizeof added.fill) {
        layout_fail(layout, BANYAN_ERR_INVALID,
                    "padding of local tensor \"%s\" is filled with an element of %zu bytes: at "
                    "most %zu are possible",
                    local->name, bytes, sizeof added.fill);
        return;
    }
    if (added.is_filled)
        memcpy(added.fill, fill, bytes);
    if (!array_push(&layout->paddings, added))
        fail_no_memory(layout);
}

void banyan_layout_add_padding(banyan_layout *layout, int tensor, const banyan_box *box)
{
    banyan_layout_add_filled_padding(layout, tensor, box, NULL);
}

void banyan_layout_leave_alone(banyan_layout *layout, int tensor, const banyan_box *box)
{
    if (!check_unpieced(layout, tensor, box, "a box to leave alone"))
        return;
    if (banyan_box_elems(box) > 0 &&
        !array_push(&layout->left_alone, (struct left_alone){tensor, *box}))
        fail_no_memory(layout);
}

banyan_box piece_local_box(const banyan_piece *piece, int local_ndim, const banyan_box *box)
{
    banyan_box local = {.ndim = local_ndim};
    for (int k = 0; k < local_ndim; k++) {
        local.start[k] = piece->local_start[k];
        local.extent[k] = 1;
    }
    for (int d = 0; d < piece->ndim; d++) {
        int k = piece->dim_map[d];
        if (k == BANYAN_NO_DIM)
            continue;
        local.start[k] += box->start[d] - piece->box.start[d];
        local.extent[k] = box->extent[d];
    }
    return local;
}

void piece_view(const banyan_piece *piece, const banyan_box *box, const DLTensor *local,
                int64_t *shape, int64_t *strides, DLTensor *view)
{
    int64_t local_strides[BANYAN_MAX_DIMS], dense = 1, offset = 0;
    for (int k = local->ndim - 1; k >= 0; k--) {
        local_strides[k] = local->strides ? local->strides[k] : dense;
        dense *= local->shape[k];
        offset += piece->local_start[k] * local_strides[k];
    }
    for (int d = 0; d < piece->ndim; d++) {
        int k = piece->dim_map[d];
        shape[d] = box->extent[d];
        strides[d] = k == BANYAN_NO_DIM ? 0 : local_strides[k];
        offset += (box->start[d] - piece->box.start[d]) * strides[d];
    }
    *view = *local;
    view->ndim = piece->ndim;
    view->shape = shape;
    view->strides = strides;
    view->byte_offset = local->byte_offset + (uint64_t)offset * banyan_dtype_bytes(local->dtype);
}

/* Add what belongs to the local tensors of `other`, of which tensor i is here places[i], or is not
 * if that is negative. */
static void layout_add_parts(banyan_layout *layout, const banyan_layout *other, const int *places,
                             int rank_offset)
{
    int tensor;
    for (size_t i = 0; i < other->facts.list.count; i++)
        layout_keep_fact(layout, other->facts.list.data[i].key, other->facts.list.data[i].text);
    for (size_t i = 0; i < other->skipped.count; i++)
        layout_keep_skipped(layout, other->skipped.data[i]);
    for (size_t i = 0; i < other->pieces.count; i++) {
        banyan_piece piece = other->pieces.data[i];
        piece.tensor = places[piece.tensor];
        if (banyan_rank_set_size(&piece.replicas) > 0)
            piece.replicas.first += rank_offset;
        if (piece.tensor >= 0)
            banyan_layout_add_piece(layout, &piece);
    }
    for (size_t i = 0; i < other->paddings.count; i++) {
        const banyan_box *box = banyan_layout_padding(other, i, &tensor);
        if (places[tensor] >= 0)
            banyan_layout_add_filled_padding(layout, places[tensor], box,
                                             banyan_layout_padding_fill(other, i));
    }
    for (size_t i = 0; i < other->left_alone.count; i++) {
        const banyan_box *box = banyan_layout_left_alone(other, i, &tensor);
        if (places[tensor] >= 0)
            banyan_layout_leave_alone(layout, places[tensor], box);
    }
}

/* Add some of the local tensors of `other`, with all that belongs to them; `tensors` NULL: all. */
static void layout_add_some(banyan_layout *layout, const banyan_layout *other,
                            const size_t *tensors, size_t count, int rank_offset)
{
    size_t all = other->tensors.count;
    int *places = alloc_zeroed(all, sizeof *places, "a layout");
    if (!places) {
        fail_no_memory(layout);
        return;
    }
    for (size_t i = 0; i < all; i++)
        places[i] = -1;
    for (size_t i = 0; i < count; i++) {
        size_t tensor = tensors ? tensors[i] : i;
        const banyan_local_tensor *local = &other->tensors.data[tensor];
        places[tensor] =
            banyan_layout_add_tensor(layout, local->name, local->dtype, local->ndim, local->shape);
    }
    layout_add_parts(layout, other, places, rank_offset);
    free(places);
}

void layout_add_layout(banyan_layout *layout, const banyan_layout *other, int rank_offset)
{
    layout_add_some(layout, other, NULL, other->tensors.count, rank_offset);
}

banyan_status layout_select(const banyan_layout *layout, const size_t *tensors, size_t count,
                            banyan_layout **selected)
{
    banyan_layout *made;
    RETURN_IF_FAILED(banyan_layout_create(&made));
    layout_add_some(made, layout, tensors, count, 0);
    banyan_status status = banyan_layout_status(made);
    if (status == BANYAN_OK)
        *selected = made;
    else
        banyan_layout_destroy(made);
    return status;
}

static banyan_status layout_set_dtypes(banyan_layout *layout, const DLDataType *dtypes)
{
    for (size_t i = 0; i < layout->paddings.count; i++) {
        const struct padding *padding = &layout->paddings.data[i];
        const banyan_local_tensor *local = &layout->tensors.data[padding->tensor];
        DLDataType dtype = dtypes[padding->tensor];
        if (padding->is_filled && !banyan_dtype_equal(dtype, local->dtype))
            return error_set(BANYAN_ERR_INVALID,
                             "local tensor \"%s\" takes the type of its source, %s, and has "
                             "padding that is filled with a value of %s",
                             local->name, banyan_dtype_name(dtype),
                             banyan_dtype_name(local->dtype));
    }
    for (size_t i = 0; i < layout->tensors.count; i++)
        layout->tensors.data[i].dtype = dtypes[i];
    return BANYAN_OK;
}

banyan_status layout_copy(const banyan_layout *layout, const DLDataType *dtypes,
                          banyan_layout **copy)
{
    banyan_layout *made;
    RETURN_IF_FAILED(banyan_layout_create(&made));
    if (layout)
        layout_add_layout(made, layout, 0);
    banyan_status status = banyan_layout_status(made);
    if (status == BANYAN_OK && dtypes)
        status = layout_set_dtypes(made, dtypes);
    if (status == BANYAN_OK)
        *copy = made;
    else
        banyan_layout_destroy(made);
    return status;
}

size_t banyan_layout_tensor_count(const banyan_layout *layout)
{
    return layout->tensors.count;
}

const banyan_local_tensor *banyan_layout_tensor(const banyan_layout *layout, size_t i)
{
    return &layout->tensors.data[i];
}

size_t banyan_layout_piece_count(const banyan_layout *layout)
{
    return layout->pieces.count;
}

const banyan_piece *banyan_layout_piece(const banyan_layout *layout, size_t i)
{
    return &layout->pieces.data[i];
}

size_t banyan_layout_padding_count(const banyan_layout *layout)
{
    return layout->paddings.count;
}

const banyan_box *banyan_layout_padding(const banyan_layout *layout, size_t i, int *tensor)
{
    *tensor = layout->paddings.data[i].tensor;
    return &layout->paddings.data[i].box;
}

const void *banyan_layout_padding_fill(const banyan_layout *layout, size_t i)
{
    const struct padding *padding = &layout->paddings.data[i];
    return padding->is_filled ? padding->fill : NULL;
}

size_t banyan_layout_left_alone_count(const banyan_layout *layout)
{
    return layout->left_alone.count;
}

const banyan_box *banyan_layout_left_alone(const banyan_layout *layout, size_t i, int *tensor)
{
    *tensor = layout->left_alone.data[i].tensor;
    return &layout->left_alone.data[i].box;
}

uint64_t banyan_layout_bytes(const banyan_layout *layout)
{
    return layout->bytes;
}
