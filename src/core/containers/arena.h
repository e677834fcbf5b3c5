/* Memory that is taken piece by piece and freed all at once. */
#ifndef CORE_CONTAINERS_ARENA_H
#define CORE_CONTAINERS_ARENA_H

#include <stddef.h>

/* Zeroed is empty. Blocks grow with what is taken, so that thousands of small arenas stay small. */
typedef struct arena {
    struct arena_block *last;
    size_t used;  /* of the last block */
    size_t bytes; /* of all blocks */
} arena;

/* Aligned for any of C's types. NULL, with the error set, when memory ran out. */
void *arena_take(arena *from, size_t bytes);
void arena_free(arena *all);

#endif
