/* Layout files as JSON. docs/layouts.md and docs/layout.schema.json describe the format. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/text/json.h"
#include "reshard/layout/box.h"
#include "reshard/layout/file.h"
#include "reshard/layout/fill.h"
#include "reshard/layout/layout.h"
#include "reshard/layout/value_map.h"
#include "reshard/model/facts.h"

#define FORMAT_NAME "banyan.layout"
#define VERSION 1

static json_t *file_text_box_to_json(const banyan_box *box)
{
    return json_pack("{s:o, s:o}", "start", json_of_ints(box->start, box->ndim), "extent",
                     json_of_ints(box->extent, box->ndim));
}

static json_t *replicas_to_json(const banyan_rank_set *set)
{
    int64_t count[BANYAN_RANK_SET_LEVELS], stride[BANYAN_RANK_SET_LEVELS];
    for (int k = 0; k < BANYAN_RANK_SET_LEVELS; k++) {
        count[k] = set->count[k];
        stride[k] = set->stride[k];
    }
    return json_pack("{s:i, s:o, s:o}", "first", set->first, "count",
                     json_of_ints(count, BANYAN_RANK_SET_LEVELS), "stride",
                     json_of_ints(stride, BANYAN_RANK_SET_LEVELS));
}

/* Omit what a reader assumes: a start of zeros, dimensions in their order. */
static bool file_text_add_place(json_t *object, const banyan_piece *piece, int local_ndim)
{
    int64_t dim_map[BANYAN_MAX_DIMS];
    bool is_moved = false, is_mapped = false;
    for (int k = 0; k < local_ndim; k++)
        is_moved |= piece->local_start[k] != 0;
    for (int d = 0; d < piece->ndim; d++) {
        dim_map[d] = piece->dim_map[d];
        is_mapped |= dim_map[d] != d;
    }
    return (!is_moved || json_object_set_new(object, "local_start",
                                             json_of_ints(piece->local_start, local_ndim)) == 0) &&
           (!is_mapped ||
            json_object_set_new(object, "dim_map", json_of_ints(dim_map, piece->ndim)) == 0);
}

static json_t *file_text_piece_to_json(const banyan_piece *piece, int local_ndim)
{
    json_t *object = json_pack("{s:s, s:o, s:o, s:o}", "tensor", piece->name, "shape",
                               json_of_ints(piece->shape, piece->ndim), "start",
                               json_of_ints(piece->box.start, piece->ndim), "extent",
                               json_of_ints(piece->box.extent, piece->ndim));
    bool ok = object && file_text_add_place(object, piece, local_ndim);
    if (ok && piece->fallback_name)
        ok = json_object_set_new(object, "fallback", json_string(piece->fallback_name)) == 0;
    if (ok && piece->flags & BANYAN_PIECE_PERSISTENT_BUFFER)
        ok = json_object_set_new(object, "persistent_buffer", json_true()) == 0;
    if (ok && piece->flags & VALUE_MAPS)
        ok = json_object_set_new(object, "map", json_string(value_map_name(piece->flags))) == 0;
    if (ok && banyan_rank_set_size(&piece->replicas) > 0)
        ok = json_object_set_new(object, "replicas", replicas_to_json(&piece->replicas)) == 0;
    if (ok)
        return object;
    json_decref(object);
    return NULL;
}

static banyan_status file_text_unwritable(const banyan_local_tensor *local, const char *why)
{
    return error_set(BANYAN_ERR_INVALID, "tensor \"%s\" cannot be written to a layout file: %s",
                     local->name, why);
}

