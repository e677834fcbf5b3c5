#include <banyan/checkpoint.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/containers.h"
#include "core/error.h"
#include "core/nearest.h"
#include "memory/device.h"
#include "reshard/checkpoint/saved.h"
#include "reshard/checkpoint/write.h"
#include "reshard/layout/box.h"
#include "reshard/layout/fill.h"
#include "reshard/layout/layout.h"
#include "reshard/layout/value_map.h"
#include "reshard/run/convert.h"
#include "reshard/verify/apart.h"

static banyan_status checkpoint_load_check_source(const banyan_piece *piece,
                                                  const banyan_local_tensor *source, uint32_t flag,
                                                  const DLTensor *local)
{
    char have[BOX_TEXT_BYTES], need[BOX_TEXT_BYTES];
    if (!shape_equal(source->ndim, source->shape, piece->ndim, piece->shape))
        return error_set(BANYAN_ERR_MISMATCH,
                         "tensor %s has shape %s in the checkpoint and %s in the layout",
                         piece->name, shape_format(source->ndim, source->shape, have, sizeof have),
                         shape_format(piece->ndim, piece->shape, need, sizeof need));
    bool fits = flag ? convert_is_float(source->dtype) && convert_is_float(local->dtype)
                     : banyan_dtype_equal(source->dtype, local->dtype);
    if (!fits)
        return error_set(BANYAN_ERR_MISMATCH,
                         "tensor %s is %s in the checkpoint and %s in the layout", piece->name,
                         banyan_dtype_name(source->dtype), banyan_dtype_name(local->dtype));
    return BANYAN_OK;
}

/* Copy a piece from `source`, which is the whole tensor. */
static banyan_status copy_whole(const DLTensor *source, const banyan_piece *piece,
                                const DLTensor *local)
{
    int64_t to_shape[BANYAN_MAX_DIMS], to_strides[BANYAN_MAX_DIMS];
    int64_t from_shape[BANYAN_MAX_DIMS], from_strides[BANYAN_MAX_DIMS];
    DLTensor to, from;
    banyan_piece whole = {.ndim = piece->ndim, .box = box_whole(piece->ndim, piece->shape)};
    for (int d = 0; d < piece->ndim; d++)
        whole.dim_map[d] = d;
    piece_view(piece, &piece->box, local, to_shape, to_strides, &to);
    piece_view(&whole, &piece->box, source, from_shape, from_strides, &from);
    return banyan_tensor_copy(&to, &from);
}

static banyan_status copy_piece(const banyan_checkpoint *checkpoint, size_t i,
                                const banyan_piece *piece, const DLTensor *local)
{
    const saved_model *saved = checkpoint_saved(checkpoint);
    return saved ? saved_model_copy(saved, i, piece, local)
                 : copy_whole(banyan_checkpoint_data(checkpoint, i), piece, local);
}

/* Map values through a copy of the piece, in the checkpoint's type. */
static banyan_status map_piece(const banyan_checkpoint *checkpoint, size_t i, uint32_t flag,
                               const banyan_piece *piece, const DLTensor *local)
{
    int64_t shape[BANYAN_MAX_DIMS], strides[BANYAN_MAX_DIMS];
    DLTensor to, dense = {.device = {kDLCPU, 0},
                          .ndim = piece->ndim,
                          .dtype = banyan_checkpoint_tensor(checkpoint, i)->dtype,
                          .shape = shape};
    banyan_piece alone = *piece;
    piece_view(piece, &piece->box, local, shape, strides, &to);
    for (int d = 0; d < piece->ndim; d++) {
        alone.local_start[d] = 0;
        alone.dim_map[d] = d;
    }
    size_t bytes = banyan_box_elems(&piece->box) * banyan_dtype_bytes(dense.dtype);
    dense.data = malloc(bytes);
    if (!dense.data)
        return error_no_memory(bytes, "a piece whose values change");
    banyan_status status = copy_piece(checkpoint, i, &alone, &dense);
    if (status == BANYAN_OK)
        status = value_map_apply(flag, &to, &dense);
    free(dense.data);
    return status;
}

