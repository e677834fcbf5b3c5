/* Words that are moved: each is read and written once, but for lines that several rows share, so
 * that reading them through the cache of the multiprocessor is right: a kernel begins with it
 * empty. */
#ifndef CUDA_COPY_MEMORY_CUH
#define CUDA_COPY_MEMORY_CUH

#include <banyan/device/access.cuh>

#ifdef __CUDACC__

/* In global memory: the hardware need not ask. */
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

static inline void rest(void)
{
    banyan_device_pause();
}

#endif

#endif
