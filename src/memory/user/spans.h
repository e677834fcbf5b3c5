/* Possibly overlapping address ranges of one process, and a search for one that contains a range.
 */
#ifndef MEMORY_USER_SPANS_H
#define MEMORY_USER_SPANS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A treap ordered by (start, id); each node stores the furthest end below it. */
typedef struct span {
    uintptr_t start, end; /* end is one past the last byte */
    uint64_t id;
    uintptr_t furthest_end;
    uint64_t priority;
    struct span *left, *right;
} span;

/* A zeroed set is empty. */
typedef struct spans {
    span *root;
    uint64_t random;
} spans;

/* Add a range. False, with the error set, when out of memory. */
bool spans_add(spans *set, uintptr_t start, uintptr_t end, uint64_t id);
void spans_remove(spans *set, uintptr_t start, uint64_t id);

/* Return a span that contains all of [start, end); NULL when none does. O(log n). */
const span *spans_find(const spans *set, uintptr_t start, uintptr_t end);
void spans_free(spans *set);

#endif
