/* Device code that is loaded as an image: kernels by name, and NVSHMEM's state for its device
 * library. */
#ifndef EMULATION_IMAGE_H
#define EMULATION_IMAGE_H

#include <stddef.h>
#include <stdint.h>

typedef struct emulated_nvshmem_state {
    void (*put)(void *to, const void *from, size_t bytes, uint64_t *word, uint64_t value, int pe);
    const uint32_t *unplaced; /* signals that arrived before their data */
} emulated_nvshmem_state;

typedef struct emulated_entry {
    const char *name;
    const void *kernel;
} emulated_entry;

struct emulated_image {
    const emulated_entry *entries; /* ends with NULL */
    emulated_nvshmem_state *nvshmem;
};

#endif
