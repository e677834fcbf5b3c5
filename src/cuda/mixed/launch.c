/* Launches of kernels, and the thread blocks that run at once. */
#include <stdatomic.h>

#include "cuda/mixed/engine.h"

static atomic_int open_engines[DRIVER_DEVICES_MAX];

void mixed_count(const cuda_mixed *engine, int more)
{
    atomic_fetch_add(&open_engines[engine->device], more);
}

/* All thread blocks of all ranks that share a device must run at once. */
uint32_t mixed_blocks_at_once(const cuda_mixed *engine, mixed_kernel kernel, uint32_t threads)
{
    int engines = atomic_load(&open_engines[engine->device]);
    uint32_t each = engine->room[kernel] / threads;
    uint32_t blocks =
        (each > 0 ? each : 1) * engine->processors / (uint32_t)(engines > 1 ? engines : 1);
    return blocks > 0 ? blocks : 1;
}

/* Two launches that overlap must run at once. On a device of several engines none begins early:
 * the previous launch may use its engine's full share, and another engine, for which it waits,
 * would lack the space that this launch takes. */
mixed_shape mixed_shape_of(const cuda_mixed *engine, mixed_kernel kernel, uint32_t blocks,
                           uint32_t threads)
{
    uint32_t at_once = mixed_blocks_at_once(engine, kernel, threads);
    bool is_alone = atomic_load(&open_engines[engine->device]) <= 1;
    return (mixed_shape){blocks, threads,
                         engine->launches_early && is_alone && 2 * blocks <= at_once};
}

banyan_status mixed_take_kernel(cuda_mixed *engine, mixed_kernel kernel, CUfunction function)
{
    int blocks = 0;
    engine->kernels[kernel] = function;
    RETURN_IF_FAILED(DRIVER(engine->device, cuOccupancyMaxActiveBlocksPerMultiprocessor, &blocks,
                            function, (int)engine->least_threads, 0));
    engine->room[kernel] = (uint32_t)blocks * engine->least_threads;
    return BANYAN_OK;
}

banyan_status mixed_launch(const cuda_mixed *engine, mixed_kernel kernel, mixed_shape by,
                           void *args, CUstream stream)
{
    void *params[] = {args};
    CUlaunchAttribute early = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                               .value = {.programmaticStreamSerializationAllowed = 1}};
    CUlaunchConfig config = {
        .gridDimX = by.blocks,
        .gridDimY = 1,
        .gridDimZ = 1,
        .blockDimX = by.threads,
        .blockDimY = 1,
        .blockDimZ = 1,
        .hStream = stream,
        .attrs = &early,
        .numAttrs = by.early,
    };
    return DRIVER(engine->device, cuLaunchKernelEx, &config, engine->kernels[kernel], params, NULL);
}
