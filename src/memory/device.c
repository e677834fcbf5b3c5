/* Find the loaded device modules, and the device that a pointer belongs to. */
#include "memory/device.h"

#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/module.h"
#include "memory/stream.h"

#define CUDA_DRIVER "libcuda.so.1"

static _Atomic(const memory_device_ops *) loaded_cuda;

banyan_status memory_device_find(DLDeviceType type, const memory_device_ops **ops)
{
    if (type != kDLCUDA)
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "there are buffers on the host and on CUDA devices, not on devices of "
                         "DLPack's type %d",
                         (int)type);
    const memory_device_ops *found = atomic_load_explicit(&loaded_cuda, memory_order_acquire);
    if (!found) {
        const module_tables *tables;
        RETURN_IF_FAILED(module_load("cuda", &tables));
        found = tables->device_memory;
        if (!found)
            return error_set(BANYAN_ERR_UNSUPPORTED, "module %s provides no device memory",
                             tables->name);
        atomic_store_explicit(&loaded_cuda, found, memory_order_release);
    }
    *ops = found;
    return BANYAN_OK;
}

const memory_device_ops *memory_device_loaded(DLDeviceType type)
{
    return type == kDLCUDA ? atomic_load_explicit(&loaded_cuda, memory_order_acquire) : NULL;
}

static int take_count(struct dl_phdr_info *info, size_t bytes, void *count)
{
    (void)bytes;
    *(unsigned long long *)count = info->dlpi_adds;
    return 1;
}

/* The linker takes microseconds to look for a library, so look only after new libraries were
 * loaded. */
static bool process_has_driver(void)
{
    static _Atomic unsigned long long looked_at;
    unsigned long long count = 0;
    dl_iterate_phdr(take_count, &count);
    if (atomic_load_explicit(&looked_at, memory_order_relaxed) == count)
        return false;
    void *driver = dlopen(CUDA_DRIVER, RTLD_NOW | RTLD_NOLOAD);
    if (driver) {
        dlclose(driver);
        return true;
    }
    atomic_store_explicit(&looked_at, count, memory_order_relaxed);
    return false;
}

/* Get the table, and load its module if this process has already loaded the device's driver: only
 * then can it have memory there. Cheap enough to call for every pointer. */
static const memory_device_ops *memory_device_in_use(DLDeviceType type)
{
    const memory_device_ops *ops = memory_device_loaded(type);
    static atomic_bool failed;
    if (ops || type != kDLCUDA || atomic_load(&failed) || !process_has_driver())
        return ops;
    if (memory_device_find(type, &ops) == BANYAN_OK)
        return ops;
    atomic_store(&failed, true);
    return NULL;
}

banyan_status memory_device_buffer(DLDevice device, size_t bytes, int value, void **buffer)
{
    const memory_device_ops *ops;
    if (device_is_host(device)) {
        *buffer = malloc(bytes);
        if (!*buffer)
            return error_no_memory(bytes, "measurements");
        memset(*buffer, value, bytes);
        return BANYAN_OK;
    }
    RETURN_IF_FAILED(memory_device_find(device.device_type, &ops));
    RETURN_IF_FAILED(ops->alloc(device.device_id, bytes, buffer));
    return ops->fill(*buffer, value, bytes);
}

void memory_device_buffer_free(DLDevice device, void *buffer)
{
    const memory_device_ops *ops;
    if (device_is_host(device))
        free(buffer);
    else if (buffer && memory_device_find(device.device_type, &ops) == BANYAN_OK)
        ops->free(device.device_id, buffer);
}

const char *device_format(DLDevice device, char text[DEVICE_TEXT_BYTES])
{
    if (device_is_host(device) || device.device_type == kDLCUDAHost)
        snprintf(text, DEVICE_TEXT_BYTES, "host memory");
    else if (device.device_type == kDLCUDA)
        snprintf(text, DEVICE_TEXT_BYTES, "GPU %d", (int)device.device_id);
    else
        snprintf(text, DEVICE_TEXT_BYTES, "device %d of type %d", (int)device.device_id,
                 (int)device.device_type);
    return text;
}

banyan_status banyan_memory_count_gpus(int *count)
{
    const memory_device_ops *ops = NULL;
    RETURN_IF_FAILED(memory_device_find(kDLCUDA, &ops));
    return ops->count(count);
}

banyan_status banyan_memory_locate(const void *address, DLDevice *device)
{
    const memory_device_ops *ops = memory_device_in_use(kDLCUDA);
    if (ops)
        return ops->locate(address, device);
    *device = BANYAN_HOST;
    return BANYAN_OK;
}

banyan_status tensor_lies_on_host(const DLTensor *tensor, bool *on_host, DLDevice *lies)
{
    *lies = tensor->device;
    *on_host = device_is_host(*lies) || lies->device_type == kDLCUDAHost;
    if (!*on_host || !tensor->data)
        return BANYAN_OK;
    RETURN_IF_FAILED(banyan_memory_locate((const char *)tensor->data + tensor->byte_offset, lies));
    *on_host = lies->device_type != kDLCUDA;
    return BANYAN_OK;
}

banyan_status banyan_memory_copy(void *to, const void *from, size_t bytes)
{
    const memory_device_ops *ops = memory_device_in_use(kDLCUDA);
    if (ops)
        return ops->copy(to, from, bytes);
    stream_copy(to, from, bytes);
    return BANYAN_OK;
}
