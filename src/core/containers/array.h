/* Growable arrays, `struct { T *data; size_t count, capacity; }` under any name, sorting and
 * searching. */
#ifndef CORE_CONTAINERS_ARRAY_H
#define CORE_CONTAINERS_ARRAY_H

#include <stdlib.h>

#include "core/error.h"

#define ARRAY(type)                                                                                \
    struct {                                                                                       \
        type *data;                                                                                \
        size_t count, capacity;                                                                    \
    }

/* Reserve space for `more` further elements. False, with the error set, when out of memory. */
#define array_reserve(array, more)                                                                 \
    array_grow((void **)&(array)->data, &(array)->capacity, (array)->count, (more),                \
               sizeof *(array)->data)

/* Append a value. An expression: false when out of memory. */
#define array_push(array, ...)                                                                     \
    (array_reserve((array), 1) && ((array)->data[(array)->count++] = (__VA_ARGS__), true))

#define array_free(array)                                                                          \
    do {                                                                                           \
        free((array)->data);                                                                       \
        (array)->data = NULL;                                                                      \
        (array)->count = (array)->capacity = 0;                                                    \
    } while (0)

/* Allocate zeroed elements (one for a count of 0), for free(); `what` names them in the message.
 * NULL, with the error set, when out of memory. */
void *alloc_zeroed(size_t count, size_t elem_bytes, const char *what) __attribute__((malloc));

/* Compare two values, for qsort. */
#define COMPARE(a, b) (((a) > (b)) - ((a) < (b)))

/* Return from a comparison function if two values differ. */
#define RETURN_IF_UNEQUAL(a, b)                                                                    \
    do {                                                                                           \
        if ((a) != (b))                                                                            \
            return (a) < (b) ? -1 : 1;                                                             \
    } while (0)

/* Find by bisection the first `index` of [first, end), or `end`, at which `before`, an expression
 * of `index`, is false. It is true at all indices below that one. */
#define BISECT(index, first, end, before)                                                          \
    ({                                                                                             \
        size_t low_ = (first), high_ = (end);                                                      \
        while (low_ < high_) {                                                                     \
            size_t index = low_ + (high_ - low_) / 2;                                              \
            if (before)                                                                            \
                low_ = index + 1;                                                                  \
            else                                                                                   \
                high_ = index;                                                                     \
        }                                                                                          \
        low_;                                                                                      \
    })

/* Sort, also an empty array, by a comparison function of qsort. */
#define array_sort(array, compare)                                                                 \
    sort_elements((array)->data, (array)->count, sizeof *(array)->data, (compare))

void sort_elements(void *data, size_t count, size_t elem_bytes,
                   int (*compare)(const void *, const void *));
bool array_grow(void **data, size_t *capacity, size_t count, size_t more, size_t elem_bytes);

#endif
