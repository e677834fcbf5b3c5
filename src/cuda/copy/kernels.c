#include "cuda/copy/kernels.h"

#include "cuda/runtime/launch.h"

static banyan_status kernels_find_one(int device, bool converts, copy_kernels *found)
{
    uint32_t room = 0;
    CUfunction *kernel = converts ? &found->converts : &found->moves;
    RETURN_IF_FAILED(driver_kernel(copy_kernel_symbol(converts), device, kernel));
    RETURN_IF_FAILED(launch_bound_threads(device, *kernel, &found->threads));
    RETURN_IF_FAILED(launch_room(device, *kernel, found->threads, 0, &room));
    if (room < found->room)
        found->room = room;
    return BANYAN_OK;
}

banyan_status copy_kernels_find(int device, copy_kernels *found)
{
    copy_kernels both = {.threads = COPY_THREADS_MAX, .room = UINT32_MAX};
    RETURN_IF_FAILED(kernels_find_one(device, false, &both));
    RETURN_IF_FAILED(kernels_find_one(device, true, &both));
    if (both.room == 0)
        return banyan_error_set(BANYAN_ERR_UNSUPPORTED, "cuda: device %d holds no thread block",
                                device);
    *found = both;
    return BANYAN_OK;
}
