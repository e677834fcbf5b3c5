#include "reshard/transform/scratch.h"

#include <inttypes.h>
#include <stdint.h>

#include "core/error.h"

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

banyan_status banyan_transform_scratch_keep(banyan_transform_scratch *scratch, const char *what,
                                            uint64_t bytes)
{
    if (scratch->arena)
        return BANYAN_OK;
    if (bytes > UINT64_MAX - scratch->kept_bytes)
        return error_no_memory(SIZE_MAX, what);
    uint64_t all = scratch->kept_bytes + bytes;
    if (scratch->max_kept_bytes > 0 && all > scratch->max_kept_bytes)
        return error_set(BANYAN_ERR_INVALID,
                         "tensor %s is assembled in %" PRIu64 " bytes, %" PRIu64
                         " with other tensors: max_staging_bytes is %" PRIu64,
                         what, bytes, all, scratch->max_kept_bytes);
    scratch->kept_bytes = all;
    return BANYAN_OK;
}

void transform_scratch_release(banyan_transform_scratch *scratch)
{
    for (size_t i = 0; i < scratch->blocks.count; i++)
        free(scratch->blocks.data[i]);
    array_free(&scratch->blocks);
    scratch->bytes = 0;
}
