/* The CUDA driver, found at run time: this module loads on machines without one, and tests may
 * replace it.
 *
 * All host code of the module calls CUDA through this table. Contexts are the devices' primary
 * ones, which the CUDA runtime and PyTorch use too. */
#ifndef CUDA_DRIVER_H
#define CUDA_DRIVER_H

#include <stdbool.h>

#include <cuda.h>

#include <banyan/core.h>

#include "core/status.h"

/* cuda.h renames some of these to versioned names. */
#define DRIVER_FUNCTIONS(X)                                                                        \
    X(cuInit)                                                                                      \
    X(cuDriverGetVersion)                                                                          \
    X(cuGetErrorName)                                                                              \
    X(cuGetErrorString)                                                                            \
    X(cuDeviceGet)                                                                                 \
    X(cuDeviceGetCount)                                                                            \
    X(cuDeviceGetName)                                                                             \
    X(cuDeviceGetUuid)                                                                             \
    X(cuDeviceGetAttribute)                                                                        \
    X(cuDeviceCanAccessPeer)                                                                       \
    X(cuDevicePrimaryCtxRetain)                                                                    \
    X(cuDevicePrimaryCtxRelease)                                                                   \
    X(cuCtxPushCurrent)                                                                            \
    X(cuCtxPopCurrent)                                                                             \
    X(cuCtxEnablePeerAccess)                                                                       \
    X(cuMemGetAllocationGranularity)                                                               \
    X(cuMemCreate)                                                                                 \
    X(cuMemRelease)                                                                                \
    X(cuMemExportToShareableHandle)                                                                \
    X(cuMemImportFromShareableHandle)                                                              \
    X(cuMemAddressReserve)                                                                         \
    X(cuMemAddressFree)                                                                            \
    X(cuMemMap)                                                                                    \
    X(cuMemUnmap)                                                                                  \
    X(cuMemSetAccess)                                                                              \
    X(cuMemRetainAllocationHandle)                                                                 \
    X(cuMemGetAllocationPropertiesFromHandle)                                                      \
    X(cuMemAlloc)                                                                                  \
    X(cuMemFree)                                                                                   \
    X(cuMemAllocAsync)                                                                             \
    X(cuMemFreeAsync)                                                                              \
    X(cuMemGetInfo)                                                                                \
    X(cuMemHostAlloc)                                                                              \
    X(cuMemFreeHost)                                                                               \
    X(cuMemHostGetDevicePointer)                                                                   \
    X(cuMemGetAddressRange)                                                                        \
    X(cuPointerGetAttribute)                                                                       \
    X(cuPointerGetAttributes)                                                                      \
    X(cuIpcGetMemHandle)                                                                           \
    X(cuIpcOpenMemHandle)                                                                          \
    X(cuIpcCloseMemHandle)                                                                         \
    X(cuMemcpyAsync)                                                                               \
    X(cuMemcpy2DAsync)                                                                             \
    X(cuMemsetD8Async)                                                                             \
    X(cuStreamCreate)                                                                              \
    X(cuStreamCreateWithPriority)                                                                  \
    X(cuCtxGetStreamPriorityRange)                                                                 \
    X(cuStreamDestroy)                                                                             \
    X(cuStreamSynchronize)                                                                         \
    X(cuStreamQuery)                                                                               \
    X(cuStreamWaitEvent)                                                                           \
    X(cuStreamIsCapturing)                                                                         \
    X(cuStreamWriteValue64)                                                                        \
    X(cuStreamWaitValue64)                                                                         \
    X(cuThreadExchangeStreamCaptureMode)                                                           \
    X(cuEventCreate)                                                                               \
    X(cuEventRecord)                                                                               \
    X(cuEventQuery)                                                                                \
    X(cuEventSynchronize)                                                                          \
    X(cuEventElapsedTime)                                                                          \
    X(cuEventDestroy)                                                                              \
    X(cuStreamBeginCapture)                                                                        \
    X(cuStreamEndCapture)                                                                          \
    X(cuGraphInstantiateWithFlags)                                                                 \
    X(cuGraphLaunch)                                                                               \
    X(cuGraphExecDestroy)                                                                          \
    X(cuGraphDestroy)                                                                              \
    X(cuModuleLoadData)                                                                            \
    X(cuModuleUnload)                                                                              \
    X(cuModuleGetFunction)                                                                         \
    X(cuFuncGetAttribute)                                                                          \
    X(cuFuncSetAttribute)                                                                          \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessor)                                                 \
    X(cuLaunchKernelEx)

