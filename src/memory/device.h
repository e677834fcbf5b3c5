/* Memory of a device: the table that a module brings so that buffers can lie there.
 *
 * Everything here is local. What ranks must tell each other (descriptors, sizes) the layer memory
 * carries, the same way for every device. Errors name the call that failed, the device and the
 * driver's own text. Any thread. */
#ifndef MEMORY_DEVICE_H
#define MEMORY_DEVICE_H

#include <unistd.h>

#include <banyan/memory.h>

#include "memory/symmetric/pages.h"

/* What names a device alike in every process, whatever number it has there. */
#define DEVICE_UUID_BYTES 16

/* How peers get at memory that somebody else has allocated. */
typedef enum device_sharing {
    DEVICE_SHARED_BY_NOBODY, /* peers cannot map it: it is staged */
    DEVICE_SHARED_BY_NAME,   /* `name` is enough */
    DEVICE_SHARED_BY_PARTS /* each of the allocations it is made of by its own descriptor or name */
} device_sharing;

#define DEVICE_NAME_BYTES 64

/* Whole allocations of the caller's, one behind the other: plain bytes, which a peer can be told.
 */
typedef struct device_share {
    uint32_t sharing;     /* enum device_sharing */
    int32_t device;       /* its number at the owner */
    uint64_t base, bytes; /* in the owner's address space */
    unsigned char uuid[DEVICE_UUID_BYTES];
    unsigned char name[DEVICE_NAME_BYTES];
} device_share;

/* One of its allocations. */
typedef struct device_part {
    uint64_t bytes;
    int fd; /* -1: the name is enough */
    unsigned char name[DEVICE_NAME_BYTES];
} device_part;

/* How peers get at a part of a symmetric buffer: by a descriptor, where one can be passed on, or by
 * a name. There is one of them at least. */
typedef struct device_handles {
    int fd; /* -1: none; to be closed once peers have mapped it */
    bool has_name;
    unsigned char name[DEVICE_NAME_BYTES];
} device_handles;

static inline void device_handles_close(const device_handles *handles)
{
    if (handles->fd >= 0)
        close(handles->fd);
}

/* A peer's share, mapped here. */
typedef struct device_attachment {
    char *base;            /* where share->base lies */
    uint64_t mapped_bytes; /* so far; all of them, but for one by parts that is being made */
    bool here;             /* it is memory of this process, where it always was */
} device_attachment;

/* What this process has of a multicast object; all zero: nothing. */
typedef struct device_multicast {
    uint64_t object; /* the driver's handle */
    pages mapped;    /* at an address that only multimem instructions may use */
} device_multicast;

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
     * map. */
    banyan_status (*create)(int id, size_t bytes, device_handles *handles, pages *made);
    /* Map what a rank made on another device or this one, for use by this one. */
    banyan_status (*map)(int id, const device_handles *handles, size_t mapped_bytes, pages *made);
    void (*release)(pages *mapped);

    /* Unmap what create or map has made; its address stays reserved, until release. Memory that is
     * mapped nowhere any more is free. */
    void (*suspend)(const pages *mapped);
    /* The same as create and map, at the address of what is suspended. */
    banyan_status (*recreate)(int id, const pages *suspended, device_handles *handles);
    banyan_status (*remap)(int id, const device_handles *handles, const pages *suspended);

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

    /* Describe the allocations that [address, address + bytes) of the caller's lies in, for peers.
     * `reason` says why nobody can share them. */
    banyan_status (*share)(const void *address, size_t bytes, device_share *share, char *reason,
                           size_t reason_bytes);
    /* Of a share by parts: the allocation that begins at `offset`. A descriptor is to be closed. */
    banyan_status (*share_part)(const device_share *share, uint64_t offset, device_part *part);

    /* Map a peer's share for use by device `id`. `here`: the peer is a thread of this process. One
     * by parts is mapped by attach_part, part by part, and usable after the last. What has begun is
     * to be detached, also when a later part fails. */
    banyan_status (*attach)(int id, const device_share *share, bool here, device_attachment *made);
    banyan_status (*attach_part)(int id, const device_share *share, const device_part *part,
                                 device_attachment *attachment);
    void (*detach)(int id, const device_share *share, const device_attachment *attachment);

    /* Multicast: one address for the same place in parts on several devices, for multimem
     * instructions. Nothing is made unless BANYAN_MULTICAST is 1; UNSUPPORTED otherwise, or without
     * support by driver or device, which creating and joining check too.
     *
     * One rank creates an object of up to `bytes` a device and passes on its descriptor; each of
     * `devices` ranks joins, the creator (whose `made` has the object) with no descriptor; when all
     * have, each binds its own part, of this table's making, from its start, and maps the object,
     * `bytes` of it rounded down to whole units; and it is used when all have done that. What has
     * begun is to be left, also when a later step fails; memory stays bound until the last rank has
     * left. */
    banyan_status (*multicast_check)(int id);
    banyan_status (*multicast_create)(int id, int devices, size_t bytes, int *fd,
                                      device_multicast *made);
    banyan_status (*multicast_join)(int id, int fd, device_multicast *made);
    banyan_status (*multicast_map)(int id, int devices, const pages *part, size_t bytes,
                                   device_multicast *made);
    /* Leave it, and keep its address, where it is mapped when all this is done once more. */
    void (*multicast_suspend)(device_multicast *made);
    void (*multicast_leave)(device_multicast *old);
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

/* "host memory", "GPU 3" or "device 1 of type 8" into `text`. Returns `text`. */
#define DEVICE_TEXT_BYTES 48
const char *device_format(DLDevice device, char text[DEVICE_TEXT_BYTES]);

/* Can the processor read and write the tensor? By what it says, and by what the driver knows of its
 * memory; else `lies` is where it lies. */
banyan_status tensor_lies_on_host(const DLTensor *tensor, bool *on_host, DLDevice *lies);

/* kDLCPU, or nothing said (type 0)? */
static inline bool device_is_host(DLDevice device)
{
    return device.device_type == 0 || device.device_type == kDLCPU;
}

#endif
