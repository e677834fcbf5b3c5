/* Open an engine for the changes of tensors on a device, and launch its kernels. */
#include "cuda/publish/engine.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/memory/memory.h"
#include "cuda/runtime/launch.h"

/* Work in the background uses at most one of so many of the threads that the device holds. */
#define BACKGROUND_SHARE 8

_Static_assert(CHANGES_DIMS == BANYAN_MAX_DIMS, "a view has as many dimensions as a tensor");

static bool view_is_aligned(const strided_view *view)
{
    size_t bytes = view->elem_bytes;
    uint64_t all = (uintptr_t)view->data;
    for (int i = 0; i < view->ndim; i++)
        all |= (uint64_t)view->stride[i];
    return bytes <= 16 && (bytes & (bytes - 1)) == 0 && (all & (bytes - 1)) == 0;
}

static enum changes_kind view_kind(const strided_view *view)
{
    int64_t bytes = (int64_t)view->elem_bytes;
    uint64_t all = (uintptr_t)view->data;
    if ((bytes != 1 && bytes != 2 && bytes != 4) || view->ndim == 0)
        return CHANGES_ANY_ELEMENTS;
    int last = view->ndim - 1;
    for (int i = 0; i < last; i++)
        all |= (uint64_t)view->stride[i];
    all |= (uint64_t)(view->extent[last] * bytes);
    if (view->stride[last] != bytes || all % CHANGES_SECTOR != 0)
        return CHANGES_ANY_ELEMENTS;
    if (bytes == 2)
        return last == 0 ? CHANGES_ROW_OF_2_BYTES : CHANGES_SECTORS_OF_2_BYTES;
    return bytes == 1 ? CHANGES_SECTORS_OF_1_BYTE : CHANGES_SECTORS_OF_4_BYTES;
}

changes_view changes_view_elements(const strided_view *view)
{
    changes_view made = {.data = view->data,
                         .count = view->elems,
                         .unit_bytes = (uint32_t)view->elem_bytes,
                         .ndim = (uint32_t)view->ndim,
                         .aligned = view_is_aligned(view),
                         .kind = view_kind(view)};
    memcpy(made.extent, view->extent, sizeof made.extent);
    memcpy(made.stride, view->stride, sizeof made.stride);
    return made;
}

banyan_status changes_stream(int device, CUstream *stream)
{
    int least = 0, greatest = 0;
    RETURN_IF_FAILED(DRIVER(device, cuCtxGetStreamPriorityRange, &least, &greatest));
    return DRIVER(device, cuStreamCreateWithPriority, stream, CU_STREAM_NON_BLOCKING, least);
}

banyan_status changes_launch(const changes_engine *engine, const changes_kernel *kernel,
                             unsigned blocks, uint64_t warps, void *args, CUstream stream)
{
    uint64_t each = engine->threads / CHANGES_WARP, wanted = (warps + each - 1) / each;
    if (wanted == 0)
        return BANYAN_OK;
    launch_shape by = {.blocks = wanted < blocks ? (unsigned)wanted : blocks,
                       .threads = engine->threads,
                       .shared_bytes = (unsigned)each * kernel->warp_bytes};
    return launch_kernel(engine->device, kernel->function, by, args, stream);
}

banyan_status changes_check_capture(int device, CUstream stream)
{
    CUstreamCaptureStatus capture;
    RETURN_IF_FAILED(DRIVER(device, cuStreamIsCapturing, stream, &capture));
    if (capture == CU_STREAM_CAPTURE_STATUS_NONE)
        return BANYAN_OK;
    return banyan_error_set(BANYAN_ERR_INVALID,
                            "cuda: the stream on device %d is being captured, and versions are "
                            "not published or committed in a graph",
                            device);
}

banyan_status changes_upload(int device, const void *from, size_t bytes, void **address)
{
    *address = NULL;
    if (bytes == 0)
        return BANYAN_OK;
    RETURN_IF_FAILED(bytes_alloc(device, bytes, address));
    banyan_status status = bytes_copy(*address, from, bytes);
    if (status != BANYAN_OK) {
        bytes_free(device, *address);
        *address = NULL;
    }
    return status;
}

static banyan_status open_kernel(changes_engine *engine, const void *symbol, changes_kernel *kernel)
{
    int device = engine->device;
    RETURN_IF_FAILED(driver_kernel(symbol, device, &kernel->function));
    RETURN_IF_FAILED(launch_bound_threads(device, kernel->function, &engine->threads));
    engine->threads = engine->threads / CHANGES_WARP * CHANGES_WARP;
    RETURN_IF_FAILED(launch_room(device, kernel->function, engine->threads,
                                 engine->threads / CHANGES_WARP * kernel->warp_bytes,
                                 &kernel->blocks));
    if (kernel->blocks == 0)
        kernel->blocks =
            (unsigned)driver_attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    kernel->background_blocks =
        kernel->blocks > BACKGROUND_SHARE ? kernel->blocks / BACKGROUND_SHARE : 1;
    return BANYAN_OK;
}

