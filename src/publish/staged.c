#include "publish/staged.h"

static void free_host_memory(struct staged *staged)
{
    for (size_t i = 0; i < staged->memory.count; i++)
        free(staged->memory.data[i]);
    array_free(&staged->memory);
}

void staged_free(struct staged *staged)
{
    if (!staged)
        return;
    const struct publish_device *device = staged->device;
    if (staged->exchange)
        device->delta->unstage(device->engine, staged->exchange);
    for (size_t i = 0; i < staged->there.count; i++)
        device->memory->free(device->id, staged->there.data[i]);
    free_host_memory(staged);
    array_free(&staged->there);
    array_free(&staged->ends);
    array_free(&staged->layers);
    array_free(&staged->parts);
    free(staged);
}

void staged_append(struct staged_list *list, struct staged *staged)
{
    staged->next = NULL;
    if (list->last)
        list->last->next = staged;
    else
        list->first = staged;
    list->last = staged;
    list->bytes += staged->bytes;
}

struct staged_list staged_take(struct staged_list *list, uint64_t last_number)
{
    struct staged_list taken = {0};
    while (list->first && list->first->number <= last_number) {
        struct staged *one = list->first;
        list->first = one->next;
        list->bytes -= one->bytes;
        staged_append(&taken, one);
    }
    if (!list->first)
        list->last = NULL;
    return taken;
}

void staged_list_move(struct staged_list *to, struct staged_list *from)
{
    while (from->first) {
        struct staged *one = from->first;
        from->first = one->next;
        staged_append(to, one);
    }
    *from = (struct staged_list){0};
}

void staged_drop_above(struct staged_list *list, uint64_t last_number)
{
    struct staged_list rest = *list;
    *list = staged_take(&rest, last_number);
    staged_list_free(&rest);
}

void staged_list_free(struct staged_list *list)
{
    while (list->first) {
        struct staged *one = list->first;
        list->first = one->next;
        staged_free(one);
    }
    *list = (struct staged_list){0};
}

/* ---- exchange on a device ---- */

struct staged_span {
    char *low;
    size_t bytes, tensor;
};

static int staged_compare_spans(const void *a, const void *b)
{
    const struct staged_span *x = a, *y = b;
    RETURN_IF_UNEQUAL(x->low, y->low);
    return COMPARE(x->tensor, y->tensor);
}

banyan_status staged_layers(const banyan_tensors *tensors, uint32_t **layers)
{
    size_t count = tensors ? banyan_tensors_count(tensors) : 0;
    struct staged_span *spans = alloc_zeroed(count, sizeof *spans, "a list of tensors");
    uint32_t *made = alloc_zeroed(count, sizeof *made, "a list of tensors");
    banyan_status status = spans && made ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
    for (size_t i = 0; i < count && status == BANYAN_OK; i++) {
        strided_view view;
        status = strided_view_anywhere(banyan_tensors_get(tensors, i), &view);
        spans[i].tensor = i;
        if (status == BANYAN_OK)
            strided_view_span(&view, &spans[i].low, &spans[i].bytes);
    }
    if (status == BANYAN_OK) {
        sort_elements(spans, count, sizeof *spans, staged_compare_spans);
        const char *end = NULL; /* of those that overlap, which are numbered in turn */
        uint32_t next = 0;
        for (size_t i = 0; i < count; i++) {
            next = i > 0 && spans[i].low < end ? next + 1 : 0;
            made[spans[i].tensor] = next;
            if (next == 0 || spans[i].low + spans[i].bytes > end)
                end = spans[i].low + spans[i].bytes;
        }
        *layers = made;
    } else {
        free(made);
    }
    free(spans);
    return status;
}

static int compare_layers(const void *a, const void *b)
{
    const struct staged_part *x = a, *y = b;
    return COMPARE(x->layer, y->layer);
}

static banyan_status note_layers(struct staged *staged)
{
    array_sort(&staged->parts, compare_layers);
    for (size_t i = 0; i < staged->parts.count; i++) {
        const struct staged_part *part = &staged->parts.data[i];
        if (i == 0 || part->layer != part[-1].layer)
            RETURN_IF_NO_MEMORY(array_push(&staged->layers, i));
    }
    return array_push(&staged->layers, staged->parts.count) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

banyan_status staged_finish(struct staged *staged, const strided_view *boxes, size_t count)
{
    const struct publish_device *device = staged->device;
    if (publish_device_is_host(device) || staged->parts.count == 0)
        return BANYAN_OK;
    RETURN_IF_FAILED(note_layers(staged));
    struct delta_part *parts =
        alloc_zeroed(staged->parts.count, sizeof *parts, "the parts of a version");
    RETURN_IF_NO_MEMORY(parts);
    for (size_t i = 0; i < staged->parts.count; i++) {
        const struct staged_part *part = &staged->parts.data[i];
        parts[i] = (struct delta_part){.box = part->number,
                                       .first = part->first,
                                       .count = part->count,
                                       .stream = part->there,
                                       .ends = staged->ends.data + part->first_end};
    }
    banyan_status status = device->delta->stage(device->engine, boxes, count, parts,
                                                staged->parts.count, &staged->exchange);
    free(parts);
    free_host_memory(staged);
    array_free(&staged->parts);
    array_free(&staged->ends);
    return status;
}

static banyan_status swap_on_device(const struct staged *staged, ptrdiff_t shift, bool back,
                                    bool background)
{
    const struct publish_device *device = staged->device;
    size_t count = staged->layers.count > 0 ? staged->layers.count - 1 : 0;
    for (size_t i = 0; i < count; i++) {
        size_t layer = back ? count - 1 - i : i;
        size_t first = staged->layers.data[layer], end = staged->layers.data[layer + 1];
        RETURN_IF_FAILED(device->delta->swap(staged->exchange, first, end - first, shift,
                                             background, device->stream));
    }
    return BANYAN_OK;
}

/* ---- exchange ---- */

/* Parts may share memory (tied weights), so they are undone in reverse order. */
banyan_status staged_swap(const struct staged *staged, ptrdiff_t shift, bool back, bool background)
{
    size_t count = staged->parts.count;
    if (!publish_device_is_host(staged->device))
        return swap_on_device(staged, shift, back, background);
    for (size_t i = 0; i < count; i++) {
        const struct staged_part *part = &staged->parts.data[back ? count - 1 - i : i];
        delta_swap(&part->box, part->first, part->count, part->stream);
    }
    return BANYAN_OK;
}

static banyan_status swap_back(const struct staged *staged)
{
    if (!staged)
        return BANYAN_OK;
    RETURN_IF_FAILED(swap_back(staged->next));
    return staged_swap(staged, 0, true, false);
}

banyan_status staged_list_swap(const struct staged_list *list, bool back)
{
    if (!list->first)
        return BANYAN_OK;
    const struct publish_device *device = list->first->device;
    if (back)
        RETURN_IF_FAILED(swap_back(list->first));
    for (const struct staged *one = list->first; one && !back; one = one->next)
        RETURN_IF_FAILED(staged_swap(one, 0, false, false));
    return publish_device_ready(device);
}
