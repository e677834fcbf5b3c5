#include "reshard/checkpoint/index.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/text/json.h"
#include "reshard/layout/box.h"
#include "reshard/layout/layout.h"
#include "reshard/layout/value_map.h"

#define FORMAT_NAME "banyan.checkpoint"
#define VERSION 1

/* True for "folder/file" or "file": no component leads elsewhere. */
static bool index_is_inside(const char *path)
{
    for (const char *part = path;; part = strchr(part, '/') + 1) {
        size_t length = strcspn(part, "/");
        bool dots = (length == 1 && part[0] == '.') || (length == 2 && memcmp(part, "..", 2) == 0);
        if (length == 0 || dots)
            return false;
        if (part[length] == '\0')
            return true;
    }
}

static banyan_status index_read_tensor(json_path *path, const json_t *member,
                                       checkpoint_index *index, const char *name)
{
    size_t ndim;
    uint64_t bytes;
    banyan_local_tensor tensor = {.name = names_keep(&index->names, name)};
    RETURN_IF_FAILED(json_member_dtype(path, member, &tensor.dtype));
    RETURN_IF_FAILED(json_member_ints(path, member, "shape", 0, INT64_MAX, BANYAN_MAX_DIMS,
                                      tensor.shape, &ndim));
    tensor.ndim = (int)ndim;
    if (!shape_bytes(tensor.ndim, tensor.shape, banyan_dtype_bytes(tensor.dtype), &bytes))
        return json_path_fail(path, "has a shape of more than 2^63 bytes");
    RETURN_IF_NO_MEMORY(tensor.name && array_reserve(&index->tensors, 1) &&
                        map_put_string(&index->by_name, tensor.name, index->tensors.count));
    index->tensors.data[index->tensors.count++] = tensor;
    return BANYAN_OK;
}

static banyan_status read_tensors(json_path *path, const json_t *root, checkpoint_index *index)
{
    json_t *tensors, *member;
    const char *name;
    RETURN_IF_FAILED(json_member(path, root, "tensors", JSON_OBJECT, &tensors));
    size_t all = json_path_key(path, "tensors");
    json_object_foreach(tensors, name, member)
    {
        size_t mark = json_path_key(path, name);
        RETURN_IF_FAILED(index_read_tensor(path, member, index, name));
        json_path_pop(path, mark);
    }
    json_path_pop(path, all);
    return BANYAN_OK;
}

static banyan_status index_read_dim_map(json_path *path, const json_t *object, index_piece *piece)
{
    int64_t dims[BANYAN_MAX_DIMS];
    bool taken[BANYAN_MAX_DIMS] = {false};
    RETURN_IF_FAILED(json_member_ints_of(path, object, "dim_map", BANYAN_NO_DIM,
                                         piece->local_ndim - 1, (size_t)piece->piece.ndim, dims));
    for (int g = 0; g < piece->piece.ndim; g++) {
        piece->piece.dim_map[g] = (int)dims[g];
        if (dims[g] == BANYAN_NO_DIM && piece->piece.box.extent[g] > 1)
            return json_path_fail(path,
                                  "maps dimension %d to none, and the box has %" PRId64
                                  " elements along it, not 1",
                                  g, piece->piece.box.extent[g]);
        if (dims[g] == BANYAN_NO_DIM)
            continue;
        if (taken[dims[g]])
            return json_path_fail(path, "maps two dimensions to local dimension %" PRId64, dims[g]);
        taken[dims[g]] = true;
    }
    return BANYAN_OK;
}

static banyan_status index_read_box(json_path *path, const json_t *object,
                                    const banyan_local_tensor *of, banyan_box *box)
{
    char text[BOX_TEXT_BYTES], shape[BOX_TEXT_BYTES];
    box->ndim = of->ndim;
    RETURN_IF_FAILED(
        json_member_ints_of(path, object, "start", 0, INT64_MAX, (size_t)of->ndim, box->start));
    RETURN_IF_FAILED(
        json_member_ints_of(path, object, "extent", 0, INT64_MAX, (size_t)of->ndim, box->extent));
    if (!box_fits(box, of->ndim, of->shape))
        return json_path_fail(path, "has box %s, out of tensor %s of shape %s",
                              banyan_box_format(box, text, sizeof text), of->name,
                              shape_format(of->ndim, of->shape, shape, sizeof shape));
    return BANYAN_OK;
}