static bool has_control(const char *name)
{
    for (const char *c = name; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            return true;
    return false;
}

static banyan_status file_text_add_tensors(const banyan_layout *layout, json_t *tensors)
{
    for (size_t t = 0; t < banyan_layout_tensor_count(layout); t++) {
        const banyan_local_tensor *local = banyan_layout_tensor(layout, t);
        DLDataType named;
        const char *dtype = banyan_dtype_name(local->dtype);
        if (banyan_dtype_parse(dtype, &named) != BANYAN_OK)
            return file_text_unwritable(local, "its type has no name in files");
        if (has_control(local->name))
            return file_text_unwritable(local, "its name has control characters");
        json_t *object = json_pack("{s:s, s:s, s:o, s:[]}", "name", local->name, "dtype", dtype,
                                   "shape", json_of_ints(local->shape, local->ndim), "pieces");
        if (!object || json_array_append_new(tensors, object) != 0)
            return file_text_unwritable(local, "its name is not UTF-8, or memory ran out");
    }
    return BANYAN_OK;
}

static banyan_status file_text_add_pieces(const banyan_layout *layout, json_t *tensors)
{
    for (size_t i = 0; i < banyan_layout_piece_count(layout); i++) {
        const banyan_piece *piece = banyan_layout_piece(layout, i);
        const banyan_local_tensor *local = banyan_layout_tensor(layout, (size_t)piece->tensor);
        json_t *tensor = json_array_get(tensors, (size_t)piece->tensor);
        if (has_control(piece->name) || (piece->fallback_name && has_control(piece->fallback_name)))
            return file_text_unwritable(local,
                                        "the name of a piece's tensor has control characters");
        if (json_array_append_new(json_object_get(tensor, "pieces"),
                                  file_text_piece_to_json(piece, local->ndim)) != 0)
            return file_text_unwritable(
                local, "the name of a piece's tensor is not UTF-8, or memory ran out");
    }
    return BANYAN_OK;
}

/* Append to an array, creating it when first needed. */
static banyan_status file_text_add_box(json_t *tensors, int tensor, const char *key, json_t *box)
{
    json_t *of = json_array_get(tensors, (size_t)tensor);
    json_t *list = json_object_get(of, key);
    if (!list) {
        json_object_set_new(of, key, json_array());
        list = json_object_get(of, key);
    }
    return json_array_append_new(list, box) == 0 ? BANYAN_OK
                                                 : error_no_memory(sizeof *box, "a layout file");
}

static banyan_status add_boxes(const banyan_layout *layout, json_t *tensors)
{
    int tensor;
    for (size_t i = 0; i < banyan_layout_padding_count(layout); i++) {
        json_t *box = file_text_box_to_json(banyan_layout_padding(layout, i, &tensor));
        const void *fill = banyan_layout_padding_fill(layout, i);
        DLDataType dtype = banyan_layout_tensor(layout, (size_t)tensor)->dtype;
        if (fill && json_object_set_new(box, "fill", fill_to_json(dtype, fill)) != 0) {
            json_decref(box);
            return error_no_memory(sizeof *box, "a layout file");
        }
        RETURN_IF_FAILED(file_text_add_box(tensors, tensor, "padding", box));
    }
    for (size_t i = 0; i < banyan_layout_left_alone_count(layout); i++) {
        json_t *box = file_text_box_to_json(banyan_layout_left_alone(layout, i, &tensor));
        RETURN_IF_FAILED(file_text_add_box(tensors, tensor, "left_alone", box));
    }
    return BANYAN_OK;
}

static bool format_facts(const banyan_layout *layout, FILE *out)
{
    const facts *known = layout_facts(layout);
    if (known->list.count == 0)
        return true;
    json_t *object = facts_to_json(known);
    bool ok = object && fputs("\"facts\": ", out) >= 0 && json_dumpf(object, out, 0) == 0 &&
              fputs(",\n     ", out) >= 0;
    json_decref(object);
    return ok;
}

/* Write the array of tensors with one tensor on each line. */
static banyan_status format_all(const banyan_layout *layout, const json_t *tensors, char **text)
{
    size_t bytes;
    FILE *out = open_memstream(text, &bytes);
    if (!out)
        return error_no_memory(sizeof *out, "a layout file");
    bool ok = format_facts(layout, out) && fputs("\"tensors\": [", out) >= 0;
    for (size_t t = 0; t < json_array_size(tensors) && ok; t++)
        ok = fputs(t > 0 ? ",\n       " : "\n       ", out) >= 0 &&
             json_dumpf(json_array_get(tensors, t), out, 0) == 0;
    ok = fputs("]", out) >= 0 && ok;
    ok = fclose(out) == 0 && ok;
    if (ok)
        return BANYAN_OK;
    free(*text);
    return error_no_memory(bytes, "a layout file");
}

banyan_status layout_file_write_layout(const banyan_layout *layout, char **text)
{
    json_t *tensors = json_array();
    if (!tensors)
        return error_no_memory(sizeof(json_t *), "a layout file");
    banyan_status status = file_text_add_tensors(layout, tensors);
    if (status == BANYAN_OK)
        status = file_text_add_pieces(layout, tensors);
    if (status == BANYAN_OK)
        status = add_boxes(layout, tensors);
    if (status == BANYAN_OK)
        status = format_all(layout, tensors, text);
    json_decref(tensors);
    return status;
}

/* FORMAT for a member that is not among the NULL-terminated keys: a misspelt one would be ignored.
 */
static banyan_status file_text_check_keys(const json_path *path, const json_t *object,
                                          const char *const *keys)
{
    const char *key;
    json_t *member;
    if (!json_is_object(object))
        return json_path_fail(path, "is not an object");
    json_object_foreach((json_t *)object, key, member)
    {
        size_t k = 0;
        while (keys[k] && strcmp(keys[k], key) != 0)
            k++;
        if (!keys[k])
            return json_path_fail(path, "has \"%.80s\", which a layout file does not have there",
                                  key);
    }
    return BANYAN_OK;
}

static banyan_status file_text_read_shape(json_path *path, const json_t *object, int64_t *shape,
                                          int *ndim)
{
    size_t found;
    RETURN_IF_FAILED(
        json_member_ints(path, object, "shape", 0, INT64_MAX, BANYAN_MAX_DIMS, shape, &found));
    *ndim = (int)found;
    return BANYAN_OK;
}

static banyan_status file_text_read_box(json_path *path, const json_t *object, int ndim,
                                        banyan_box *box)
{
    *box = (banyan_box){.ndim = ndim};
    RETURN_IF_FAILED(
        json_member_ints_of(path, object, "start", 0, INT64_MAX, (size_t)ndim, box->start));
    return json_member_ints_of(path, object, "extent", 0, INT64_MAX, (size_t)ndim, box->extent);
}

static banyan_status file_text_read_name(json_path *path, const json_t *object, const char *key,
                                         const char **name)
{
    RETURN_IF_FAILED(json_member_string(path, object, key, name));
    return json_path_check_text(path, key, *name);
}

static banyan_status file_text_read_dim_map(json_path *path, const json_t *object,
                                            banyan_piece *piece)
{
    int64_t dims[BANYAN_MAX_DIMS];
    for (int d = 0; d < piece->ndim; d++)
        dims[d] = d;
    if (json_object_get(object, "dim_map"))
        RETURN_IF_FAILED(json_member_ints_of(path, object, "dim_map", BANYAN_NO_DIM,
                                             BANYAN_MAX_DIMS - 1, (size_t)piece->ndim, dims));
    for (int d = 0; d < piece->ndim; d++)
        piece->dim_map[d] = (int)dims[d];
    return BANYAN_OK;
}

/* Check that its ranks can be ranks at all; banyan_layout_file_check tests whether they are right.
 */
static banyan_status read_replicas(json_path *path, const json_t *object, banyan_rank_set *set)
{
    static const char *const keys[] = {"first", "count", "stride", NULL};
    json_t *member = json_object_get(object, "replicas");
    int64_t first, count[BANYAN_RANK_SET_LEVELS], stride[BANYAN_RANK_SET_LEVELS];
    if (!member)
        return BANYAN_OK;
    size_t mark = json_path_key(path, "replicas");
    RETURN_IF_FAILED(file_text_check_keys(path, member, keys));
    RETURN_IF_FAILED(json_member_int(path, member, "first", 0, BANYAN_MAX_RANKS - 1, &first));
    RETURN_IF_FAILED(json_member_ints_of(path, member, "count", 1, BANYAN_MAX_RANKS,
                                         BANYAN_RANK_SET_LEVELS, count));
    RETURN_IF_FAILED(json_member_ints_of(path, member, "stride", -BANYAN_MAX_RANKS,
                                         BANYAN_MAX_RANKS, BANYAN_RANK_SET_LEVELS, stride));
    int64_t low = first, high = first, size = 1;
    set->first = (int)first;
    for (int k = 0; k < BANYAN_RANK_SET_LEVELS; k++) {
        set->count[k] = (int)count[k];
        set->stride[k] = (int)stride[k];
        int64_t reach = (count[k] - 1) * stride[k];
        low += reach < 0 ? reach : 0;
        high += reach > 0 ? reach : 0;
        size = size > BANYAN_MAX_RANKS ? size : size * count[k];
    }
    if (low < 0 || high >= BANYAN_MAX_RANKS || size > BANYAN_MAX_RANKS)
        return json_path_fail(path, "is not a set of ranks from 0 to %d", BANYAN_MAX_RANKS - 1);
    json_path_pop(path, mark);
    return BANYAN_OK;
}

/* Report an error that the builder found. */
static banyan_status refuse_layout(const json_path *path, const banyan_layout *layout)
{
    banyan_status status = banyan_layout_status(layout);
    if (status != BANYAN_ERR_INVALID)
        return status;
    char text[512];
    snprintf(text, sizeof text, "%s", banyan_last_error());
    return json_path_fail(path, "is wrong: %s", text);
}

static banyan_status file_text_read_piece(json_path *path, const json_t *object, int local_ndim,
                                          banyan_piece *piece)
{
    static const char *const keys[] = {"tensor",      "shape",    "start",    "extent",
                                       "local_start", "dim_map",  "fallback", "persistent_buffer",
                                       "map",         "replicas", NULL};
    RETURN_IF_FAILED(file_text_check_keys(path, object, keys));
    RETURN_IF_FAILED(file_text_read_name(path, object, "tensor", &piece->name));
    RETURN_IF_FAILED(file_text_read_shape(path, object, piece->shape, &piece->ndim));
    RETURN_IF_FAILED(file_text_read_box(path, object, piece->ndim, &piece->box));
    if (json_object_get(object, "local_start"))
        RETURN_IF_FAILED(json_member_ints_of(path, object, "local_start", 0, INT64_MAX,
                                             (size_t)local_ndim, piece->local_start));
    RETURN_IF_FAILED(file_text_read_dim_map(path, object, piece));
    if (json_object_get(object, "fallback"))
        RETURN_IF_FAILED(file_text_read_name(path, object, "fallback", &piece->fallback_name));
    bool is_buffer = false;
    if (json_object_get(object, "persistent_buffer"))
        RETURN_IF_FAILED(json_member_bool(path, object, "persistent_buffer", &is_buffer));
    piece->flags = is_buffer ? BANYAN_PIECE_PERSISTENT_BUFFER : 0;
    RETURN_IF_FAILED(value_map_read(path, object, &piece->flags));
    return read_replicas(path, object, &piece->replicas);
}

static banyan_status file_text_read_pieces(json_path *path, const json_t *object, int tensor,
                                           int local_ndim, banyan_layout *layout)
{
    json_list pieces;
    RETURN_IF_FAILED(json_list_begin(path, object, "pieces", &pieces));
    while (json_list_next(&pieces)) {
        banyan_piece piece = {.tensor = tensor};
        RETURN_IF_FAILED(file_text_read_piece(path, pieces.entry, local_ndim, &piece));
        banyan_layout_add_piece(layout, &piece);
        RETURN_IF_FAILED(refuse_layout(path, layout));
    }
    return BANYAN_OK;
}

static banyan_status read_padding(json_path *path, const json_t *member, int tensor,
                                  const banyan_local_tensor *local, banyan_layout *layout)
{
    static const char *const keys[] = {"start", "extent", "fill", NULL};
    unsigned char fill[BANYAN_MAX_FILL_BYTES];
    json_t *value = json_object_get(member, "fill");
    banyan_box box;
    RETURN_IF_FAILED(file_text_check_keys(path, member, keys));
    RETURN_IF_FAILED(file_text_read_box(path, member, local->ndim, &box));
    if (value) {
        size_t mark = json_path_key(path, "fill");
        RETURN_IF_FAILED(fill_from_json(path, value, local->dtype, fill));
        json_path_pop(path, mark);
    }
    banyan_layout_add_filled_padding(layout, tensor, &box, value ? fill : NULL);
    return refuse_layout(path, layout);
}

static banyan_status read_left_alone(json_path *path, const json_t *member, int tensor,
                                     const banyan_local_tensor *local, banyan_layout *layout)
{
    static const char *const keys[] = {"start", "extent", NULL};
    banyan_box box;
    RETURN_IF_FAILED(file_text_check_keys(path, member, keys));
    RETURN_IF_FAILED(file_text_read_box(path, member, local->ndim, &box));
    banyan_layout_leave_alone(layout, tensor, &box);
    return refuse_layout(path, layout);
}

typedef banyan_status (*read_box_fn)(json_path *path, const json_t *member, int tensor,
                                     const banyan_local_tensor *local, banyan_layout *layout);

static banyan_status read_boxes(json_path *path, const json_t *object, const char *key, int tensor,
                                banyan_layout *layout, read_box_fn read)
{
    if (!json_object_get(object, key))
        return BANYAN_OK;
    json_list boxes;
    RETURN_IF_FAILED(json_list_begin(path, object, key, &boxes));
    const banyan_local_tensor *local = banyan_layout_tensor(layout, (size_t)tensor);
    while (json_list_next(&boxes))
        RETURN_IF_FAILED(read(path, boxes.entry, tensor, local, layout));
    return BANYAN_OK;
}

static banyan_status file_text_read_tensor(json_path *path, const json_t *object,
                                           banyan_layout *layout)
{
    static const char *const keys[] = {"name",    "dtype",      "shape", "pieces",
                                       "padding", "left_alone", NULL};
    banyan_local_tensor local;
    RETURN_IF_FAILED(file_text_check_keys(path, object, keys));
    RETURN_IF_FAILED(file_text_read_name(path, object, "name", &local.name));
    RETURN_IF_FAILED(json_member_dtype(path, object, &local.dtype));
    RETURN_IF_FAILED(file_text_read_shape(path, object, local.shape, &local.ndim));
    int tensor = banyan_layout_add_tensor(layout, local.name, local.dtype, local.ndim, local.shape);
    RETURN_IF_FAILED(refuse_layout(path, layout));
    RETURN_IF_FAILED(file_text_read_pieces(path, object, tensor, local.ndim, layout));
    RETURN_IF_FAILED(read_boxes(path, object, "padding", tensor, layout, read_padding));
    return read_boxes(path, object, "left_alone", tensor, layout, read_left_alone);
}

static banyan_status file_text_read_ranks(json_path *path, const json_t *object,
                                          banyan_layout_file *file)
{
    json_list ranks;
    size_t group = file->groups.count - 1;
    RETURN_IF_FAILED(json_list_begin(path, object, "ranks", &ranks));
    while (json_list_next(&ranks)) {
        json_int_t rank = json_integer_value(ranks.entry);
        if (!json_is_integer(ranks.entry) || rank < 0 || rank >= BANYAN_MAX_RANKS)
            return json_path_fail(path, "is not a rank: 0 to %d are possible",
                                  BANYAN_MAX_RANKS - 1);
        if ((size_t)rank < file->group_of.count && file->group_of.data[rank] >= 0)
            return json_path_fail(path, "is rank %d a second time", (int)rank);
        RETURN_IF_NO_MEMORY(layout_file_put_rank(file, group, (int)rank));
    }
    layout_file_sort_ranks(&file->groups.data[group]);
    return BANYAN_OK;
}

static banyan_status file_text_read_facts(json_path *path, const json_t *object,
                                          banyan_layout *layout)
{
    const json_t *member = json_object_get(object, "facts");
    if (!member)
        return BANYAN_OK;
    facts read = {0};
    size_t mark = json_path_key(path, "facts");
    banyan_status status = facts_from_json(&read, path, member);
    for (size_t i = 0; i < read.list.count && status == BANYAN_OK; i++)
        layout_keep_fact(layout, read.list.data[i].key, read.list.data[i].text);
    facts_free(&read);
    RETURN_IF_FAILED(status);
    RETURN_IF_FAILED(refuse_layout(path, layout));
    json_path_pop(path, mark);
    return BANYAN_OK;
}

static banyan_status file_text_read_group(json_path *path, const json_t *object,
                                          banyan_layout_file *file)
{
    static const char *const keys[] = {"ranks", "facts", "tensors", NULL};
    RETURN_IF_FAILED(file_text_check_keys(path, object, keys));
    layout_group *group = layout_file_new_group(file);
    RETURN_IF_NO_MEMORY(group);
    RETURN_IF_FAILED(file_text_read_ranks(path, object, file));
    RETURN_IF_FAILED(file_text_read_facts(path, object, group->layout));
    json_list tensors;
    RETURN_IF_FAILED(json_list_begin(path, object, "tensors", &tensors));
    while (json_list_next(&tensors))
        RETURN_IF_FAILED(file_text_read_tensor(path, tensors.entry, group->layout));
    return BANYAN_OK;
}

static banyan_status file_text_read_file(json_path *path, const json_t *root,
                                         banyan_layout_file *file)
{
    static const char *const keys[] = {"$schema", "format", "version", "ranks", NULL};
    const char *format;
    int64_t version;
    if (!json_is_object(root))
        return json_path_fail(path, "is not an object");
    RETURN_IF_FAILED(json_member_string(path, root, "format", &format));
    if (strcmp(format, FORMAT_NAME) != 0)
        return json_path_fail(path, "has format \"%.80s\", not \"%s\"", format, FORMAT_NAME);
    RETURN_IF_FAILED(json_member_int(path, root, "version", VERSION, VERSION, &version));
    RETURN_IF_FAILED(file_text_check_keys(path, root, keys));
    json_list groups;
    RETURN_IF_FAILED(json_list_begin(path, root, "ranks", &groups));
    while (json_list_next(&groups))
        RETURN_IF_FAILED(file_text_read_group(path, groups.entry, file));
    return BANYAN_OK;
}

banyan_status layout_file_parse(const char *path, const char *text, size_t bytes,
                                banyan_layout_file *file)
{
    json_t *root;
    json_path place = {.file = path};
    RETURN_IF_FAILED(json_parse_as(JSON_LAYOUT, path, text, bytes, &root));
    banyan_status status = file_text_read_file(&place, root, file);
    json_decref(root);
    return status;
}
