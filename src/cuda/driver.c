#include "cuda/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#include <cuda_runtime_api.h>

#define DEVICES_MAX 64

driver_table driver;

static pthread_once_t opened = PTHREAD_ONCE_INIT;
static bool usable;
static char reason[256];
static pthread_mutex_t contexts_lock = PTHREAD_MUTEX_INITIALIZER;
static CUcontext contexts[DEVICES_MAX];

/* ---- opening ---- */

#define NAME_OF(function) #function
#define EXPANDED_NAME_OF(function) NAME_OF(function)

static bool find_functions(void *library)
{
#define FIND(function)                                                                             \
    *(void **)&driver.function = dlsym(library, EXPANDED_NAME_OF(function));                       \
    if (!driver.function) {                                                                        \
        snprintf(reason, sizeof reason, "the CUDA driver has no %s: it is older than CUDA 12",     \
                 EXPANDED_NAME_OF(function));                                                      \
        return false;                                                                              \
    }
    DRIVER_FUNCTIONS(FIND)
#undef FIND
    return true;
}

static void open_once(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(reason, sizeof reason, "this machine has no CUDA driver (%s)", dlerror());
        return;
    }
    if (!find_functions(library))
        return;
    CUresult result = driver.cuInit(0);
    const char *text = "?";
    if (result != CUDA_SUCCESS) {
        driver.cuGetErrorString(result, &text);
        snprintf(reason, sizeof reason, "cuInit: %s", text ? text : "unknown error");
        return;
    }
    usable = true;
}

banyan_status driver_open(void)
{
    pthread_once(&opened, open_once);
    return usable ? BANYAN_OK : banyan_error_set(BANYAN_ERR_UNSUPPORTED, "cuda: %s", reason);
}

/* ---- errors ---- */

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

/* ---- contexts ---- */

static banyan_status context_of(int device, CUcontext *context)
{
    if (device < 0 || device >= DEVICES_MAX)
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
    banyan_status status = context_of(device, &context);
    return status == BANYAN_OK ? DRIVER(device, cuCtxPushCurrent, context) : status;
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

/* ---- capture ---- */

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

/* ---- kernels ---- */

banyan_status driver_kernel(const void *symbol, int device, CUfunction *kernel)
{
    cudaFunction_t found;
    cudaError_t result = cudaGetFuncBySymbol(&found, symbol);
    if (result != cudaSuccess)
        return banyan_error_set(BANYAN_ERR_SYSTEM,
                                "cuda: cudaGetFuncBySymbol on device %d: %s (%s)", device,
                                cudaGetErrorString(result), cudaGetErrorName(result));
    *kernel = found;
    return BANYAN_OK;
}
