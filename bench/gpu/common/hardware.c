#include "common/hardware.h"

#include "common/nothing.h"

#define COPY_BYTES ((size_t)256 << 20)

struct copy {
    void *to;
    const void *from;
};

static void copy(void *context, cudaStream_t stream)
{
    const struct copy *of = context;
    if (of->to)
        CUDA(cudaMemcpyAsync(of->to, of->from, COPY_BYTES, cudaMemcpyDeviceToDevice, stream));
}

static void nothing(void *context, cudaStream_t stream)
{
    (void)context;
    CUDA(nothing_launch(stream));
}

void limits_measure(const gpu *on, limits *found)
{
    banyan_memory *from, *to;
    void *next;
    size_t bytes;
    need(banyan_memory_alloc_on(on->world, BANYAN_CUDA(on->device), COPY_BYTES, &from));
    need(banyan_memory_alloc_on(on->world, BANYAN_CUDA(on->device), COPY_BYTES, &to));
    need(banyan_memory_peer(to, (on->rank + 1) % on->ranks, &next, &bytes));
    struct copy both = {next, banyan_memory_local(from)};
    struct copy one = {on->rank % 2 == 0 ? next : NULL, banyan_memory_local(from)};
    struct copy home = {banyan_memory_local(to), banyan_memory_local(from)};
    const double gigabytes = (double)COPY_BYTES * 1e-9;
    found->one_way_gbs = gigabytes / (gpu_time_us(on, copy, &one) * 1e-6);
    found->both_ways_gbs = gigabytes / (gpu_time_us(on, copy, &both) * 1e-6);
    found->local_gbs = 2 * gigabytes / (gpu_time_us(on, copy, &home) * 1e-6);
    found->empty_us = gpu_time_us(on, nothing, NULL);
    need(banyan_world_barrier(on->world));
    banyan_memory_free(from);
    banyan_memory_free(to);
}
