#include "publish/staged.h"

#include "publish/delta/stream.h"

void staged_free(struct staged *staged)
{
    if (!staged)
        return;
    for (size_t i = 0; i < staged->memory.count; i++)
        free(staged->memory.data[i]);
    array_free(&staged->memory);
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

/* Parts may share memory (tied weights), so they are undone in reverse order. */
void staged_swap(const struct staged *staged, bool back)
{
    size_t count = staged->parts.count;
    for (size_t i = 0; i < count; i++) {
        const struct staged_part *part = &staged->parts.data[back ? count - 1 - i : i];
        delta_swap(&part->box, part->first, part->count, part->stream);
    }
}

static void swap_back(const struct staged *staged)
{
    if (!staged)
        return;
    swap_back(staged->next);
    staged_swap(staged, true);
}

void staged_list_swap(const struct staged_list *list, bool back)
{
    if (back) {
        swap_back(list->first);
        return;
    }
    for (const struct staged *one = list->first; one; one = one->next)
        staged_swap(one, false);
}