static banyan_status open_kernels(changes_engine *engine)
{
    engine->threads = CHANGES_THREADS_MAX;
    RETURN_IF_FAILED(open_kernel(engine, changes_find_kernel(), &engine->find));
    RETURN_IF_FAILED(open_kernel(engine, changes_merge_kernel(), &engine->merge));
    RETURN_IF_FAILED(open_kernel(engine, changes_measure_kernel(), &engine->measure));
    engine->pack.warp_bytes = CHANGES_PACK_CACHE_BYTES;
    RETURN_IF_FAILED(open_kernel(engine, changes_pack_kernel(), &engine->pack));
    RETURN_IF_FAILED(open_kernel(engine, changes_gather_kernel(), &engine->gather));
    for (int i = 0; i < CHANGES_KINDS; i++) {
        engine->swap[i].warp_bytes = i == CHANGES_ANY_ELEMENTS ? 0 : CHANGES_CACHE_BYTES;
        RETURN_IF_FAILED(open_kernel(engine, changes_swap_kernel(i), &engine->swap[i]));
    }
    return BANYAN_OK;
}

static banyan_status changes_open_here(changes_engine *engine)
{
    RETURN_IF_FAILED(open_kernels(engine));
    return changes_stream(engine->device, &engine->background);
}

void changes_close(void *argument)
{
    changes_engine *engine = argument;
    if (engine->background && driver_enter(engine->device) == BANYAN_OK) {
        driver.cuStreamDestroy(engine->background);
        driver_leave();
    }
    changes_host_free(engine, engine->spare);
    pthread_mutex_destroy(&engine->lock);
    free(engine);
}

banyan_status changes_open(int device, void **engine)
{
    changes_engine *made = calloc(1, sizeof *made);
    if (!made)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY,
                                "cuda: out of memory: %zu bytes for a publication's engine",
                                sizeof *made);
    made->device = device;
    pthread_mutex_init(&made->lock, NULL);
    banyan_status status = DRIVER_WITHIN_UNCAPTURED(device, changes_open_here(made));
    if (status == BANYAN_OK)
        *engine = made;
    else
        changes_close(made);
    return status;
}

static banyan_status alloc_here(int device, size_t bytes, void **memory)
{
    void *there;
    RETURN_IF_FAILED(pinned_alloc(device, bytes, memory, &there));
    if (there == *memory)
        return BANYAN_OK;
    pinned_free(*memory);
    return banyan_error_set(BANYAN_ERR_UNSUPPORTED,
                            "cuda: device %d has no unified addressing, which publications need",
                            device);
}

banyan_status changes_host_alloc(void *engine, size_t bytes, void **memory)
{
    int device = ((const changes_engine *)engine)->device;
    return DRIVER_WITHIN_UNCAPTURED(device, alloc_here(device, bytes, memory));
}

static banyan_status free_here(void *memory)
{
    pinned_free(memory);
    return BANYAN_OK;
}

void changes_host_free(void *engine, void *memory)
{
    if (memory)
        (void)DRIVER_WITHIN_UNCAPTURED(((const changes_engine *)engine)->device, free_here(memory));
}

banyan_status changes_take_pinned(changes_engine *engine, size_t *bytes, void **memory)
{
    pthread_mutex_lock(&engine->lock);
    bool fits = engine->spare_bytes >= *bytes && engine->spare;
    if (fits) {
        *memory = engine->spare;
        *bytes = engine->spare_bytes;
        engine->spare = NULL;
    }
    pthread_mutex_unlock(&engine->lock);
    return fits ? BANYAN_OK : changes_host_alloc(engine, *bytes, memory);
}

void changes_give_pinned(changes_engine *engine, size_t bytes, void *memory)
{
    pthread_mutex_lock(&engine->lock);
    if (!engine->spare || engine->spare_bytes < bytes) {
        void *smaller = engine->spare;
        engine->spare = memory;
        engine->spare_bytes = bytes;
        memory = smaller;
    }
    pthread_mutex_unlock(&engine->lock);
    changes_host_free(engine, memory);
}

static banyan_status wait_here(int device, CUstream stream)
{
    RETURN_IF_FAILED(changes_check_capture(device, stream));
    return DRIVER(device, cuStreamSynchronize, stream);
}

banyan_status changes_wait(void *engine, void *stream)
{
    int device = ((const changes_engine *)engine)->device;
    return DRIVER_WITHIN(device, wait_here(device, stream));
}
