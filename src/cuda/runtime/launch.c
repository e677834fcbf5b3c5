#include "cuda/runtime/launch.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Compute capability 9.0 has early launches; before CUDA 12.3 graphs could not contain them. */
#define EARLY_CAPABILITY 9
#define EARLY_VERSION 12030

/* The engines of one kind on one device. */
typedef struct launch_users {
    atomic_uint engines;
    pthread_t first;       /* the thread that opened the first of them */
    atomic_bool is_shared; /* another thread has opened one, too */
    atomic_bool has_early; /* false with BANYAN_EARLY_LAUNCH=0, or with an old driver or device */
} launch_users;

static launch_users users[LAUNCH_KINDS][DRIVER_DEVICES_MAX];
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

static bool launch_has_early(int device)
{
    const char *wanted = getenv("BANYAN_EARLY_LAUNCH");
    int version = 0;
    return !(wanted && strcmp(wanted, "0") == 0) &&
           driver_attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device) >=
               EARLY_CAPABILITY &&
           driver.cuDriverGetVersion(&version) == CUDA_SUCCESS && version >= EARLY_VERSION;
}

void launch_engine_opened(launch_kind kind, int device)
{
    launch_users *of = &users[kind][device];
    pthread_mutex_lock(&opening);
    if (atomic_fetch_add(&of->engines, 1) == 0) {
        of->first = pthread_self();
        atomic_store(&of->is_shared, false);
    } else if (!pthread_equal(of->first, pthread_self())) {
        atomic_store(&of->is_shared, true);
    }
    atomic_store(&of->has_early, launch_has_early(device));
    pthread_mutex_unlock(&opening);
}

void launch_engine_closed(launch_kind kind, int device)
{
    pthread_mutex_lock(&opening);
    atomic_fetch_sub(&users[kind][device].engines, 1);
    pthread_mutex_unlock(&opening);
}

uint32_t launch_engines(launch_kind kind, int device)
{
    return atomic_load(&users[kind][device].engines);
}

bool launch_has_device(launch_kind kind, int device)
{
    return !atomic_load(&users[kind][device].is_shared);
}

/* A launch that waits for the previous one occupies space for thread blocks that others may need:
 * other ranks' or communicators' launches, for which the previous one, or a peer's, may wait. So
 * launches begin early only if every engine of the device could have two of its size there, and
 * all engines belong to one rank. On a device shared by ranks, the previous launch may already use
 * its full share. */
bool launch_is_early(launch_kind kind, int device, uint32_t blocks, uint32_t room)
{
    return atomic_load(&users[kind][device].has_early) && launch_has_device(kind, device) &&
           UINT64_C(2) * blocks * launch_engines(kind, device) <= room;
}

banyan_status launch_room(int device, CUfunction kernel, uint32_t threads, uint32_t shared_bytes,
                          uint32_t *blocks)
{
    int each = 0;
    RETURN_IF_FAILED(DRIVER(device, cuOccupancyMaxActiveBlocksPerMultiprocessor, &each, kernel,
                            (int)threads, shared_bytes));
    *blocks = (uint32_t)(each * driver_attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
    return BANYAN_OK;
}

banyan_status launch_bound_threads(int device, CUfunction kernel, uint32_t *threads)
{
    int most = 0;
    RETURN_IF_FAILED(
        DRIVER(device, cuFuncGetAttribute, &most, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel));
    if ((uint32_t)most < *threads)
        *threads = (uint32_t)most;
    return BANYAN_OK;
}

banyan_status launch_kernel(int device, CUfunction kernel, launch_shape by, void *args,
                            CUstream stream)
{
    void *params[] = {args};
    CUlaunchAttribute early = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                               .value = {.programmaticStreamSerializationAllowed = 1}};
    CUlaunchConfig config = {
        .gridDimX = by.blocks,
        .gridDimY = 1,
        .gridDimZ = 1,
        .blockDimX = by.threads,
        .blockDimY = 1,
        .blockDimZ = 1,
        .sharedMemBytes = by.shared_bytes,
        .hStream = stream,
        .attrs = &early,
        .numAttrs = by.early,
    };
    return DRIVER(device, cuLaunchKernelEx, &config, kernel, params, NULL);
}
