/* Multicast memory: one address for one place in the memory of several devices. The driver's
 * multicast functions are called only here, and only if BANYAN_MULTICAST is 1. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/memory/memory.h"

/* Return the missing requirement; NULL: none. */
static const char *memory_multicast_find_missing(int device)
{
    const char *wanted = getenv("BANYAN_MULTICAST");
    if (!wanted || strcmp(wanted, "1") != 0)
        return "BANYAN_MULTICAST is not 1";
    if (!driver.cuMulticastGetGranularity || !driver.cuMulticastCreate ||
        !driver.cuMulticastAddDevice || !driver.cuMulticastBindMem)
        return "the CUDA driver has no functions for multicast: it is older than CUDA 12.1";
    if (!driver_attribute(CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, device))
        return "it has no multicast";
    return NULL;
}

banyan_status multicast_check(int device)
{
    const char *missing = memory_multicast_find_missing(device);
    return missing
               ? banyan_error_set(BANYAN_ERR_UNSUPPORTED, "cuda: device %d: %s", device, missing)
               : BANYAN_OK;
}

static CUmulticastObjectProp object_of(int devices, size_t bytes)
{
    return (CUmulticastObjectProp){
        .numDevices = (unsigned)devices,
        .size = bytes,
        .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
    };
}

banyan_status multicast_unit(int device, int devices, size_t bytes, size_t *unit)
{
    size_t found = 0;
    CUmulticastObjectProp what = object_of(devices, bytes);
    if (memory_multicast_find_missing(device)) {
        *unit = 1;
        return BANYAN_OK;
    }
    RETURN_IF_FAILED(
        DRIVER(device, cuMulticastGetGranularity, &found, &what, CU_MULTICAST_GRANULARITY_MINIMUM));
    *unit = found;
    return BANYAN_OK;
}

static banyan_status memory_multicast_create_here(int device, int devices, size_t bytes, int *fd,
                                                  device_multicast *made)
{
    size_t unit = 1;
    int exported = -1;
    CUmemGenericAllocationHandle object;
    RETURN_IF_FAILED(multicast_unit(device, devices, bytes, &unit));
    CUmulticastObjectProp what = object_of(devices, bytes / unit * unit);
    RETURN_IF_FAILED(DRIVER(device, cuMulticastCreate, &object, &what));
    banyan_status status = DRIVER(device, cuMemExportToShareableHandle, &exported, object,
                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (status != BANYAN_OK) {
        driver.cuMemRelease(object);
        return status;
    }
    fcntl(exported, F_SETFD, FD_CLOEXEC);
    *fd = exported;
    made->object = object;
    return BANYAN_OK;
}

banyan_status multicast_create(int device, int devices, size_t bytes, int *fd,
                               device_multicast *made)
{
    RETURN_IF_FAILED(multicast_check(device));
    return DRIVER_WITHIN_UNCAPTURED(device,
                                    memory_multicast_create_here(device, devices, bytes, fd, made));
}

static banyan_status join_here(int device, int fd, device_multicast *made)
{
    CUdevice joining;
    banyan_status status = BANYAN_OK;
    if (made->object == 0) {
        CUmemGenericAllocationHandle object;
        status = DRIVER(device, cuMemImportFromShareableHandle, &object, (void *)(intptr_t)fd,
                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        if (status == BANYAN_OK)
            made->object = object;
    }
    if (status == BANYAN_OK)
        status = DRIVER(device, cuDeviceGet, &joining, device);
    if (status == BANYAN_OK)
        status = DRIVER(device, cuMulticastAddDevice, made->object, joining);
    return status;
}

banyan_status multicast_join(int device, int fd, device_multicast *made)
{
    RETURN_IF_FAILED(multicast_check(device));
    return DRIVER_WITHIN_UNCAPTURED(device, join_here(device, fd, made));
}

static banyan_status memory_multicast_bind(int device, const device_multicast *made,
                                           const pages *part, size_t bytes)
{
    CUmemGenericAllocationHandle memory;
    RETURN_IF_FAILED(DRIVER(device, cuMemRetainAllocationHandle, &memory, part->address));
    banyan_status status = DRIVER(device, cuMulticastBindMem, made->object, 0, memory, 0, bytes, 0);
    driver.cuMemRelease(memory);
    return status;
}

/* Map at the previous address, or anywhere. */
static banyan_status memory_multicast_map(int device, device_multicast *made, size_t bytes,
                                          size_t unit)
{
    CUdeviceptr start = (CUdeviceptr)made->mapped.address;
    banyan_status status = BANYAN_OK;
    if (start == 0)
        status = DRIVER(device, cuMemAddressReserve, &start, bytes, unit, 0, 0);
    if (status != BANYAN_OK)
        return status;
    made->mapped = (pages){(char *)(uintptr_t)start, bytes};
    status = DRIVER(device, cuMemMap, start, bytes, 0, made->object, 0);
    return status == BANYAN_OK ? vmm_allow(device, start, bytes) : status;
}

banyan_status multicast_map(int device, int devices, const pages *part, size_t bytes,
                            device_multicast *made)
{
    size_t unit = 1;
    RETURN_IF_FAILED(driver_enter(device));
    driver_capture before = driver_capture_relax();
    banyan_status status = multicast_unit(device, devices, bytes, &unit);
    bytes = bytes / unit * unit;
    if (status == BANYAN_OK)
        status = memory_multicast_bind(device, made, part, bytes);
    if (status == BANYAN_OK)
        status = memory_multicast_map(device, made, bytes, unit);
    driver_capture_restore(before);
    driver_leave();
    return status;
}

/* Memory stays bound while the object exists: until the last rank leaves it, like memory that
 * peers still map. Unbinding would take it from peers that still use it. */
void multicast_suspend(device_multicast *made)
{
    if (made->mapped.address)
        driver.cuMemUnmap((CUdeviceptr)made->mapped.address, made->mapped.mapped_bytes);
    if (made->object != 0)
        driver.cuMemRelease(made->object);
    made->object = 0;
}

void multicast_leave(device_multicast *old)
{
    if (old->object != 0)
        multicast_suspend(old);
    if (old->mapped.address)
        driver.cuMemAddressFree((CUdeviceptr)old->mapped.address, old->mapped.mapped_bytes);
    *old = (device_multicast){0};
}
