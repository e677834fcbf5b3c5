/* Banyan in kernels: access to memory that other GPUs use at the same time.
 *
 * The headers of this folder are for CUDA C++, compute capability 8.0 and later, and do not need
 * Banyan's library. All addresses are of global memory: this GPU's, a peer's that is mapped here,
 * or pinned host memory. Any thread may call any function. "Called by one thread" marks
 * functions that one thread calls for its block; functions with `thread` and `threads` divide their
 * work over several threads.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BANYAN_DEVICE_ACCESS_CUH
#define BANYAN_DEVICE_ACCESS_CUH

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define BANYAN_DEVICE static __device__ __forceinline__
#define BANYAN_DEVICE_MEMBER __device__ __forceinline__
#define BANYAN_DEVICE_RARE static inline __device__ __noinline__
#define BANYAN_DEVICE_UNROLL _Pragma("unroll")
#define BANYAN_DEVICE_LOOP _Pragma("unroll 1") /* registers are for data in flight */
#else
#include <time.h>

#include "emulation.hpp"
#define BANYAN_DEVICE static inline
#define BANYAN_DEVICE_MEMBER inline
#define BANYAN_DEVICE_RARE static inline
#define BANYAN_DEVICE_UNROLL
#define BANYAN_DEVICE_LOOP
#endif

#define BANYAN_DEVICE_WARP 32 /* threads */

/* Data. banyan_device_load<T> reads the current value: never a stale one from this
 * multiprocessor's cache. banyan_device_store<T> becomes visible to others with a release. T is
 * uint4, uint2, uint32_t, uint16_t or uint8_t; addresses are aligned to it. */

template <typename T> struct banyan_device_access;

#ifdef __CUDACC__

template <> struct banyan_device_access<uint4> {
    static __device__ __forceinline__ uint4 load(const void *from)
    {
        uint4 v;
        asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "l"(from));
        return v;
    }
    static __device__ __forceinline__ void store(void *to, uint4 v)
    {
        asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y),
                     "r"(v.z), "r"(v.w));
    }
};

template <> struct banyan_device_access<uint2> {
    static __device__ __forceinline__ uint2 load(const void *from)
    {
        uint2 v;
        asm volatile("ld.relaxed.sys.global.v2.u32 {%0, %1}, [%2];"
                     : "=r"(v.x), "=r"(v.y)
                     : "l"(from));
        return v;
    }
    static __device__ __forceinline__ void store(void *to, uint2 v)
    {
        asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(v.x), "r"(v.y));
    }
};

template <> struct banyan_device_access<uint32_t> {
    static __device__ __forceinline__ uint32_t load(const void *from)
    {
        uint32_t v;
        asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(from));
        return v;
    }
    static __device__ __forceinline__ void store(void *to, uint32_t v)
    {
        asm volatile("st.global.u32 [%0], %1;" ::"l"(to), "r"(v));
    }
};

template <> struct banyan_device_access<uint16_t> {
    static __device__ __forceinline__ uint16_t load(const void *from)
    {
        uint16_t v;
        asm volatile("ld.relaxed.sys.global.u16 %0, [%1];" : "=h"(v) : "l"(from));
        return v;
    }
    static __device__ __forceinline__ void store(void *to, uint16_t v)
    {
        asm volatile("st.global.u16 [%0], %1;" ::"l"(to), "h"(v));
    }
};

template <> struct banyan_device_access<uint8_t> {
    static __device__ __forceinline__ uint8_t load(const void *from)
    {
        uint32_t v;
        asm volatile("ld.relaxed.sys.global.u8 %0, [%1];" : "=r"(v) : "l"(from));
        return (uint8_t)v;
    }
    static __device__ __forceinline__ void store(void *to, uint8_t v)
    {
        asm volatile("st.global.u8 [%0], %1;" ::"l"(to), "r"((uint32_t)v));
    }
};

#else

template <typename T> struct banyan_device_access {
    static inline T load(const void *from)
    {
        T v;
        emulated_load(&v, from, sizeof v);
        return v;
    }
    static inline void store(void *to, T v) { emulated_store(to, &v, sizeof v); }
};

#endif

template <typename T> BANYAN_DEVICE T banyan_device_load(const void *from)
{
    return banyan_device_access<T>::load(from);
}

/* Load 16 bytes of a long move, which are read once. They must be visible already, by an acquire
 * or since the kernel's start. Leaves the multiprocessor's cache unchanged. */
BANYAN_DEVICE uint4 banyan_device_load_once(const void *from)
{
#ifdef __CUDACC__
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
#else
    return banyan_device_load<uint4>(from);
#endif
}

template <typename T> BANYAN_DEVICE void banyan_device_store(void *to, T value)
{
    banyan_device_access<T>::store(to, value);
}

/* Packets: 8 bytes of each are written and read at once. */

#ifdef __CUDACC__

BANYAN_DEVICE uint4 banyan_device_load_packets(const void *from)
{
    uint4 v;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
}

BANYAN_DEVICE uint2 banyan_device_load_packet(const void *from)
{
    uint2 v;
    asm volatile("ld.volatile.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from));
    return v;
}

BANYAN_DEVICE void banyan_device_store_packets(void *to, uint4 v)
{
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y),
                 "r"(v.z), "r"(v.w));
}

