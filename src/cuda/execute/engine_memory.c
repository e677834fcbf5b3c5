/* Work of an engine on its device outside of the callers' streams. */
#include <stdlib.h>
#include <string.h>

#include "cuda/execute/engine.h"
#include "cuda/memory/memory.h"

/* Pinned memory is kept until the engine closes. Freeing it would wait for all kernels of the
 * device, including those that wait for this rank. */
struct cuda_pinned {
    struct cuda_pinned *next;
    void *address;
    uint64_t bytes;
    bool taken;
};

banyan_status engine_enter(const cuda_engine *engine, driver_capture *before)
{
    RETURN_IF_FAILED(driver_enter(engine->device));
    *before = driver_capture_relax();
    return BANYAN_OK;
}

void engine_leave(driver_capture before)
{
    driver_capture_restore(before);
    driver_leave();
}

banyan_status engine_take(const cuda_engine *engine, uint64_t bytes, CUdeviceptr *taken)
{
    void *address;
    RETURN_IF_FAILED(cuda_memory_ops.alloc(engine->device, bytes, &address));
    *taken = (CUdeviceptr)address;
    return BANYAN_OK;
}

void engine_give_back(const cuda_engine *engine, CUdeviceptr taken)
{
    if (taken)
        cuda_memory_ops.free(engine->device, (void *)taken);
}

banyan_status engine_copy(const cuda_engine *engine, CUdeviceptr to, CUdeviceptr from,
                          uint64_t bytes)
{
    driver_capture before;
    RETURN_IF_FAILED(engine_enter(engine, &before));
    banyan_status status = DRIVER(engine->device, cuMemcpyAsync, to, from, bytes, engine->stream);
    if (status == BANYAN_OK)
        status = DRIVER(engine->device, cuStreamSynchronize, engine->stream);
    engine_leave(before);
    return status;
}

static banyan_status make_pinned(cuda_engine *engine, uint64_t bytes, struct cuda_pinned **made)
{
    struct cuda_pinned *block = calloc(1, sizeof *block);
    if (!block)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: no memory for an engine");
    driver_capture before;
    banyan_status status = engine_enter(engine, &before);
    if (status == BANYAN_OK) {
        status = DRIVER(engine->device, cuMemHostAlloc, &block->address, bytes,
                        CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
        engine_leave(before);
    }
    if (status != BANYAN_OK) {
        free(block);
        return status;
    }
    block->bytes = bytes;
    block->next = engine->pinned;
    engine->pinned = block;
    *made = block;
    return BANYAN_OK;
}

banyan_status engine_take_pinned(cuda_engine *engine, uint64_t bytes, void **taken)
{
    struct cuda_pinned *block = engine->pinned;
    while (block && (block->taken || block->bytes != bytes))
        block = block->next;
    if (!block)
        RETURN_IF_FAILED(make_pinned(engine, bytes, &block));
    block->taken = true;
    *taken = memset(block->address, 0, bytes);
    return BANYAN_OK;
}

void engine_give_back_pinned(cuda_engine *engine, const void *taken)
{
    for (struct cuda_pinned *block = engine->pinned; block; block = block->next) {
        if (block->address == taken)
            block->taken = false;
    }
}

void engine_free_pinned(cuda_engine *engine)
{
    driver_capture before = CU_STREAM_CAPTURE_MODE_RELAXED;
    bool entered = engine_enter(engine, &before) == BANYAN_OK;
    while (engine->pinned) {
        struct cuda_pinned *block = engine->pinned;
        engine->pinned = block->next;
        if (entered)
            driver.cuMemFreeHost(block->address);
        free(block);
    }
    if (entered)
        engine_leave(before);
}
