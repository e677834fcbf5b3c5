/* Memory of other allocators, described so that other processes can map it: cudaMalloc's by its
 * IPC handle, mapped virtual memory by the descriptors of its allocations. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cuda/memory/memory.h"

_Static_assert(sizeof(CUipcMemHandle) <= DEVICE_NAME_BYTES, "a name holds CUDA's");
_Static_assert(sizeof(CUmemFabricHandle) <= DEVICE_NAME_BYTES, "a name holds CUDA's");

/* Query an attribute of 4 bytes; 0 if the driver does not know it. */
static int attribute_of(const void *address, CUpointer_attribute attribute)
{
    int value = 0;
    return driver.cuPointerGetAttribute(&value, attribute, (CUdeviceptr)address) == CUDA_SUCCESS
               ? value
               : 0;
}

static bool is_of_pool(const void *address)
{
    void *pool = NULL;
    return driver.cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
                                        (CUdeviceptr)address) == CUDA_SUCCESS &&
           pool;
}

/* Find the allocation that contains an address. */
static banyan_status allocation_at(int device, uint64_t address, uint64_t *base, uint64_t *bytes)
{
    CUdeviceptr start = 0;
    size_t length = 0;
    banyan_status status =
        DRIVER(device, cuMemGetAddressRange, &start, &length, (CUdeviceptr)address);
    *base = start;
    *bytes = length;
    return status;
}

static banyan_status describe_plain(device_share *share, const void *address, size_t bytes,
                                    char *reason, size_t reason_bytes)
{
    CUipcMemHandle name;
    RETURN_IF_FAILED(
        allocation_at(share->device, (uint64_t)(uintptr_t)address, &share->base, &share->bytes));
    if ((uintptr_t)address - share->base + bytes > share->bytes) {
        snprintf(reason, reason_bytes, "it spans two allocations of cudaMalloc");
        return BANYAN_OK;
    }
    CUresult result = driver.cuIpcGetMemHandle(&name, (CUdeviceptr)share->base);
    if (result != CUDA_SUCCESS) {
        driver_check(result, "cuIpcGetMemHandle", share->device);
        snprintf(reason, reason_bytes, "%s", banyan_last_error());
        return BANYAN_OK;
    }
    memcpy(share->name, &name, sizeof name);
    share->sharing = DEVICE_SHARED_BY_NAME;
    return BANYAN_OK;
}

/* Return the allocation mapped at the address; the caller releases it. False if this is not mapped
 * virtual memory. */
static bool mapped_at(uint64_t address, CUmemGenericAllocationHandle *memory)
{
    return driver.cuMemRetainAllocationHandle(memory, (void *)(uintptr_t)address) == CUDA_SUCCESS;
}

#define SHAREABLE (CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC)

/* Return the handle types that can export the allocation at the address; 0: none. */
static unsigned handle_types_at(uint64_t address)
{
    CUmemAllocationProp what = {0};
    CUmemGenericAllocationHandle memory;
    if (!mapped_at(address, &memory))
        return 0;
    CUresult result = driver.cuMemGetAllocationPropertiesFromHandle(&what, memory);
    driver.cuMemRelease(memory);
    return result == CUDA_SUCCESS ? (unsigned)what.requestedHandleTypes & SHAREABLE : 0;
}

/* Describe all allocations from the one with the first byte to the one with the last. */
static banyan_status describe_virtual(device_share *share, const void *address, size_t bytes,
                                      char *reason, size_t reason_bytes)
{
    uint64_t end = (uint64_t)(uintptr_t)address + bytes, part, part_bytes;
    RETURN_IF_FAILED(
        allocation_at(share->device, (uint64_t)(uintptr_t)address, &share->base, &part_bytes));
    for (part = share->base; share->base + share->bytes < end;) {
        if (handle_types_at(part) == 0) {
            snprintf(reason, reason_bytes,
                     "it lies in memory of cuMemCreate that was made without a handle for "
                     "other processes");
            return BANYAN_OK;
        }
        share->bytes += part_bytes;
        part += part_bytes;
        if (part < end)
            RETURN_IF_FAILED(allocation_at(share->device, part, &part, &part_bytes));
        if (part != share->base + share->bytes) {
            snprintf(reason, reason_bytes, "there is a hole in it");
            return BANYAN_OK;
        }
    }
    share->sharing = DEVICE_SHARED_BY_PARTS;
    return BANYAN_OK;
}

static banyan_status memory_share_describe(device_share *share, const void *address, size_t bytes,
                                           char *reason, size_t reason_bytes)
{
    CUmemGenericAllocationHandle memory;
    if (attribute_of(address, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE))
        return describe_plain(share, address, bytes, reason, reason_bytes);
    if (mapped_at((uint64_t)(uintptr_t)address, &memory)) {
        driver.cuMemRelease(memory);
        return describe_virtual(share, address, bytes, reason, reason_bytes);
    }
    snprintf(reason, reason_bytes, "%s",
             is_of_pool(address) ? "it was allocated from a stream-ordered pool (cudaMallocAsync)"
                                 : "CUDA has no way to share it");
    return BANYAN_OK;
}

banyan_status share_describe(const void *address, size_t bytes, device_share *share, char *reason,
                             size_t reason_bytes)
{
    DLDevice device;
    device_share made = {.sharing = DEVICE_SHARED_BY_NOBODY};
    bytes_locate(address, &device);
    made.device = device.device_id;
    if (device.device_type != kDLCUDA)
        return banyan_error_set(BANYAN_ERR_INVALID, "cuda: %p is not memory of a device", address);
    RETURN_IF_FAILED(device_identify(made.device, made.uuid));
    banyan_status status = DRIVER_WITHIN(
        made.device, memory_share_describe(&made, address, bytes, reason, reason_bytes));
    if (status == BANYAN_OK)
        *share = made;
    return status;
}

static banyan_status memory_share_export(int device, CUmemGenericAllocationHandle memory,
                                         unsigned types, device_part *part)
{
    CUmemFabricHandle name;
    if (types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        banyan_status status = DRIVER(device, cuMemExportToShareableHandle, &part->fd, memory,
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
        if (status == BANYAN_OK)
            fcntl(part->fd, F_SETFD, FD_CLOEXEC);
        return status;
    }
    banyan_status status =
        DRIVER(device, cuMemExportToShareableHandle, &name, memory, CU_MEM_HANDLE_TYPE_FABRIC, 0);
    if (status == BANYAN_OK)
        memcpy(part->name, &name, sizeof name);
    return status;
}

static banyan_status export_part(const device_share *share, uint64_t start, device_part *part)
{
    CUmemGenericAllocationHandle memory;
    RETURN_IF_FAILED(
        DRIVER(share->device, cuMemRetainAllocationHandle, &memory, (void *)(uintptr_t)start));
    banyan_status status = memory_share_export(share->device, memory, handle_types_at(start), part);
    driver.cuMemRelease(memory);
    return status;
}

banyan_status share_part(const device_share *share, uint64_t offset, device_part *part)
{
    uint64_t start = 0;
    device_part made = {.fd = -1};
    RETURN_IF_FAILED(driver_enter(share->device));
    banyan_status status = allocation_at(share->device, share->base + offset, &start, &made.bytes);
    if (status == BANYAN_OK && start != share->base + offset)
        status = banyan_error_set(BANYAN_ERR_INVALID,
                                  "cuda: the memory at %#llx of device %d is not what was shared",
                                  (unsigned long long)start, share->device);
    if (status == BANYAN_OK)
        status = export_part(share, start, &made);
    driver_leave();
    if (status == BANYAN_OK)
        *part = made;
    return status;
}