BANYAN_DEVICE void banyan_device_store_packet(void *to, uint2 v)
{
    asm volatile("st.volatile.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(v.x), "r"(v.y));
}

#else

BANYAN_DEVICE uint2 banyan_device_load_packet(const void *from)
{
    uint64_t both = __atomic_load_n((const uint64_t *)from, __ATOMIC_RELAXED);
    return make_uint2((uint32_t)both, (uint32_t)(both >> 32));
}

BANYAN_DEVICE uint4 banyan_device_load_packets(const void *from)
{
    uint2 a = banyan_device_load_packet(from);
    uint2 b = banyan_device_load_packet((const char *)from + 8);
    return make_uint4(a.x, a.y, b.x, b.y);
}

BANYAN_DEVICE void banyan_device_store_packet(void *to, uint2 v)
{
    __atomic_store_n((uint64_t *)to, (uint64_t)v.y << 32 | v.x, __ATOMIC_RELAXED);
}

BANYAN_DEVICE void banyan_device_store_packets(void *to, uint4 v)
{
    banyan_device_store_packet(to, make_uint2(v.x, v.y));
    emulated_dawdle();
    banyan_device_store_packet((char *)to + 8, make_uint2(v.z, v.w));
}

#endif

/* Counters. Acquire: everything written before the observed release is visible from here on.
 * Release: everything that this thread has written or acquired is visible to threads that observe
 * it. Relaxed: neither. All have system scope, except banyan_device_take and banyan_device_claim,
 * which have the GPU's. */

#ifdef __CUDACC__

BANYAN_DEVICE uint64_t banyan_device_load_acquire(const uint64_t *from)
{
    uint64_t v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(from) : "memory");
    return v;
}

BANYAN_DEVICE uint64_t banyan_device_load_relaxed(const uint64_t *from)
{
    uint64_t v;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(from));
    return v;
}

BANYAN_DEVICE void banyan_device_store_release(uint64_t *to, uint64_t value)
{
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

BANYAN_DEVICE void banyan_device_add_release(uint64_t *to, uint64_t value)
{
    asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

BANYAN_DEVICE void banyan_device_add_relaxed(uint64_t *to, uint64_t value)
{
    asm volatile("red.relaxed.sys.global.add.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

/* Add `value`, relaxed; returns the value before. */
BANYAN_DEVICE uint64_t banyan_device_take(uint64_t *counter, uint64_t value)
{
    uint64_t before;
    asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], %2;"
                 : "=l"(before)
                 : "l"(counter), "l"(value)
                 : "memory");
    return before;
}

/* Like banyan_device_take, with acquire and release. */
BANYAN_DEVICE uint64_t banyan_device_barrier(uint64_t *counter, uint64_t value)
{
    uint64_t before;
    asm volatile("atom.acq_rel.sys.global.add.u64 %0, [%1], %2;"
                 : "=l"(before)
                 : "l"(counter), "l"(value)
                 : "memory");
    return before;
}

/* Store `desired` if the value is `expected`; returns the value before. Acquire. */
BANYAN_DEVICE uint64_t banyan_device_exchange_if(uint64_t *at, uint64_t expected, uint64_t desired)
{
    uint64_t before;
    asm volatile("atom.acquire.sys.global.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(before)
                 : "l"(at), "l"(expected), "l"(desired)
                 : "memory");
    return before;
}

/* Store a word with release. */
BANYAN_DEVICE void banyan_device_publish(uint32_t *to, uint32_t value)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

/* Set the word; returns the value before. */
BANYAN_DEVICE uint32_t banyan_device_claim(uint32_t *word)
{
    uint32_t before;
    asm volatile("atom.relaxed.gpu.global.exch.b32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(word)
                 : "memory");
    return before;
}

/* Nanoseconds; equal on all multiprocessors. */
BANYAN_DEVICE uint64_t banyan_device_time_ns(void)
{
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

BANYAN_DEVICE void banyan_device_pause(void) {}

#else

BANYAN_DEVICE uint64_t banyan_device_load_acquire(const uint64_t *from)
{
    return __atomic_load_n(from, __ATOMIC_ACQUIRE);
}

BANYAN_DEVICE uint64_t banyan_device_load_relaxed(const uint64_t *from)
{
    return __atomic_load_n(from, __ATOMIC_RELAXED);
}

BANYAN_DEVICE void banyan_device_store_release(uint64_t *to, uint64_t value)
{
    emulated_release();
    __atomic_store_n(to, value, __ATOMIC_RELEASE);
}

BANYAN_DEVICE void banyan_device_add_release(uint64_t *to, uint64_t value)
{
    emulated_release();
    __atomic_fetch_add(to, value, __ATOMIC_RELEASE);
}

BANYAN_DEVICE void banyan_device_add_relaxed(uint64_t *to, uint64_t value)
{
    __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}

BANYAN_DEVICE uint64_t banyan_device_take(uint64_t *counter, uint64_t value)
{
    return __atomic_fetch_add(counter, value, __ATOMIC_RELAXED);
}

BANYAN_DEVICE uint64_t banyan_device_barrier(uint64_t *counter, uint64_t value)
{
    emulated_release();
    return __atomic_fetch_add(counter, value, __ATOMIC_ACQ_REL);
}

BANYAN_DEVICE uint64_t banyan_device_exchange_if(uint64_t *at, uint64_t expected, uint64_t desired)
{
    __atomic_compare_exchange_n(at, &expected, desired, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
    return expected;
}

BANYAN_DEVICE void banyan_device_publish(uint32_t *to, uint32_t value)
{
    emulated_release();
    __atomic_store_n(to, value, __ATOMIC_RELEASE);
}

BANYAN_DEVICE uint32_t banyan_device_claim(uint32_t *word)
{
    return __atomic_exchange_n(word, 1, __ATOMIC_RELAXED);
}

BANYAN_DEVICE uint64_t banyan_device_time_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

BANYAN_DEVICE void banyan_device_pause(void)
{
    emulated_yield();
}

#endif

#endif
