/* A pool that keeps each distinct string once, as long as the pool lives. Tensor names come by the
 * ten thousand, most of them twice. */
#ifndef RESHARD_LAYOUT_NAMES_H
#define RESHARD_LAYOUT_NAMES_H

#include "core/containers.h"

/* A zeroed pool is empty. */
typedef struct names {
    hash_map known;
    struct names_block *blocks;
} names;

/* Return the pool's copy of the text; equal texts share one. NULL, with the error set, when memory
 * ran out. */
const char *names_keep(names *pool, const char *text);
void names_free(names *pool);

#endif