/* Return the tensor of the checkpoint that fills a piece. */
static const char *checkpoint_load_name(const banyan_checkpoint *checkpoint,
                                        const banyan_piece *piece)
{
    size_t at;
    bool falls_back =
        piece->fallback_name && banyan_checkpoint_find(checkpoint, piece->name, &at) != BANYAN_OK;
    return falls_back ? piece->fallback_name : piece->name;
}

static banyan_status load_piece(const banyan_checkpoint *checkpoint, const banyan_piece *piece,
                                const DLTensor *local)
{
    size_t i;
    uint32_t flag;
    RETURN_IF_FAILED(
        banyan_checkpoint_find(checkpoint, checkpoint_load_name(checkpoint, piece), &i));
    const saved_model *saved = checkpoint_saved(checkpoint);
    uint32_t kept = saved ? saved_model_map(saved, i) : 0;
    if (!value_map_between(kept, piece->flags, &flag))
        return error_set(BANYAN_ERR_MISMATCH,
                         "tensor %s is saved as its %s in the checkpoint, and a value map cannot "
                         "be undone: the layout wants %s",
                         piece->name, value_map_name(kept),
                         piece->flags & VALUE_MAPS ? value_map_name(piece->flags)
                                                   : "its own values");
    RETURN_IF_FAILED(
        checkpoint_load_check_source(piece, banyan_checkpoint_tensor(checkpoint, i), flag, local));
    return flag ? map_piece(checkpoint, i, flag, piece, local)
                : copy_piece(checkpoint, i, piece, local);
}

#define NAMES_LISTED 10

static banyan_status checkpoint_load_report_missing(const banyan_checkpoint *checkpoint,
                                                    const char *const *missing, size_t count)
{
    char text[3500];
    size_t used = 0, i;
    /* The lookup's message names the checkpoint. */
    if (banyan_checkpoint_find(checkpoint, missing[0], &i) == BANYAN_OK)
        return BANYAN_OK;
    error_kept first = error_keep(BANYAN_ERR_NOT_FOUND);
    for (i = 0; i < count && i < NAMES_LISTED && used < sizeof text - 700; i++) {
        names_search search = names_search_for(missing[i]);
        for (size_t t = 0; t < banyan_checkpoint_tensor_count(checkpoint); t++)
            names_search_try(&search, banyan_checkpoint_tensor(checkpoint, t)->name);
        const char *near = search.nearest;
        used += (size_t)snprintf(text + used, sizeof text - used, "%s\"%.256s\"%s%.256s%s",
                                 i > 0 ? ", " : "", missing[i], near ? " (it has \"" : "",
                                 near ? near : "", near ? "\")" : "");
    }
    char more[64] = "";
    if (count > i)
        snprintf(more, sizeof more, " and %zu more", count - i);
    return error_set(BANYAN_ERR_NOT_FOUND, "%s. It lacks %zu tensor%s of the layout: %s%s",
                     first.message, count, count == 1 ? "" : "s", text, more);
}

/* Report all tensors that the checkpoint lacks in one message. */
static banyan_status check_names(const banyan_checkpoint *checkpoint, const banyan_layout *layout)
{
    ARRAY(const char *) missing = {0};
    hash_map known = {0};
    bool ok = true;
    for (size_t i = 0; i < banyan_layout_piece_count(layout) && ok; i++) {
        const banyan_piece *piece = banyan_layout_piece(layout, i);
        uint64_t seen;
        size_t at;
        if (map_get_string(&known, piece->name, &seen))
            continue;
        ok = map_put_string(&known, piece->name, i) &&
             (banyan_checkpoint_find(checkpoint, piece->name, &at) == BANYAN_OK ||
              (piece->fallback_name &&
               banyan_checkpoint_find(checkpoint, piece->fallback_name, &at) == BANYAN_OK) ||
              array_push(&missing, piece->name));
    }
    banyan_status status = ok ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
    if (ok && missing.count > 0)
        status = checkpoint_load_report_missing(checkpoint, missing.data, missing.count);
    map_free(&known);
    array_free(&missing);
    return status;
}

