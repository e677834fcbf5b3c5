#include "cuda/copy/kernels.h"

static banyan_status kernels_find_one(int device, bool converts, copy_kernels *found)
{
    int most = 0, holds = 0;
    CUfunction *kernel = converts ? &found->converts : &found->moves;
    RETURN_IF_FAILED(driver_kernel(copy_kernel_symbol(converts), device, kernel));
    RETURN_IF_FAILED(DRIVER(device, cuFuncGetAttribute, &most,
                            CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, *kernel));
    if ((uint32_t)most < found->threads)
        found->threads = (uint32_t)most;
    RETURN_IF_FAILED(DRIVER(device, cuOccupancyMaxActiveBlocksPerMultiprocessor, &holds, *kernel,
                            (int)found->threads, 0));
    if (holds < found->fit)
        found->fit = holds;
    return BANYAN_OK;
}

banyan_status copy_kernels_find(int device, copy_kernels *found)
{
    copy_kernels both = {.threads = COPY_THREADS_MAX, .fit = INT32_MAX};
    RETURN_IF_FAILED(kernels_find_one(device, false, &both));
    RETURN_IF_FAILED(kernels_find_one(device, true, &both));
    if (both.fit <= 0)
        return banyan_error_set(BANYAN_ERR_UNSUPPORTED, "cuda: device %d holds no thread block",
                                device);
    *found = both;
    return BANYAN_OK;
}
