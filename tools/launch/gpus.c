#include "launch/gpus.h"

#include <stdio.h>

#include <banyan/memory.h>

#include "core/status.h"

banyan_status gpus_choose(const char *who, const banyan_world *world, DLDevice *device)
{
    int count = 0, rank = banyan_world_local_rank(world), ranks = banyan_world_local_size(world);
    RETURN_IF_FAILED(banyan_memory_count_gpus(&count));
    if (rank == 0 && count > 0 && count < ranks)
        fprintf(stderr, "%s: %d ranks share %d GPU%s\n", who, ranks, count, count == 1 ? "" : "s");
    *device = BANYAN_CUDA(count > 0 ? rank % count : 0);
    return BANYAN_OK;
}
