#include "cuda/execute/kernels.h"

#include "cuda/execute/kernel.h"

#define WARP 32

static bool is(DLDataType dtype, DLDataType other)
{
    return dtype.code == other.code && dtype.bits == other.bits && dtype.lanes == other.lanes;
}

const void *execute_kernel(DLDataType dtype)
{
    if (is(dtype, BANYAN_BF16))
        return execute_kernel_bf16();
    if (is(dtype, BANYAN_F16))
        return execute_kernel_f16();
    if (is(dtype, BANYAN_F32))
        return execute_kernel_f32();
    if (is(dtype, BANYAN_F8_E4M3))
        return execute_kernel_e4m3();
    if (is(dtype, BANYAN_F8_E5M2))
        return execute_kernel_e5m2();
    if (is(dtype, BANYAN_I32))
        return execute_kernel_i32();
    if (is(dtype, BANYAN_U32))
        return execute_kernel_u32();
    if (is(dtype, BANYAN_I64))
        return execute_kernel_i64();
    return execute_kernel_u8();
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
