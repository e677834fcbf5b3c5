/* Memory that the emulated driver allocates and maps at once: of contexts, of pools, of the host,
 * and of other processes; and attributes of addresses. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memory.h"

static CUresult map_whole(physical *of, range **made)
{
    char *at = mmap(NULL, of->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, of->fd, 0);
    if (at == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *made = range_add(at, of->bytes, of);
    if (!*made) {
        munmap(at, of->bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    (*made)->accessible = true;
    return CUDA_SUCCESS;
}

static CUresult allocate(CUdeviceptr *address, size_t bytes, range_kind kind)
{
    CUcontext context = emulated_current();
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes > DEVICE_BYTES)
        return CUDA_ERROR_OUT_OF_MEMORY;
    size_t whole = (bytes + 4095) / 4096 * 4096;
    physical *of;
    range *made;
    pthread_mutex_lock(&memory_lock);
    CUresult result = physical_make(context->device, whole, CU_MEM_HANDLE_TYPE_NONE, &of);
    if (result == CUDA_SUCCESS)
        result = map_whole(of, &made);
    if (result == CUDA_SUCCESS) {
        made->kind = kind;
        *address = (CUdeviceptr)(uintptr_t)made->base;
    }
    pthread_mutex_unlock(&memory_lock);
    return result;
}

CUresult cuMemAlloc(CUdeviceptr *address, size_t bytes)
{
    if (emulated_capture_forbids())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return allocate(address, bytes, RANGE_PLAIN);
}

CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream)
{
    (void)stream;
    return allocate(address, bytes, RANGE_POOL);
}

bool emulated_takes_values(CUdeviceptr address)
{
    pthread_mutex_lock(&memory_lock);
    const range *at = range_at(address);
    bool takes = !at || (at->kind != RANGE_POOL && at->kind != RANGE_MAPPED);
    pthread_mutex_unlock(&memory_lock);
    return takes;
}

static CUresult drop_range(CUdeviceptr address, range_kind kind)
{
    pthread_mutex_lock(&memory_lock);
    range *at = range_at(address);
    bool fits = at && at->base == (char *)(uintptr_t)address && at->kind == kind;
    if (fits) {
        munmap(at->base, at->bytes);
        range_remove(at);
    }
    pthread_mutex_unlock(&memory_lock);
    return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Frees after all queued work is done, like the real driver. */
CUresult cuMemFree(CUdeviceptr address)
{
    if (address == 0)
        return CUDA_SUCCESS;
    emulated_wait_for_all();
    return drop_range(address, RANGE_PLAIN);
}

/* Waits for the stream, which the real driver need not do. */
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
    CUresult result = cuStreamSynchronize(stream);
    return result == CUDA_SUCCESS ? drop_range(address, RANGE_POOL) : result;
}

CUresult cuMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    CUcontext context = emulated_current();
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&memory_lock);
    *total_bytes = DEVICE_BYTES;
    *free_bytes = physical_free_bytes(context->device);
    pthread_mutex_unlock(&memory_lock);
    return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned flags)
{
    (void)flags;
    if (emulated_capture_forbids())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    *address = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!*address)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memset(*address, 0xC9, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void *address)
{
    free(address);
    return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr *device, void *host, unsigned flags)
{
    (void)flags;
    *device = (CUdeviceptr)(uintptr_t)host;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *bytes, CUdeviceptr address)
{
    pthread_mutex_lock(&memory_lock);
    range *at = range_at(address);
    if (at && base)
        *base = (CUdeviceptr)(uintptr_t)at->base;
    if (at && bytes)
        *bytes = at->bytes;
    pthread_mutex_unlock(&memory_lock);
    return at ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult attribute_of(void *value, CUpointer_attribute attribute, const range *at)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)value = CU_MEMORYTYPE_DEVICE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)value = at->of->device < 0 ? 0 : at->of->device;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned *)value = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(unsigned *)value = at->kind == RANGE_PLAIN;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(uint64_t *)value = at->kind == RANGE_MAPPED ? at->of->types : 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)value = (CUdeviceptr)(uintptr_t)at->base;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)value = at->bytes;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(const void **)value = at->kind == RANGE_POOL ? &memory_lock : NULL;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *(uint64_t *)value = (uint64_t)(uintptr_t)at->of;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
    pthread_mutex_lock(&memory_lock);
    const range *at = range_at(address);
    CUresult result = at ? attribute_of(value, attribute, at) : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&memory_lock);
    return result;
}

/* Unlike the function above it succeeds for ordinary memory, whose attributes are zero. */
CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **values,
                                CUdeviceptr address)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&memory_lock);
    const range *at = range_at(address);
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
        if (at)
            result = attribute_of(values[i], attributes[i], at);
        else
            memset(values[i], 0, sizeof(unsigned));
    }
    pthread_mutex_unlock(&memory_lock);
    return result;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
    pthread_mutex_lock(&memory_lock);
    const range *at = range_at(address);
    bool fits = at && at->kind == RANGE_PLAIN;
    if (fits) {
        file_name name = {getpid(), at->of->fd, at->of->device, at->bytes};
        memset(handle, 0, sizeof *handle);
        memcpy(handle, &name, sizeof name);
    }
    pthread_mutex_unlock(&memory_lock);
    return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags)
{
    (void)flags;
    file_name name;
    memcpy(&name, &handle, sizeof name);
    if (name.pid == getpid())
        return CUDA_ERROR_INVALID_CONTEXT;
    int fd = file_open(&name);
    physical *of = calloc(1, sizeof *of);
    if (fd < 0 || !of)
        return CUDA_ERROR_INVALID_VALUE;
    *of = (physical){.fd = fd, .device = -1, .users = 1, .bytes = name.bytes};
    range *made;
    pthread_mutex_lock(&memory_lock);
    CUresult result = map_whole(of, &made);
    if (result == CUDA_SUCCESS) {
        made->kind = RANGE_IPC;
        *address = (CUdeviceptr)(uintptr_t)made->base;
    }
    pthread_mutex_unlock(&memory_lock);
    return result;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
    return drop_range(address, RANGE_IPC);
}
