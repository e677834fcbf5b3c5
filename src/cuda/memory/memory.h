/* Memory of GPUs: the module's table, and the interface between its files. */
#ifndef CUDA_MEMORY_MEMORY_H
#define CUDA_MEMORY_MEMORY_H

#include "cuda/driver.h"
#include "memory/device.h"

extern const memory_device_ops cuda_memory_ops;

/* Address space at which this module has mapped memory, and the device that may use it; the memory
 * may lie on another device. */
typedef struct mapping {
    uintptr_t start, end;
    int device;
} mapping;

banyan_status mappings_add(mapping added);
/* Let a device use the mapping at [start, start + bytes). */
banyan_status vmm_allow(int device, CUdeviceptr start, size_t bytes);
/* False if there was none. */
bool mappings_remove(uintptr_t start);
/* False if no mapping contains the address. Any thread. */
bool mappings_find(const void *address, mapping *found);

/* handles.c. Device memory that other processes can map, by descriptors, and by fabric handles if
 * device and driver create them (BANYAN_GPU_HANDLES: only "descriptors" or only "fabric"). */
banyan_status handles_granularity(int device, size_t *unit);
banyan_status handles_create(int device, size_t bytes, CUmemGenericAllocationHandle *memory,
                             device_handles *handles);
banyan_status handles_import(int device, const device_handles *handles,
                             CUmemGenericAllocationHandle *memory);
banyan_status device_identify(int id, unsigned char uuid[DEVICE_UUID_BYTES]);

/* Functions of the table: vmm.c. */
banyan_status vmm_create(int device, size_t bytes, device_handles *handles, pages *made);
banyan_status vmm_map_peer(int device, const device_handles *handles, size_t mapped_bytes,
                           pages *made);
void vmm_release(pages *mapped);
void vmm_suspend(const pages *mapped);
banyan_status vmm_recreate(int device, const pages *suspended, device_handles *handles);
banyan_status vmm_remap_peer(int device, const device_handles *handles, const pages *suspended);

/* multicast.c. The unit is the number of bytes that a part must be a multiple of for multicast; 1
 * without multicast. */
banyan_status multicast_unit(int device, int devices, size_t bytes, size_t *unit);
banyan_status multicast_check(int device);
banyan_status multicast_create(int device, int devices, size_t bytes, int *fd,
                               device_multicast *made);
banyan_status multicast_join(int device, int fd, device_multicast *made);
banyan_status multicast_map(int device, int devices, const pages *part, size_t bytes,
                            device_multicast *made);
void multicast_suspend(device_multicast *made);
void multicast_leave(device_multicast *old);

/* swappable.c */
banyan_status swappable_create(int device, size_t bytes, device_swappable **memory, void **address);
banyan_status swappable_double(device_swappable *memory, void **shadow);
void swappable_undouble(device_swappable *memory);
banyan_status swappable_swap(device_swappable *memory);
void swappable_free(device_swappable *memory);

/* bytes.c. Memory for this rank alone comes from the device's stream-ordered pool. Unlike
 * cuMemFree, freeing it waits for no kernel of another rank, which may wait for this one. */
banyan_status bytes_alloc(int device, size_t bytes, void **address);
void bytes_free(int device, void *address);
banyan_status bytes_copy(void *to, const void *from, size_t bytes);
banyan_status bytes_fill(void *to, uint8_t value, size_t bytes);
/* Allocate zeroed words in host memory that a device accesses while it runs, and free them; the
 * device is entered. `there` is the device address. pinned_free ignores NULL. */
banyan_status pinned_alloc(int device, size_t bytes, void **here, void **there);
void pinned_free(void *here);
banyan_status bytes_locate(const void *address, DLDevice *device);

/* share.c */
banyan_status share_describe(const void *address, size_t bytes, device_share *share, char *reason,
                             size_t reason_bytes);
banyan_status share_part(const device_share *share, uint64_t offset, device_part *part);

/* attach.c */
banyan_status attach_begin(int device, const device_share *share, bool here,
                           device_attachment *made);
banyan_status attach_part(int device, const device_share *share, const device_part *part,
                          device_attachment *attachment);
void attach_end(int device, const device_share *share, const device_attachment *attachment);

#endif
