#include "cuda/execute/kernels.h"

#include "cuda/execute/kernel.h"

#define WARP 32

static bool kernels_is(DLDataType dtype, DLDataType other)
{
    return dtype.code == other.code && dtype.bits == other.bits && dtype.lanes == other.lanes;
}

typedef struct kernel_set {
    DLDataType dtype;
    const void *(*by_kind[KERNEL_KINDS])(void);
} kernel_set;

/* The last entry also serves all other types. */
static const kernel_set kernels[] = {
    {BANYAN_BF16, {execute_kernel_bf16, execute_quick_kernel_bf16, execute_direct_kernel_bf16}},
    {BANYAN_F16, {execute_kernel_f16, execute_quick_kernel_f16, execute_direct_kernel_f16}},
    {BANYAN_F32, {execute_kernel_f32, execute_quick_kernel_f32, execute_direct_kernel_f32}},
    {BANYAN_F8_E4M3, {execute_kernel_e4m3, execute_quick_kernel_e4m3, execute_direct_kernel_e4m3}},
    {BANYAN_F8_E5M2, {execute_kernel_e5m2, execute_quick_kernel_e5m2, execute_direct_kernel_e5m2}},
    {BANYAN_I32, {execute_kernel_i32, execute_quick_kernel_i32, execute_direct_kernel_i32}},
    {BANYAN_U32, {execute_kernel_u32, execute_quick_kernel_u32, execute_direct_kernel_u32}},
    {BANYAN_I64, {execute_kernel_i64, execute_quick_kernel_i64, execute_direct_kernel_i64}},
    {BANYAN_U8, {execute_kernel_u8, execute_quick_kernel_u8, execute_direct_kernel_u8}},
};

const void *execute_kernel(DLDataType dtype, kernel_kind kind)
{
    const kernel_set *at = kernels, *last = at + sizeof kernels / sizeof *kernels - 1;
    while (at < last && !kernels_is(dtype, at->dtype))
        at++;
    return at->by_kind[kind]();
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
