/* Devices that map each other's memory: copy engines put, a kernel signals. */
#include "cuda/pipeline/pipeline.h"

#include <stdlib.h>

typedef struct peer_wire {
    int device;
    banyan_memory *memory;
    char **parts; /* indexed by rank, as mapped here */
    CUfunction kernel;
} peer_wire;

static void peer_close(void *argument)
{
    peer_wire *wire = argument;
    banyan_memory_free(wire->memory);
    free(wire->parts);
    free(wire);
}

/* Call it after the collective part. */
static banyan_status wire_peer_find_parts(peer_wire *wire, banyan_world *world)
{
    int ranks = banyan_world_size(world);
    wire->parts = calloc((size_t)ranks, sizeof *wire->parts);
    if (!wire->parts)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: out of memory: %d addresses", ranks);
    for (int rank = 0; rank < ranks; rank++) {
        void *part;
        size_t bytes;
        banyan_status status = banyan_memory_peer(wire->memory, rank, &part, &bytes);
        if (status != BANYAN_OK)
            return status;
        wire->parts[rank] = part;
    }
    banyan_status status = driver_enter(wire->device);
    if (status != BANYAN_OK)
        return status;
    status = driver_kernel(gpu_pipeline_kernel_symbol(), wire->device, &wire->kernel);
    driver_leave();
    return status;
}

static banyan_status peer_open(banyan_world *world, int device, size_t bytes, size_t zero_bytes,
                               void **opened, char **local)
{
    (void)zero_bytes; /* all of it is zero */
    banyan_memory *memory;
    RETURN_IF_FAILED(banyan_memory_alloc_on(world, BANYAN_CUDA(device), bytes, &memory));
    peer_wire *wire = calloc(1, sizeof *wire);
    if (!wire) {
        banyan_memory_free(memory);
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: out of memory: %zu bytes",
                                sizeof *wire);
    }
    wire->device = device;
    wire->memory = memory;
    banyan_status status = wire_peer_find_parts(wire, world);
    if (status != BANYAN_OK) {
        peer_close(wire);
        return status;
    }
    *opened = wire;
    *local = banyan_memory_local(memory);
    return BANYAN_OK;
}

static banyan_status peer_signal(void *argument, CUstream stream, int peer, size_t word,
                                 uint64_t *signalled)
{
    const peer_wire *wire = argument;
    gpu_pipeline_args args = {
        .task = PIPELINE_SIGNAL,
        .peer = peer,
        .their_word = (uint64_t *)(void *)(wire->parts[peer] + word),
        .count = signalled,
    };
    void *params[] = {&args};
    return DRIVER(wire->device, cuLaunchKernel, wire->kernel, 1, 1, 1, 1, 1, 1, 0, stream, params,
                  NULL);
}

static banyan_status peer_put(void *argument, CUstream stream, int peer, size_t to, size_t from,
                              size_t bytes, size_t word)
{
    (void)word;
    const peer_wire *wire = argument;
    const char *here = banyan_memory_local(wire->memory);
    return DRIVER(wire->device, cuMemcpyAsync, (CUdeviceptr)(uintptr_t)(wire->parts[peer] + to),
                  (CUdeviceptr)(uintptr_t)(here + from), bytes, stream);
}

const gpu_pipeline_transport_ops gpu_pipeline_wire_peer = {
    .name = "peer",
    .open = peer_open,
    .close = peer_close,
    .signal = peer_signal,
    .put = peer_put,
};
