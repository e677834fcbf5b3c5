#include "reshard/checkpoint/load_piece.h"

#include <stdlib.h>

#include "core/error.h"
#include "reshard/checkpoint/saved.h"
#include "reshard/layout/box.h"
#include "reshard/layout/layout.h"
#include "reshard/layout/value_map.h"
#include "reshard/run/convert.h"
#include "reshard/transform/object.h"

const char *load_piece_name(const banyan_checkpoint *checkpoint, const banyan_piece *piece)
{
    size_t at;
    bool falls_back =
        piece->fallback_name && banyan_checkpoint_find(checkpoint, piece->name, &at) != BANYAN_OK;
    return falls_back ? piece->fallback_name : piece->name;
}

/* Describe the piece as a transfer from this rank to itself. */
static banyan_transfer load_piece_transfer(const banyan_piece *piece,
                                           const banyan_local_tensor *source, const DLTensor *local)
{
    return (banyan_transfer){.name = source->name,
                             .box = piece->box,
                             .bytes =
                                 banyan_box_elems(&piece->box) * banyan_dtype_bytes(source->dtype),
                             .source_dtype = source->dtype,
                             .destination_dtype = local->dtype};
}

/* True if the transform changes the type of the piece. */
static bool load_piece_changes(const banyan_transform *transform, const banyan_piece *piece,
                               const banyan_local_tensor *source, const DLTensor *local)
{
    banyan_transfer transfer = load_piece_transfer(piece, source, local);
    return transform && transform->should_transform(transform->context, &transfer);
}

static banyan_status load_piece_check(const banyan_piece *piece, const banyan_local_tensor *source,
                                      uint32_t flag, const DLTensor *local,
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
                           load_piece_changes(transform, piece, source, local);
    if (!fits)
        return error_set(BANYAN_ERR_MISMATCH,
                         "tensor %s is %s in the checkpoint and %s in the layout", piece->name,
                         banyan_dtype_name(source->dtype), banyan_dtype_name(local->dtype));
    return BANYAN_OK;
}

/* Find the tensor that fills a piece, and check it. */
static banyan_status load_piece_find(const banyan_checkpoint *checkpoint, const banyan_piece *piece,
                                     const DLTensor *local, const banyan_transform *transform,
                                     size_t *i, uint32_t *map)
{
    RETURN_IF_FAILED(banyan_checkpoint_find(checkpoint, load_piece_name(checkpoint, piece), i));
    const saved_model *saved = checkpoint_saved(checkpoint);
    uint32_t kept = saved ? saved_model_map(saved, *i) : 0;
    if (!value_map_between(kept, piece->flags, map))
        return error_set(BANYAN_ERR_MISMATCH,
                         "tensor %s is saved as its %s in the checkpoint, and a value map cannot "
                         "be undone: the layout wants %s",
                         piece->name, value_map_name(kept),
                         piece->flags & VALUE_MAPS ? value_map_name(piece->flags)
                                                   : "its own values");
    return load_piece_check(piece, banyan_checkpoint_tensor(checkpoint, *i), *map, local,
                            transform);
}

banyan_status load_piece_add(const banyan_checkpoint *checkpoint, const banyan_piece *piece,
                             const DLTensor *local, bool on_device,
                             const banyan_transform *transform, fetch_parts *parts)
{
    size_t i;
    fetch_part part = {.to = piece, .local = local, .on_device = on_device, .box = piece->box};
    RETURN_IF_FAILED(load_piece_find(checkpoint, piece, local, transform, &i, &part.map));
    const saved_model *saved = checkpoint_saved(checkpoint);
    if (saved)
        return saved_model_add_parts(saved, i, &part, parts);
    part.file = checkpoint_file_of(checkpoint, i);
    part.data = banyan_checkpoint_data(checkpoint, i);
    return fetch_add(parts, &part);
}

banyan_status load_piece_is_transformed(const banyan_checkpoint *checkpoint,
                                        const banyan_piece *piece, const DLTensor *local,
                                        const banyan_transform *transform, bool *is_transformed)
{
    size_t i;
    uint32_t map;
    RETURN_IF_FAILED(load_piece_find(checkpoint, piece, local, transform, &i, &map));
    *is_transformed =
        !map && !transform_is_cast(transform) &&
        load_piece_changes(transform, piece, banyan_checkpoint_tensor(checkpoint, i), local);
    return BANYAN_OK;
}

