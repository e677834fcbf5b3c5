#include "publish/device.h"

#include <pthread.h>
#include <stdlib.h>

#include "core/module.h"

/* Buffers have a multiple of these bytes, and no more than the most are kept. */
#define BUFFER_UNIT ((size_t)8 << 20)
#define BUFFERS_MOST ((size_t)256 << 20)

/* Buffers that nobody uses. */
struct publish_buffers {
    pthread_mutex_t lock;
    ARRAY(struct publish_buffer) idle;
    size_t idle_bytes;
};

static DLDevice publish_memory_of(const DLTensor *tensor)
{
    return tensor->device.device_type == kDLCUDA ? tensor->device : BANYAN_HOST;
}

/* Find the memory in which all tensors lie. */
static banyan_status find_memory(const banyan_tensors *tensors, DLDevice *device)
{
    char first[DEVICE_TEXT_BYTES], other[DEVICE_TEXT_BYTES];
    size_t count = tensors ? banyan_tensors_count(tensors) : 0;
    *device = count > 0 ? publish_memory_of(banyan_tensors_get(tensors, 0)) : BANYAN_HOST;
    for (size_t i = 1; i < count; i++) {
        DLDevice one = publish_memory_of(banyan_tensors_get(tensors, i));
        if (one.device_type == device->device_type && one.device_id == device->device_id)
            continue;
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "tensor 0 lies in %s and tensor %zu in %s: a rank's published tensors lie "
                         "in one memory",
                         device_format(*device, first), i, device_format(one, other));
    }
    return BANYAN_OK;
}

banyan_status publish_device_open(const banyan_tensors *tensors, void *stream,
                                  struct publish_device *made)
{
    const module_tables *tables;
    DLDevice device;
    struct publish_device opened = {.stream = stream};
    RETURN_IF_FAILED(find_memory(tensors, &device));
    if (device_is_host(device)) {
        if (stream && tensors && banyan_tensors_count(tensors) > 0)
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
    opened.buffers = alloc_zeroed(1, sizeof *opened.buffers, "the buffers of a device");
    if (!opened.buffers) {
        publish_device_close(&opened);
        return BANYAN_ERR_NO_MEMORY;
    }
    pthread_mutex_init(&opened.buffers->lock, NULL);
    opened.id = device.device_id;
    banyan_status status = publish_device_ready(&opened);
    if (status == BANYAN_OK)
        *made = opened;
    else
        publish_device_close(&opened);
    return status;
}

static void free_buffers(struct publish_device *device)
{
    struct publish_buffers *buffers = device->buffers;
    if (!buffers)
        return;
    for (size_t i = 0; i < buffers->idle.count; i++)
        device->delta->host_free(device->engine, buffers->idle.data[i].memory);
    array_free(&buffers->idle);
    pthread_mutex_destroy(&buffers->lock);
    free(buffers);
}

void publish_device_close(struct publish_device *device)
{
    free_buffers(device);
    if (device->delta)
        device->delta->close(device->engine);
    *device = (struct publish_device){0};
}

banyan_status publish_device_check(const struct publish_device *device,
                                   const banyan_tensors *tensors)
{
    char before[DEVICE_TEXT_BYTES], now[DEVICE_TEXT_BYTES];
    DLDevice found, opened = publish_device_place(device);
    RETURN_IF_FAILED(find_memory(tensors, &found));
    if (found.device_type == opened.device_type && found.device_id == opened.device_id)
        return BANYAN_OK;
    return error_set(BANYAN_ERR_INVALID,
                     "the tensors lie in %s, and those of the first version lay in %s",
                     device_format(found, now), device_format(opened, before));
}

banyan_status publish_device_ready(const struct publish_device *device)
{
    return publish_device_is_host(device) ? BANYAN_OK
                                          : device->delta->wait(device->engine, device->stream);
}

banyan_status publish_device_read(const struct publish_device *device, const strided_view *from,
                                  uint64_t first, uint64_t count, void *to)
{
    if (!publish_device_is_host(device))
        return device->delta->gather(device->engine, from, first, count, to);
    strided_pack(to, from, first, count);
    return BANYAN_OK;
}

/* Take the smallest buffer that is large enough; false if there is none. */
static bool take_idle(struct publish_buffers *buffers, size_t bytes, struct publish_buffer *taken)
{
    size_t best = SIZE_MAX;
    pthread_mutex_lock(&buffers->lock);
    for (size_t i = 0; i < buffers->idle.count; i++) {
        size_t has = buffers->idle.data[i].bytes;
        if (has >= bytes && (best == SIZE_MAX || has < buffers->idle.data[best].bytes))
            best = i;
    }
    if (best != SIZE_MAX) {
        *taken = buffers->idle.data[best];
        buffers->idle.data[best] = buffers->idle.data[--buffers->idle.count];
        buffers->idle_bytes -= taken->bytes;
    }
    pthread_mutex_unlock(&buffers->lock);
    return best != SIZE_MAX;
}

banyan_status publish_device_take(const struct publish_device *device, size_t bytes,
                                  struct publish_buffer *taken)
{
    struct publish_buffer made = {NULL, (bytes + BUFFER_UNIT - 1) / BUFFER_UNIT * BUFFER_UNIT};
    if (take_idle(device->buffers, bytes, taken))
        return BANYAN_OK;
    RETURN_IF_FAILED(device->delta->host_alloc(device->engine, made.bytes, &made.memory));
    *taken = made;
    return BANYAN_OK;
}

void publish_device_give(const struct publish_device *device, struct publish_buffer *buffer)
{
    struct publish_buffers *buffers = device->buffers;
    if (!buffer->memory)
        return;
    pthread_mutex_lock(&buffers->lock);
    bool kept =
        buffers->idle_bytes + buffer->bytes <= BUFFERS_MOST && array_push(&buffers->idle, *buffer);
    buffers->idle_bytes += kept ? buffer->bytes : 0;
    pthread_mutex_unlock(&buffers->lock);
    if (!kept)
        device->delta->host_free(device->engine, buffer->memory);
    *buffer = (struct publish_buffer){0};
}
