/* Device memory: the table that a module provides for buffers on its devices.
 *
 * Every call is local. The memory layer exchanges descriptors and sizes between ranks, in one way
 * for all devices. Errors name the failed call, the device and the driver's text. Any thread. */
#ifndef MEMORY_DEVICE_H
#define MEMORY_DEVICE_H

#include <unistd.h>

#include <banyan/memory.h>

#include "memory/symmetric/pages.h"

/* A UUID identifies a device in every process, whatever its number there. */
#define DEVICE_UUID_BYTES 16

/* Way in which peers access memory that the caller allocated. */
typedef enum device_sharing {
    DEVICE_SHARED_BY_NOBODY, /* peers cannot map it: it is staged */
    DEVICE_SHARED_BY_NAME,   /* `name` is enough */
    DEVICE_SHARED_BY_PARTS   /* each of its allocations by its own descriptor or name */
} device_sharing;

#define DEVICE_NAME_BYTES 64

/* A range of the caller's whole, consecutive allocations. Plain bytes, so it can be sent to a peer.
 */
typedef struct device_share {
    uint32_t sharing;     /* enum device_sharing */
    int32_t device;       /* the owner's number for it */
    uint64_t base, bytes; /* in the owner's address space */
    unsigned char uuid[DEVICE_UUID_BYTES];
    unsigned char name[DEVICE_NAME_BYTES];
} device_share;

/* One allocation of a share. */
typedef struct device_part {
    uint64_t bytes;
    int fd; /* -1: the name is enough */
    unsigned char name[DEVICE_NAME_BYTES];
} device_part;

/* Handles with which peers access a rank's part of a symmetric buffer: a descriptor, if descriptors
 * can be sent, or a name. At least one of them is set. */
typedef struct device_handles {
    int fd; /* -1: none; close it once peers have mapped it */
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
    uint64_t mapped_bytes; /* so far; less than all only while a share by parts is being mapped */
    bool here;             /* memory of this process, at its own address */
} device_attachment;

/* This process's state of a multicast object; all zero: none. */
typedef struct device_multicast {
    uint64_t object; /* the driver's handle */
    pages mapped;    /* at an address that only multimem instructions may use */
} device_multicast;

/* Memory of one rank that can have a shadow: a second copy, with which it changes places. */
typedef struct device_swappable device_swappable;