static banyan_status index_read_piece(json_path *path, const json_t *member,
                                      checkpoint_index *index, size_t file)
{
    const char *local, *name;
    uint64_t tensor;
    json_t *start;
    index_piece piece = {.file = file};
    RETURN_IF_FAILED(json_member_string(path, member, "local", &local));
    RETURN_IF_FAILED(json_member_string(path, member, "tensor", &name));
    if (!map_get_string(&index->by_name, name, &tensor))
        return json_path_fail(path, "is of tensor %s, which \"tensors\" does not have", name);
    const banyan_local_tensor *of = &index->tensors.data[tensor];
    piece.tensor = (size_t)tensor;
    piece.piece.name = of->name;
    piece.piece.ndim = of->ndim;
    memcpy(piece.piece.shape, of->shape, sizeof of->shape);
    RETURN_IF_FAILED(index_read_box(path, member, of, &piece.piece.box));
    RETURN_IF_FAILED(json_member(path, member, "local_start", JSON_ARRAY, &start));
    size_t local_ndim = json_array_size(start);
    if (local_ndim > BANYAN_MAX_DIMS)
        return json_path_fail(path, "has a local tensor of %zu dimensions", local_ndim);
    piece.local_ndim = (int)local_ndim;
    RETURN_IF_FAILED(json_member_ints_of(path, member, "local_start", 0, INT64_MAX, local_ndim,
                                         piece.piece.local_start));
    RETURN_IF_FAILED(index_read_dim_map(path, member, &piece));
    RETURN_IF_FAILED(value_map_read(path, member, &piece.piece.flags));
    piece.local = names_keep(&index->names, local);
    return piece.local && array_push(&index->pieces, piece) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

static banyan_status index_read_file(json_path *path, const json_t *member, checkpoint_index *index)
{
    const char *name;
    json_list pieces;
    bool declared;
    RETURN_IF_FAILED(json_member_string(path, member, "file", &name));
    if (!index_is_inside(name))
        return json_path_fail(path, "has file \"%s\", which is not in this folder", name);
    const char *kept = names_keep(&index->names, name);
    RETURN_IF_NO_MEMORY(kept && array_push(&index->files, kept));
    RETURN_IF_FAILED(index_boxes_read(path, member, index->files.count - 1, &index->names,
                                      &index->boxes, &declared));
    RETURN_IF_NO_MEMORY(array_push(&index->declares, declared));
    RETURN_IF_FAILED(json_list_begin(path, member, "pieces", &pieces));
    while (json_list_next(&pieces))
        RETURN_IF_FAILED(index_read_piece(path, pieces.entry, index, index->files.count - 1));
    return BANYAN_OK;
}

/* Folders saved by releases without facts have none. */
static banyan_status index_read_facts(json_path *path, const json_t *root, checkpoint_index *index)
{
    const json_t *object = json_object_get(root, "facts");
    if (!object)
        return BANYAN_OK;
    size_t mark = json_path_key(path, "facts");
    RETURN_IF_FAILED(facts_from_json(&index->facts, path, object));
    json_path_pop(path, mark);
    return BANYAN_OK;
}

static banyan_status index_read_index(json_path *path, const json_t *root, checkpoint_index *index)
{
    const char *format;
    int64_t version;
    json_list files;
    RETURN_IF_FAILED(json_member_string(path, root, "format", &format));
    if (strcmp(format, FORMAT_NAME) != 0)
        return json_path_fail(path, "has format \"%s\", not \"%s\"", format, FORMAT_NAME);
    RETURN_IF_FAILED(json_member_int(path, root, "version", VERSION, VERSION, &version));
    RETURN_IF_FAILED(read_tensors(path, root, index));
    RETURN_IF_FAILED(index_read_facts(path, root, index));
    RETURN_IF_FAILED(json_list_begin(path, root, "files", &files));
    if (files.count > BANYAN_MAX_RANKS)
        return json_path_fail(path, "has %zu entries, more than the %d ranks of a world",
                              files.count, BANYAN_MAX_RANKS);
    while (json_list_next(&files))
        RETURN_IF_FAILED(index_read_file(path, files.entry, index));
    return BANYAN_OK;
}

banyan_status checkpoint_index_parse(const char *path, const char *text, size_t bytes,
                                     checkpoint_index *index)
{
    json_t *root;
    json_path place = {.file = path};
    RETURN_IF_FAILED(json_parse(path, text, bytes, &root));
    checkpoint_index made = {0};
    banyan_status status = index_read_index(&place, root, &made);
    json_decref(root);
    if (status != BANYAN_OK) {
        checkpoint_index_free(&made);
        return status;
    }
    *index = made;
    return BANYAN_OK;
}

void checkpoint_index_free(checkpoint_index *index)
{
    array_free(&index->tensors);
    array_free(&index->files);
    array_free(&index->declares);
    array_free(&index->pieces);
    array_free(&index->boxes);
    map_free(&index->by_name);
    facts_free(&index->facts);
    names_free(&index->names);
}

static json_t *index_piece_to_json(const banyan_piece *piece, const banyan_local_tensor *local)
{
    int64_t dim_map[BANYAN_MAX_DIMS];
    for (int g = 0; g < piece->ndim; g++)
        dim_map[g] = piece->dim_map[g];
    return json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:s*}", "local", local->name, "tensor",
                     piece->name, "start", json_of_ints(piece->box.start, piece->ndim), "extent",
                     json_of_ints(piece->box.extent, piece->ndim), "local_start",
                     json_of_ints(piece->local_start, local->ndim), "dim_map",
                     json_of_ints(dim_map, piece->ndim), "map", value_map_name(piece->flags));
}

