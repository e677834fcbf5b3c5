/* Memory that is created, shared and mapped through CUDA's virtual memory management. A mapping
 * keeps its memory; the handle and descriptor may be closed. */
#include "cuda/memory/memory.h"

/* Round up to whole granules (of both kinds: they are powers of two), and at most the device's
 * memory: the driver's results for sizes near 2^64 are not specified. */
static banyan_status memory_vmm_round_up(int device, size_t bytes, size_t *rounded)
{
    size_t unit = 0, multicast = 1, free_bytes = 0, all_bytes = 0;
    RETURN_IF_FAILED(handles_granularity(device, &unit));
    RETURN_IF_FAILED(DRIVER(device, cuMemGetInfo, &free_bytes, &all_bytes));
    if (bytes > all_bytes)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: device %d is too small", device);
    if (multicast_unit(device, 2, bytes, &multicast) == BANYAN_OK && multicast > unit)
        unit = multicast;
    *rounded = (bytes + unit - 1) / unit * unit;
    return BANYAN_OK;
}

/* Map it at a reserved address for a device; the handle may be released afterwards. */
static banyan_status map_at(int device, CUmemGenericAllocationHandle memory, const pages *at)
{
    CUdeviceptr start = (CUdeviceptr)at->address;
    size_t bytes = at->mapped_bytes;
    RETURN_IF_FAILED(DRIVER(device, cuMemMap, start, bytes, 0, memory, 0));
    banyan_status status = vmm_allow(device, start, bytes);
    if (status == BANYAN_OK)
        status = mappings_add((mapping){start, start + bytes, device});
    if (status != BANYAN_OK)
        driver.cuMemUnmap(start, bytes);
    return status;
}

/* Map it at any free address. */
static banyan_status memory_vmm_map(int device, CUmemGenericAllocationHandle memory, size_t bytes,
                                    pages *made)
{
    CUdeviceptr start = 0;
    RETURN_IF_FAILED(DRIVER(device, cuMemAddressReserve, &start, bytes, 0, 0, 0));
    pages at = {(char *)(uintptr_t)start, bytes};
    banyan_status status = map_at(device, memory, &at);
    if (status != BANYAN_OK) {
        driver.cuMemAddressFree(start, bytes);
        return status;
    }
    *made = at;
    return BANYAN_OK;
}

void vmm_suspend(const pages *mapped)
{
    if (mappings_remove((uintptr_t)mapped->address))
        driver.cuMemUnmap((CUdeviceptr)mapped->address, mapped->mapped_bytes);
}

void vmm_release(pages *mapped)
{
    vmm_suspend(mapped);
    driver.cuMemAddressFree((CUdeviceptr)mapped->address, mapped->mapped_bytes);
    *mapped = (pages){0};
}

/* Zero and map it, at made->address, or anywhere if that is NULL. */
static banyan_status map_made(int device, CUmemGenericAllocationHandle memory, size_t bytes,
                              pages *made)
{
    pages mapped = *made;
    RETURN_IF_FAILED(made->address ? map_at(device, memory, made)
                                   : memory_vmm_map(device, memory, bytes, &mapped));
    banyan_status status = bytes_fill(mapped.address, 0, bytes);
    if (status == BANYAN_OK)
        *made = mapped;
    else if (made->address)
        vmm_suspend(&mapped);
    else
        vmm_release(&mapped);
    return status;
}

static banyan_status memory_vmm_create_here(int device, size_t bytes, device_handles *handles,
                                            pages *made)
{
    size_t rounded = 0;
    CUmemGenericAllocationHandle memory;
    device_handles new;
    RETURN_IF_FAILED(memory_vmm_round_up(device, bytes, &rounded));
    RETURN_IF_FAILED(handles_create(device, rounded, &memory, &new));
    banyan_status status = map_made(device, memory, rounded, made);
    driver.cuMemRelease(memory);
    if (status == BANYAN_OK)
        *handles = new;
    else
        device_handles_close(&new);
    return status;
}

static banyan_status create_in_context(int device, size_t bytes, device_handles *handles,
                                       pages *made)
{
    return DRIVER_WITHIN_UNCAPTURED(device, memory_vmm_create_here(device, bytes, handles, made));
}

banyan_status vmm_create(int device, size_t bytes, device_handles *handles, pages *made)
{
    pages new = {0};
    RETURN_IF_FAILED(create_in_context(device, bytes, handles, &new));
    *made = new;
    return BANYAN_OK;
}

banyan_status vmm_recreate(int device, const pages *suspended, device_handles *handles)
{
    pages at = *suspended;
    return create_in_context(device, at.mapped_bytes, handles, &at);
}

static banyan_status map_here(int device, const device_handles *handles, size_t mapped_bytes,
                              pages *made)
{
    CUmemGenericAllocationHandle memory;
    RETURN_IF_FAILED(handles_import(device, handles, &memory));
    banyan_status status = made->address ? map_at(device, memory, made)
                                         : memory_vmm_map(device, memory, mapped_bytes, made);
    driver.cuMemRelease(memory);
    return status;
}

static banyan_status map_in_context(int device, const device_handles *handles, size_t mapped_bytes,
                                    pages *made)
{
    return DRIVER_WITHIN_UNCAPTURED(device, map_here(device, handles, mapped_bytes, made));
}

banyan_status vmm_map_peer(int device, const device_handles *handles, size_t mapped_bytes,
                           pages *made)
{
    pages new = {0};
    RETURN_IF_FAILED(map_in_context(device, handles, mapped_bytes, &new));
    *made = new;
    return BANYAN_OK;
}

banyan_status vmm_remap_peer(int device, const device_handles *handles, const pages *suspended)
{
    pages at = *suspended;
    return map_in_context(device, handles, at.mapped_bytes, &at);
}
