/* The module's table of memory functions. */
#include <string.h>

#include "cuda/memory/memory.h"

static banyan_status cuda_count(int *count)
{
    RETURN_IF_FAILED(driver_open());
    return DRIVER(-1, cuDeviceGetCount, count);
}

/* Virtual memory management, and descriptors that another process can map. */
static banyan_status cuda_open(int id)
{
    int count = 0;
    RETURN_IF_FAILED(cuda_count(&count));
    if (id < 0 || id >= count)
        return banyan_error_set(BANYAN_ERR_UNSUPPORTED,
                                "cuda: there is no device %d; this process sees %d", id, count);
    const struct {
        CUdevice_attribute attribute;
        const char *what;
    } needed[] = {
        {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, "virtual memory management"},
        {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
         "memory that is shared by file descriptors"},
        {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, "stream-ordered allocation"},
    };
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        if (!driver_attribute(needed[i].attribute, id))
            return banyan_error_set(BANYAN_ERR_UNSUPPORTED, "cuda: device %d has no %s", id,
                                    needed[i].what);
    }
    return BANYAN_OK;
}

/* -1: this process does not see the device. */
static int device_of(const unsigned char uuid[DEVICE_UUID_BYTES])
{
    int count = 0;
    driver.cuDeviceGetCount(&count);
    for (int id = 0; id < count; id++) {
        unsigned char found[DEVICE_UUID_BYTES];
        if (device_identify(id, found) == BANYAN_OK && memcmp(found, uuid, sizeof found) == 0)
            return id;
    }
    return -1;
}

static banyan_status cuda_reach(int id, const unsigned char uuid[DEVICE_UUID_BYTES])
{
    int peer = device_of(uuid), reaches = 0;
    if (peer < 0 || peer == id)
        return BANYAN_OK;
    CUdevice device, peer_device;
    RETURN_IF_FAILED(DRIVER(id, cuDeviceGet, &device, id));
    RETURN_IF_FAILED(DRIVER(peer, cuDeviceGet, &peer_device, peer));
    RETURN_IF_FAILED(DRIVER(id, cuDeviceCanAccessPeer, &reaches, device, peer_device));
    if (reaches)
        return BANYAN_OK;
    return banyan_error_set(BANYAN_ERR_UNSUPPORTED,
                            "cuda: device %d cannot reach device %d: neither NVLink nor PCIe peer "
                            "access joins them",
                            id, peer);
}

static banyan_status cuda_room(int id, size_t *free_bytes, size_t *all_bytes)
{
    return DRIVER_WITHIN(id, DRIVER(id, cuMemGetInfo, free_bytes, all_bytes));
}

const memory_device_ops cuda_memory_ops = {
    .size = sizeof(memory_device_ops),
    .name = "cuda",
    .type = kDLCUDA,
    .count = cuda_count,
    .open = cuda_open,
    .identify = device_identify,
    .reach = cuda_reach,
    .create = vmm_create,
    .map = vmm_map_peer,
    .release = vmm_release,
    .suspend = vmm_suspend,
    .recreate = vmm_recreate,
    .remap = vmm_remap_peer,
    .room = cuda_room,
    .alloc = bytes_alloc,
    .free = bytes_free,
    .copy = bytes_copy,
    .fill = bytes_fill,
    .locate = bytes_locate,
    .share = share_describe,
    .share_part = share_part,
    .attach = attach_begin,
    .attach_part = attach_part,
    .detach = attach_end,
    .multicast_check = multicast_check,
    .multicast_create = multicast_create,
    .multicast_join = multicast_join,
    .multicast_map = multicast_map,
    .multicast_suspend = multicast_suspend,
    .multicast_leave = multicast_leave,
    .swappable_create = swappable_create,
    .swappable_double = swappable_double,
    .swappable_undouble = swappable_undouble,
    .swappable_swap = swappable_swap,
    .swappable_free = swappable_free,
};
