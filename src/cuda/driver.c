/* Common parts of all driver calls: errors, contexts, captures. */
#include "cuda/driver.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t contexts_lock = PTHREAD_MUTEX_INITIALIZER;
static CUcontext contexts[DRIVER_DEVICES_MAX];

banyan_status driver_check(CUresult result, const char *call, int device)
{
    if (result == CUDA_SUCCESS)
        return BANYAN_OK;
    const char *name = NULL, *text = NULL;
    driver.cuGetErrorName(result, &name);
    driver.cuGetErrorString(result, &text);
    char where[32] = "";
    if (device >= 0)
        snprintf(where, sizeof where, " on device %d", device);
    return banyan_error_set(
        result == CUDA_ERROR_OUT_OF_MEMORY ? BANYAN_ERR_NO_MEMORY : BANYAN_ERR_SYSTEM,
        "cuda: %s%s: %s (%s)", call, where, text ? text : "unknown error", name ? name : "unknown");
}

banyan_status driver_context(int device, CUcontext *context)
{
    if (device < 0 || device >= DRIVER_DEVICES_MAX)
        return banyan_error_set(BANYAN_ERR_INVALID, "cuda: there is no device %d", device);
    banyan_status status = BANYAN_OK;
    pthread_mutex_lock(&contexts_lock);
    if (!contexts[device]) {
        CUdevice found;
        status = DRIVER(device, cuDeviceGet, &found, device);
        if (status == BANYAN_OK)
            status = DRIVER(device, cuDevicePrimaryCtxRetain, &contexts[device], found);
    }
    *context = contexts[device];
    pthread_mutex_unlock(&contexts_lock);
    return status;
}

banyan_status driver_enter(int device)
{
    CUcontext context = NULL;
    RETURN_IF_FAILED(driver_context(device, &context));
    return DRIVER(device, cuCtxPushCurrent, context);
}

void driver_leave(void)
{
    CUcontext left;
    driver.cuCtxPopCurrent(&left);
}

int driver_attribute(CUdevice_attribute attribute, int device)
{
    CUdevice found;
    int value = 0;
    if (driver.cuDeviceGet(&found, device) != CUDA_SUCCESS ||
        driver.cuDeviceGetAttribute(&value, attribute, found) != CUDA_SUCCESS)
        return 0;
    return value;
}

driver_capture driver_capture_relax(void)
{
    driver_capture mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    driver.cuThreadExchangeStreamCaptureMode(&mode);
    return mode;
}

void driver_capture_restore(driver_capture before)
{
    driver.cuThreadExchangeStreamCaptureMode(&before);
}

banyan_status driver_fork(int device, CUevent event, CUstream from, const CUstream *streams,
                          int count)
{
    RETURN_IF_FAILED(DRIVER(device, cuEventRecord, event, from));
    for (int i = 0; i < count; i++)
        RETURN_IF_FAILED(DRIVER(device, cuStreamWaitEvent, streams[i], event, 0));
    return BANYAN_OK;
}

banyan_status driver_join(int device, const CUevent *events, const CUstream *streams, int count,
                          CUstream to)
{
    for (int i = 0; i < count; i++) {
        RETURN_IF_FAILED(DRIVER(device, cuEventRecord, events[i], streams[i]));
        RETURN_IF_FAILED(DRIVER(device, cuStreamWaitEvent, to, events[i], 0));
    }
    return BANYAN_OK;
}

banyan_status driver_record_run(int device, CUstream stream, CUevent ended, bool *has_run)
{
    CUstreamCaptureStatus capture;
    RETURN_IF_FAILED(DRIVER(device, cuStreamIsCapturing, stream, &capture));
    if (capture != CU_STREAM_CAPTURE_STATUS_NONE)
        return BANYAN_OK;
    *has_run = true;
    return DRIVER(device, cuEventRecord, ended, stream);
}

void driver_end_runs(CUevent ended, bool has_run)
{
    if (has_run)
        driver.cuEventSynchronize(ended);
    if (ended)
        driver.cuEventDestroy(ended);
}
