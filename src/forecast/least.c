#include "forecast/least.h"

static void forget_node(least_network *least)
{
    for (size_t i = 0; i < least->tensors.count; i++) {
        array_free(&least->tensors.data[i].needed);
        array_free(&least->tensors.data[i].held);
    }
    least->tensors.count = 0;
    map_free(&least->index);
    arena_free(&least->names);
}

void least_network_free(least_network *least)
{
    forget_node(least);
    array_free(&least->tensors);
}

/* Count what the node needs and does not hold. */
static banyan_status end_node(least_network *least)
{
    for (size_t i = 0; i < least->tensors.count; i++) {
        least_tensor *tensor = &least->tensors.data[i];
        for (size_t h = 0; h < tensor->held.count && tensor->needed.count > 0; h++)
            RETURN_IF_NO_MEMORY(planner_boxes_subtract(&tensor->needed, &tensor->held.data[h]));
        for (size_t n = 0; n < tensor->needed.count; n++)
            least->bytes += banyan_box_elems(&tensor->needed.data[n]) * tensor->elem_bytes;
    }
    forget_node(least);
    return BANYAN_OK;
}

static least_tensor *tensor_of(least_network *least, const char *name)
{
    uint64_t known;
    size_t bytes = strlen(name) + 1;
    if (map_get(&least->index, name, bytes, &known))
        return &least->tensors.data[known];
    if (!map_put_copy(&least->index, &least->names, name, bytes, least->tensors.count) ||
        !array_push(&least->tensors, (least_tensor){0}))
        return NULL;
    return &least->tensors.data[least->tensors.count - 1];
}

static bool is_counted(const planner_boxes *boxes, const banyan_box *box)
{
    for (size_t i = 0; i < boxes->count; i++)
        if (banyan_box_equal(&boxes->data[i], box))
            return true;
    return false;
}

/* Append the box without what is listed. */
static banyan_status add_disjoint(planner_boxes *boxes, const banyan_box *box)
{
    planner_boxes rest = {0};
    if (is_counted(boxes, box))
        return BANYAN_OK;
    bool ok = array_push(&rest, *box);
    for (size_t i = 0; i < boxes->count && ok; i++)
        ok = planner_boxes_subtract(&rest, &boxes->data[i]);
    for (size_t i = 0; i < rest.count && ok; i++)
        ok = array_push(boxes, rest.data[i]);
    array_free(&rest);
    return ok ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

static banyan_status add_layouts(least_network *least, const banyan_layout *source,
                                 const banyan_layout *destination, const planner_result *result)
{
    for (size_t p = 0; p < banyan_layout_piece_count(source); p++) {
        const banyan_piece *piece = banyan_layout_piece(source, p);
        least_tensor *tensor = tensor_of(least, piece->name);
        RETURN_IF_NO_MEMORY(tensor);
        if (!is_counted(&tensor->held, &piece->box))
            RETURN_IF_NO_MEMORY(array_push(&tensor->held, piece->box));
    }
    for (size_t p = 0; p < banyan_layout_piece_count(destination); p++) {
        const banyan_piece *piece = banyan_layout_piece(destination, p);
        least_tensor *tensor = tensor_of(least, result->destination_names[p]);
        RETURN_IF_NO_MEMORY(tensor);
        tensor->elem_bytes = banyan_dtype_bytes(result->destination_dtypes[piece->tensor]);
        RETURN_IF_FAILED(add_disjoint(&tensor->needed, &piece->box));
    }
    return BANYAN_OK;
}

banyan_status least_network_add(least_network *least, const banyan_reshard_sample_world *world,
                                int rank, const planner_result *result)
{
    int node = rank / world->ranks_per_node;
    if (node != least->node)
        RETURN_IF_FAILED(end_node(least));
    least->node = node;
    banyan_layout *source = NULL, *destination = NULL;
    banyan_status status = banyan_layout_create(&source);
    if (status == BANYAN_OK)
        status = banyan_layout_create(&destination);
    if (status == BANYAN_OK)
        status = world->layouts(world->context, rank, source, destination);
    if (status == BANYAN_OK)
        status = add_layouts(least, source, destination, result);
    banyan_layout_destroy(source);
    banyan_layout_destroy(destination);
    return status;
}

banyan_status least_network_finish(least_network *least, uint64_t *bytes)
{
    RETURN_IF_FAILED(end_node(least));
    *bytes = least->bytes;
    return BANYAN_OK;
}
