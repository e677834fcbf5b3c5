#include "reshard/checkpoint/index.h"

#include "reshard/layout/box.h"
#include "reshard/layout/fill.h"

static banyan_status read_fill(json_path *path, const json_t *object, index_box *box)
{
    const json_t *fill = json_object_get(object, "fill");
    if (!fill)
        return BANYAN_OK;
    RETURN_IF_FAILED(json_member_dtype(path, object, &box->dtype));
    size_t mark = json_path_key(path, "fill");
    RETURN_IF_FAILED(fill_from_json(path, fill, box->dtype, box->fill));
    json_path_pop(path, mark);
    box->is_filled = true;
    return BANYAN_OK;
}

static banyan_status index_boxes_read_box(json_path *path, const json_t *object, names *pool,
                                          index_box *box)
{
    const char *local;
    size_t start, extent;
    RETURN_IF_FAILED(json_member_string(path, object, "local", &local));
    RETURN_IF_FAILED(json_member_ints(path, object, "start", 0, INT64_MAX, BANYAN_MAX_DIMS,
                                      box->box.start, &start));
    RETURN_IF_FAILED(json_member_ints(path, object, "extent", 0, INT64_MAX, BANYAN_MAX_DIMS,
                                      box->box.extent, &extent));
    if (start != extent)
        return json_path_fail(path, "has a start of %zu and an extent of %zu dimensions", start,
                              extent);
    box->box.ndim = (int)start;
    box->local = names_keep(pool, local);
    RETURN_IF_NO_MEMORY(box->local);
    return box->left_alone ? BANYAN_OK : read_fill(path, object, box);
}

static banyan_status index_boxes_read_list(json_path *path, const json_t *file_object,
                                           const char *key, index_box like, names *pool,
                                           index_boxes *boxes)
{
    json_list list;
    if (!json_object_get(file_object, key))
        return BANYAN_OK;
    RETURN_IF_FAILED(json_list_begin(path, file_object, key, &list));
    while (json_list_next(&list)) {
        index_box box = like;
        RETURN_IF_FAILED(index_boxes_read_box(path, list.entry, pool, &box));
        RETURN_IF_NO_MEMORY(array_push(boxes, box));
    }
    return BANYAN_OK;
}

banyan_status index_boxes_read(json_path *path, const json_t *file_object, size_t file, names *pool,
                               index_boxes *boxes, bool *declared)
{
    index_box padding = {.file = file}, left_alone = {.file = file, .left_alone = true};
    *declared =
        json_object_get(file_object, "padding") || json_object_get(file_object, "left_alone");
    RETURN_IF_FAILED(index_boxes_read_list(path, file_object, "padding", padding, pool, boxes));
    return index_boxes_read_list(path, file_object, "left_alone", left_alone, pool, boxes);
}

static json_t *index_boxes_box_to_json(const char *local, const banyan_box *box)
{
    return json_pack("{s:s, s:o, s:o}", "local", local, "start",
                     json_of_ints(box->start, box->ndim), "extent",
                     json_of_ints(box->extent, box->ndim));
}

static banyan_status index_boxes_add_padding(json_t *list, const banyan_layout *layout,
                                             const banyan_tensors *tensors, size_t i)
{
    int tensor;
    const banyan_box *box = banyan_layout_padding(layout, i, &tensor);
    const void *fill = banyan_layout_padding_fill(layout, i);
    const banyan_local_tensor *local = banyan_layout_tensor(layout, (size_t)tensor);
    DLDataType held = banyan_tensors_get(tensors, (size_t)tensor)->dtype;
    if (fill && !banyan_dtype_equal(local->dtype, held))
        return error_set(BANYAN_ERR_INVALID,
                         "tensor %s is %s and has padding that is filled with a value of %s",
                         local->name, banyan_dtype_name(held), banyan_dtype_name(local->dtype));
    json_t *object = index_boxes_box_to_json(local->name, box);
    bool ok = object != NULL;
    if (ok && fill)
        ok = json_object_set_new(object, "dtype", json_string(banyan_dtype_name(local->dtype))) ==
                 0 &&
             json_object_set_new(object, "fill", fill_to_json(local->dtype, fill)) == 0;
    if (ok && json_array_append_new(list, object) == 0)
        return BANYAN_OK;
    return error_set(BANYAN_ERR_INVALID, "tensor %s cannot be named in JSON", local->name);
}

static banyan_status add_left_alone(json_t *list, const banyan_layout *layout, size_t i)
{
    int tensor;
    const banyan_box *box = banyan_layout_left_alone(layout, i, &tensor);
    const char *name = banyan_layout_tensor(layout, (size_t)tensor)->name;
    if (json_array_append_new(list, index_boxes_box_to_json(name, box)) == 0)
        return BANYAN_OK;
    return error_set(BANYAN_ERR_INVALID, "tensor %s cannot be named in JSON", name);
}

banyan_status index_boxes_write(json_t *file_object, const banyan_layout *layout,
                                const banyan_tensors *tensors)
{
    json_t *padding = json_array(), *left_alone = json_array();
    if (json_object_set_new(file_object, "padding", padding) != 0 ||
        json_object_set_new(file_object, "left_alone", left_alone) != 0)
        return error_no_memory(sizeof(json_t *), "an index");
    for (size_t i = 0; i < banyan_layout_padding_count(layout); i++)
        RETURN_IF_FAILED(index_boxes_add_padding(padding, layout, tensors, i));
    for (size_t i = 0; i < banyan_layout_left_alone_count(layout); i++)
        RETURN_IF_FAILED(add_left_alone(left_alone, layout, i));
    return BANYAN_OK;
}

banyan_status index_box_check(const index_box *box, const char *index_path, const char *file,
                              const banyan_local_tensor *local)
{
    char text[BOX_TEXT_BYTES], shape[BOX_TEXT_BYTES];
    if (!box_fits(&box->box, local->ndim, local->shape))
        return error_set(BANYAN_ERR_FORMAT,
                         "%s: %s %s does not lie in tensor %s of %s, of shape %s", index_path,
                         box->left_alone ? "a box to leave alone" : "padding",
                         banyan_box_format(&box->box, text, sizeof text), local->name, file,
                         shape_format(local->ndim, local->shape, shape, sizeof shape));
    if (box->is_filled && !banyan_dtype_equal(box->dtype, local->dtype))
        return error_set(BANYAN_ERR_FORMAT,
                         "%s: padding of tensor %s in %s is filled with a value of %s, but the "
                         "tensor is %s",
                         index_path, local->name, file, banyan_dtype_name(box->dtype),
                         banyan_dtype_name(local->dtype));
    return BANYAN_OK;
}

void index_box_add(const index_box *box, int tensor, banyan_layout *layout)
{
    if (box->left_alone)
        banyan_layout_leave_alone(layout, tensor, &box->box);
    else
        banyan_layout_add_filled_padding(layout, tensor, &box->box,
                                         box->is_filled ? box->fill : NULL);
}
