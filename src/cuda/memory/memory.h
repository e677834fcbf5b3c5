/* Memory of GPUs: the module's table, and what its files share. */
#ifndef CUDA_MEMORY_MEMORY_H
#define CUDA_MEMORY_MEMORY_H

#include "cuda/driver.h"
#include "memory/device.h"

extern const memory_device_ops cuda_memory_ops;

/* Address space that this module has mapped memory at, and the device that may use it: memory of
 * another device may lie there. */
typedef struct mapping {
    uintptr_t start, end;
    int device;
} mapping;

banyan_status mappings_add(mapping added);
void mappings_remove(uintptr_t start);
/* False when the address is in none. Any thread. */
bool mappings_find(const void *address, mapping *found);

/* What cuMemCreate takes for memory of a device that other processes can map. */
CUmemAllocationProp shareable_memory_of(int device);

/* Map `count` parts one behind the other, `part_bytes` each and the last what is left of `bytes`,
 * for use by a device; the handles may be released then. */
banyan_status vmm_map(int device, const CUmemGenericAllocationHandle *parts, size_t count,
                      size_t part_bytes, size_t bytes, pages *made);

/* Of the table: vmm.c. */
banyan_status vmm_create(int device, size_t bytes, int *fd, pages *made);
banyan_status vmm_map_peer(int device, int fd, size_t mapped_bytes, pages *made);
void vmm_release(pages *mapped);

/* bytes.c */
banyan_status bytes_copy(void *to, const void *from, size_t bytes);
banyan_status bytes_fill(void *to, uint8_t value, size_t bytes);
banyan_status bytes_locate(const void *address, DLDevice *device);

#endif
