/* The memory at the addresses of this process. */
#include <stdlib.h>
#include <sys/mman.h>

#include "memory.h"

static range *ranges;

range *range_at(CUdeviceptr address)
{
    range *at = ranges;
    while (at && ((char *)(uintptr_t)address < at->base ||
                  (char *)(uintptr_t)address >= at->base + at->bytes))
        at = at->next;
    return at;
}

range *range_add(char *base, size_t bytes, physical *of)
{
    range *made = calloc(1, sizeof *made);
    if (!made)
        return NULL;
    *made = (range){.base = base, .bytes = bytes, .of = of, .next = ranges};
    ranges = made;
    return made;
}

void range_remove(range *old)
{
    range **at = &ranges;
    while (*at != old)
        at = &(*at)->next;
    *at = old->next;
    physical_drop(old->of);
    free(old);
}

void ranges_drop_plain(CUdevice device)
{
    for (range *at = ranges, *next; at; at = next) {
        next = at->next;
        if (at->kind != RANGE_PLAIN || at->of->device != device)
            continue;
        munmap(at->base, at->bytes);
        range_remove(at);
    }
}

CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment,
                             CUdeviceptr wanted, unsigned long long flags)
{
    (void)flags, (void)wanted;
    size_t step = alignment > GRANULE ? alignment : GRANULE;
    if (bytes == 0 || bytes % GRANULE != 0)
        return CUDA_ERROR_INVALID_VALUE;
    char *at =
        mmap(NULL, bytes + step, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    char *base = (char *)(((uintptr_t)at + step - 1) / step * step);
    if (base > at)
        munmap(at, (size_t)(base - at));
    if (base + bytes < at + bytes + step)
        munmap(base + bytes, (size_t)(at + step - base));
    *address = (CUdeviceptr)(uintptr_t)base;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes)
{
    pthread_mutex_lock(&memory_lock);
    bool mapped = range_at(address) != NULL;
    pthread_mutex_unlock(&memory_lock);
    if (mapped)
        return CUDA_ERROR_INVALID_VALUE;
    munmap((void *)(uintptr_t)address, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    (void)flags;
    physical *of = physical_of(handle);
    if (offset != 0 || bytes > of->bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (of->multicast && !multicast_is_whole(of->multicast))
        return CUDA_ERROR_NOT_READY; /* the real driver waits */
    pthread_mutex_lock(&memory_lock);
    range *made = range_add((char *)(uintptr_t)address, bytes, of);
    of->users += made != NULL;
    pthread_mutex_unlock(&memory_lock);
    return made ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *desc,
                        size_t count)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&memory_lock);
    for (size_t i = 0; i < count; i++)
        if (desc[i].location.id < 0 || desc[i].location.id >= emulated_device_count())
            result = CUDA_ERROR_INVALID_DEVICE;
    for (size_t done = 0; result == CUDA_SUCCESS && done < bytes;) {
        range *at = range_at(address + done);
        if (!at) {
            result = CUDA_ERROR_INVALID_VALUE;
            break;
        }
        if (!at->accessible && !at->of->multicast &&
            mmap(at->base, at->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, at->of->fd,
                 0) == MAP_FAILED)
            result = CUDA_ERROR_OUT_OF_MEMORY;
        at->accessible = true;
        done += at->bytes;
    }
    pthread_mutex_unlock(&memory_lock);
    return result;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&memory_lock);
    for (size_t done = 0; done < bytes;) {
        range *at = range_at(address + done);
        if (!at || at->kind != RANGE_MAPPED) {
            result = CUDA_ERROR_INVALID_VALUE;
            break;
        }
        done += at->bytes;
        mmap(at->base, at->bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
        range_remove(at);
    }
    pthread_mutex_unlock(&memory_lock);
    return result;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    pthread_mutex_lock(&memory_lock);
    range *at = range_at((CUdeviceptr)(uintptr_t)address);
    bool found = at && at->kind == RANGE_MAPPED;
    if (found) {
        at->of->users++;
        *handle = (CUmemGenericAllocationHandle)(uintptr_t)at->of;
    }
    pthread_mutex_unlock(&memory_lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                                CUmemGenericAllocationHandle handle)
{
    const physical *of = physical_of(handle);
    *prop = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    prop->location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, of->device};
    prop->requestedHandleTypes = of->types;
    return CUDA_SUCCESS;
}
