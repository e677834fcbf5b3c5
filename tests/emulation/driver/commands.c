/* The work in the emulated driver's streams: copies, values and kernels. */
#include <stdlib.h>
#include <string.h>

#include "streams.h"

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return stream_push(stream, &(work){.kind = WORK_COPY,
                                       .to = (char *)(uintptr_t)to,
                                       .from = (const char *)(uintptr_t)from,
                                       .bytes = bytes,
                                       .rows = 1});
}

CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D *copy, CUstream stream)
{
    const char *from = copy->srcMemoryType == CU_MEMORYTYPE_HOST
                           ? copy->srcHost
                           : (const char *)(uintptr_t)copy->srcDevice;
    char *to = copy->dstMemoryType == CU_MEMORYTYPE_HOST ? copy->dstHost
                                                         : (char *)(uintptr_t)copy->dstDevice;
    return stream_push(stream,
                       &(work){.kind = WORK_COPY,
                               .to = to + copy->dstY * copy->dstPitch + copy->dstXInBytes,
                               .from = from + copy->srcY * copy->srcPitch + copy->srcXInBytes,
                               .bytes = copy->WidthInBytes,
                               .rows = copy->Height,
                               .to_pitch = copy->dstPitch,
                               .from_pitch = copy->srcPitch});
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream)
{
    return stream_push(
        stream,
        &(work){.kind = WORK_FILL, .to = (char *)(uintptr_t)to, .value = value, .bytes = bytes});
}

CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t value,
                              unsigned flags)
{
    (void)flags;
    if (!emulated_takes_values(address))
        return CUDA_ERROR_INVALID_VALUE;
    return stream_push(
        stream, &(work){.kind = WORK_WRITE, .to = (char *)(uintptr_t)address, .value = value});
}

CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags)
{
    if (!emulated_takes_values(address))
        return CUDA_ERROR_INVALID_VALUE;
    return stream_push(stream, &(work){.kind = WORK_WAIT_VALUE,
                                       .to = (char *)(uintptr_t)address,
                                       .value = value,
                                       .flags = flags});
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction kernel)
{
    (void)kernel;
    *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? EMULATED_THREADS_MAX
             : attribute == CU_FUNC_ATTRIBUTE_NUM_REGS            ? 64
                                                                  : 227 << 10;
    return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction kernel, CUfunction_attribute attribute, int value)
{
    (void)kernel, (void)attribute;
    return value <= 227 << 10 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction kernel, int threads,
                                                     size_t shared_bytes)
{
    (void)kernel;
    *blocks = threads > EMULATED_THREADS_MAX || shared_bytes > 227 << 10
                  ? 0
                  : EMULATED_BLOCKS_A_MULTIPROCESSOR;
    return CUDA_SUCCESS;
}

static CUresult launch(CUstream stream, CUfunction kernel, fiber_index grid, fiber_index block,
                       unsigned shared_bytes, bool early, void **params)
{
    if (block.x * block.y * block.z > EMULATED_THREADS_MAX || grid.x * grid.y * grid.z == 0)
        return CUDA_ERROR_INVALID_VALUE;
    void *argument = aligned_alloc(64, (kernel->args_bytes + 63) / 64 * 64);
    if (!argument)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(argument, params[0], kernel->args_bytes);
    CUresult result = stream_push(stream, &(work){.kind = WORK_KERNEL,
                                                  .kernel = kernel,
                                                  .argument = argument,
                                                  .grid = grid,
                                                  .block = block,
                                                  .shared_bytes = shared_bytes,
                                                  .early = early});
    if (result != CUDA_SUCCESS)
        free(argument);
    return result;
}

CUresult cuLaunchKernel(CUfunction kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                        CUstream stream, void **params, void **extra)
{
    (void)extra;
    return launch(stream, kernel, (fiber_index){grid_x, grid_y, grid_z},
                  (fiber_index){block_x, block_y, block_z}, shared_bytes, false, params);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction kernel, void **params,
                          void **extra)
{
    bool early = false;
    (void)extra;
    for (unsigned i = 0; i < config->numAttrs; i++)
        early |= config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION &&
                 config->attrs[i].value.programmaticStreamSerializationAllowed;
    return launch(config->hStream, kernel,
                  (fiber_index){config->gridDimX, config->gridDimY, config->gridDimZ},
                  (fiber_index){config->blockDimX, config->blockDimY, config->blockDimZ},
                  config->sharedMemBytes, early, params);
}
