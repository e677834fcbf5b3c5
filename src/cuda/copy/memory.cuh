/* How the copy kernel reads and writes what other devices and the host look at, too. */
#ifndef CUDA_COPY_MEMORY_CUH
#define CUDA_COPY_MEMORY_CUH

#include "cuda/device.cuh"

#include <stdint.h>

#ifdef __CUDACC__

/* Words that are moved: known to lie in global memory, which saves the hardware asking. */
#define DEFINE_WORD(type, c_type, suffix, constraint)                                              \
    static __device__ __forceinline__ type load_word(const type *from)                             \
    {                                                                                              \
        c_type value;                                                                              \
        asm volatile("ld.global." suffix " %0, [%1];" : "=" constraint(value) : "l"(from));        \
        return (type)value;                                                                        \
    }                                                                                              \
    static __device__ __forceinline__ void store_word(type *to, type value)                        \
    {                                                                                              \
        asm volatile("st.global." suffix " [%0], %1;" ::"l"(to), constraint((c_type)value));       \
    }

DEFINE_WORD(uint64_t, uint64_t, "u64", "l")
DEFINE_WORD(uint32_t, uint32_t, "u32", "r")
DEFINE_WORD(uint16_t, uint16_t, "u16", "h")
DEFINE_WORD(uint8_t, uint16_t, "u8", "h")

static __device__ __forceinline__ uint4 load_word(const uint4 *from)
{
    uint4 value;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(from));
    return value;
}

static __device__ __forceinline__ void store_word(uint4 *to, uint4 value)
{
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(value.x), "r"(value.y),
                 "r"(value.z), "r"(value.w));
}

static __device__ __forceinline__ uint64_t load_acquire(const uint64_t *word)
{
    uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

static __device__ __forceinline__ void store_release(uint64_t *word, uint64_t value)
{
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

static __device__ __forceinline__ uint32_t load_relaxed(const uint32_t *word)
{
    uint32_t value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

static __device__ __forceinline__ void store_release(uint32_t *word, uint32_t value)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

/* Both order what this thread has seen and done, on every device and the host. */
static __device__ __forceinline__ uint32_t add_to(uint32_t *word, uint32_t more)
{
    uint32_t before;
    __threadfence_system();
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(word), "r"(more)
                 : "memory");
    __threadfence_system();
    return before;
}

static __device__ __forceinline__ uint32_t exchange_for(uint32_t *word, uint32_t value)
{
    return atomicExch(word, value);
}

static __device__ __forceinline__ uint64_t time_ns(void)
{
    uint64_t now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

static __device__ __forceinline__ void rest(void)
{
    device_pause();
    __nanosleep(40);
}

#else

#include <time.h>

template <typename word> static inline word load_word(const word *from)
{
    return *from;
}

template <typename word> static inline void store_word(word *to, word value)
{
    *to = value;
}

static inline uint64_t load_acquire(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static inline void store_release(uint64_t *word, uint64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

static inline uint32_t load_relaxed(const uint32_t *word)
{
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static inline void store_release(uint32_t *word, uint32_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

static inline uint32_t add_to(uint32_t *word, uint32_t more)
{
    return __atomic_fetch_add(word, more, __ATOMIC_SEQ_CST);
}

static inline uint32_t exchange_for(uint32_t *word, uint32_t value)
{
    return __atomic_exchange_n(word, value, __ATOMIC_SEQ_CST);
}

static inline uint64_t time_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void rest(void)
{
    device_pause();
}

#endif

#endif
