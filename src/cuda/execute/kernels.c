#include "cuda/execute/kernel.h"

#define WARP 32

const void *execute_kernel(DLDataType dtype, kernel_kind kind)
{
#define RETURN_IF_TYPE(type, of_type)                                                              \
    if (banyan_dtype_equal(dtype, of_type))                                                                \
        return execute_kernel_##type(kind);
    EXECUTE_TYPES(RETURN_IF_TYPE)
#undef RETURN_IF_TYPE
    return execute_kernel_u8(kind);
}

uint32_t execute_threads(uint32_t threads_per_block)
{
    uint32_t threads = (threads_per_block + WARP - 1) / WARP * WARP;
    return threads == 0 ? WARP : threads > KERNEL_THREADS_MOST ? KERNEL_THREADS_MOST : threads;
}

uint32_t execute_shared_bytes(uint32_t section_bytes)
{
    return KERNEL_SHARED_BYTES + section_bytes;
}
