/* Elements of strided views, and sums over a warp. */
#ifndef CUDA_PUBLISH_VIEW_CUH
#define CUDA_PUBLISH_VIEW_CUH

#include <banyan/device/access.cuh>

#include "cuda/publish/kernel.h"
#include "cuda/runtime/device.cuh"

#define ALL_LANES 0xffffffffu

/* A row's elements have one distance. */
typedef struct changes_row {
    char *at;       /* the element's address */
    uint64_t left;  /* elements from it to the row's end */
    int64_t stride; /* in bytes */
} changes_row;

/* Divide by an extent: most numbers fit 32 bits, for which a division is several times as fast. */
BANYAN_DEVICE uint64_t view_divide(uint64_t number, uint64_t by)
{
    return (number | by) >> 32 ? number / by : (uint32_t)number / (uint32_t)by;
}

/* Return the place of a unit, by its number in row-major order. */
BANYAN_DEVICE changes_row view_row(const changes_view &view, uint64_t number)
{
    changes_row row = {view.data, 1, 0};
    if (view.ndim == 0)
        return row;
    int last = (int)view.ndim - 1;
    row.stride = view.stride[last];
    uint64_t above = last > 0 ? view_divide(number, (uint64_t)view.extent[last]) : 0;
    uint64_t index = number - above * (uint64_t)view.extent[last];
    row.left = (uint64_t)view.extent[last] - index;
    row.at += (int64_t)index * row.stride;
    for (int i = last - 1; i >= 0; i--) {
        number = above;
        above = i > 0 ? view_divide(number, (uint64_t)view.extent[i]) : 0;
        row.at += (int64_t)(number - above * (uint64_t)view.extent[i]) * view.stride[i];
    }
    return row;
}

BANYAN_DEVICE char *view_at(const changes_view &view, uint64_t number)
{
    return view_row(view, number).at;
}

/* Return the index of the last of some items, `count` > 0, whose first unit is not above `number`.
 * It is found soonest if it is near the beginning. */
template <typename T>
BANYAN_DEVICE uint64_t view_find(const T *items, uint64_t count, uint64_t T::*first,
                                 uint64_t number)
{
    uint64_t low = 0, high = 1;
    while (high < count && items[high].*first <= number) {
        low = high;
        high *= 2;
    }
    if (high > count)
        high = count;
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (items[middle].*first <= number)
            low = middle;
        else
            high = middle;
    }
    return low;
}

template <typename T> BANYAN_DEVICE void move_as(void *to, const void *from)
{
    *(T *)to = *(const T *)from;
}

/* Copy an element, between any addresses. */
BANYAN_DEVICE void move_element(void *to, const void *from, uint32_t bytes)
{
    bool aligned = (((uintptr_t)to | (uintptr_t)from) & (bytes - 1)) == 0;
    if (bytes == 2 && aligned)
        move_as<uint16_t>(to, from);
    else if (bytes == 4 && aligned)
        move_as<uint32_t>(to, from);
    else if (bytes == 8 && aligned)
        move_as<uint2>(to, from);
    else if (bytes == 16 && aligned)
        move_as<uint4>(to, from);
    else
        for (uint32_t i = 0; i < bytes; i++)
            ((char *)to)[i] = ((const char *)from)[i];
}

/* Sums over a warp. All lanes call these. */

BANYAN_DEVICE uint32_t warp_sum_up_to(uint32_t value, unsigned lane)
{
    for (unsigned d = 1; d < CHANGES_WARP; d *= 2) {
        uint32_t other = __shfl_sync(ALL_LANES, value, (int)(lane >= d ? lane - d : lane));
        value += lane >= d ? other : 0;
    }
    return value;
}

BANYAN_DEVICE uint32_t warp_max_up_to(uint32_t value, unsigned lane)
{
    for (unsigned d = 1; d < CHANGES_WARP; d *= 2) {
        uint32_t other = __shfl_sync(ALL_LANES, value, (int)(lane >= d ? lane - d : lane));
        value = other > value ? other : value;
    }
    return value;
}

/* Return the value of the lane before this one; 0 for the first. */
BANYAN_DEVICE uint32_t warp_before(uint32_t value, unsigned lane)
{
    uint32_t other = __shfl_sync(ALL_LANES, value, (int)(lane > 0 ? lane - 1 : 0));
    return lane > 0 ? other : 0;
}

BANYAN_DEVICE uint64_t warp_sum(uint64_t value, unsigned lane)
{
    for (unsigned d = 1; d < CHANGES_WARP; d *= 2)
        value += __shfl_sync(ALL_LANES, value, (int)(lane ^ d));
    return value;
}

/* Position of a thread among all warps of a launch. */
BANYAN_DEVICE unsigned view_lane(void)
{
    return threadIdx.x % CHANGES_WARP;
}

BANYAN_DEVICE uint64_t view_warp(void)
{
    return (uint64_t)blockIdx.x * (blockDim.x / CHANGES_WARP) + threadIdx.x / CHANGES_WARP;
}

BANYAN_DEVICE uint64_t view_warps(void)
{
    return (uint64_t)gridDim.x * (blockDim.x / CHANGES_WARP);
}

#endif
