#include <stdlib.h>
#include <string.h>

#include "reshard/planner/plan.h"

static banyan_status copy_tensors(const banyan_layout *layout, const DLDataType *dtypes,
                                  names *pool, plan_holding *holding)
{
    size_t count = banyan_layout_tensor_count(layout);
    holding->tensors = calloc(count + 1, sizeof *holding->tensors);
    if (!holding->tensors)
        return error_no_memory(count * sizeof *holding->tensors, "a plan's tensors");
    holding->tensor_count = count;
    for (size_t i = 0; i < count; i++) {
        holding->tensors[i] = *banyan_layout_tensor(layout, i);
        holding->tensors[i].name = names_keep(pool, holding->tensors[i].name);
        if (!holding->tensors[i].name)
            return BANYAN_ERR_NO_MEMORY;
        if (dtypes)
            holding->tensors[i].dtype = dtypes[i];
    }
    return BANYAN_OK;
}

static banyan_status copy_pieces(const banyan_layout *layout, names *pool, plan_holding *holding)
{
    size_t count = banyan_layout_piece_count(layout);
    holding->pieces = calloc(count + 1, sizeof *holding->pieces);
    if (!holding->pieces)
        return error_no_memory(count * sizeof *holding->pieces, "a plan's pieces");
    holding->piece_count = count;
    for (size_t i = 0; i < count; i++) {
        holding->pieces[i] = *banyan_layout_piece(layout, i);
        banyan_piece *piece = &holding->pieces[i];
        piece->name = names_keep(pool, piece->name);
        if (!piece->name)
            return BANYAN_ERR_NO_MEMORY;
        if (!piece->fallback_name)
            continue;
        piece->fallback_name = names_keep(pool, piece->fallback_name);
        if (!piece->fallback_name)
            return BANYAN_ERR_NO_MEMORY;
    }
    return BANYAN_OK;
}

static banyan_status copy_paddings(const banyan_layout *layout, plan_holding *holding)
{
    size_t count = banyan_layout_padding_count(layout);
    holding->paddings = calloc(count + 1, sizeof *holding->paddings);
    if (!holding->paddings)
        return error_no_memory(count * sizeof *holding->paddings, "a plan's padding");
    holding->padding_count = count;
    for (size_t i = 0; i < count; i++) {
        plan_padding *padding = &holding->paddings[i];
        padding->box = *banyan_layout_padding(layout, i, &padding->tensor);
        const void *fill = banyan_layout_padding_fill(layout, i);
        DLDataType dtype = banyan_layout_tensor(layout, (size_t)padding->tensor)->dtype;
        padding->is_filled = fill != NULL;
        if (fill && !banyan_dtype_equal(dtype, holding->tensors[padding->tensor].dtype))
            return error_set(
                BANYAN_ERR_INVALID,
                "local tensor \"%s\" takes the type of its source, %s, and has padding "
                "that is filled with a value of %s",
                holding->tensors[padding->tensor].name,
                banyan_dtype_name(holding->tensors[padding->tensor].dtype),
                banyan_dtype_name(dtype));
        if (fill)
            memcpy(padding->fill, fill, banyan_dtype_bytes(dtype));
    }
    return BANYAN_OK;
}

static banyan_status copy_left_alone(const banyan_layout *layout, plan_holding *holding)
{
    size_t count = banyan_layout_left_alone_count(layout);
    holding->left_alone = calloc(count + 1, sizeof *holding->left_alone);
    if (!holding->left_alone)
        return error_no_memory(count * sizeof *holding->left_alone, "a plan's tensors");
    holding->left_alone_count = count;
    for (size_t i = 0; i < count; i++)
        banyan_layout_left_alone(layout, i, &holding->left_alone[i]);
    return BANYAN_OK;
}

banyan_status plan_holding_copy(const banyan_layout *layout, const DLDataType *dtypes, names *pool,
                                plan_holding *holding)
{
    plan_holding copied = {0};
    banyan_status status = BANYAN_OK;
    if (layout) {
        status = copy_tensors(layout, dtypes, pool, &copied);
        if (status == BANYAN_OK)
            status = copy_pieces(layout, pool, &copied);
        if (status == BANYAN_OK)
            status = copy_paddings(layout, &copied);
        if (status == BANYAN_OK)
            status = copy_left_alone(layout, &copied);
    }
    if (status != BANYAN_OK) {
        plan_holding_free(&copied);
        return status;
    }
    *holding = copied;
    return BANYAN_OK;
}

void plan_holding_free(plan_holding *holding)
{
    free(holding->tensors);
    free(holding->pieces);
    free(holding->paddings);
    free(holding->left_alone);
    *holding = (plan_holding){0};
}
