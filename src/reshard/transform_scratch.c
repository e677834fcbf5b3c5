#include "reshard/transform_scratch.h"

#include <stdint.h>

#define SCRATCH_ALIGNMENT 64

void *banyan_transform_scratch_take(banyan_transform_scratch *scratch, size_t bytes)
{
    if (scratch->arena) {
        void *taken = run_memory_take(scratch->arena, bytes);
        scratch->bytes += taken ? run_memory_rounded(bytes) : 0;
        return taken;
    }
    if (bytes > SIZE_MAX - SCRATCH_ALIGNMENT || !array_reserve(&scratch->blocks, 1)) {
        error_no_memory(bytes, "a transform's scratch");
        return NULL;
    }
    size_t rounded = bytes > 0 ? run_memory_rounded(bytes) : SCRATCH_ALIGNMENT;
    void *block = aligned_alloc(SCRATCH_ALIGNMENT, rounded);
    if (!block) {
        error_no_memory(bytes, "a transform's scratch");
        return NULL;
    }
    scratch->blocks.data[scratch->blocks.count++] = block;
    scratch->bytes += rounded;
    return block;
}

void transform_scratch_release(banyan_transform_scratch *scratch)
{
    for (size_t i = 0; i < scratch->blocks.count; i++)
        free(scratch->blocks.data[i]);
    array_free(&scratch->blocks);
    scratch->bytes = 0;
}
