#include "publish/device.h"

#include "core/module.h"

static DLDevice memory_of(const DLTensor *tensor)
{
    return tensor->device.device_type == kDLCUDA ? tensor->device : BANYAN_HOST;
}

/* Find the memory in which all tensors lie. */
static banyan_status find_memory(const banyan_tensors *tensors, DLDevice *device)
{
    char first[DEVICE_TEXT_BYTES], other[DEVICE_TEXT_BYTES];
    size_t count = tensors ? banyan_tensors_count(tensors) : 0;
    *device = count > 0 ? memory_of(banyan_tensors_get(tensors, 0)) : BANYAN_HOST;
    for (size_t i = 1; i < count; i++) {
        DLDevice one = memory_of(banyan_tensors_get(tensors, i));
        if (one.device_type == device->device_type && one.device_id == device->device_id)
            continue;
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "tensor 0 lies in %s and tensor %zu in %s: a rank's published tensors lie "
                         "in one memory",
                         device_format(*device, first), i, device_format(one, other));
    }
    return BANYAN_OK;
}

static DLDevice device_of(const struct publish_device *device)
{
    return publish_device_is_host(device) ? BANYAN_HOST : BANYAN_CUDA(device->id);
}

banyan_status publish_device_open(const banyan_tensors *tensors, void *stream,
                                  struct publish_device *made)
{
    const module_tables *tables;
    DLDevice device;
    struct publish_device opened = {.stream = stream};
    RETURN_IF_FAILED(find_memory(tensors, &device));
    if (device_is_host(device)) {
        if (stream && tensors)
            return error_set(BANYAN_ERR_INVALID,
                             "tensors in host memory are published without a stream, and %p is "
                             "given",
                             stream);
        *made = opened;
        return BANYAN_OK;
    }
    RETURN_IF_FAILED(memory_device_find(device.device_type, &opened.memory));
    RETURN_IF_FAILED(module_load(opened.memory->name, &tables));
    if (!tables->delta)
        return error_set(BANYAN_ERR_UNSUPPORTED, "module %s has no functions for publications",
                         tables->name);
    RETURN_IF_FAILED(opened.memory->open(device.device_id));
    RETURN_IF_FAILED(tables->delta->open(device.device_id, &opened.engine));
    opened.delta = tables->delta;
    opened.id = device.device_id;
    banyan_status status = opened.delta->wait(opened.engine, stream);
    if (status == BANYAN_OK)
        *made = opened;
    else
        publish_device_close(&opened);
    return status;
}

void publish_device_close(struct publish_device *device)
{
    if (device->delta)
        device->delta->close(device->engine);
    *device = (struct publish_device){0};
}

banyan_status publish_device_check(const struct publish_device *device,
                                   const banyan_tensors *tensors)
{
    char before[DEVICE_TEXT_BYTES], now[DEVICE_TEXT_BYTES];
    DLDevice found, opened = device_of(device);
    RETURN_IF_FAILED(find_memory(tensors, &found));
    if (found.device_type == opened.device_type && found.device_id == opened.device_id)
        return BANYAN_OK;
    return error_set(BANYAN_ERR_INVALID,
                     "the tensors lie in %s, and those of the first version lay in %s",
                     device_format(found, now), device_format(opened, before));
}

banyan_status publish_device_read(const struct publish_device *device, const strided_view *from,
                                  uint64_t first, uint64_t count, void *to)
{
    if (!publish_device_is_host(device))
        return device->delta->gather(device->engine, from, first, count, to);
    strided_pack(to, from, first, count);
    return BANYAN_OK;
}

banyan_status publish_device_upload(const struct publish_device *device, const void *from,
                                    size_t bytes, void **there)
{
    RETURN_IF_FAILED(device->memory->alloc(device->id, bytes, there));
    banyan_status status = device->memory->copy(*there, from, bytes);
    if (status != BANYAN_OK)
        device->memory->free(device->id, *there);
    return status;
}
