/* Units of 16 bytes that show their own arrival. */
#ifndef CUDA_MIXED_UNIT_CUH
#define CUDA_MIXED_UNIT_CUH

#include <banyan/device/move.cuh>
#include <banyan/device/multicast.cuh>

#include "cuda/mixed/kernel.h"

/* Return the sign bits of the elements that are -0. */
template <typename Element> BANYAN_DEVICE uint32_t unit_marks(uint32_t word)
{
    if ((int)Element::COUNT == 2)
        return word == 0x80000000 ? word : 0;
    uint32_t more = (word & 0x7fff7fff) + 0x7fff7fff;
    return ~more & word & 0x80008000;
}

/* `nothing`: two elements of -0, or one. */
BANYAN_DEVICE void unit_clear(char *at, uint32_t nothing)
{
    banyan_device_store<uint4>(at, make_uint4(nothing, nothing, nothing, nothing));
}

template <typename Element> BANYAN_DEVICE bool unit_has_come(uint4 unit)
{
    return (unit_marks<Element>(unit.x) | unit_marks<Element>(unit.y) |
            unit_marks<Element>(unit.z) | unit_marks<Element>(unit.w)) == 0;
}

/* Replace -0, so that the unit may be sent. */
template <typename Element> BANYAN_DEVICE uint4 unit_settle(uint4 unit)
{
    return make_uint4(unit.x ^ unit_marks<Element>(unit.x), unit.y ^ unit_marks<Element>(unit.y),
                      unit.z ^ unit_marks<Element>(unit.z), unit.w ^ unit_marks<Element>(unit.w));
}

/* Force the computation of the addresses here, not at their use. */
BANYAN_DEVICE void unit_keep(const char *&from, char *&to)
{
#ifdef __CUDACC__
    asm volatile("" : "+l"(from), "+l"(to));
#else
    (void)from;
    (void)to;
#endif
}

/* Store into a receive buffer, or into those of all ranks of a multicast address. */
template <bool MULTICAST> BANYAN_DEVICE void unit_push(char *to, uint4 unit)
{
    if (MULTICAST)
        banyan_device_multicast_store_packets(to, unit);
    else
        banyan_device_store_packets(to, unit);
}

template <bool ANY> BANYAN_DEVICE uint4 unit_load(const char *from, uint64_t at, uint64_t bytes)
{
    if (!ANY)
        return banyan_device_load_once(from + at);
    uint64_t left = bytes - at;
    uint2 low = banyan_device_load_unit(from + at, left < 8 ? (uint32_t)left : 8), high = {};
    if (left > 8)
        high = banyan_device_load_unit(from + at + 8, left < 16 ? (uint32_t)left - 8 : 8);
    return make_uint4(low.x, low.y, high.x, high.y);
}

template <bool ANY> BANYAN_DEVICE void unit_store(char *to, uint64_t at, uint64_t bytes, uint4 unit)
{
    if (!ANY)
        return banyan_device_store<uint4>(to + at, unit);
    uint64_t left = bytes - at;
    banyan_device_store_unit(to + at, make_uint2(unit.x, unit.y), left < 8 ? (uint32_t)left : 8);
    if (left > 8)
        banyan_device_store_unit(to + at + 8, make_uint2(unit.z, unit.w),
                                 left < 16 ? (uint32_t)left - 8 : 8);
}

#endif
