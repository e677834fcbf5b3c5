/* Chunks of a buffer that were read or written: disjoint intervals, in order. */
#ifndef PROGRAM_COMPILE_INTERVAL_H
#define PROGRAM_COMPILE_INTERVAL_H

#include "core/containers.h"

typedef struct interval {
    uint64_t start, stop; /* start < stop */
    bool written;         /* else only read */
} interval;

/* A zeroed map is empty. */
typedef ARRAY(interval) interval_map;

/* True if reading, or writing, [start, stop) depends on an access in the map. Reads do not depend
 * on reads. */
bool interval_map_conflicts(const interval_map *map, uint64_t start, uint64_t stop, bool write);
/* Record [start, stop) as read, or written. A written range stays written. False: out of memory. */
bool interval_map_add(interval_map *map, uint64_t start, uint64_t stop, bool written);
void interval_map_clear(interval_map *map);
void interval_map_free(interval_map *map);

#endif
