/* Banyan in kernels: switch channels by multicast. A multicast address stands for one place in the
 * memory of several GPUs (cuMulticastCreate and related functions create one). The switch between
 * the GPUs sends a store to all of them, and adds their values for a load. No other access to such
 * an address is allowed. Compute capability 9.0 and later.
 *
 * Not proven: these functions have run between emulated GPUs only.
 *
 * Memory is accessed 16 bytes at a time, aligned to 16, except for 8-byte flags that are stored
 * with release. Sums of f16 and bf16 are accumulated in f32 and rounded once; the order of the
 * switch's additions is not specified. Memory with a multicast address has ordinary addresses too.
 * The functions for ranges keep their thread's accesses by both kinds of address in order; around
 * single accesses, use banyan_device_multicast_fence. As with other memory, ranks synchronize by
 * signals.
 *
 * Idea: the PTX ISA's multimem instructions and proxy fences.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BANYAN_DEVICE_MULTICAST_CUH
#define BANYAN_DEVICE_MULTICAST_CUH

#include <banyan/device/reduce.cuh>

/* Operations of multicast memory on an element type. ADDS is 1 if the hardware adds the type.
 * `load` returns the sum of all members' values at the address; `add` adds atomically to each
 * member's value, element by element. */
template <typename Element> struct banyan_device_multicast {
    enum { ADDS = 0 };
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900

/* These GPUs have no multicast memory, so this is never called. */
BANYAN_DEVICE void banyan_device_multicast_store_word(void *, uint4)
{
    asm volatile("trap;");
}

BANYAN_DEVICE void banyan_device_multicast_store_packets(void *, uint4)
{
    asm volatile("trap;");
}

BANYAN_DEVICE void banyan_device_multicast_store_release(uint64_t *, uint64_t)
{
    asm volatile("trap;");
}

BANYAN_DEVICE void banyan_device_multicast_fence(void)
{
    asm volatile("trap;");
}

#elif defined(__CUDACC__)

template <> struct banyan_device_multicast<banyan_device_f32> {
    enum { ADDS = 1 };
    static BANYAN_DEVICE_MEMBER uint4 load(const void *from)
    {
        uint4 v;
        asm volatile("{ .reg .f32 a, b, c, d;"
                     " multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {a, b, c, d}, [%4];"
                     " mov.b32 %0, a; mov.b32 %1, b; mov.b32 %2, c; mov.b32 %3, d; }"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "l"(from)
                     : "memory");
        return v;
    }
    static BANYAN_DEVICE_MEMBER void add(void *to, uint4 v)
    {
        asm volatile("{ .reg .f32 a, b, c, d;"
                     " mov.b32 a, %1; mov.b32 b, %2; mov.b32 c, %3; mov.b32 d, %4;"
                     " multimem.red.relaxed.sys.global.add.v4.f32 [%0], {a, b, c, d}; }" ::"l"(to),
                     "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                     : "memory");
    }
};

/* A word has two elements of PTX's `type`. */
#define BANYAN_DEVICE_MULTICAST_PAIRS(element, type)                                               \
    template <> struct banyan_device_multicast<element> {                                          \
        enum { ADDS = 1 };                                                                         \
        static BANYAN_DEVICE_MEMBER uint4 load(const void *from)                                   \
        {                                                                                          \
            uint4 v;                                                                               \
            asm volatile("multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4." type             \
                         " {%0, %1, %2, %3}, [%4];"                                                \
                         : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)                              \
                         : "l"(from)                                                               \
                         : "memory");                                                              \
            return v;                                                                              \
        }                                                                                          \
        static BANYAN_DEVICE_MEMBER void add(void *to, uint4 v)                                    \
        {                                                                                          \
            asm volatile("multimem.red.relaxed.sys.global.add.v4." type                            \
                         " [%0], {%1, %2, %3, %4};" ::"l"(to),                                     \
                         "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)                                    \
                         : "memory");                                                              \
        }                                                                                          \
    };

BANYAN_DEVICE_MULTICAST_PAIRS(banyan_device_f16, "f16x2")
BANYAN_DEVICE_MULTICAST_PAIRS(banyan_device_bf16, "bf16x2")
#undef BANYAN_DEVICE_MULTICAST_PAIRS

/* Store 16 bytes of any type to all members. */
BANYAN_DEVICE void banyan_device_multicast_store_word(void *to, uint4 v)
{
    asm volatile("{ .reg .f32 a, b, c, d;"
                 " mov.b32 a, %1; mov.b32 b, %2; mov.b32 c, %3; mov.b32 d, %4;"
                 " multimem.st.relaxed.sys.global.v4.f32 [%0], {a, b, c, d}; }" ::"l"(to),
                 "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

/* Store 16 bytes to all members for threads that poll them: they become visible without a
 * release. */
BANYAN_DEVICE void banyan_device_multicast_store_packets(void *to, uint4 v)
{
    banyan_device_multicast_store_word(to, v);
}

/* Store 8 bytes, aligned to 8, to all members, with the effect of banyan_device_store_release. */
BANYAN_DEVICE void banyan_device_multicast_store_release(uint64_t *to, uint64_t value)
{
    asm volatile("multimem.st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

/* Order this thread's accesses: those before the fence, by either kind of address, precede those
 * after it by the other kind. */
BANYAN_DEVICE void banyan_device_multicast_fence(void)
{
    asm volatile("fence.proxy.alias;" ::: "memory");
}

#else

/* Without a GPU, emulated_multicast_member returns the memory that an address stands for. */
template <typename Element> struct banyan_device_multicast_emulated {
    enum { ADDS = 1 };
    static uint2 half(uint4 v, int i)
    {
        return i == 0 ? make_uint2(v.x, v.y) : make_uint2(v.z, v.w);
    }
    static uint4 load(const void *from)
    {
        uint4 v = banyan_device_load<uint4>(emulated_multicast_member(from, 0));
        banyan_device_sums<Element> low, high;
        low.begin(half(v, 0));
        high.begin(half(v, 1));
        const char *member;
        for (unsigned i = 1; (member = emulated_multicast_member(from, i)) != NULL; i++) {
            v = banyan_device_load<uint4>(member);
            low.template add<BANYAN_DEVICE_SUM>(half(v, 0));
            high.template add<BANYAN_DEVICE_SUM>(half(v, 1));
        }
        uint2 first = low.end(), second = high.end();
        return make_uint4(first.x, first.y, second.x, second.y);
    }
    static void add_half(uint64_t *to, uint2 more)
    {
        uint64_t before = __atomic_load_n(to, __ATOMIC_RELAXED), after;
        do {
            banyan_device_sums<Element> sums;
            sums.begin(make_uint2((uint32_t)before, (uint32_t)(before >> 32)));
            sums.template add<BANYAN_DEVICE_SUM>(more);
            uint2 sum = sums.end();
            after = (uint64_t)sum.y << 32 | sum.x;
        } while (!__atomic_compare_exchange_n(to, &before, after, false, __ATOMIC_RELAXED,
                                              __ATOMIC_RELAXED));
    }
    static void add(void *to, uint4 v)
    {
        char *member;
        for (unsigned i = 0; (member = emulated_multicast_member(to, i)) != NULL; i++) {
            add_half((uint64_t *)(void *)member, half(v, 0));
            add_half((uint64_t *)(void *)(member + 8), half(v, 1));
        }
    }
};

template <>
struct banyan_device_multicast<banyan_device_f32>
    : banyan_device_multicast_emulated<banyan_device_f32> {
};
template <>
struct banyan_device_multicast<banyan_device_f16>
    : banyan_device_multicast_emulated<banyan_device_f16> {
};
template <>
struct banyan_device_multicast<banyan_device_bf16>
    : banyan_device_multicast_emulated<banyan_device_bf16> {
};

BANYAN_DEVICE void banyan_device_multicast_store_word(void *to, uint4 v)
{
    char *member;
    for (unsigned i = 0; (member = emulated_multicast_member(to, i)) != NULL; i++)
        banyan_device_store<uint4>(member, v);
}

BANYAN_DEVICE void banyan_device_multicast_store_packets(void *to, uint4 v)
{
    char *member;
    for (unsigned i = 0; (member = emulated_multicast_member(to, i)) != NULL; i++)
        banyan_device_store_packets(member, v);
}

BANYAN_DEVICE void banyan_device_multicast_store_release(uint64_t *to, uint64_t value)
{
    uintptr_t within = (uintptr_t)to % sizeof(uint4);
    const char *word = (const char *)to - within, *member;
    for (unsigned i = 0; (member = emulated_multicast_member(word, i)) != NULL; i++)
        banyan_device_store_release((uint64_t *)(void *)(member + within), value);
}

BANYAN_DEVICE void banyan_device_multicast_fence(void)
{
    emulated_release();
}

#endif

/* Ranges: `bytes` is a multiple of 16; threads share them as in move.cuh. */

/* The source and destination of 16-byte words. */
struct banyan_device_multicast_data {
    char *at;
    BANYAN_DEVICE_MEMBER uint4 load(uint64_t i) const
    {
        return banyan_device_load_once(at + i * sizeof(uint4));
    }
    BANYAN_DEVICE_MEMBER void store(uint64_t i, uint4 v) const
    {
        banyan_device_store<uint4>(at + i * sizeof(uint4), v);
    }
};

struct banyan_device_multicast_all {
    char *at;
    BANYAN_DEVICE_MEMBER void store(uint64_t i, uint4 v) const
    {
        banyan_device_multicast_store_word(at + i * sizeof(uint4), v);
    }
};

template <typename Element> struct banyan_device_multicast_sum {
    char *at;
    BANYAN_DEVICE_MEMBER uint4 load(uint64_t i) const
    {
        return banyan_device_multicast<Element>::load(at + i * sizeof(uint4));
    }
    BANYAN_DEVICE_MEMBER void store(uint64_t i, uint4 v) const
    {
        banyan_device_multicast<Element>::add(at + i * sizeof(uint4), v);
    }
};

/* Words that a thread has in flight at once. */
#define BANYAN_DEVICE_MULTICAST_BATCH 4

template <typename From, typename To>
BANYAN_DEVICE void banyan_device_multicast_move(To to, From from, uint64_t bytes, uint32_t thread,
                                                uint32_t threads)
{
    uint64_t at = thread, words = bytes / sizeof(uint4);
    banyan_device_multicast_fence();
    BANYAN_DEVICE_LOOP
    for (; at + (BANYAN_DEVICE_MULTICAST_BATCH - 1) * (uint64_t)threads < words;
         at += BANYAN_DEVICE_MULTICAST_BATCH * (uint64_t)threads) {
        uint4 v[BANYAN_DEVICE_MULTICAST_BATCH];
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < BANYAN_DEVICE_MULTICAST_BATCH; k++)
            v[k] = from.load(at + k * (uint64_t)threads);
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < BANYAN_DEVICE_MULTICAST_BATCH; k++)
            to.store(at + k * (uint64_t)threads, v[k]);
    }
    BANYAN_DEVICE_LOOP
    for (; at < words; at += threads)
        to.store(at, from.load(at));
    banyan_device_multicast_fence();
}

/* Store the bytes to all members. */
BANYAN_DEVICE void banyan_device_multicast_store(void *to, const void *from, uint64_t bytes,
                                                 uint32_t thread, uint32_t threads)
{
    banyan_device_multicast_move(banyan_device_multicast_all{(char *)to},
                                 banyan_device_multicast_data{(char *)from}, bytes, thread,
                                 threads);
}

/* Store the sum of all members' values to ordinary memory. */
template <typename Element>
BANYAN_DEVICE void banyan_device_multicast_load(void *to, const void *from, uint64_t bytes,
                                                uint32_t thread, uint32_t threads)
{
    banyan_device_multicast_move(banyan_device_multicast_data{(char *)to},
                                 banyan_device_multicast_sum<Element>{(char *)from}, bytes, thread,
                                 threads);
}

/* Store the sum of all members' values to all members. */
template <typename Element>
BANYAN_DEVICE void banyan_device_multicast_load_store(void *to, const void *from, uint64_t bytes,
                                                      uint32_t thread, uint32_t threads)
{
    banyan_device_multicast_move(banyan_device_multicast_all{(char *)to},
                                 banyan_device_multicast_sum<Element>{(char *)from}, bytes, thread,
                                 threads);
}

/* Add ordinary memory to each member's values; every sum of f16 and bf16 is rounded. */
template <typename Element>
BANYAN_DEVICE void banyan_device_multicast_add(void *to, const void *from, uint64_t bytes,
                                               uint32_t thread, uint32_t threads)
{
    banyan_device_multicast_move(banyan_device_multicast_sum<Element>{(char *)to},
                                 banyan_device_multicast_data{(char *)from}, bytes, thread,
                                 threads);
}

#endif
