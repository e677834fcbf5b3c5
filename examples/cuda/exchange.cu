/* A kernel that uses Banyan's memory and channels: every rank gives its neighbour on the right a
 * block of floats and adds the block from the left to its own, on a GPU each.
 *
 *     banyan launch -n 2 -- example_cuda_exchange */
#include <stdio.h>
#include <stdlib.h>

#include <banyan/banyan.h>
#include <banyan/device/channel.cuh>

#define COUNT 10000
#define BYTES (COUNT * sizeof(float))
#define TIMEOUT_NS 10000000000ull

static void check(banyan_status status)
{
    if (status == BANYAN_OK)
        return;
    fprintf(stderr, "%s\n", banyan_last_error());
    exit(1);
}

static void check_cuda(cudaError_t status)
{
    if (status == cudaSuccess)
        return;
    fprintf(stderr, "%s\n", cudaGetErrorString(status));
    exit(1);
}

/* Every rank's symmetric memory: its own block, the block from the left, two counters. */
struct shared_block {
    float own[COUNT], from_left[COUNT];
    uint64_t arrived, taken;
};

struct exchange {
    shared_block *mine;
    banyan_device_channel to_right;  /* signals that the block has arrived */
    banyan_device_channel from_left; /* signals that the block has been read */
    uint32_t *failed;
};

static __global__ void exchange_and_add(exchange e)
{
    banyan_device_limits limits = {TIMEOUT_NS, {NULL, NULL}};
    banyan_device_put(&e.to_right, offsetof(shared_block, from_left), e.mine->own, BYTES,
                      threadIdx.x, blockDim.x);
    __syncthreads();
    if (threadIdx.x == 0) {
        banyan_device_signal(&e.to_right);
        if (!banyan_device_wait_signal(&e.from_left, &limits))
            *e.failed = 1;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < COUNT; i += blockDim.x)
        e.mine->own[i] += e.mine->from_left[i];
    __syncthreads();
    /* Continue only after the right neighbour has signalled that it has read this rank's block. */
    if (threadIdx.x == 0) {
        banyan_device_signal_relaxed(&e.from_left);
        if (!banyan_device_wait_signal_relaxed(&e.to_right, &limits))
            *e.failed = 1;
    }
}

static shared_block *block_of(banyan_memory *memory, int rank)
{
    void *address;
    size_t bytes;
    check(banyan_memory_peer(memory, rank, &address, &bytes));
    return (shared_block *)address;
}

int main(void)
{
    int gpus = 0;
    check_cuda(cudaGetDeviceCount(&gpus));
    banyan_world *world;
    check(banyan_world_open(NULL, &world));
    int rank = banyan_world_rank(world), ranks = banyan_world_size(world);
    DLDevice gpu = BANYAN_CUDA(rank % gpus);
    check_cuda(cudaSetDevice(gpu.device_id));

    banyan_memory *memory;
    check(banyan_memory_alloc_on(world, gpu, sizeof(shared_block), &memory));
    shared_block *mine = block_of(memory, rank);
    shared_block *right = block_of(memory, (rank + 1) % ranks);
    shared_block *left = block_of(memory, (rank + ranks - 1) % ranks);
    float *host = (float *)malloc(BYTES);
    for (int i = 0; i < COUNT; i++)
        host[i] = (float)(rank + i);
    check_cuda(cudaMemcpy(mine->own, host, BYTES, cudaMemcpyHostToDevice));
    check(banyan_world_barrier(world));

    /* The two ends of a channel: one side adds to a counter, and the other waits for it. */
    exchange e = {};
    e.mine = mine;
    e.to_right = {(char *)right, &right->arrived, &mine->taken, 0};
    e.from_left = {(char *)left, &left->taken, &mine->arrived, 0};
    check_cuda(cudaMallocHost(&e.failed, sizeof *e.failed));
    *e.failed = 0;
    exchange_and_add<<<1, 512>>>(e);
    check_cuda(cudaDeviceSynchronize());
    check_cuda(cudaMemcpy(host, mine->own, BYTES, cudaMemcpyDeviceToHost));
    float expected = (float)(rank + (rank + ranks - 1) % ranks + 2 * 10);
    printf("rank %d: element 10 is %g, and should be %g\n", rank, host[10], expected);
    int wrong = *e.failed || host[10] != expected;

    check(banyan_world_barrier(world));
    banyan_memory_free(memory);
    check(banyan_world_close(world));
    return wrong;
}
