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
#include "reshard/run/tensors.h"
#include "reshard/transform/object.h"
#include "reshard/verify/apart.h"

/* True if the transform casts the piece from the type of the checkpoint. */
static bool checkpoint_load_casts(const banyan_transform *transform, const banyan_piece *piece,
                                  const char *name, DLDataType from, DLDataType to)
{
    banyan_transfer transfer = {
        .name = name, .box = piece->box, .source_dtype = from, .destination_dtype = to};
    return transform && transform->should_transform(transform->context, &transfer);
}

static banyan_status checkpoint_load_check_source(const banyan_piece *piece,
                                                  const banyan_local_tensor *source, uint32_t flag,
                                                  const DLTensor *local,
                                                  const banyan_transform *transform)
{
    char have[BOX_TEXT_BYTES], need[BOX_TEXT_BYTES];
    if (!shape_equal(source->ndim, source->shape, piece->ndim, piece->shape))
        return error_set(BANYAN_ERR_MISMATCH,
                         "tensor %s has shape %s in the checkpoint and %s in the layout",
                         piece->name, shape_format(source->ndim, source->shape, have, sizeof have),
                         shape_format(piece->ndim, piece->shape, need, sizeof need));
    bool fits = flag ? convert_is_float(source->dtype) && convert_is_float(local->dtype)
                     : banyan_dtype_equal(source->dtype, local->dtype) ||
                           checkpoint_load_casts(transform, piece, source->name, source->dtype,
                                                 local->dtype);
    if (!fits)
        return error_set(BANYAN_ERR_MISMATCH,
                         "tensor %s is %s in the checkpoint and %s in the layout", piece->name,
                         banyan_dtype_name(source->dtype), banyan_dtype_name(local->dtype));
    return BANYAN_OK;
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

/* Check a piece, and add the parts of files that fill it. */
static banyan_status load_add_piece(const banyan_checkpoint *checkpoint, const banyan_piece *piece,
                                    const DLTensor *local, bool on_device,
                                    const banyan_transform *transform, fetch_parts *parts)
{
    size_t i;
    fetch_part part = {.to = piece, .local = local, .on_device = on_device, .box = piece->box};
    RETURN_IF_FAILED(
        banyan_checkpoint_find(checkpoint, checkpoint_load_name(checkpoint, piece), &i));
    const saved_model *saved = checkpoint_saved(checkpoint);
    uint32_t kept = saved ? saved_model_map(saved, i) : 0;
    if (!value_map_between(kept, piece->flags, &part.map))
        return error_set(BANYAN_ERR_MISMATCH,
                         "tensor %s is saved as its %s in the checkpoint, and a value map cannot "
                         "be undone: the layout wants %s",
                         piece->name, value_map_name(kept),
                         piece->flags & VALUE_MAPS ? value_map_name(piece->flags)
                                                   : "its own values");
    RETURN_IF_FAILED(checkpoint_load_check_source(piece, banyan_checkpoint_tensor(checkpoint, i),
                                                  part.map, local, transform));
    if (saved)
        return saved_model_add_parts(saved, i, &part, parts);
    part.file = checkpoint_file_of(checkpoint, i);
    part.data = banyan_checkpoint_data(checkpoint, i);
    return fetch_add(parts, &part);
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

/* Find the tensors that lie on devices. */
static banyan_status checkpoint_load_find_places(const banyan_tensors *tensors, bool *on_device)
{
    const memory_device_ops *ops;
    for (size_t i = 0; i < banyan_tensors_count(tensors); i++) {
        DLDevice lies;
        bool on_host;
        RETURN_IF_FAILED(tensor_lies_on_host(banyan_tensors_get(tensors, i), &on_host, &lies));
        on_device[i] = !on_host;
        if (on_host)
            continue;
        RETURN_IF_FAILED(memory_device_find(lies.device_type, &ops));
        RETURN_IF_FAILED(ops->open(lies.device_id));
    }
    return BANYAN_OK;
}

static banyan_status load_check_padding(const banyan_layout *layout, const banyan_tensors *tensors)
{
    for (size_t i = 0; i < banyan_layout_padding_count(layout); i++) {
        int tensor;
        banyan_layout_padding(layout, i, &tensor);
        const DLTensor *whole = banyan_tensors_get(tensors, (size_t)tensor);
        const banyan_local_tensor *local = banyan_layout_tensor(layout, (size_t)tensor);
        if (banyan_layout_padding_fill(layout, i) &&
            !banyan_dtype_equal(whole->dtype, local->dtype))
            return error_set(BANYAN_ERR_INVALID,
                             "tensor %s is %s and has padding that is filled with a value of %s",
                             local->name, banyan_dtype_name(whole->dtype),
                             banyan_dtype_name(local->dtype));
    }
    return BANYAN_OK;
}

/* Fill padding on a device with dense memory of the host. */
static banyan_status fill_on_device(const strided_view *view, const DLTensor *whole,
                                    const banyan_box *box, const void *fill)
{
    banyan_box place = *box;
    DLTensor part = *whole;
    int64_t elems = (int64_t)view->elems;
    strided_view dense = {.data = malloc(view->elems * view->elem_bytes),
                          .elem_bytes = view->elem_bytes,
                          .elems = view->elems,
                          .ndim = 1,
                          .extent = {elems},
                          .stride = {(int64_t)view->elem_bytes}};
    if (!dense.data)
        return error_no_memory(view->elems * view->elem_bytes, "padding");
    padding_fill(&dense, fill);
    part.data = view->data;
    part.byte_offset = 0;
    part.shape = place.extent;
    banyan_status status = fetch_upload(&part, dense.data);
    free(dense.data);
    return status;
}

static banyan_status fill_padding(const banyan_layout *layout, const banyan_tensors *tensors,
                                  const bool *on_device)
{
    for (size_t i = 0; i < banyan_layout_padding_count(layout); i++) {
        int tensor;
        strided_view view;
        const banyan_box *box = banyan_layout_padding(layout, i, &tensor);
        const DLTensor *whole = banyan_tensors_get(tensors, (size_t)tensor);
        const void *fill = banyan_layout_padding_fill(layout, i);
        RETURN_IF_FAILED(padding_view(whole, box, !on_device[tensor], &view));
        if (!on_device[tensor])
            padding_fill(&view, fill);
        else if (view.elems > 0)
            RETURN_IF_FAILED(fill_on_device(&view, whole, box, fill));
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

/* Check everything, and list the parts of files to read. */
static banyan_status load_prepare(const banyan_checkpoint *checkpoint, const banyan_layout *layout,
                                  const banyan_tensors *tensors, const banyan_transform *transform,
                                  bool *on_device, fetch_parts *parts, uint64_t *bytes)
{
    if (transform && !transform_is_cast(transform))
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "checkpoints are read with transforms of banyan_cast_create, not with %s: "
                         "load into tensors of the checkpoint's type and reshard these",
                         transform->name);
    RETURN_IF_FAILED(checkpoint_load_find_places(tensors, on_device));
    RETURN_IF_FAILED(check_names(checkpoint, layout));
    RETURN_IF_FAILED(load_check_apart(checkpoint, layout, tensors));
    RETURN_IF_FAILED(load_check_padding(layout, tensors));
    for (size_t i = 0; i < banyan_layout_piece_count(layout); i++) {
        const banyan_piece *piece = banyan_layout_piece(layout, i);
        const DLTensor *local = banyan_tensors_get(tensors, (size_t)piece->tensor);
        RETURN_IF_FAILED(
            load_add_piece(checkpoint, piece, local, on_device[piece->tensor], transform, parts));
        *bytes += banyan_box_elems(&piece->box) * banyan_dtype_bytes(local->dtype);
    }
    return BANYAN_OK;
}

banyan_status banyan_checkpoint_load(const banyan_checkpoint *checkpoint,
                                     const banyan_layout *layout, banyan_tensors *tensors,
                                     const banyan_checkpoint_options *options)
{
    banyan_checkpoint_options taken;
    RETURN_IF_FAILED(checkpoint_options_take(options, &taken));
    progress_state progress = {&taken, 0, 0};
    fetch_parts parts = {0};
    size_t count = banyan_layout_tensor_count(layout);
    RETURN_IF_FAILED(banyan_layout_check_as(layout, BANYAN_DESTINATION));
    if (banyan_tensors_count(tensors) != count)
        return error_set(BANYAN_ERR_INVALID, "the layout has %zu tensors and the set %zu", count,
                         banyan_tensors_count(tensors));
    bool *on_device = alloc_zeroed(count, sizeof *on_device, "the places of tensors");
    RETURN_IF_NO_MEMORY(on_device);
    banyan_status status = load_prepare(checkpoint, layout, tensors, taken.transform, on_device,
                                        &parts, &progress.total);
    if (status == BANYAN_OK) {
        tensors_set_torn(tensors);
        status =
            fetch_run(&parts, taken.thread_count, &progress, checkpoint_bytes_read(checkpoint));
        if (status == BANYAN_OK)
            status = fill_padding(layout, tensors, on_device);
        if (status == BANYAN_OK)
            tensors_set_whole(tensors, banyan_tensors_version(tensors) + 1);
    }
    array_free(&parts);
    free(on_device);
    return status;
}
