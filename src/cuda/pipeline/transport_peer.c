/* Devices that map each other's memory: copy engines put, a kernel signals. */
#include "cuda/pipeline/pipeline.h"

#include <stdlib.h>

typedef struct peer_transport {
    int device;
    banyan_memory *memory;
    char **parts; /* indexed by rank, as mapped here */
    CUfunction kernel;
} peer_transport;

static void peer_close(void *argument)
{
    peer_transport *transport = argument;
    banyan_memory_free(transport->memory);
    free(transport->parts);
    free(transport);
}

/* Call it after the collective part. */
static banyan_status transport_peer_find_parts(peer_transport *transport, banyan_world *world)
{
    int ranks = banyan_world_size(world);
    transport->parts = calloc((size_t)ranks, sizeof *transport->parts);
    if (!transport->parts)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: out of memory: %d addresses", ranks);
    for (int rank = 0; rank < ranks; rank++) {
        void *part;
        size_t bytes;
        banyan_status status = banyan_memory_peer(transport->memory, rank, &part, &bytes);
        if (status != BANYAN_OK)
            return status;
        transport->parts[rank] = part;
    }
    banyan_status status = driver_enter(transport->device);
    if (status != BANYAN_OK)
        return status;
    status = driver_kernel(gpu_pipeline_kernel_symbol(), transport->device, &transport->kernel);
    driver_leave();
    return status;
}

static banyan_status peer_open(banyan_world *world, int device, size_t bytes, size_t zero_bytes,
                               void **opened, gpu_pipeline_memory *memory_of)
{
    (void)zero_bytes; /* all of it is zero */
    banyan_memory *memory;
    RETURN_IF_FAILED(banyan_memory_alloc_on(world, BANYAN_CUDA(device), bytes, &memory));
    peer_transport *transport = calloc(1, sizeof *transport);
    if (!transport) {
        banyan_memory_free(memory);
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: out of memory: %zu bytes",
                                sizeof *transport);
    }
    transport->device = device;
    transport->memory = memory;
    banyan_status status = transport_peer_find_parts(transport, world);
    if (status != BANYAN_OK) {
        peer_close(transport);
        return status;
    }
    *opened = transport;
    memory_of->local = memory_of->words = banyan_memory_local(memory);
    return BANYAN_OK;
}

static banyan_status peer_signal(void *argument, CUstream stream, int peer, size_t word,
                                 const gpu_pipeline_signal *how)
{
    const peer_transport *transport = argument;
    gpu_pipeline_args args = {
        .task = PIPELINE_SIGNAL,
        .peer = peer,
        .their_word = (uint64_t *)(void *)(transport->parts[peer] + word),
        .count = how->count,
    };
    return launch_kernel(transport->device, transport->kernel, LAUNCH_ONE, &args, stream);
}

static banyan_status peer_put(void *argument, CUstream stream, int peer, size_t to, size_t from,
                              size_t bytes, size_t word)
{
    (void)word;
    const peer_transport *transport = argument;
    const char *here = banyan_memory_local(transport->memory);
    return DRIVER(transport->device, cuMemcpyAsync,
                  (CUdeviceptr)(uintptr_t)(transport->parts[peer] + to),
                  (CUdeviceptr)(uintptr_t)(here + from), bytes, stream);
}

const gpu_pipeline_transport_ops gpu_pipeline_peer_ops = {
    .name = "peer",
    .open = peer_open,
    .close = peer_close,
    .signal = peer_signal,
    .put = peer_put,
};
