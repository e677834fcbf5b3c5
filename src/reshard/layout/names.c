#include "reshard/layout/names.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"

/* Block sizes double up to the larger size. */
#define FIRST_BLOCK_BYTES 512
#define MAX_BLOCK_BYTES (64 * 1024)

struct names_block {
    struct names_block *next;
    size_t used, bytes;
    char text[];
};

static char *layout_names_take(names *pool, size_t bytes)
{
    struct names_block *block = pool->blocks;
    if (!block || block->bytes - block->used < bytes) {
        size_t block_bytes = block ? 2 * block->bytes : FIRST_BLOCK_BYTES;
        if (block_bytes > MAX_BLOCK_BYTES)
            block_bytes = MAX_BLOCK_BYTES;
        if (block_bytes < bytes)
            block_bytes = bytes;
        block = malloc(sizeof *block + block_bytes);
        if (!block) {
            error_no_memory(block_bytes, "names");
            return NULL;
        }
        block->next = pool->blocks;
        block->used = 0;
        block->bytes = block_bytes;
        pool->blocks = block;
    }
    char *text = block->text + block->used;
    block->used += bytes;
    return text;
}

const char *names_keep(names *pool, const char *text)
{
    size_t bytes = strlen(text);
    uint64_t known;
    if (map_get(&pool->known, text, bytes, &known))
        return (const char *)(uintptr_t)known;
    char *copy = layout_names_take(pool, bytes + 1);
    if (!copy)
        return NULL;
    memcpy(copy, text, bytes + 1);
    return map_put(&pool->known, copy, bytes, (uintptr_t)copy) ? copy : NULL;
}

void names_free(names *pool)
{
    map_free(&pool->known);
    while (pool->blocks) {
        struct names_block *next = pool->blocks->next;
        free(pool->blocks);
        pool->blocks = next;
    }
}
