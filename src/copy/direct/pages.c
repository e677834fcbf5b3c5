#include "copy/direct/pages.h"

#include <unistd.h>

#include "memory/symmetric/pages.h"

banyan_status direct_pages_add(direct_pages *all, const strided_view *view, bool written)
{
    uintptr_t mask = (uintptr_t)sysconf(_SC_PAGESIZE) - 1;
    char *low;
    size_t bytes;
    strided_view_span(view, &low, &bytes);
    if (bytes == 0)
        return BANYAN_OK;
    direct_page_range range = {(uintptr_t)low & ~mask, ((uintptr_t)low + bytes + mask) & ~mask};
    bool kept = written ? array_push(&all->written, range) : array_push(&all->read, range);
    return kept ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

static int compare_ranges(const void *a, const void *b)
{
    const direct_page_range *left = a, *right = b;
    return (left->low > right->low) - (left->low < right->low);
}

static void direct_pages_prefault_range(direct_page_range *ranges, size_t count, bool written)
{
    if (count > 1)
        qsort(ranges, count, sizeof *ranges, compare_ranges);
    for (size_t first = 0, behind; first < count; first = behind) {
        uintptr_t high = ranges[first].high;
        for (behind = first + 1; behind < count && ranges[behind].low <= high; behind++)
            high = ranges[behind].high > high ? ranges[behind].high : high;
        memory_prefault((void *)ranges[first].low, high - ranges[first].low, written);
    }
}

void direct_pages_prefault(direct_pages *all)
{
    direct_pages_prefault_range(all->read.data, all->read.count, false);
    direct_pages_prefault_range(all->written.data, all->written.count, true);
    direct_pages_free(all);
}

void direct_pages_free(direct_pages *all)
{
    array_free(&all->read);
    array_free(&all->written);
}