typedef struct memory_device_ops {
    size_t size;      /* of this struct */
    const char *name; /* "cuda" */
    DLDeviceType type;

    /* The number of devices that this process sees. */
    banyan_status (*count)(int *count);
    /* Check that device `id` exists and is usable. UNSUPPORTED, with what is missing. Call it once
     * per device. */
    banyan_status (*open)(int id);
    banyan_status (*identify)(int id, unsigned char uuid[DEVICE_UUID_BYTES]);
    /* UNSUPPORTED when `id` cannot access memory of the device with this `uuid`. BANYAN_OK for a
     * device that this process does not see: mapping its memory then decides. */
    banyan_status (*reach)(int id, const unsigned char uuid[DEVICE_UUID_BYTES]);

    /* Allocate `bytes` > 0 zeroed bytes on the device, rounded up to its granularity, that other
     * processes can map. */
    banyan_status (*create)(int id, size_t bytes, device_handles *handles, pages *made);
    /* Map a rank's memory for use by this device. The memory may be on this device or another. */
    banyan_status (*map)(int id, const device_handles *handles, size_t mapped_bytes, pages *made);
    void (*release)(pages *mapped);

    /* Unmap memory that create or map returned; its address range stays reserved until release. The
     * device frees memory that is mapped nowhere. */
    void (*suspend)(const pages *mapped);
    /* Create or map again, at the address of suspended memory. */
    banyan_status (*recreate)(int id, const pages *suspended, device_handles *handles);
    banyan_status (*remap)(int id, const device_handles *handles, const pages *suspended);

    /* Get the device's free memory and its total memory. */
    banyan_status (*room)(int id, size_t *free_bytes, size_t *all_bytes);

    /* Memory for this rank alone. `free` does not synchronize: the caller knows that the memory is
     * unused. */
    banyan_status (*alloc)(int id, size_t bytes, void **address);
    void (*free)(int id, void *address);

    /* Copy between any two places of this process's memory, host or device. Complete when it
     * returns; not ordered with the caller's streams. */
    banyan_status (*copy)(void *to, const void *from, size_t bytes);
    banyan_status (*fill)(void *to, uint8_t value, size_t bytes);

    /* Find the device of an address. BANYAN_OK with kDLCPU for ordinary memory. */
    banyan_status (*locate)(const void *address, DLDevice *device);

    /* Describe the caller's allocations that contain [address, address + bytes), for peers. If
     * nobody can share them, `reason` is set. */
    banyan_status (*share)(const void *address, size_t bytes, device_share *share, char *reason,
                           size_t reason_bytes);
    /* For a share by parts: get the allocation that begins at `offset`. The caller closes its
     * descriptor. */
    banyan_status (*share_part)(const device_share *share, uint64_t offset, device_part *part);

    /* Map a peer's share for use by device `id`. `here`: the peer is a thread of this process.
     * attach_part maps a share by parts one part at a time. Such a share is usable after the last
     * part. Detach every attachment that was begun, even if a later part fails. */
    banyan_status (*attach)(int id, const device_share *share, bool here, device_attachment *made);
    banyan_status (*attach_part)(int id, const device_share *share, const device_part *part,
                                 device_attachment *attachment);
    void (*detach)(int id, const device_share *share, const device_attachment *attachment);

    /* Multicast: one address for corresponding places on several devices, for multimem
     * instructions. UNSUPPORTED, and nothing is created, unless BANYAN_MULTICAST is 1; also without
     * support by the driver or device, which creating and joining check too.
     *
     * Steps: One rank creates an object of up to `bytes` per device and sends its descriptor to the
     * others. Each of `devices` ranks joins; the creator, whose `made` has the object, passes no
     * descriptor. After all have joined, each binds its own part, allocated by this table, from its
     * start, and maps `bytes` of the object, rounded down to whole units. The address is usable
     * after all have mapped. Leave every object that was begun, even if a later step fails; memory
     * stays bound until the last rank has left. */
    banyan_status (*multicast_check)(int id);
    banyan_status (*multicast_create)(int id, int devices, size_t bytes, int *fd,
                                      device_multicast *made);
    banyan_status (*multicast_join)(int id, int fd, device_multicast *made);
    banyan_status (*multicast_map)(int id, int devices, const pages *part, size_t bytes,
                                   device_multicast *made);
    /* Leave the object but keep its address. Repeating the steps maps it there again. */
    void (*multicast_suspend)(device_multicast *made);
    void (*multicast_leave)(device_multicast *old);

    /* Memory for this rank alone, of any contents. No other process can map it. `double` adds a
     * shadow of the same size and any contents, if there is none. `swap` remaps both: what the
     * shadow holds is then at the memory's addresses, and the other way round. Nothing may access
     * either meanwhile. After an error both have what they had. */
    banyan_status (*swappable_create)(int id, size_t bytes, device_swappable **memory,
                                      void **address);
    banyan_status (*swappable_double)(device_swappable *memory, void **shadow);
    void (*swappable_undouble)(device_swappable *memory);
    banyan_status (*swappable_swap)(device_swappable *memory);
    void (*swappable_free)(device_swappable *memory);
} memory_device_ops;

/* Get the table for a device type; loads its module if necessary. UNSUPPORTED, with what this build
 * or machine lacks. Any thread. */
banyan_status memory_device_find(DLDeviceType type, const memory_device_ops **ops);

/* Get the table of an already loaded module; NULL when none is loaded. Use it where unused device
 * memory must not load a driver. */
const memory_device_ops *memory_device_loaded(DLDeviceType type);

/* Allocate a buffer for measurements on the host or on a device, and set every byte to `value`,
 * which allocates its pages. On failure the buffer may exist: free it in any case. */
banyan_status memory_device_buffer(DLDevice device, size_t bytes, int value, void **buffer);
void memory_device_buffer_free(DLDevice device, void *buffer);

/* Write "host memory", "GPU 3" or "device 1 of type 8" into `text`, and return it. */
#define DEVICE_TEXT_BYTES 48
const char *device_format(DLDevice device, char text[DEVICE_TEXT_BYTES]);

/* Find out whether the processor can access the tensor, from the tensor's device and from what the
 * driver knows of its memory. Otherwise `lies` is its device. */
banyan_status tensor_lies_on_host(const DLTensor *tensor, bool *on_host, DLDevice *lies);

/* True for kDLCPU, and for a device that is not given (type 0). */
static inline bool device_is_host(DLDevice device)
{
    return device.device_type == 0 || device.device_type == kDLCPU;
}

#endif
