#include "reshard/checkpoint/saved.h"

#include <stdlib.h>

#include "core/error.h"
#include "core/files/file.h"
#include "core/text/json.h"
#include "reshard/layout/box.h"
#include "reshard/layout/layout.h"
#include "reshard/layout/value_map.h"

#define MAX_INDEX_BYTES ((size_t)4 << 30)

static banyan_status saved_read_index(saved_model *saved, const char *folder)
{
    char *text;
    size_t bytes;
    saved->index_path = path_join(folder, CHECKPOINT_INDEX_NAME);
    RETURN_IF_NO_MEMORY(saved->index_path);
    RETURN_IF_FAILED(file_read(saved->index_path, MAX_INDEX_BYTES, &text, &bytes));
    banyan_status status = checkpoint_index_parse(saved->index_path, text, bytes, &saved->index);
    free(text);
    return status;
}

static banyan_status open_files(saved_model *saved, const char *folder)
{
    RETURN_IF_NO_MEMORY(saved->files = alloc_zeroed(saved->index.files.count + 1,
                                                    sizeof(banyan_checkpoint *), "files"));
    for (size_t i = 0; i < saved->index.files.count; i++) {
        char *path = path_join(folder, saved->index.files.data[i]);
        RETURN_IF_NO_MEMORY(path);
        banyan_status status = checkpoint_open_file(path, &saved->files[i]);
        free(path);
        RETURN_IF_FAILED(status);
    }
    return BANYAN_OK;
}

/* Find the piece's local tensor: it must exist and have the global tensor's type. */
static banyan_status find_source(saved_model *saved, size_t i)
{
    const index_piece *piece = &saved->index.pieces.data[i];
    const banyan_local_tensor *global = &saved->index.tensors.data[piece->tensor];
    const char *file = saved->index.files.data[piece->file];
    char text[BOX_TEXT_BYTES], shape[BOX_TEXT_BYTES];
    if (banyan_checkpoint_find(saved->files[piece->file], piece->local, &saved->sources[i]) !=
        BANYAN_OK)
        return error_set(BANYAN_ERR_FORMAT, "%s: file %s has no tensor %s, which holds part of %s",
                         saved->index_path, file, piece->local, global->name);
    const banyan_local_tensor *local =
        banyan_checkpoint_tensor(saved->files[piece->file], saved->sources[i]);
    if (!banyan_dtype_equal(local->dtype, global->dtype))
        return error_set(BANYAN_ERR_FORMAT, "%s: tensor %s in %s is %s, but %s is %s",
                         saved->index_path, local->name, file, banyan_dtype_name(local->dtype),
                         global->name, banyan_dtype_name(global->dtype));
    banyan_box box = {0};
    if (local->ndim == piece->local_ndim)
        box = piece_local_box(&piece->piece, local->ndim, &piece->piece.box);
    if (local->ndim != piece->local_ndim || !box_fits(&box, local->ndim, local->shape))
        return error_set(BANYAN_ERR_FORMAT,
                         "%s: box %s of %s does not lie in tensor %s of %s, of shape %s",
                         saved->index_path, banyan_box_format(&piece->piece.box, text, sizeof text),
                         global->name, local->name, file,
                         shape_format(local->ndim, local->shape, shape, sizeof shape));
    return BANYAN_OK;
}

static banyan_status find_boxes(saved_model *saved)
{
    for (size_t i = 0; i < saved->index.boxes.count; i++) {
        index_box *box = &saved->index.boxes.data[i];
        const banyan_checkpoint *in = saved->files[box->file];
        const char *file = saved->index.files.data[box->file];
        if (banyan_checkpoint_find(in, box->local, &box->source) != BANYAN_OK)
            return error_set(BANYAN_ERR_FORMAT,
                             "%s: file %s has no tensor %s, which the index lists with padding",
                             saved->index_path, file, box->local);
        RETURN_IF_FAILED(index_box_check(box, saved->index_path, file,
                                         banyan_checkpoint_tensor(in, box->source)));
    }
    return BANYAN_OK;
}

