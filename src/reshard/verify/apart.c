#include "reshard/verify/apart.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "copy/strided/strided.h"
#include "core/containers.h"
#include "core/error.h"
#include "reshard/layout/box.h"
#include "reshard/layout/fill.h"
#include "reshard/layout/layout.h"
#include "reshard/verify/run.h"

/* Memory from `low` to below `high` that a run fills. */
typedef struct filled {
    const char *low, *high;
    size_t tensor;
    const banyan_piece *piece; /* NULL: a whole tensor, or padding */
    const char *name;          /* of the piece's global tensor */
    strided_view view;
} filled;

typedef struct filled_list {
    const banyan_layout *layout;
    bool *is_shared; /* per tensor: it shares memory with another one */
    ARRAY(filled) list;
} filled_list;

static banyan_status add_filled(filled_list *all, const strided_view *view, size_t tensor,
                                const banyan_piece *piece, const char *name)
{
    char *low;
    size_t bytes;
    strided_view_span(view, &low, &bytes);
    filled added = {low, low + bytes, tensor, piece, name, *view};
    return bytes == 0 || array_push(&all->list, added) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

static int compare_low(const void *left, const void *right)
{
    const filled *a = left, *b = right;
    return COMPARE(a->low, b->low);
}

static banyan_status note_shared(filled_list *all, const filled *a, const filled *b)
{
    all->is_shared[a->tensor] = all->is_shared[b->tensor] = true;
    return BANYAN_OK;
}

/* True if both are filled with the same elements, in one place. */
static bool apart_is_tied(const filled *a, const filled *b)
{
    if (!a->piece || !b->piece || strcmp(a->name, b->name) != 0 ||
        a->piece->flags != b->piece->flags || a->piece->ndim != b->piece->ndim ||
        a->view.data != b->view.data || a->view.ndim != b->view.ndim ||
        a->view.elem_bytes != b->view.elem_bytes)
        return false;
    for (int d = 0; d < a->piece->ndim; d++)
        if (a->piece->box.start[d] != b->piece->box.start[d] ||
            a->piece->box.extent[d] != b->piece->box.extent[d])
            return false;
    for (int d = 0; d < a->view.ndim; d++)
        if (a->view.extent[d] != b->view.extent[d] || a->view.stride[d] != b->view.stride[d])
            return false;
    return true;
}

static const char *filled_with(const filled *one, char *text, size_t bytes)
{
    char box[BOX_TEXT_BYTES];
    if (!one->piece)
        return "padding";
    snprintf(text, bytes, "%s of \"%.200s\"", banyan_box_format(&one->piece->box, box, sizeof box),
             one->name);
    return text;
}

static banyan_status fail_shared(filled_list *all, const filled *a, const filled *b)
{
    char first[BOX_TEXT_BYTES + 256], second[BOX_TEXT_BYTES + 256];
    if (apart_is_tied(a, b) || !check_views_overlap(&a->view, &b->view))
        return BANYAN_OK;
    return error_set(BANYAN_ERR_INVALID,
                     "destination tensors \"%s\" and \"%s\" share memory, from %p to %p: it would "
                     "be filled with %s and with %s",
                     banyan_layout_tensor(all->layout, a->tensor)->name,
                     banyan_layout_tensor(all->layout, b->tensor)->name,
                     (const void *)(a->low > b->low ? a->low : b->low),
                     (const void *)(a->high < b->high ? a->high : b->high),
                     filled_with(a, first, sizeof first), filled_with(b, second, sizeof second));
}

/* Call `report` for spans of two tensors that overlap. */
static banyan_status each_shared(filled_list *all,
                                 banyan_status (*report)(filled_list *all, const filled *a,
                                                         const filled *b))
{
    size_t count = all->list.count, open_count = 0;
    if (count < 2)
        return BANYAN_OK;
    qsort(all->list.data, count, sizeof *all->list.data, compare_low);
    const filled **open = alloc_zeroed(count, sizeof *open, "the check of a destination");
    RETURN_IF_NO_MEMORY(open);
    banyan_status status = BANYAN_OK;
    for (size_t i = 0; i < count && status == BANYAN_OK; i++) {
        const filled *one = &all->list.data[i];
        size_t kept = 0;
        for (size_t k = 0; k < open_count && status == BANYAN_OK; k++) {
            if (open[k]->high <= one->low)
                continue;
            open[kept++] = open[k];
            if (open[k]->tensor != one->tensor)
                status = report(all, open[k], one);
        }
        open[kept++] = one;
        open_count = kept;
    }
    free(open);
    return status;
}

/* A tensor without a view can only be filled by a transform. */
static banyan_status add_whole(filled_list *all, const banyan_tensors *set)
{
    for (size_t i = 0; i < banyan_tensors_count(set); i++) {
        strided_view view;
        if (strided_view_anywhere(banyan_tensors_get(set, i), &view) == BANYAN_OK)
            RETURN_IF_FAILED(add_filled(all, &view, i, NULL, NULL));
    }
    return BANYAN_OK;
}

static banyan_status add_parts(filled_list *all, const banyan_tensors *set,
                               const char *const *filling)
{
    const banyan_layout *layout = all->layout;
    strided_view view;
    for (size_t i = 0; i < banyan_layout_piece_count(layout); i++) {
        const banyan_piece *piece = banyan_layout_piece(layout, i);
        int64_t shape[BANYAN_MAX_DIMS], strides[BANYAN_MAX_DIMS];
        DLTensor part;
        if (!filling[i] || !all->is_shared[piece->tensor])
            continue;
        piece_view(piece, &piece->box, banyan_tensors_get(set, (size_t)piece->tensor), shape,
                   strides, &part);
        RETURN_IF_FAILED(strided_view_anywhere(&part, &view));
        RETURN_IF_FAILED(add_filled(all, &view, (size_t)piece->tensor, piece, filling[i]));
    }
    for (size_t i = 0; i < banyan_layout_padding_count(layout); i++) {
        int tensor;
        const banyan_box *box = banyan_layout_padding(layout, i, &tensor);
        if (!all->is_shared[tensor])
            continue;
        RETURN_IF_FAILED(padding_view(banyan_tensors_get(set, (size_t)tensor), box, false, &view));
        RETURN_IF_FAILED(add_filled(all, &view, (size_t)tensor, NULL, NULL));
    }
    return BANYAN_OK;
}

banyan_status check_tensors_apart(const banyan_layout *layout, const banyan_tensors *set,
                                  const char *const *filling)
{
    filled_list all = {.layout = layout};
    bool any = false;
    if (!set)
        return BANYAN_OK;
    RETURN_IF_NO_MEMORY(all.is_shared =
                            alloc_zeroed(banyan_tensors_count(set) + 1, sizeof *all.is_shared,
                                         "the check of a destination"));
    banyan_status status = add_whole(&all, set);
    if (status == BANYAN_OK)
        status = each_shared(&all, note_shared);
    for (size_t i = 0; i < banyan_tensors_count(set); i++)
        any |= all.is_shared[i];
    all.list.count = 0;
    if (status == BANYAN_OK && any)
        status = add_parts(&all, set, filling);
    if (status == BANYAN_OK && any)
        status = each_shared(&all, fail_shared);
    array_free(&all.list);
    free(all.is_shared);
    return status;
}
