#include <banyan/checkpoint.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/containers.h"
#include "core/error.h"
#include "core/nearest.h"
#include "memory/device.h"
#include "reshard/checkpoint/load_piece.h"
#include "reshard/checkpoint/saved.h"
#include "reshard/checkpoint/write.h"
#include "reshard/layout/box.h"
#include "reshard/layout/fill.h"
#include "reshard/layout/layout.h"
#include "reshard/run/tensors.h"
#include "reshard/verify/apart.h"

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
        filling[i] = load_piece_name(checkpoint, banyan_layout_piece(layout, i));
    banyan_status status = check_tensors_apart(layout, tensors, filling);
    free(filling);
    return status;
}

/* A load that has been checked. */
typedef struct load_state {
    const banyan_checkpoint *checkpoint;
    const banyan_layout *layout;
    const banyan_tensors *tensors;
    const banyan_transform *transform; /* NULL: none */
    int thread_count;
    bool *on_device;         /* of each tensor */
    fetch_parts parts;       /* of files, for all pieces except */
    ARRAY(size_t) converted; /* pieces that a transform other than a cast fills */
} load_state;

static banyan_status load_convert(const load_state *load, size_t number, bool moves)
{
    const banyan_piece *piece = banyan_layout_piece(load->layout, number);
    return load_piece_transform(load->checkpoint, piece,
                                banyan_tensors_get(load->tensors, (size_t)piece->tensor),
                                banyan_layout_tensor(load->layout, (size_t)piece->tensor)->name,
                                load->transform, moves, load->thread_count);
}

static banyan_status load_prepare_piece(load_state *load, size_t number)
{
    const banyan_piece *piece = banyan_layout_piece(load->layout, number);
    const DLTensor *local = banyan_tensors_get(load->tensors, (size_t)piece->tensor);
    bool on_device = load->on_device[piece->tensor], is_converted = false;
    if (load->transform)
        RETURN_IF_FAILED(load_piece_is_transformed(load->checkpoint, piece, local, load->transform,
                                                   &is_converted));
    if (!is_converted)
        return load_piece_add(load->checkpoint, piece, local, on_device, load->transform,
                              &load->parts);
    if (on_device)
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "tensor %s lies on a GPU, and the transform %s fills tensors in host "
                         "memory only: load it there, and move it on",
                         piece->name, load->transform->name);
    RETURN_IF_NO_MEMORY(array_push(&load->converted, number));
    return load_convert(load, number, false);
}

/* Check everything, and list the parts of files to read. */
static banyan_status load_prepare(load_state *load, uint64_t *bytes)
{
    RETURN_IF_FAILED(checkpoint_load_find_places(load->tensors, load->on_device));
    RETURN_IF_FAILED(check_names(load->checkpoint, load->layout));
    RETURN_IF_FAILED(load_check_apart(load->checkpoint, load->layout, load->tensors));
    RETURN_IF_FAILED(load_check_padding(load->layout, load->tensors));
    if (load->transform && load->transform->begin)
        RETURN_IF_FAILED(load->transform->begin(load->transform->context));
    for (size_t i = 0; i < banyan_layout_piece_count(load->layout); i++) {
        const banyan_piece *piece = banyan_layout_piece(load->layout, i);
        DLDataType dtype = banyan_tensors_get(load->tensors, (size_t)piece->tensor)->dtype;
        RETURN_IF_FAILED(load_prepare_piece(load, i));
        *bytes += banyan_box_elems(&piece->box) * banyan_dtype_bytes(dtype);
    }
    return BANYAN_OK;
}

static banyan_status load_finish_transform(const load_state *load)
{
    const banyan_transform *transform = load->transform;
    bool finishes =
        transform->size > offsetof(banyan_transform, finish_padding) && transform->finish_padding;
    for (size_t i = 0; i < banyan_layout_padding_count(load->layout) && finishes; i++) {
        int tensor;
        banyan_layout_padding(load->layout, i, &tensor);
        RETURN_IF_FAILED(transform->finish_padding(
            transform->context, banyan_layout_tensor(load->layout, (size_t)tensor)->name,
            banyan_tensors_get(load->tensors, (size_t)tensor)));
    }
    return transform->finish ? transform->finish(transform->context) : BANYAN_OK;
}

static banyan_status load_run(load_state *load, progress_state *progress)
{
    const banyan_transform *transform = load->transform;
    RETURN_IF_FAILED(fetch_run(&load->parts, load->thread_count, progress,
                               checkpoint_bytes_read(load->checkpoint)));
    if (transform && transform->begin)
        RETURN_IF_FAILED(transform->begin(transform->context));
    for (size_t i = 0; i < load->converted.count; i++) {
        const banyan_piece *piece = banyan_layout_piece(load->layout, load->converted.data[i]);
        DLDataType dtype = banyan_tensors_get(load->tensors, (size_t)piece->tensor)->dtype;
        RETURN_IF_FAILED(load_convert(load, load->converted.data[i], true));
        progress_add(progress, banyan_box_elems(&piece->box) * banyan_dtype_bytes(dtype));
    }
    RETURN_IF_FAILED(fill_padding(load->layout, load->tensors, load->on_device));
    return transform ? load_finish_transform(load) : BANYAN_OK;
}

banyan_status banyan_checkpoint_load(const banyan_checkpoint *checkpoint,
                                     const banyan_layout *layout, banyan_tensors *tensors,
                                     const banyan_checkpoint_options *options)
{
    banyan_checkpoint_options taken;
    RETURN_IF_FAILED(checkpoint_options_take(options, &taken));
    progress_state progress = {&taken, 0, 0};
    size_t count = banyan_layout_tensor_count(layout);
    RETURN_IF_FAILED(banyan_layout_check_as(layout, BANYAN_DESTINATION));
    if (banyan_tensors_count(tensors) != count)
        return error_set(BANYAN_ERR_INVALID, "the layout has %zu tensors and the set %zu", count,
                         banyan_tensors_count(tensors));
    load_state load = {.checkpoint = checkpoint,
                       .layout = layout,
                       .tensors = tensors,
                       .transform = taken.transform,
                       .thread_count = taken.thread_count,
                       .on_device =
                           alloc_zeroed(count, sizeof *load.on_device, "the places of tensors")};
    RETURN_IF_NO_MEMORY(load.on_device);
    banyan_status status = load_prepare(&load, &progress.total);
    if (status == BANYAN_OK) {
        tensors_set_torn(tensors);
        status = load_run(&load, &progress);
    }
    if (status == BANYAN_OK)
        tensors_set_whole(tensors, banyan_tensors_version(tensors) + 1);
    array_free(&load.parts);
    array_free(&load.converted);
    free(load.on_device);
    return status;
}
