#include "functions.h"

#include <stdio.h>

#include <banyan/device/channel.cuh>
#include <banyan/device/group.cuh>

#ifndef __CUDACC__
extern "C" {
#include "fibers.h"
}
#endif

#define TIMEOUT_NS 20000000000u

struct kernel_call {
    function_call call;
    char *memory;
    uint32_t *failed;
};

/* An array of addresses, computed from offsets. */
struct offsets {
    char *memory;
    const uint64_t *at;
    BANYAN_DEVICE_MEMBER char *operator[](uint32_t i) const { return memory + at[i]; }
};

template <typename Element, banyan_device_op op> BANYAN_DEVICE void reduce(const kernel_call *k)
{
    const function_call *call = &k->call;
    offsets from = {k->memory, call->from}, to = {k->memory, call->to};
    if (call->kind == FUNCTION_REDUCE)
        return banyan_device_reduce_each<Element, op>(to, call->places, from, call->sources,
                                                      call->bytes, threadIdx.x, blockDim.x);
    char *members[FUNCTIONS_MOST];
    for (uint32_t i = 0; i < call->places; i++)
        members[i] = to[i] - 32;
    banyan_device_group group = {members, call->places};
    banyan_device_group_load_store<Element, op>(&group, 32, call->bytes, threadIdx.x, blockDim.x);
}

template <typename Element> BANYAN_DEVICE void reduce_by(const kernel_call *k)
{
    switch (k->call.op) {
    case BANYAN_DEVICE_SUM:
        return reduce<Element, BANYAN_DEVICE_SUM>(k);
    case BANYAN_DEVICE_MIN:
        return reduce<Element, BANYAN_DEVICE_MIN>(k);
    case BANYAN_DEVICE_MAX:
        return reduce<Element, BANYAN_DEVICE_MAX>(k);
    default:
        return reduce<Element, BANYAN_DEVICE_PROD>(k);
    }
}

BANYAN_DEVICE void reduce_type(const kernel_call *k)
{
    switch (k->call.type) {
    case 0:
        return reduce_by<banyan_device_f32>(k);
    case 1:
        return reduce_by<banyan_device_f16>(k);
    case 2:
        return reduce_by<banyan_device_bf16>(k);
    case 3:
        return reduce_by<banyan_device_e4m3>(k);
    case 4:
        return reduce_by<banyan_device_e5m2>(k);
    case 5:
        return reduce_by<banyan_device_i32>(k);
    case 6:
        return reduce_by<banyan_device_u32>(k);
    case 7:
        return reduce_by<banyan_device_i64>(k);
    default:
        return reduce_by<banyan_device_u8>(k);
    }
}

BANYAN_DEVICE void pass_packets(const kernel_call *k)
{
    const function_call *call = &k->call;
    banyan_device_limits limits = {TIMEOUT_NS, {NULL, NULL}};
    uint32_t half = blockDim.x / 2, flag = 0x12345;
    char *packets = k->memory + call->to[0];
    /* One half writes the packets that the other half waits for. */
    if (threadIdx.x < half)
        banyan_device_packets_write(packets, k->memory + call->from[0], call->bytes, flag,
                                    threadIdx.x, half);
    else if (!banyan_device_packets_read(k->memory + call->to[1], packets, call->bytes, flag,
                                         &limits, threadIdx.x - half, half))
        *k->failed = 1;
}

/* Thread 0 writes a number and signals; the last thread doubles it and signals back. */
BANYAN_DEVICE void pass_signals(const kernel_call *k)
{
    banyan_device_limits limits = {TIMEOUT_NS, {NULL, NULL}};
    uint64_t *there = (uint64_t *)k->memory, *back = there + 16;
    char *number = k->memory + k->call.to[0];
    bool first = threadIdx.x == 0, last = threadIdx.x == blockDim.x - 1;
    if (!first && !last)
        return;
    banyan_device_channel channel = {number, first ? there : back, first ? back : there, 0};
    for (uint32_t i = 0; i < k->call.bytes; i++) {
        if (last && !banyan_device_wait_signal(&channel, &limits))
            *k->failed = 1;
        uint32_t is = banyan_device_load<uint32_t>(number);
        banyan_device_store<uint32_t>(number, first ? is + 1 : 2 * is);
        banyan_device_signal(&channel);
        if (first && !banyan_device_wait_signal(&channel, &limits))
            *k->failed = 1;
    }
}