/* Refuse device memory: the processor reads the files. */
static banyan_status checkpoint_load_check_places(const banyan_layout *layout,
                                                  const banyan_tensors *tensors)
{
    for (size_t i = 0; i < banyan_tensors_count(tensors); i++) {
        const DLTensor *tensor = banyan_tensors_get(tensors, i);
        char place[DEVICE_TEXT_BYTES];
        DLDevice lies;
        bool on_host;
        RETURN_IF_FAILED(tensor_lies_on_host(tensor, &on_host, &lies));
        if (!on_host)
            return error_set(BANYAN_ERR_INVALID,
                             "tensor %s lies in %s, and checkpoints are loaded into host memory: "
                             "load into tensors of banyan_tensors_alloc and move these on",
                             banyan_layout_tensor(layout, i)->name, device_format(lies, place));
    }
    return BANYAN_OK;
}

static banyan_status fill_padding(const banyan_layout *layout, const banyan_tensors *tensors)
{
    for (size_t i = 0; i < banyan_layout_padding_count(layout); i++) {
        int tensor;
        strided_view view;
        const banyan_box *box = banyan_layout_padding(layout, i, &tensor);
        const DLTensor *whole = banyan_tensors_get(tensors, (size_t)tensor);
        const void *fill = banyan_layout_padding_fill(layout, i);
        const banyan_local_tensor *local = banyan_layout_tensor(layout, (size_t)tensor);
        if (fill && !banyan_dtype_equal(whole->dtype, local->dtype))
            return error_set(BANYAN_ERR_INVALID,
                             "tensor %s is %s and has padding that is filled with a value of %s",
                             local->name, banyan_dtype_name(whole->dtype),
                             banyan_dtype_name(local->dtype));
        RETURN_IF_FAILED(padding_view(whole, box, true, &view));
        padding_fill(&view, fill);
    }
    return BANYAN_OK;
}

static banyan_status load_check_apart(const banyan_checkpoint *checkpoint,
                                      const banyan_layout *layout, const banyan_tensors *tensors)
{
    size_t count = banyan_layout_piece_count(layout);
    const char **filling = alloc_zeroed(count + 1, sizeof *filling, "the names of tensors");
    RETURN_IF_NO_MEMORY(filling);
    for (size_t i = 0; i < count; i++)
        filling[i] = checkpoint_load_name(checkpoint, banyan_layout_piece(layout, i));
    banyan_status status = check_tensors_apart(layout, tensors, filling);
    free(filling);
    return status;
}

static uint64_t checkpoint_load_piece_bytes(const banyan_piece *piece,
                                            const banyan_tensors *tensors)
{
    DLDataType dtype = banyan_tensors_get(tensors, (size_t)piece->tensor)->dtype;
    return banyan_box_elems(&piece->box) * banyan_dtype_bytes(dtype);
}

banyan_status banyan_checkpoint_load(const banyan_checkpoint *checkpoint,
                                     const banyan_layout *layout, banyan_tensors *tensors,
                                     const banyan_checkpoint_options *options)
{
    banyan_checkpoint_options taken;
    RETURN_IF_FAILED(checkpoint_options_take(options, &taken));
    progress_state progress = {&taken, 0, 0};
    size_t count = banyan_layout_piece_count(layout);
    RETURN_IF_FAILED(banyan_layout_check_as(layout, BANYAN_DESTINATION));
    if (banyan_tensors_count(tensors) != banyan_layout_tensor_count(layout))
        return error_set(BANYAN_ERR_INVALID, "the layout has %zu tensors and the set %zu",
                         banyan_layout_tensor_count(layout), banyan_tensors_count(tensors));
    RETURN_IF_FAILED(checkpoint_load_check_places(layout, tensors));
    RETURN_IF_FAILED(check_names(checkpoint, layout));
    RETURN_IF_FAILED(load_check_apart(checkpoint, layout, tensors));
    for (size_t i = 0; i < count; i++)
        progress.total += checkpoint_load_piece_bytes(banyan_layout_piece(layout, i), tensors);
    for (size_t i = 0; i < count; i++) {
        const banyan_piece *piece = banyan_layout_piece(layout, i);
        RETURN_IF_FAILED(
            load_piece(checkpoint, piece, banyan_tensors_get(tensors, (size_t)piece->tensor)));
        progress_add(&progress, checkpoint_load_piece_bytes(piece, tensors));
    }
    return fill_padding(layout, tensors);
}
