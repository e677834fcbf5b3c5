/* Loads the driver, and finds kernels. The emulation for tests has its own version of this file. */
#include "cuda/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#include <cuda_runtime_api.h>

driver_table driver;

static pthread_once_t opened = PTHREAD_ONCE_INIT;
static bool usable;
static char reason[256];

#define NAME_OF(function) #function
#define EXPANDED_NAME_OF(function) NAME_OF(function)

static bool driver_load_find_functions(void *library)
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
#define LOOK_FOR(function) *(void **)&driver.function = dlsym(library, EXPANDED_NAME_OF(function));
    DRIVER_MULTICAST_FUNCTIONS(LOOK_FOR)
#undef LOOK_FOR
    return true;
}

static void open_once(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(reason, sizeof reason, "this machine has no CUDA driver (%s)", dlerror());
        return;
    }
    if (!driver_load_find_functions(library))
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
