/* Memory that is made, shared and mapped through CUDA's virtual memory management. A mapping keeps
 * what is mapped; its handle and descriptor need not stay. */
#include <fcntl.h>
#include <unistd.h>

#include "cuda/memory/memory.h"

CUmemAllocationProp shareable_memory_of(int device)
{
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
    };
}

/* Whole granules, and no more than the device has: what the driver says to sizes near 2^64 is left
 * open. */
static banyan_status round_up(int device, size_t bytes, size_t *rounded)
{
    CUmemAllocationProp what = shareable_memory_of(device);
    size_t unit = 0, free_bytes = 0, all_bytes = 0;
    banyan_status status = DRIVER(device, cuMemGetAllocationGranularity, &unit, &what,
                                  CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (status == BANYAN_OK)
        status = DRIVER(device, cuMemGetInfo, &free_bytes, &all_bytes);
    if (status != BANYAN_OK)
        return status;
    if (bytes > all_bytes)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: device %d is too small", device);
    *rounded = (bytes + unit - 1) / unit * unit;
    return BANYAN_OK;
}

/* ---- mapping ---- */

static void unmap(CUdeviceptr start, size_t mapped_bytes, size_t reserved_bytes)
{
    if (mapped_bytes > 0)
        driver.cuMemUnmap(start, mapped_bytes);
    driver.cuMemAddressFree(start, reserved_bytes);
}

banyan_status vmm_allow(int device, CUdeviceptr start, size_t bytes)
{
    CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    return DRIVER(device, cuMemSetAccess, start, bytes, &access, 1);
}

/* Map it for use by a device; the handle may be released then. */
static banyan_status map(int device, CUmemGenericAllocationHandle memory, size_t bytes, pages *made)
{
    CUdeviceptr start = 0;
    banyan_status status = DRIVER(device, cuMemAddressReserve, &start, bytes, 0, 0, 0);
    if (status != BANYAN_OK)
        return status;
    status = DRIVER(device, cuMemMap, start, bytes, 0, memory, 0);
    size_t mapped = status == BANYAN_OK ? bytes : 0;
    if (status == BANYAN_OK)
        status = vmm_allow(device, start, bytes);
    if (status == BANYAN_OK)
        status = mappings_add((mapping){start, start + bytes, device});
    if (status != BANYAN_OK) {
        unmap(start, mapped, bytes);
        return status;
    }
    *made = (pages){(char *)(uintptr_t)start, bytes};
    return BANYAN_OK;
}

void vmm_release(pages *mapped)
{
    uintptr_t start = (uintptr_t)mapped->address;
    mappings_remove(start);
    unmap((CUdeviceptr)start, mapped->mapped_bytes, mapped->mapped_bytes);
    *mapped = (pages){0};
}

/* ---- making ---- */

static banyan_status export_and_map(int device, CUmemGenericAllocationHandle memory, size_t bytes,
                                    int *fd, pages *made)
{
    int exported = -1;
    pages mapped;
    banyan_status status = DRIVER(device, cuMemExportToShareableHandle, &exported, memory,
                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (status != BANYAN_OK)
        return status;
    fcntl(exported, F_SETFD, FD_CLOEXEC);
    status = map(device, memory, bytes, &mapped);
    if (status == BANYAN_OK) {
        status = bytes_fill(mapped.address, 0, bytes);
        if (status != BANYAN_OK)
            vmm_release(&mapped);
    }
    if (status != BANYAN_OK) {
        close(exported);
        return status;
    }
    *fd = exported;
    *made = mapped;
    return BANYAN_OK;
}

static banyan_status create_here(int device, size_t bytes, int *fd, pages *made)
{
    size_t rounded = 0;
    CUmemGenericAllocationHandle memory;
    CUmemAllocationProp what = shareable_memory_of(device);
    banyan_status status = round_up(device, bytes, &rounded);
    if (status == BANYAN_OK)
        status = DRIVER(device, cuMemCreate, &memory, rounded, &what, 0);
    if (status != BANYAN_OK)
        return status;
    status = export_and_map(device, memory, rounded, fd, made);
    driver.cuMemRelease(memory);
    return status;
}

banyan_status vmm_create(int device, size_t bytes, int *fd, pages *made)
{
    banyan_status status = driver_enter(device);
    if (status != BANYAN_OK)
        return status;
    driver_capture before = driver_capture_relax();
    status = create_here(device, bytes, fd, made);
    driver_capture_restore(before);
    driver_leave();
    return status;
}

/* ---- what a peer has made ---- */

static banyan_status map_here(int device, int fd, size_t mapped_bytes, pages *made)
{
    CUmemGenericAllocationHandle memory;
    banyan_status status = DRIVER(device, cuMemImportFromShareableHandle, &memory,
                                  (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (status != BANYAN_OK)
        return status;
    status = map(device, memory, mapped_bytes, made);
    driver.cuMemRelease(memory);
    return status;
}

banyan_status vmm_map_peer(int device, int fd, size_t mapped_bytes, pages *made)
{
    banyan_status status = driver_enter(device);
    if (status != BANYAN_OK)
        return status;
    driver_capture before = driver_capture_relax();
    status = map_here(device, fd, mapped_bytes, made);
    driver_capture_restore(before);
    driver_leave();
    return status;
}