BANYAN_DEVICE bool post_pieces(const kernel_call *k, function_ports *ports,
                               const banyan_device_limits *limits)
{
    const function_call *call = &k->call;
    char *from = k->memory + call->from[0], *to = k->memory + call->to[0];
    for (uint32_t i = 0; i < call->places; i++) {
        uint64_t at = i * call->bytes;
        if (!banyan_device_post_put(&ports->queue, to + at, from + at, call->bytes, limits) ||
            (i % 3 == 2 && !banyan_device_post_signal(&ports->queue, &ports->signals, limits)))
            return false;
    }
    if (!banyan_device_flush(&ports->queue, limits))
        return false;
    for (uint64_t i = 0; i < call->places * call->bytes; i++)
        banyan_device_store<uint8_t>(from + i, FUNCTION_OVER);
    return true;
}

BANYAN_DEVICE bool serve_pieces(const kernel_call *k, function_ports *ports,
                                const banyan_device_limits *limits)
{
    uint64_t all = k->call.places + k->call.places / 3;
    for (uint64_t n = 0; n < all; n++) {
        const banyan_port_request *request = &ports->requests[n % FUNCTION_PORT_ROOM];
        banyan_device_wait wait = {};
        while (banyan_device_load_acquire(&request->number) != n + 1) {
            if (!banyan_device_wait_on(limits, &wait))
                return false;
        }
        if (request->kind == BANYAN_PORT_PUT)
            banyan_device_copy(request->destination, request->source, request->bytes, 0, 1);
        else
            banyan_device_add_release(request->signal, 1);
        banyan_device_store_release(&ports->done, n + 1);
    }
    return true;
}

BANYAN_DEVICE void pass_ports(const kernel_call *k)
{
    banyan_device_limits limits = {TIMEOUT_NS, {NULL, NULL}};
    function_ports *ports = (function_ports *)(k->memory + k->call.to[1]);
    if (threadIdx.x == 0)
        ports->queue = {0, FUNCTION_PORT_ROOM, ports->requests, &ports->done};
    __syncthreads();
    if ((threadIdx.x == 0 && !post_pieces(k, ports, &limits)) ||
        (threadIdx.x == blockDim.x - 1 && !serve_pieces(k, ports, &limits)))
        *k->failed = 1;
}

static __global__ void call_function(const __grid_constant__ kernel_call k)
{
    offsets to = {k.memory, k.call.to};
    switch (k.call.kind) {
    case FUNCTION_COPY:
        return banyan_device_copy_each(to, k.call.places, k.memory + k.call.from[0], k.call.bytes,
                                       threadIdx.x, blockDim.x);
    case FUNCTION_PACKETS:
        return pass_packets(&k);
    case FUNCTION_SIGNALS:
        return pass_signals(&k);
    case FUNCTION_PORTS:
        return pass_ports(&k);
    default:
        return reduce_type(&k);
    }
}

#ifdef __CUDACC__

bool functions_can_run(void)
{
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

bool functions_run(const function_call *call, void *memory, size_t bytes, uint32_t threads)
{
    static char *on_device;
    static size_t room;
    size_t wanted = bytes + 256;
    if (room < wanted) {
        cudaFree(on_device);
        if (cudaMalloc(&on_device, wanted) != cudaSuccess)
            return false;
        room = wanted;
    }
    uint32_t failed = 0;
    kernel_call k = {*call, on_device + 256, (uint32_t *)on_device};
    bool fine = cudaMemset(on_device, 0, 256) == cudaSuccess &&
                cudaMemcpy(on_device + 256, memory, bytes, cudaMemcpyHostToDevice) == cudaSuccess;
    if (fine)
        call_function<<<1, threads>>>(k);
    cudaError_t error = cudaDeviceSynchronize();
    if (error != cudaSuccess)
        fprintf(stderr, "a kernel of %u threads: %s\n", threads, cudaGetErrorString(error));
    return fine && error == cudaSuccess &&
           cudaMemcpy(memory, on_device + 256, bytes, cudaMemcpyDeviceToHost) == cudaSuccess &&
           cudaMemcpy(&failed, on_device, 4, cudaMemcpyDeviceToHost) == cudaSuccess && failed == 0;
}

#else

static void call_emulated(const void *argument)
{
    call_function(*(const kernel_call *)argument);
}

bool functions_can_run(void)
{
    return true;
}

bool functions_run(const function_call *call, void *memory, size_t bytes, uint32_t threads)
{
    (void)bytes;
    uint32_t failed = 0;
    kernel_call k = {*call, (char *)memory, &failed};
    fibers_run({1, 1, 1}, {threads, 1, 1}, 64, call_emulated, &k, 7);
    return failed == 0;
}

#endif