/* In CUDA 12.1 and later: NULL with an older driver. Only memory/symmetric/multicast.c calls
 * them. */
#define DRIVER_MULTICAST_FUNCTIONS(X)                                                              \
    X(cuMulticastGetGranularity)                                                                   \
    X(cuMulticastCreate)                                                                           \
    X(cuMulticastAddDevice)                                                                        \
    X(cuMulticastBindMem)

#define DRIVER_MEMBER(function) __typeof__(&function) function;
typedef struct driver_table {
    DRIVER_FUNCTIONS(DRIVER_MEMBER)
    DRIVER_MULTICAST_FUNCTIONS(DRIVER_MEMBER)
} driver_table;
#undef DRIVER_MEMBER

/* Most devices that a process sees. */
#define DRIVER_DEVICES_MAX 64

/* Call as driver.cuMemAlloc(…), after driver_open has returned BANYAN_OK. */
extern driver_table driver;

/* Load and initialize the driver, once. UNSUPPORTED, with the missing part: the library, a
 * function, a device. Any thread. */
banyan_status driver_open(void);

/* Return BANYAN_OK, or an error with the call, the device (-1: none) and CUDA's own text. Out of
 * memory is NO_MEMORY, everything else SYSTEM. */
banyan_status driver_check(CUresult result, const char *call, int device);

/* `return DRIVER(device, cuMemAlloc, &address, bytes);` */
#define DRIVER(device, function, ...)                                                              \
    driver_check(driver.function(__VA_ARGS__), #function, (device))

/* Make a device's primary context current for the thread until driver_leave. The context is
 * retained once for each device and kept until the process ends, as the CUDA runtime keeps it. */
banyan_status driver_enter(int device);
void driver_leave(void);
banyan_status driver_context(int device, CUcontext *context);

/* Return an attribute of the device. After driver_open has succeeded, this cannot fail for
 * attributes that exist; 0 otherwise. */
int driver_attribute(CUdevice_attribute attribute, int device);

/* While this thread captures a stream, calls that are not part of the graph (allocations, uploads
 * in a stream of our own) are allowed between these two. */
typedef CUstreamCaptureMode driver_capture;
driver_capture driver_capture_relax(void);
void driver_capture_restore(driver_capture before);

/* The status of a call that is made with the device's context entered:
 * `return DRIVER_WITHIN(device, bytes_copy_here(to, from, bytes));` */
#define DRIVER_WITHIN(device, call)                                                                \
    ({                                                                                             \
        banyan_status within_ = driver_enter(device);                                              \
        if (within_ == BANYAN_OK) {                                                                \
            within_ = (call);                                                                      \
            driver_leave();                                                                        \
        }                                                                                          \
        within_;                                                                                   \
    })

/* As DRIVER_WITHIN, for a call that is not part of a graph that the thread captures. */
#define DRIVER_WITHIN_UNCAPTURED(device, call)                                                     \
    ({                                                                                             \
        driver_capture captured_ = driver_capture_relax();                                         \
        banyan_status uncaptured_ = DRIVER_WITHIN(device, call);                                   \
        driver_capture_restore(captured_);                                                         \
        uncaptured_;                                                                               \
    })

/* Let `count` streams wait for the work in `from`, or the stream `to` for the work in all of them.
 * The device is entered. */
banyan_status driver_fork(int device, CUevent event, CUstream from, const CUstream *streams,
                          int count);
banyan_status driver_join(int device, const CUevent *events, const CUstream *streams, int count,
                          CUstream to);
/* Record the end of a run in `ended`, and set `*has_run`, unless the stream is being captured. The
 * device is entered. */
banyan_status driver_record_run(int device, CUstream stream, CUevent ended, bool *has_run);
/* Wait for the last run that was recorded, and destroy the event, which may be NULL. The device is
 * entered. */
void driver_end_runs(CUevent ended, bool has_run);

/* Find a kernel by the address of its __global__ function; `device`'s context is entered. */
banyan_status driver_kernel(const void *symbol, int device, CUfunction *kernel);

#endif
