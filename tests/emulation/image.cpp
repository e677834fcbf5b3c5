/* The image of kernels that are linked with NVSHMEM's device library. */
#include "image.h"

#include "cuda/mixed/nodes/puts.cu"

extern "C" {
#include "cuda/mixed/nodes/puts.h"
}

emulated_nvshmem_state emulated_nvshmem;

#define ENTRY(name)                                                                                \
    {                                                                                              \
#name, DEVICE_KERNEL(name, nodes_args)                                                     \
    }

#define ENTRIES(type)                                                                              \
    ENTRY(mixed_nodes_puts_##type), ENTRY(mixed_nodes_puts_any_##type),                            \
        ENTRY(mixed_nodes_puts_multicast_##type), ENTRY(mixed_nodes_puts_multicast_any_##type)

static const emulated_entry entries[] = {ENTRIES(bf16), ENTRIES(f16), ENTRIES(f32), {NULL, NULL}};

static const struct emulated_image image = {entries, &emulated_nvshmem};

const void *const nodes_puts_image = &image;
const int nodes_puts_version[3] = {3, 8, 0};
