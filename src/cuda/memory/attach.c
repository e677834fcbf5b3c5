/* Maps memory that peers share: see share.c. */
#include <string.h>

#include "cuda/memory/memory.h"

/* Kernels of one device may then use cudaMalloc's memory on the other at its own address. */
static banyan_status enable_peer(int device, int peer)
{
    CUcontext context = NULL;
    if (peer == device)
        return BANYAN_OK;
    RETURN_IF_FAILED(driver_context(peer, &context));
    RETURN_IF_FAILED(driver_enter(device));
    CUresult result = driver.cuCtxEnablePeerAccess(context, 0);
    driver_leave();
    return result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
               ? BANYAN_OK
               : driver_check(result, "cuCtxEnablePeerAccess", device);
}

static banyan_status open_name(int device, const device_share *share, char **base)
{
    CUipcMemHandle name;
    CUdeviceptr opened = 0;
    memcpy(&name, share->name, sizeof name);
    RETURN_IF_FAILED(
        DRIVER_WITHIN_UNCAPTURED(device, DRIVER(device, cuIpcOpenMemHandle, &opened, name,
                                                CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)));
    *base = (char *)(uintptr_t)opened;
    return BANYAN_OK;
}

static void close_name(int device, char *base)
{
    if (driver_enter(device) != BANYAN_OK)
        return;
    driver_capture before = driver_capture_relax();
    driver.cuIpcCloseMemHandle((CUdeviceptr)base);
    driver_capture_restore(before);
    driver_leave();
}

static banyan_status attach_name(int device, const device_share *share, bool here,
                                 device_attachment *made)
{
    char *base = (char *)(uintptr_t)share->base;
    banyan_status status =
        here ? enable_peer(device, share->device) : open_name(device, share, &base);
    if (status == BANYAN_OK && !here) {
        uintptr_t start = (uintptr_t)base;
        status = mappings_add((mapping){start, start + share->bytes, device});
        if (status != BANYAN_OK)
            close_name(device, base);
    }
    if (status == BANYAN_OK)
        *made = (device_attachment){base, share->bytes, here};
    return status;
}

static banyan_status memory_attach_reserve(int device, const device_share *share,
                                           device_attachment *made)
{
    CUdeviceptr start = 0;
    banyan_status status =
        DRIVER_WITHIN(device, DRIVER(device, cuMemAddressReserve, &start, share->bytes, 0, 0, 0));
    if (status == BANYAN_OK)
        *made = (device_attachment){.base = (char *)(uintptr_t)start};
    return status;
}

static banyan_status import_part(int device, const device_part *part,
                                 CUmemGenericAllocationHandle *memory)
{
    CUmemFabricHandle name;
    if (part->fd >= 0)
        return DRIVER(device, cuMemImportFromShareableHandle, memory, (void *)(intptr_t)part->fd,
                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    memcpy(&name, part->name, sizeof name);
    return DRIVER(device, cuMemImportFromShareableHandle, memory, &name, CU_MEM_HANDLE_TYPE_FABRIC);
}

static banyan_status attach_here(int device, const device_share *share, const device_part *part,
                                 device_attachment *attachment)
{
    CUmemGenericAllocationHandle memory;
    CUdeviceptr start = (CUdeviceptr)attachment->base;
    RETURN_IF_FAILED(import_part(device, part, &memory));
    banyan_status status =
        DRIVER(device, cuMemMap, start + attachment->mapped_bytes, part->bytes, 0, memory, 0);
    driver.cuMemRelease(memory);
    if (status != BANYAN_OK)
        return status;
    attachment->mapped_bytes += part->bytes;
    if (attachment->mapped_bytes < share->bytes)
        return BANYAN_OK;
    status = vmm_allow(device, start, share->bytes);
    return status == BANYAN_OK ? mappings_add((mapping){start, start + share->bytes, device})
                               : status;
}

banyan_status attach_part(int device, const device_share *share, const device_part *part,
                          device_attachment *attachment)
{
    if (part->bytes == 0 || part->bytes > share->bytes - attachment->mapped_bytes)
        return banyan_error_set(
            BANYAN_ERR_INVALID, "cuda: a part of %llu bytes does not fit behind %llu of %llu",
            (unsigned long long)part->bytes, (unsigned long long)attachment->mapped_bytes,
            (unsigned long long)share->bytes);
    return DRIVER_WITHIN_UNCAPTURED(device, attach_here(device, share, part, attachment));
}

banyan_status attach_begin(int device, const device_share *share, bool here,
                           device_attachment *made)
{
    switch (share->sharing) {
    case DEVICE_SHARED_BY_NAME:
        return attach_name(device, share, here, made);
    case DEVICE_SHARED_BY_PARTS:
        return memory_attach_reserve(device, share, made);
    default:
        return banyan_error_set(BANYAN_ERR_UNSUPPORTED, "cuda: nobody can share that memory");
    }
}

void attach_end(int device, const device_share *share, const device_attachment *attachment)
{
    if (attachment->here || !attachment->base)
        return;
    CUdeviceptr start = (CUdeviceptr)attachment->base;
    mappings_remove(start);
    if (share->sharing == DEVICE_SHARED_BY_NAME) {
        close_name(device, attachment->base);
        return;
    }
    if (attachment->mapped_bytes > 0)
        driver.cuMemUnmap(start, attachment->mapped_bytes);
    driver.cuMemAddressFree(start, share->bytes);
}
