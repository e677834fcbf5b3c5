#include <banyan/device/reduce.cuh>

#include "cuda/execute/kernel.h"
#include "cuda/execute/small_kernels.h"
#include "cuda/runtime/device.cuh"

BANYAN_DEVICE float scaled(float value, const engine_scaling *by)
{
    return banyan_device_times(value, by->factor);
}

template <typename Int> BANYAN_DEVICE Int scaled(Int value, const engine_scaling *by)
{
    return by->divides ? (Int)((int64_t)value / by->whole)
                       : (Int)((uint64_t)value * (uint64_t)by->whole);
}

template <typename T> BANYAN_DEVICE uint2 scaled_word(uint2 word, const scale_args *args)
{
    typename T::accumulator values[T::COUNT];
    T::widen(word, values);
    BANYAN_DEVICE_UNROLL
    for (int i = 0; i < T::COUNT; i++)
        values[i] = scaled(values[i], &args->by);
    return T::narrow(values);
}

/* Less than 8 bytes, or bytes at any address. */
template <typename T> BANYAN_DEVICE void scale_bytes(const scale_args *args, uint64_t at, int bytes)
{
    uint2 word = make_uint2(0, 0);
    for (int i = 0; i < bytes; i++)
        (i < 4 ? word.x : word.y) |= (uint32_t)(uint8_t)args->from[at + i] << 8 * (i & 3);
    word = scaled_word<T>(word, args);
    for (int i = 0; i < bytes; i++)
        args->to[at + i] = (char)((i < 4 ? word.x : word.y) >> 8 * (i & 3));
}

template <typename T> BANYAN_DEVICE void scale_all(const scale_args *args)
{
    uint64_t first = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x;
    uint64_t step = gridDim.x * (uint64_t)blockDim.x;
    bool aligned = (((uint64_t)args->to | (uint64_t)args->from) & 15) == 0;
    uint64_t wide = aligned ? args->bytes / 16 : 0;
    for (uint64_t i = first; i < wide; i += step) {
        uint4 v = banyan_device_load<uint4>(args->from + 16 * i);
        uint2 low = scaled_word<T>(make_uint2(v.x, v.y), args);
        uint2 high = scaled_word<T>(make_uint2(v.z, v.w), args);
        banyan_device_store(args->to + 16 * i, make_uint4(low.x, low.y, high.x, high.y));
    }
    for (uint64_t at = 16 * wide + 8 * first; at < args->bytes; at += 8 * step) {
        uint64_t rest = args->bytes - at;
        scale_bytes<T>(args, at, rest < 8 ? (int)rest : 8);
    }
}

#define DEFINE_SCALE(type, dtype)                                                                  \
    static __global__ void __launch_bounds__(SCALE_THREADS)                                        \
        scale_##type(const __grid_constant__ scale_args args)                                      \
    {                                                                                              \
        scale_all<banyan_device_##type>(&args);                                                    \
    }

EXECUTE_TYPES(DEFINE_SCALE)

const void *scale_kernel(DLDataType dtype)
{
#define RETURN_IF_TYPE(type, of_type)                                                              \
    if (banyan_dtype_equal(dtype, of_type))                                                        \
        return DEVICE_KERNEL(scale_##type, scale_args);
    EXECUTE_TYPES(RETURN_IF_TYPE)
#undef RETURN_IF_TYPE
    return NULL;
}
