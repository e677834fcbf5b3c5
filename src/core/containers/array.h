/* Growable arrays: `struct { T *data; size_t count, capacity; }` under any name. */
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

bool array_grow(void **data, size_t *capacity, size_t count, size_t more, size_t elem_bytes);

#endif