json_t *checkpoint_index_part(const char *file, const banyan_layout *layout,
                              const banyan_tensors *tensors)
{
    json_t *pieces = json_array(), *global = json_object();
    for (size_t i = 0; i < banyan_layout_piece_count(layout); i++) {
        const banyan_piece *piece = banyan_layout_piece(layout, i);
        size_t t = (size_t)piece->tensor;
        json_t *tensor = json_pack("{s:s, s:o}", "dtype",
                                   banyan_dtype_name(banyan_tensors_get(tensors, t)->dtype),
                                   "shape", json_of_ints(piece->shape, piece->ndim));
        json_t *object = index_piece_to_json(piece, banyan_layout_tensor(layout, t));
        if (json_array_append_new(pieces, object) != 0 ||
            json_object_set_new(global, piece->name, tensor) != 0) {
            error_set(BANYAN_ERR_INVALID, "tensor %s cannot be named in JSON", piece->name);
            json_decref(pieces);
            json_decref(global);
            return NULL;
        }
    }
    json_t *part = json_pack("{s:s, s:o, s:o, s:o}", "file", file, "pieces", pieces, "tensors",
                             global, "facts", facts_to_json(layout_facts(layout)));
    if (!part) {
        error_no_memory(banyan_layout_piece_count(layout) * sizeof(banyan_piece), "an index");
        return NULL;
    }
    if (index_boxes_write(part, layout, tensors) != BANYAN_OK) {
        json_decref(part);
        return NULL;
    }
    return part;
}

json_t *checkpoint_index_begin(void)
{
    json_t *whole = json_pack("{s:s, s:i, s:{}, s:{}, s:[]}", "format", FORMAT_NAME, "version",
                              VERSION, "facts", "tensors", "files");
    if (!whole)
        error_no_memory(sizeof(json_t *), "an index");
    return whole;
}

static banyan_status mismatched_member(const char *key, bool is_fact, const json_t *first,
                                       const json_t *second)
{
    if (!is_fact)
        return error_set(BANYAN_ERR_MISMATCH, "ranks save tensor %s in different types or shapes",
                         key);
    char *one = json_dumps(first, JSON_ENCODE_ANY), *other = json_dumps(second, JSON_ENCODE_ANY);
    banyan_status status =
        error_set(BANYAN_ERR_MISMATCH, "ranks save layouts of a model whose %s is %s, and is %s",
                  key, one ? one : "?", other ? other : "?");
    free(one);
    free(other);
    return status;
}

/* Merge tensors or facts. */
static banyan_status merge_members(json_t *all, json_t *more, bool are_facts)
{
    const char *key;
    json_t *value;
    json_object_foreach(more, key, value)
    {
        json_t *known = json_object_get(all, key);
        if (known && !json_equal(known, value))
            return mismatched_member(key, are_facts, known, value);
        if (!known && json_object_set(all, key, value) != 0)
            return error_no_memory(strlen(key), "an index");
    }
    return BANYAN_OK;
}

banyan_status checkpoint_index_merge(json_t *whole, const char *text, size_t bytes)
{
    json_t *part;
    RETURN_IF_FAILED(json_parse("a rank's part of the index", text, bytes, &part));
    banyan_status status =
        merge_members(json_object_get(whole, "tensors"), json_object_get(part, "tensors"), false);
    if (status == BANYAN_OK)
        status =
            merge_members(json_object_get(whole, "facts"), json_object_get(part, "facts"), true);
    json_object_del(part, "tensors");
    json_object_del(part, "facts");
    if (status == BANYAN_OK && json_array_append(json_object_get(whole, "files"), part) != 0)
        status = error_no_memory(bytes, "an index");
    json_decref(part);
    return status;
}
