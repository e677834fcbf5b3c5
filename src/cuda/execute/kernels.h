/* The kernels of each element type, one file for each. */
#ifndef CUDA_EXECUTE_KERNELS_H
#define CUDA_EXECUTE_KERNELS_H

#ifdef __cplusplus
extern "C" {
#endif

const void *execute_kernel_f32(void);
const void *execute_quick_kernel_f32(void);
const void *execute_direct_kernel_f32(void);
const void *execute_kernel_f16(void);
const void *execute_quick_kernel_f16(void);
const void *execute_direct_kernel_f16(void);
const void *execute_kernel_bf16(void);
const void *execute_quick_kernel_bf16(void);
const void *execute_direct_kernel_bf16(void);
const void *execute_kernel_e4m3(void);
const void *execute_quick_kernel_e4m3(void);
const void *execute_direct_kernel_e4m3(void);
const void *execute_kernel_e5m2(void);
const void *execute_quick_kernel_e5m2(void);
const void *execute_direct_kernel_e5m2(void);
const void *execute_kernel_i32(void);
const void *execute_quick_kernel_i32(void);
const void *execute_direct_kernel_i32(void);
const void *execute_kernel_u32(void);
const void *execute_quick_kernel_u32(void);
const void *execute_direct_kernel_u32(void);
const void *execute_kernel_i64(void);
const void *execute_quick_kernel_i64(void);
const void *execute_direct_kernel_i64(void);
const void *execute_kernel_u8(void);
const void *execute_quick_kernel_u8(void);
const void *execute_direct_kernel_u8(void);

#ifdef __cplusplus
}
#endif

#endif
