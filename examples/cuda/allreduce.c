/* A sum over GPUs, in place, in memory that the program has allocated itself, in its own stream. */
#include <banyan/banyan.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

#define OK(call) ((call) ? exit((fprintf(stderr, "%s\n", banyan_last_error()), 1)) : (void)0)
#define CUDA(call)                                                                                 \
    ((call) ? exit((fprintf(stderr, "%s\n", cudaGetErrorString(cudaGetLastError())), 1)) : (void)0)

int main(void)
{
    enum { COUNT = 1 << 20 };
    banyan_world *world;
    banyan_comm *comm;
    banyan_memory *memory;
    cudaStream_t stream;
    int gpus;
    float *gradient, *here = malloc(COUNT * sizeof *here);
    CUDA(cudaGetDeviceCount(&gpus));
    OK(banyan_world_open(NULL, &world));
    int rank = banyan_world_rank(world), gpu = banyan_world_local_rank(world) % gpus;
    CUDA(cudaSetDevice(gpu));
    CUDA(cudaStreamCreate(&stream));
    CUDA(cudaMalloc((void **)&gradient, COUNT * sizeof *gradient));
    banyan_comm_options options = BANYAN_COMM_OPTIONS_INIT;
    options.device = BANYAN_CUDA(gpu);
    OK(banyan_comm_create(world, &options, &comm));
    /* Optional: peers then read and write it in place, which speeds up long messages. */
    OK(banyan_memory_adopt(world, options.device, gradient, COUNT * sizeof *gradient, &memory));
    OK(banyan_comm_register(comm, memory));

    for (int i = 0; i < COUNT; i++)
        here[i] = (float)(rank + i % 100);
    CUDA(cudaMemcpyAsync(gradient, here, COUNT * sizeof *here, cudaMemcpyHostToDevice, stream));
    OK(banyan_comm_allreduce(comm, gradient, gradient, COUNT, BANYAN_F32, BANYAN_SUM, stream));
    CUDA(cudaMemcpyAsync(here, gradient, COUNT * sizeof *here, cudaMemcpyDeviceToHost, stream));
    CUDA(cudaStreamSynchronize(stream));
    OK(banyan_comm_status(comm)); /* a peer that was lost or late, if any */
    printf("rank %d on GPU %d: element 10 is %g\n", rank, gpu, here[10]);

    OK(banyan_comm_unregister(comm, memory));
    OK(banyan_comm_destroy(comm));
    banyan_memory_free(memory);
    OK(banyan_world_barrier(world)); /* peers no longer have it mapped */
    CUDA(cudaFree(gradient));
    OK(banyan_world_close(world));
    free(here);
}
