/* Launches of kernels, and the thread blocks that run at once. */
#include "cuda/mixed/engine.h"

static uint32_t kernel_room(const cuda_mixed *engine, mixed_kernel kernel, uint32_t threads)
{
    uint32_t each = engine->room[kernel] / threads;
    return (each > 0 ? each : 1) * engine->processors;
}

/* All thread blocks of all ranks that share a device must run at once. */
uint32_t mixed_blocks_at_once(const cuda_mixed *engine, mixed_kernel kernel, uint32_t threads)
{
    uint32_t engines = launch_engines(LAUNCH_MIXED, engine->device);
    uint32_t blocks = kernel_room(engine, kernel, threads) / (engines > 1 ? engines : 1);
    return blocks > 0 ? blocks : 1;
}

launch_shape mixed_shape_of(const cuda_mixed *engine, mixed_kernel kernel, uint32_t blocks,
                            uint32_t threads)
{
    uint32_t room = kernel_room(engine, kernel, threads);
    return (launch_shape){.blocks = blocks,
                          .threads = threads,
                          .early = launch_is_early(LAUNCH_MIXED, engine->device, blocks, room)};
}

banyan_status mixed_take_kernel(cuda_mixed *engine, mixed_kernel kernel, CUfunction function)
{
    uint32_t blocks = 0;
    engine->kernels[kernel] = function;
    RETURN_IF_FAILED(launch_room(engine->device, function, engine->least_threads, 0, &blocks));
    engine->room[kernel] = blocks / engine->processors * engine->least_threads;
    return BANYAN_OK;
}
