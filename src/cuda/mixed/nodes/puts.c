#include "cuda/mixed/nodes/puts.h"

#include <pthread.h>
#include <stdio.h>

#include "cuda/mixed/engine.h"
#include "cuda/runtime/foreign.h"

/* NVSHMEM has one device for each process and is not finalized, so an image that received its
 * state keeps it. */
static struct {
    pthread_mutex_t lock;
    CUmodule module;
    bool is_ready, is_stuck;
    const nvshmem_functions *functions;
    int device; /* of the call of NVSHMEM */
} image = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* NVSHMEM also refuses other versions, but prints its message to stdout. */
static banyan_status check_version(const nvshmem_functions *functions)
{
    const int *device = nodes_puts_version;
    int host[3] = {0};
    functions->nvshmemx_vendor_get_version_info(&host[0], &host[1], &host[2]);
    if (device[0] == host[0] && device[1] <= host[1])
        return BANYAN_OK;
    return banyan_error_set(BANYAN_ERR_UNSUPPORTED,
                            "cuda: Banyan was built with NVSHMEM's device library %d.%d.%d, and "
                            "the host library is %d.%d.%d: it must have the same major version, "
                            "and at least the same minor version",
                            device[0], device[1], device[2], host[0], host[1], host[2]);
}

static banyan_status check_built(const nvshmem_functions *functions)
{
    if (image.is_stuck)
        return banyan_error_set(BANYAN_ERR_UNSUPPORTED,
                                "cuda: an earlier nvshmemx_cumodule_init has not returned");
    if (!nodes_puts_image)
        return banyan_error_set(BANYAN_ERR_UNSUPPORTED,
                                "cuda: Banyan was built without NVSHMEM's device library");
    if (!functions->nvshmemx_cumodule_init || !functions->nvshmemx_vendor_get_version_info)
        return banyan_error_set(BANYAN_ERR_UNSUPPORTED, "cuda: NVSHMEM's host library has no %s",
                                functions->nvshmemx_cumodule_init
                                    ? "nvshmemx_vendor_get_version_info"
                                    : "nvshmemx_cumodule_init");
    return check_version(functions);
}

static banyan_status puts_call_init(void *unused)
{
    (void)unused;
    int result = image.functions->nvshmemx_cumodule_init(image.module);
    if (result == 0)
        return BANYAN_OK;
    return banyan_error_set(BANYAN_ERR_UNSUPPORTED,
                            "cuda: nvshmemx_cumodule_init gave %d on device %d", result,
                            image.device);
}

/* NVSHMEM waits for everything that runs on the device. */
static banyan_status give_state(banyan_world *world, int device)
{
    foreign_end end;
    image.device = device;
    banyan_status status =
        foreign_run(world, device, "nvshmemx_cumodule_init", puts_call_init, NULL, &end);
    image.is_stuck = end == FOREIGN_LEFT;
    image.is_ready = status == BANYAN_OK;
    if (!image.is_ready && !image.is_stuck)
        driver.cuModuleUnload(image.module);
    return status;
}

static banyan_status load_image(const cuda_mixed *engine)
{
    int device = engine->device;
    if (image.is_ready)
        return BANYAN_OK;
    image.functions = engine->nodes.part.functions;
    RETURN_IF_FAILED(check_built(image.functions));
    RETURN_IF_FAILED(DRIVER(device, cuModuleLoadData, &image.module, nodes_puts_image));
    return give_state(engine->setup->worlds[MIXED_WORLD], device);
}

static const char *puts_type_name(DLDataType dtype)
{
    return dtype.bits == 32 ? "f32" : dtype.code == kDLBfloat ? "bf16" : "f16";
}

static bool puts_is_any(mixed_kernel kernel)
{
    return kernel == MIXED_NODES_PUTS_ANY || kernel == MIXED_NODES_PUTS_MULTICAST_ANY;
}

static banyan_status find_kernel(cuda_mixed *engine, mixed_kernel kernel)
{
    char name[64];
    uint32_t threads = engine->most_threads;
    CUfunction found;
    snprintf(name, sizeof name, "mixed_nodes_puts_%s%s%s",
             mixed_kernel_is_multicast(kernel) ? "multicast_" : "",
             puts_is_any(kernel) ? "any_" : "", puts_type_name(engine->setup->dtype));
    RETURN_IF_FAILED(DRIVER(engine->device, cuModuleGetFunction, &found, image.module, name));
    RETURN_IF_FAILED(launch_bound_threads(engine->device, found, &threads));
    if (threads < engine->most_threads)
        return banyan_error_set(BANYAN_ERR_UNSUPPORTED,
                                "cuda: with NVSHMEM's device library %s has room for %u threads in "
                                "a block, not %u",
                                name, threads, engine->most_threads);
    return mixed_take_kernel(engine, kernel, found);
}

/* NVSHMEM's functions need a stack, for which the driver may allocate memory at the first launch,
 * and wait for all kernels to end. */
static banyan_status try_kernel(const cuda_mixed *engine, mixed_kernel kernel)
{
    nodes_args nothing = {.base = {.states = engine->states}};
    launch_shape by = {.blocks = 1, .threads = engine->most_threads};
    RETURN_IF_FAILED(
        launch_kernel(engine->device, engine->kernels[kernel], by, &nothing, engine->stream));
    return DRIVER(engine->device, cuStreamSynchronize, engine->stream);
}

banyan_status nodes_puts_load(cuda_mixed *engine)
{
    pthread_mutex_lock(&image.lock);
    banyan_status status = load_image(engine);
    pthread_mutex_unlock(&image.lock);
    for (int i = MIXED_LOADED; i < MIXED_KERNELS && status == BANYAN_OK; i++) {
        if (mixed_kernel_is_multicast((mixed_kernel)i) && !engine->setup->multicast.is_expected)
            continue;
        status = find_kernel(engine, (mixed_kernel)i);
        if (status == BANYAN_OK)
            status = try_kernel(engine, (mixed_kernel)i);
    }
    return status;
}
