/* The memory in which a rank's published tensors lie: the host's, or a GPU's. */
#ifndef PUBLISH_DEVICE_H
#define PUBLISH_DEVICE_H

#include <banyan/reshard.h>

#include "memory/device.h"
#include "publish/delta/device.h"

/* Pinned host memory for what travels. */
struct publish_buffer {
    void *memory;
    size_t bytes;
};

struct publish_device {
    const delta_device_ops *delta; /* NULL: host memory */
    const memory_device_ops *memory;
    void *engine;
    int id;
    void *stream; /* of the caller, for work that the caller waits for */
    struct publish_buffers *buffers;
};

/* Open the device in whose memory the tensors (NULL: there are none) lie, and wait for the work
 * that the stream has. Errors: UNSUPPORTED (they lie in several memories, or their module has no
 * functions for changes), INVALID (a stream for tensors on the host), those of the module. */
banyan_status publish_device_open(const banyan_tensors *tensors, void *stream,
                                  struct publish_device *made);
void publish_device_close(struct publish_device *device);

/* INVALID, with both memories, unless the tensors lie in the memory of `device`. */
banyan_status publish_device_check(const struct publish_device *device,
                                   const banyan_tensors *tensors);

/* Wait for the work that the caller's stream has, before anything changes. INVALID while the stream
 * is captured. */
banyan_status publish_device_ready(const struct publish_device *device);

static inline bool publish_device_is_host(const struct publish_device *device)
{
    return !device->delta;
}

static inline DLDevice publish_device_place(const struct publish_device *device)
{
    return publish_device_is_host(device) ? BANYAN_HOST : BANYAN_CUDA(device->id);
}

/* Copy elements [first, first + count) of a view to host memory. */
banyan_status publish_device_read(const struct publish_device *device, const strided_view *from,
                                  uint64_t first, uint64_t count, void *to);

/* Take a buffer of at least `bytes` bytes of the device, which is not the host. Pinning memory
 * takes longer than filling it, so buffers that are given back are kept for the next fetches. Any
 * thread.
 */
banyan_status publish_device_take(const struct publish_device *device, size_t bytes,
                                  struct publish_buffer *taken);
/* Give a buffer back, and clear it. A buffer without memory is ignored. */
void publish_device_give(const struct publish_device *device, struct publish_buffer *buffer);

#endif
