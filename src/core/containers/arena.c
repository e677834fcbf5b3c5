#include "core/containers/arena.h"

#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

#define FIRST_BLOCK_BYTES 512
#define LARGEST_BLOCK_BYTES ((size_t)1 << 20)

struct arena_block {
    struct arena_block *before;
    size_t bytes; /* of data */
    alignas(max_align_t) unsigned char data[];
};

static bool arena_add_block(arena *to, size_t least)
{
    size_t bytes = to->last ? to->last->bytes * 2 : FIRST_BLOCK_BYTES;
    if (bytes > LARGEST_BLOCK_BYTES)
        bytes = LARGEST_BLOCK_BYTES;
    if (bytes < least)
        bytes = least;
    struct arena_block *block = malloc(sizeof *block + bytes);
    if (!block)
        return false;
    block->before = to->last;
    block->bytes = bytes;
    to->last = block;
    to->used = 0;
    to->bytes += sizeof *block + bytes;
    return true;
}

void *arena_take(arena *from, size_t bytes)
{
    size_t rounded = (bytes + alignof(max_align_t) - 1) & ~(alignof(max_align_t) - 1);
    bool fits = from->last && rounded <= from->last->bytes - from->used;
    if (rounded < bytes || rounded > SIZE_MAX / 2 || (!fits && !arena_add_block(from, rounded))) {
        error_no_memory(bytes, "an arena");
        return NULL;
    }
    void *taken = from->last->data + from->used;
    from->used += rounded;
    return taken;
}

void *arena_zeroed(arena *from, size_t count, size_t elem_bytes)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, elem_bytes, &bytes))
        bytes = SIZE_MAX;
    void *taken = arena_take(from, bytes);
    return taken ? memset(taken, 0, bytes) : NULL;
}

void *arena_copy(arena *from, const void *data, size_t bytes)
{
    void *taken = arena_take(from, bytes);
    return taken && bytes > 0 ? memcpy(taken, data, bytes) : taken;
}

void arena_free(arena *all)
{
    while (all->last) {
        struct arena_block *before = all->last->before;
        free(all->last);
        all->last = before;
    }
    *all = (arena){0};
}
