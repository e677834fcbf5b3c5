/* Device memory that other processes can map, and the handles for that. */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/memory/memory.h"

#define DESCRIPTOR ((unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
#define FABRIC ((unsigned)CU_MEM_HANDLE_TYPE_FABRIC)

static CUmemAllocationProp shareable_memory_of(int device, unsigned types)
{
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = (CUmemAllocationHandleType)types,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
    };
}

/* Devices that claim to make fabric handles, but fail: their machine has no IMEX channel. */
static atomic_bool refused[DRIVER_DEVICES_MAX];

static unsigned wanted_types(int device)
{
    const char *wanted = getenv("BANYAN_GPU_HANDLES");
    if (wanted && strcmp(wanted, "fabric") == 0)
        return FABRIC;
    if ((wanted && strcmp(wanted, "descriptors") == 0) || atomic_load(&refused[device]) ||
        driver_attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, device) == 0)
        return DESCRIPTOR;
    return DESCRIPTOR | FABRIC;
}

banyan_status handles_granularity(int device, size_t *unit)
{
    CUmemAllocationProp what = shareable_memory_of(device, DESCRIPTOR);
    return DRIVER(device, cuMemGetAllocationGranularity, unit, &what,
                  CU_MEM_ALLOC_GRANULARITY_MINIMUM);
}

static banyan_status handles_create_one(int device, size_t bytes,
                                        CUmemGenericAllocationHandle *memory, unsigned *types)
{
    *types = wanted_types(device);
    CUmemAllocationProp what = shareable_memory_of(device, *types);
    if (*types == (DESCRIPTOR | FABRIC)) {
        CUresult result = driver.cuMemCreate(memory, bytes, &what, 0);
        if (result == CUDA_SUCCESS)
            return BANYAN_OK;
        if (result != CUDA_ERROR_OUT_OF_MEMORY)
            atomic_store(&refused[device], true);
        *types = DESCRIPTOR;
        what = shareable_memory_of(device, DESCRIPTOR);
    }
    banyan_status status = DRIVER(device, cuMemCreate, memory, bytes, &what, 0);
    if (status == BANYAN_OK || status == BANYAN_ERR_NO_MEMORY || *types != FABRIC)
        return status;
    return banyan_error_set(BANYAN_ERR_UNSUPPORTED,
                            "%s: device %d makes no memory with fabric handles, which "
                            "BANYAN_GPU_HANDLES=fabric asks for",
                            banyan_last_error(), device);
}

static banyan_status handles_export(int device, CUmemGenericAllocationHandle memory, unsigned types,
                                    device_handles *handles)
{
    CUmemFabricHandle name;
    device_handles made = {.fd = -1};
    banyan_status status = BANYAN_OK;
    if (types & FABRIC) {
        status = DRIVER(device, cuMemExportToShareableHandle, &name, memory,
                        CU_MEM_HANDLE_TYPE_FABRIC, 0);
        made.has_name = status == BANYAN_OK;
    }
    if (made.has_name)
        memcpy(made.name, &name, sizeof name);
    if (types & DESCRIPTOR) {
        status = DRIVER(device, cuMemExportToShareableHandle, &made.fd, memory,
                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
        if (status == BANYAN_OK)
            fcntl(made.fd, F_SETFD, FD_CLOEXEC);
    }
    if (status == BANYAN_OK)
        *handles = made;
    return status;
}

banyan_status handles_create(int device, size_t bytes, CUmemGenericAllocationHandle *memory,
                             device_handles *handles)
{
    unsigned types;
    CUmemGenericAllocationHandle made;
    RETURN_IF_FAILED(handles_create_one(device, bytes, &made, &types));
    banyan_status status = handles_export(device, made, types, handles);
    if (status == BANYAN_OK)
        *memory = made;
    else
        driver.cuMemRelease(made);
    return status;
}

banyan_status handles_import(int device, const device_handles *handles,
                             CUmemGenericAllocationHandle *memory)
{
    CUmemFabricHandle name;
    if (handles->fd >= 0)
        return DRIVER(device, cuMemImportFromShareableHandle, memory, (void *)(intptr_t)handles->fd,
                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    memcpy(&name, handles->name, sizeof name);
    return DRIVER(device, cuMemImportFromShareableHandle, memory, &name, CU_MEM_HANDLE_TYPE_FABRIC);
}

banyan_status device_identify(int id, unsigned char uuid[DEVICE_UUID_BYTES])
{
    CUuuid found;
    CUdevice device;
    RETURN_IF_FAILED(DRIVER(id, cuDeviceGet, &device, id));
    RETURN_IF_FAILED(DRIVER(id, cuDeviceGetUuid, &found, device));
    memcpy(uuid, found.bytes, DEVICE_UUID_BYTES);
    return BANYAN_OK;
}
