#include "core/containers/array.h"

bool array_grow(void **data, size_t *capacity, size_t count, size_t more, size_t elem_bytes)
{
    if (more <= *capacity - count)
        return true;
    size_t wanted = *capacity < 8 ? 8 : *capacity + *capacity / 2;
    if (wanted < count + more)
        wanted = count + more;
    void *grown = wanted > SIZE_MAX / elem_bytes ? NULL : realloc(*data, wanted * elem_bytes);
    if (!grown) {
        error_no_memory(wanted * elem_bytes, "an array");
        return false;
    }
    *data = grown;
    *capacity = wanted;
    return true;
}

void *alloc_zeroed(size_t count, size_t elem_bytes, const char *what)
{
    void *made = calloc(count > 0 ? count : 1, elem_bytes);
    if (!made)
        error_no_memory(count * elem_bytes, what);
    return made;
}

void sort_elements(void *data, size_t count, size_t elem_bytes,
                   int (*compare)(const void *, const void *))
{
    if (count > 1)
        qsort(data, count, elem_bytes, compare);
}
