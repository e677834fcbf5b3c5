/* Launches of kernels: the thread blocks that run at once, the engines that share a device, and
 * launches that begin early. */
#ifndef CUDA_RUNTIME_LAUNCH_H
#define CUDA_RUNTIME_LAUNCH_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda/driver.h"

typedef struct launch_shape {
    uint32_t blocks, threads;
    uint32_t shared_bytes; /* dynamic shared memory of a thread block */
    bool early; /* it may begin while the previous launch in its stream still runs (begin.cuh) */
} launch_shape;

/* A launch of a single thread. */
#define LAUNCH_ONE ((launch_shape){.blocks = 1, .threads = 1})

/* Queue a kernel, whose only argument is the struct at `args`. The device is entered. */
banyan_status launch_kernel(int device, CUfunction kernel, launch_shape by, void *args,
                            CUstream stream);

/* Return the number of thread blocks of a kernel that run at once, alone on the device. The device
 * is entered. */
banyan_status launch_room(int device, CUfunction kernel, uint32_t threads, uint32_t shared_bytes,
                          uint32_t *blocks);
/* Lower `*threads` to the most that a thread block of the kernel has. */
banyan_status launch_bound_threads(int device, CUfunction kernel, uint32_t *threads);

/* The engines of this process whose kernels wait for peers. Each kind is counted by itself. */
typedef enum launch_kind { LAUNCH_PLANS, LAUNCH_MIXED, LAUNCH_KINDS } launch_kind;

/* Count an engine on the device. Its opening thread stands for the rank that it belongs to. */
void launch_engine_opened(launch_kind kind, int device);
void launch_engine_closed(launch_kind kind, int device);
uint32_t launch_engines(launch_kind kind, int device);
/* True if all engines of the kind on the device belong to one rank, as far as the process can
 * tell. */
bool launch_has_device(launch_kind kind, int device);

/* True if a launch of this many thread blocks may begin while the previous one in its stream still
 * runs; the device has room for `room` such blocks. */
bool launch_is_early(launch_kind kind, int device, uint32_t blocks, uint32_t room);

#endif
