/* The functions of banyan/device/multicast.cuh, called by an emulated kernel. */
#ifndef TESTS_CUDA_DEVICE_MULTICAST_H
#define TESTS_CUDA_DEVICE_MULTICAST_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum multicast_kind {
    MULTICAST_STORE,
    MULTICAST_STORE_RELEASE,
    MULTICAST_LOAD,
    MULTICAST_LOAD_STORE,
    MULTICAST_ADD
} multicast_kind;

typedef struct multicast_call {
    uint32_t kind;
    uint32_t type; /* F32, F16, BF16 */
    char *to;
    const char *from;
    uint64_t bytes;
    uint64_t word; /* word that is stored with release */
} multicast_call;

/* Called by `threads` threads of each of two blocks. Both blocks add; other work is divided among
 * them. */
void multicast_run(const multicast_call *call, uint32_t threads);

#ifdef __cplusplus
}
#endif

#endif
