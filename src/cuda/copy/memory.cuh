/* Loads and stores of moved words. Each is read and written once, except for cache lines that
 * several rows share. So reads may use the multiprocessor's cache: it is empty when a kernel
 * begins. */
#ifndef CUDA_COPY_MEMORY_CUH
#define CUDA_COPY_MEMORY_CUH

#include <banyan/device/access.cuh>

#ifdef __CUDACC__

/* For global memory, so that the hardware need not determine the kind. */
#define DEFINE_LOAD(type, register_type, suffix, constraint)                                       \
    static __device__ __forceinline__ type load_word(const type *from)                             \
    {                                                                                              \
        register_type value;                                                                       \
        asm volatile("ld.global." suffix " %0, [%1];" : "=" constraint(value) : "l"(from));        \
        return (type)value;                                                                        \
    }

DEFINE_LOAD(uint32_t, uint32_t, "u32", "r")
DEFINE_LOAD(uint16_t, uint16_t, "u16", "h")
DEFINE_LOAD(uint8_t, uint16_t, "u8", "h")

static __device__ __forceinline__ uint2 load_word(const uint2 *from)
{
    uint2 value;
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "l"(from));
    return value;
}

static __device__ __forceinline__ uint4 load_word(const uint4 *from)
{
    uint4 value;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(from));
    return value;
}

static __device__ __forceinline__ void rest(void)
{
    __nanosleep(40);
}

#else

template <typename word> static inline word load_word(const word *from)
{
    return *from;
}

static inline void rest(void) {}

#endif

#endif
