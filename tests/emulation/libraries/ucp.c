/* A UCX that knows CUDA, for emulated devices. It is the real library, and takes memory of emulated
 * devices for the host's. Like UCX 1.22 on an H200, it waits for all work of a device in two calls,
 * unless UCX_TLS keeps it from using CUDA:
 *
 * - When it connects first, it takes memory of the device for a moment.
 * - When it meets memory of a device first, it sets a flag of the device's context. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <ucp/api/ucp.h>

#include "cuda.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool is_without_cuda, has_connected, has_met_memory;

/* Find a function of a library that is loaded. */
static void *function_of(const char *file, const char *name)
{
    void *library = dlopen(file, RTLD_NOW | RTLD_NOLOAD);
    void *found = library ? dlsym(library, name) : NULL;
    if (library)
        dlclose(library);
    return found;
}

#define REAL(name) ((__typeof__(&(name)))function_of("libucp.so.0", #name))
#define DRIVER(name) ((__typeof__(&(name)))function_of(EMULATED_DRIVER, #name))

static bool wait_in_context(void)
{
    CUdeviceptr taken;
    if (DRIVER(cuMemAlloc)(&taken, 1) != CUDA_SUCCESS)
        return false;
    DRIVER(cuMemFree)(taken);
    return true;
}

/* The thread's device, or all devices. */
static void wait_for_work(void)
{
    int count = 0;
    if (!DRIVER(cuInit) || wait_in_context())
        return;
    DRIVER(cuDeviceGetCount)(&count);
    for (int device = 0; device < count; device++) {
        CUcontext context;
        DRIVER(cuDevicePrimaryCtxRetain)(&context, device);
        if (DRIVER(cuCtxPushCurrent)(context) == CUDA_SUCCESS) {
            wait_in_context();
            DRIVER(cuCtxPopCurrent)(&context);
        }
        DRIVER(cuDevicePrimaryCtxRelease)(device);
    }
}

static void wait_once(bool *has_waited)
{
    pthread_mutex_lock(&lock);
    if (!is_without_cuda && !*has_waited)
        wait_for_work();
    *has_waited = true;
    pthread_mutex_unlock(&lock);
}

static void meet_memory(const void *address)
{
    CUmemorytype type = CU_MEMORYTYPE_HOST;
    if (DRIVER(cuInit) &&
        DRIVER(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                      (CUdeviceptr)(uintptr_t)address) == CUDA_SUCCESS &&
        type == CU_MEMORYTYPE_DEVICE)
        wait_once(&has_met_memory);
}

/* The real library has no transports of CUDA, whose names it would report as unknown. */
ucs_status_t ucp_config_modify(ucp_config_t *config, const char *name, const char *value)
{
    is_without_cuda = strcmp(value, "^cuda") == 0 || !strstr(value, "cuda");
    return strcmp(value, "^cuda") == 0 ? UCS_OK : REAL(ucp_config_modify)(config, name, value);
}

ucs_status_t ucp_context_query(ucp_context_h context, ucp_context_attr_t *attributes)
{
    ucs_status_t status = REAL(ucp_context_query)(context, attributes);
    if (!is_without_cuda)
        attributes->memory_types |= UCS_BIT(UCS_MEMORY_TYPE_CUDA);
    return status;
}

ucs_status_t ucp_ep_create(ucp_worker_h worker, const ucp_ep_params_t *params, ucp_ep_h *endpoint)
{
    wait_once(&has_connected);
    return REAL(ucp_ep_create)(worker, params, endpoint);
}

ucs_status_t ucp_mem_map(ucp_context_h context, const ucp_mem_map_params_t *params,
                         ucp_mem_h *memory)
{
    meet_memory(params->address);
    return REAL(ucp_mem_map)(context, params, memory);
}

ucs_status_ptr_t ucp_put_nbx(ucp_ep_h endpoint, const void *source, size_t bytes, uint64_t to,
                             ucp_rkey_h key, const ucp_request_param_t *params)
{
    meet_memory(source);
    return REAL(ucp_put_nbx)(endpoint, source, bytes, to, key, params);
}

ucs_status_ptr_t ucp_get_nbx(ucp_ep_h endpoint, void *destination, size_t bytes, uint64_t from,
                             ucp_rkey_h key, const ucp_request_param_t *params)
{
    meet_memory(destination);
    return REAL(ucp_get_nbx)(endpoint, destination, bytes, from, key, params);
}