/* ---- transforms other than casts ---- */

/* Prepare both ends of the transfer from `dense`, which has the piece alone, to its place. With
 * `moves`, move it. */
static banyan_status load_piece_convert(const banyan_transform *transform,
                                        const banyan_transfer *transfer, const banyan_piece *alone,
                                        const DLTensor *dense, const banyan_piece *piece,
                                        const DLTensor *local, const char *local_name, bool moves)
{
    DLTensor from[BANYAN_TRANSFORM_MAX_PARTS], to[BANYAN_TRANSFORM_MAX_PARTS], views[2];
    int64_t shape[2][BANYAN_MAX_DIMS], strides[2][BANYAN_MAX_DIMS];
    int sent = 0, received = 0;
    banyan_transform_scratch scratch = {0};
    piece_view(alone, &alone->box, dense, shape[0], strides[0], &views[0]);
    piece_view(piece, &piece->box, local, shape[1], strides[1], &views[1]);
    banyan_transform_task sending = {.transfer = transfer,
                                     .local = &views[0],
                                     .whole = dense,
                                     .local_name = piece->name,
                                     .local_start = alone->local_start,
                                     .dim_map = alone->dim_map};
    banyan_transform_task receiving = {.transfer = transfer,
                                       .local = &views[1],
                                       .whole = local,
                                       .local_name = local_name,
                                       .local_start = piece->local_start,
                                       .dim_map = piece->dim_map};
    void *context = transform->context;
    banyan_status status = transform->prepare_send(context, &sending, &scratch, from, &sent);
    if (status == BANYAN_OK)
        status = transform->prepare_recv(context, &receiving, &scratch, to, &received);
    if (status == BANYAN_OK && sent != received)
        status = error_set(BANYAN_ERR_INVALID,
                           "the transform %s sends %d parts of \"%s\" and receives %d",
                           transform->name, sent, piece->name, received);
    for (int p = 0; p < sent && status == BANYAN_OK && moves; p++)
        status = banyan_tensor_copy(&to[p], &from[p]);
    if (status == BANYAN_OK && moves)
        status = transform->finalize_recv(context, &receiving, to, received);
    transform_scratch_release(&scratch);
    return status;
}

static banyan_status load_piece_read(const banyan_checkpoint *checkpoint, const banyan_piece *alone,
                                     const DLTensor *dense, int thread_count)
{
    banyan_checkpoint_options silent = BANYAN_CHECKPOINT_OPTIONS_INIT;
    progress_state progress = {.options = &silent};
    fetch_parts parts = {0};
    banyan_status status = load_piece_add(checkpoint, alone, dense, false, NULL, &parts);
    if (status == BANYAN_OK)
        status = fetch_run(&parts, thread_count, &progress, checkpoint_bytes_read(checkpoint));
    array_free(&parts);
    return status;
}

banyan_status load_piece_transform(const banyan_checkpoint *checkpoint, const banyan_piece *piece,
                                   const DLTensor *local, const char *local_name,
                                   const banyan_transform *transform, bool moves, int thread_count)
{
    size_t i, bytes;
    RETURN_IF_FAILED(banyan_checkpoint_find(checkpoint, load_piece_name(checkpoint, piece), &i));
    const banyan_local_tensor *source = banyan_checkpoint_tensor(checkpoint, i);
    banyan_transfer transfer = load_piece_transfer(piece, source, local);
    banyan_piece alone = *piece;
    for (int d = 0; d < piece->ndim; d++) {
        alone.local_start[d] = 0;
        alone.dim_map[d] = d;
    }
    DLTensor dense = {.device = BANYAN_HOST,
                      .ndim = piece->ndim,
                      .dtype = source->dtype,
                      .shape = alone.box.extent};
    bytes = banyan_box_elems(&piece->box) * banyan_dtype_bytes(source->dtype);
    if (bytes == 0)
        return BANYAN_OK;
    dense.data = alloc_zeroed(1, bytes, "a piece that a transform changes");
    RETURN_IF_NO_MEMORY(dense.data);
    banyan_status status =
        moves ? load_piece_read(checkpoint, &alone, &dense, thread_count) : BANYAN_OK;
    if (status == BANYAN_OK)
        status = load_piece_convert(transform, &transfer, &alone, &dense, piece, local, local_name,
                                    moves);
    free(dense.data);
    return status;
}