/* Find every piece's data, and list pieces by tensor. */
static banyan_status find_sources(saved_model *saved)
{
    size_t pieces = saved->index.pieces.count, tensors = saved->index.tensors.count;
    saved->sources = calloc(pieces + 1, sizeof *saved->sources);
    saved->piece_order = calloc(pieces + 1, sizeof *saved->piece_order);
    saved->first_piece = calloc(tensors + 2, sizeof *saved->first_piece);
    if (!saved->sources || !saved->piece_order || !saved->first_piece)
        return error_no_memory((2 * pieces + tensors) * sizeof *saved->sources, "an index");
    for (size_t i = 0; i < pieces; i++) {
        RETURN_IF_FAILED(find_source(saved, i));
        saved->first_piece[saved->index.pieces.data[i].tensor + 2]++;
    }
    for (size_t t = 2; t < tensors + 2; t++)
        saved->first_piece[t] += saved->first_piece[t - 1];
    for (size_t i = 0; i < pieces; i++)
        saved->piece_order[saved->first_piece[saved->index.pieces.data[i].tensor + 1]++] = i;
    return BANYAN_OK;
}

static const index_piece *saved_piece_of(const saved_model *saved, size_t in_order)
{
    return &saved->index.pieces.data[saved->piece_order[in_order]];
}

uint32_t saved_model_map(const saved_model *saved, size_t t)
{
    size_t first = saved->first_piece[t];
    return first < saved->first_piece[t + 1]
               ? saved_piece_of(saved, first)->piece.flags & VALUE_MAPS
               : 0;
}

static banyan_status saved_check_maps(const saved_model *saved, size_t t)
{
    for (size_t p = saved->first_piece[t]; p < saved->first_piece[t + 1]; p++)
        if ((saved_piece_of(saved, p)->piece.flags & VALUE_MAPS) != saved_model_map(saved, t))
            return error_set(BANYAN_ERR_FORMAT,
                             "%s: pieces of tensor %s are kept under different value maps",
                             saved->index_path, saved->index.tensors.data[t].name);
    return BANYAN_OK;
}

static banyan_status saved_check_covered(const saved_model *saved, size_t t)
{
    const banyan_local_tensor *tensor = &saved->index.tensors.data[t];
    size_t first = saved->first_piece[t], count = saved->first_piece[t + 1] - first;
    banyan_box whole = box_whole(tensor->ndim, tensor->shape), hole;
    banyan_box *boxes = alloc_zeroed(count, sizeof *boxes, "an index");
    bool found;
    RETURN_IF_NO_MEMORY(boxes);
    for (size_t p = 0; p < count; p++)
        boxes[p] = saved_piece_of(saved, first + p)->piece.box;
    banyan_status status = boxes_find_hole(&whole, boxes, count, &found, &hole);
    free(boxes);
    char text[BOX_TEXT_BYTES];
    if (status == BANYAN_OK && found)
        status =
            error_set(BANYAN_ERR_INVALID, "%s: no file has box %s of tensor %s", saved->index_path,
                      banyan_box_format(&hole, text, sizeof text), tensor->name);
    return status;
}

banyan_status saved_model_open(const char *folder, saved_model *saved)
{
    *saved = (saved_model){0};
    RETURN_IF_FAILED(saved_read_index(saved, folder));
    if (saved->index.tensors.count == 0)
        return error_set(BANYAN_ERR_FORMAT, "%s has no tensors", saved->index_path);
    RETURN_IF_FAILED(open_files(saved, folder));
    RETURN_IF_FAILED(find_sources(saved));
    RETURN_IF_FAILED(find_boxes(saved));
    for (size_t t = 0; t < saved->index.tensors.count; t++) {
        RETURN_IF_FAILED(saved_check_maps(saved, t));
        RETURN_IF_FAILED(saved_check_covered(saved, t));
    }
    return BANYAN_OK;
}

