/* The emulated driver's devices and contexts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory.h"

static struct emulated_context devices[EMULATED_DEVICES_MAX];
static int device_count;
static __thread CUcontext stack[16];
static __thread int depth;

int emulated_device_count(void)
{
    return device_count;
}

CUresult cuInit(unsigned flags)
{
    (void)flags;
    const char *wanted = getenv("BANYAN_EMULATED_DEVICES");
    device_count = wanted ? atoi(wanted) : 4;
    if (device_count < 1 || device_count > EMULATED_DEVICES_MAX)
        return CUDA_ERROR_INVALID_DEVICE;
    for (int i = 0; i < device_count; i++)
        devices[i].device = i;
    return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version)
{
    *version = 12080;
    return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **name)
{
    static __thread char text[48];
    snprintf(text, sizeof text, "CUDA_ERROR_EMULATED_%d", (int)error);
    *name = text;
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
    *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "an emulated error";
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
    *count = device_count;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    if (ordinal < 0 || ordinal >= device_count)
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int bytes, CUdevice device)
{
    snprintf(name, (size_t)bytes, "emulated GPU %d", device);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    memset(uuid, device + 1, sizeof *uuid);
    return CUDA_SUCCESS;
}

/* BANYAN_EMULATED_FABRIC: "none", or "refused": devices have fabric handles, but their machine
 * does not. */
bool emulated_fabric_is(const char *what)
{
    const char *set = getenv("BANYAN_EMULATED_FABRIC");
    return set && strcmp(set, what) == 0;
}

/* Small limits, since every thread of a kernel is a fiber. */
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    (void)device;
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = EMULATED_THREADS_MAX;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = EMULATED_MULTIPROCESSORS;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = 9;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
        *value = 1;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
        *value = 227 << 10;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
        *value = !emulated_fabric_is("none");
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED:
        *value = emulated_multicast() != NULL;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
        *value = 2;
        return CUDA_SUCCESS;
    default:
        *value = 0;
        return CUDA_SUCCESS;
    }
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    *can = device != peer && !getenv("BANYAN_EMULATED_APART");
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    pthread_mutex_lock(&memory_lock);
    devices[device].users++;
    pthread_mutex_unlock(&memory_lock);
    *context = &devices[device];
    return CUDA_SUCCESS;
}
/* The context is destroyed with its last user, and with it the memory that was allocated in it. */
CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    pthread_mutex_lock(&memory_lock);
    bool used = devices[device].users > 0;
    if (used && --devices[device].users == 0)
        ranges_drop_plain(device);
    pthread_mutex_unlock(&memory_lock);
    return used ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

/* BANYAN_EMULATED_ENTRY=main: only the process's first thread can enter a device. */
static bool may_enter(void)
{
    const char *who = getenv("BANYAN_EMULATED_ENTRY");
    return !who || strcmp(who, "main") != 0 || gettid() == getpid();
}

CUresult cuCtxPushCurrent(CUcontext context)
{
    if (depth == 16 || !may_enter())
        return CUDA_ERROR_INVALID_CONTEXT;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *context)
{
    if (depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    *context = stack[--depth];
    return CUDA_SUCCESS;
}

CUcontext emulated_current(void)
{
    return depth > 0 ? stack[depth - 1] : NULL;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
    (void)flags;
    return emulated_current() && peer ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
