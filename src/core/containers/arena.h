/* An arena: allocate many pieces, free all of them at once. */
#ifndef CORE_CONTAINERS_ARENA_H
#define CORE_CONTAINERS_ARENA_H

#include <stddef.h>

/* A zeroed arena is empty. Each block is twice the size of the last one, up to a limit, so
 * thousands of small arenas stay small. */
typedef struct arena {
    struct arena_block *last;
    size_t used;  /* of the last block */
    size_t bytes; /* of all blocks */
} arena;

/* Allocate `bytes`, aligned for every C type. NULL, with the error set, when out of memory. */
void *arena_take(arena *from, size_t bytes);
/* Allocate `count` zeroed elements, or a copy of `bytes` bytes. */
void *arena_zeroed(arena *from, size_t count, size_t elem_bytes);
void *arena_copy(arena *from, const void *data, size_t bytes);
void arena_free(arena *all);

#endif