void saved_model_close(saved_model *saved)
{
    for (size_t i = 0; saved->files && i < saved->index.files.count; i++)
        banyan_checkpoint_close(saved->files[i]);
    free(saved->files);
    free(saved->sources);
    free(saved->piece_order);
    free(saved->first_piece);
    free(saved->index_path);
    checkpoint_index_free(&saved->index);
    *saved = (saved_model){0};
}

/* Add the parts of `box` that a saved piece holds and `filled`, boxes in others, does not. */
static banyan_status saved_add_box(const saved_model *saved, size_t in_order,
                                   const fetch_part *part, const banyan_box *box,
                                   const banyan_box *filled, size_t filled_count,
                                   fetch_parts *parts)
{
    const index_piece *from = saved_piece_of(saved, in_order);
    size_t source = saved->sources[saved->piece_order[in_order]], count;
    fetch_part added = *part;
    banyan_box *rest;
    added.file = checkpoint_file_of(saved->files[from->file], source);
    added.data = banyan_checkpoint_data(saved->files[from->file], source);
    added.from = &from->piece;
    RETURN_IF_FAILED(boxes_find_holes(box, filled, filled_count, SIZE_MAX, &rest, &count));
    banyan_status status = BANYAN_OK;
    for (size_t i = 0; i < count && status == BANYAN_OK; i++) {
        added.box = rest[i];
        status = fetch_add(parts, &added);
    }
    free(rest);
    return status;
}

/* Replicas of a box hold equal values: the first one is read. */
banyan_status saved_model_add_parts(const saved_model *saved, size_t t, const fetch_part *part,
                                    fetch_parts *parts)
{
    ARRAY(banyan_box) filled = {0};
    banyan_status status = BANYAN_OK;
    for (size_t p = saved->first_piece[t]; p < saved->first_piece[t + 1] && status == BANYAN_OK;
         p++) {
        banyan_box box;
        if (!banyan_box_intersect(&part->box, &saved_piece_of(saved, p)->piece.box, &box))
            continue;
        status = saved_add_box(saved, p, part, &box, filled.data, filled.count, parts);
        if (banyan_box_equal(&box, &part->box))
            break;
        if (status == BANYAN_OK && !array_push(&filled, box))
            status = BANYAN_ERR_NO_MEMORY;
    }
    array_free(&filled);
    return status;
}

void saved_model_add_layout(const saved_model *saved, size_t file, banyan_layout *layout)
{
    const banyan_checkpoint *tensors = saved->files[file];
    int first = (int)banyan_layout_tensor_count(layout);
    for (size_t i = 0; i < banyan_checkpoint_tensor_count(tensors); i++) {
        const banyan_local_tensor *tensor = banyan_checkpoint_tensor(tensors, i);
        banyan_layout_add_tensor(layout, tensor->name, tensor->dtype, tensor->ndim, tensor->shape);
    }
    for (size_t i = 0; i < saved->index.facts.list.count; i++)
        layout_keep_fact(layout, saved->index.facts.list.data[i].key,
                         saved->index.facts.list.data[i].text);
    for (size_t i = 0; i < saved->index.pieces.count; i++) {
        if (saved->index.pieces.data[i].file != file)
            continue;
        banyan_piece piece = saved->index.pieces.data[i].piece;
        piece.tensor = first + (int)saved->sources[i];
        banyan_layout_add_piece(layout, &piece);
    }
    for (size_t i = 0; i < saved->index.boxes.count; i++) {
        const index_box *box = &saved->index.boxes.data[i];
        if (box->file == file)
            index_box_add(box, first + (int)box->source, layout);
    }
    /* An earlier release did not list padding: the rest of a tensor was padding. */
    if (!saved->index.declares.data[file])
        layout_pad_rest(layout, first);
}
