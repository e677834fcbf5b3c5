/* Memory of a device: the table that a module brings so that buffers can lie there.
 *
 * Everything here is local. What ranks must tell each other (descriptors, sizes) the layer memory
 * carries, the same way for every device. Errors name the call that failed, the device and the
 * driver's own text. Any thread. */
#ifndef MEMORY_DEVICE_H
#define MEMORY_DEVICE_H

#include <banyan/memory.h>

#include "memory/pages.h"

/* How peers get at memory that somebody else has allocated. */
typedef enum device_sharing {
    DEVICE_SHARED_BY_NOBODY, /* peers cannot map it: it is staged */
    DEVICE_SHARED_BY_NAME,   /* `name` is enough */
    DEVICE_SHARED_BY_FD      /* `fd_count` descriptors of the owner's, one a part */
} device_sharing;

#define DEVICE_NAME_BYTES 64

/* What names a device alike in every process, whatever number it has there. */
#define DEVICE_UUID_BYTES 16

/* Plain bytes, which a peer can be told. */
typedef struct device_share {
    uint32_t sharing;     /* enum device_sharing */
    int32_t device;       /* its number at the owner */
    uint64_t base, bytes; /* what is shared, whole allocations, in the owner's address space */
    unsigned char name[DEVICE_NAME_BYTES];
    uint64_t part_bytes; /* of each descriptor's part but the last; 0: there is one part */
    uint32_t fd_count;
} device_share;

typedef struct memory_device_ops {
    size_t size;      /* of this struct */
    const char *name; /* "cuda" */
    DLDeviceType type;

    /* Is device `id` there and fit for use? UNSUPPORTED says what it lacks. Once is enough. */
    banyan_status (*open)(int id);
    banyan_status (*identify)(int id, unsigned char uuid[DEVICE_UUID_BYTES]);
    /* UNSUPPORTED when `id` cannot reach memory of the device that `uuid` names. BANYAN_OK for one
     * that this process does not see: mapping its memory will tell. */
    banyan_status (*reach)(int id, const unsigned char uuid[DEVICE_UUID_BYTES]);

    /* `bytes` > 0 zeroed bytes on the device, rounded up to what it maps, that other processes can
     * map; `*fd` is to be closed once they have. */
    banyan_status (*create)(int id, size_t bytes, int *fd, pages *made);
    /* Map what a rank made on another device or this one, for use by this one. */
    banyan_status (*map)(int id, int fd, size_t mapped_bytes, pages *made);
    void (*release)(pages *mapped);

    /* What is free on the device now, of how much. */
    banyan_status (*room)(int id, size_t *free_bytes, size_t *all_bytes);

    /* Memory for this rank alone. `free` waits for nothing: the caller knows that nobody uses it.
     */
    banyan_status (*alloc)(int id, size_t bytes, void **address);
    void (*free)(int id, void *address);

    /* Between any memory of this process, host or device; done when it returns, and not ordered
     * with any stream of the caller's. */
    banyan_status (*copy)(void *to, const void *from, size_t bytes);
    banyan_status (*fill)(void *to, uint8_t value, size_t bytes);

    /* Which device does the address lie on? BANYAN_OK with kDLCPU for ordinary memory. */
    banyan_status (*locate)(const void *address, DLDevice *device);

    /* Describe memory of the caller's, [address, address + bytes), for peers. `fds` (room for
     * `most`) receives fd_count descriptors, to be closed once peers have mapped them. `reason`
     * says why nobody can share it. */
    banyan_status (*share)(const void *address, size_t bytes, device_share *share, int *fds,
                           uint32_t most, char *reason, size_t reason_bytes);
    /* Map a peer's; `fds` as there. `*base` is where share->base lies here. */
    banyan_status (*attach)(int id, const device_share *share, const int *fds, char **base);
    void (*detach)(const device_share *share, char *base);
} memory_device_ops;

/* The table for a kind of device, its module loaded when need be. UNSUPPORTED says what this build
 * or this machine lacks. Any thread. */
banyan_status memory_device_find(DLDeviceType type, const memory_device_ops **ops);

/* The table of a module that is loaded already; NULL when none is: whoever has no device memory yet
 * need not load a driver to find out. */
const memory_device_ops *memory_device_loaded(DLDeviceType type);

/* The same, but loaded when this process already has the device's driver, and so may have memory
 * there. Cheap enough to ask about every pointer. */
const memory_device_ops *memory_device_in_use(DLDeviceType type);

/* kDLCPU, or nothing said (type 0)? */
static inline bool device_is_host(DLDevice device)
{
    return device.device_type == 0 || device.device_type == kDLCPU;
}

#endif
