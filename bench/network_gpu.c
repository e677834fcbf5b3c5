/* Two ranks of two nodes, with a GPU each or one together: bandwidth of port channels, of puts and
 * of copies between memory of their GPUs. Rank 0 prints a line for each.
 *
 * Usage: gpu_network, twice, with BANYAN_RANK, BANYAN_NODE and the other variables of a
 * world. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

#define BYTES ((size_t)256 << 20)
#define ROUNDS 3

struct gpu_bench {
    banyan_world *world;
    DLDevice device;
    banyan_memory *memory; /* twice BYTES: input, output */
    int rank;
    int (*synchronize)(void *stream);
};

/* Make the device's primary context current: the driver's calls below need it. */
static void enter_device(struct gpu_bench *b)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    void *context;
    int (*retain)(void **, int) = NULL, (*set)(void *) = NULL, (*count)(int *) = NULL;
    int devices = 1;
    if (driver) {
        *(void **)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
        *(void **)&set = dlsym(driver, "cuCtxPushCurrent_v2"); /* of CUDA 4 and later */
        if (!set)
            *(void **)&set = dlsym(driver, "cuCtxPushCurrent");
        *(void **)&count = dlsym(driver, "cuDeviceGetCount");
        *(void **)&b->synchronize = dlsym(driver, "cuStreamSynchronize");
    }
    if (!retain || !set || !count || !b->synchronize || count(&devices) != 0) {
        fprintf(stderr, "bench network_gpu: no CUDA driver\n");
        _exit(1);
    }
    b->device = BANYAN_CUDA(b->rank % devices);
    int error = retain(&context, b->device.device_id);
    if (error == 0)
        error = set(context);
    if (error != 0) {
        fprintf(stderr, "bench network_gpu: device %d cannot be used: CUDA's error %d\n",
                b->device.device_id, error);
        _exit(1);
    }
}

static void bench_open(struct gpu_bench *b)
{
    need(banyan_world_open(NULL, &b->world));
    b->rank = banyan_world_rank(b->world);
    /* The module initializes the driver. */
    need(banyan_memory_alloc_on(b->world, BANYAN_CUDA(0), 2 << 20, &b->memory));
    banyan_memory_free(b->memory);
    enter_device(b);
    need(banyan_memory_alloc_on(b->world, b->device, 2 * BYTES, &b->memory));
}

static void bench_local(struct gpu_bench *b)
{
    char *at = banyan_memory_local(b->memory);
    double best = 0;
    for (int round = 0; round < ROUNDS && b->rank == 0; round++) {
        double start = now_s();
        need(banyan_memory_copy(at + BYTES, at, BYTES));
        double speed = (double)BYTES / (now_s() - start);
        best = speed > best ? speed : best;
    }
    if (b->rank == 0)
        printf("local copy, 256 MiB: %.1f GB/s\n", best / 1e9);
    need(banyan_world_barrier(b->world));
}

/* Each rank sends to the other. */
static void bench_ports(struct gpu_bench *b)
{
    static const uint64_t sizes[] = {8, 65536, 1 << 20, 16 << 20, BYTES};
    banyan_executor_options options = BANYAN_EXECUTOR_OPTIONS_INIT;
    banyan_loaded_plan_options loading = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    banyan_executor *executor;
    banyan_loaded_plan *loaded;
    banyan_plan *plan;
    char *at = banyan_memory_local(b->memory);
    options.device = b->device;
    params.ranks = 2;
    params.ranks_per_node = 1;
    params.shift = 1;
    need(banyan_executor_open(b->world, &options, &executor));
    need(banyan_algorithm_compile("sendrecv_port", &params, &plan));
    loading.max_message_bytes = BYTES;
    loading.input = loading.output = b->memory;
    need(banyan_loaded_plan_open(executor, plan, &loading, &loaded));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint32_t runs = sizes[i] >= 16 << 20 ? 4 : 50;
        uint64_t ns, best = UINT64_MAX;
        for (int round = 0; round < ROUNDS; round++) {
            need(banyan_loaded_plan_time(loaded, at, at + BYTES, sizes[i], BANYAN_U8, runs, &ns));
            best = ns / runs < best ? ns / runs : best;
        }
        if (b->rank == 0)
            printf("port channel, %llu bytes each way: %.1f us, %.2f GB/s\n",
                   (unsigned long long)sizes[i], (double)best / 1e3,
                   (double)sizes[i] / (double)best);
        fflush(stdout);
    }
    need(banyan_loaded_plan_close(loaded));
    banyan_plan_destroy(plan);
    banyan_executor_close(executor);
}

static void bench_puts(struct gpu_bench *b)
{
    banyan_transport *transport;
    banyan_memory_handle mine, handles[2];
    char *at = banyan_memory_local(b->memory);
    double best = 0;
    need(banyan_transport_open(b->world, NULL, &transport));
    need(banyan_memory_find(b->world, at, 2 * BYTES, &mine));
    need(banyan_world_allgather(b->world, &mine, sizeof mine, handles));
    bool can = banyan_transport_capabilities(transport, 1 - b->rank) & BANYAN_TRANSPORT_CUDA;
    if (b->rank == 0)
        printf("transport %s %s memory of GPUs\n",
               banyan_transport_peer(transport, 1 - b->rank, NULL),
               can ? "reaches" : "does not reach");
    for (int round = 0; round < ROUNDS && can; round++) {
        need(banyan_world_barrier(b->world));
        double start = now_s();
        banyan_remote there = {handles[1 - b->rank], BYTES};
        if (b->rank == 0) {
            need(banyan_transport_put(transport, &there, at, BYTES));
            need(banyan_transport_flush(transport, 1));
        }
        double speed = (double)BYTES / (now_s() - start);
        best = speed > best ? speed : best;
    }
    need(banyan_world_barrier(b->world));
    if (b->rank == 0 && can)
        printf("put, 256 MiB: %.2f GB/s\n", best / 1e9);
    banyan_transport_close(transport);
}

/* A tensor of every other row, from rank 0 to rank 1. */
static void bench_copy(struct gpu_bench *b)
{
    int64_t shape[] = {65536, 2048}, strides[] = {4096, 1};
    DLTensor tensor = {.data = banyan_memory_local(b->memory),
                       .device = b->device,
                       .ndim = 2,
                       .dtype = BANYAN_U8,
                       .shape = shape,
                       .strides = strides};
    banyan_copy_options options = BANYAN_COPY_OPTIONS_INIT;
    banyan_copy_service *service;
    options.device = b->device;
    banyan_status status = banyan_copy_service_open(b->world, "pipeline", &options, &service);
    if (status != BANYAN_OK) {
        if (b->rank == 0)
            printf("copies are not measured: %s\n", banyan_last_error());
        return;
    }
    double best = 0;
    for (int round = 0; round < ROUNDS; round++) {
        if (b->rank == 0)
            need(banyan_copy_service_submit_send(service, &tensor, 1, 0));
        else
            need(banyan_copy_service_submit_recv(service, &tensor, 0, 0));
        need(banyan_world_barrier(b->world));
        double start = now_s();
        need(banyan_copy_service_run(service, NULL));
        b->synchronize(NULL);
        need(banyan_copy_service_check(service));
        need(banyan_world_barrier(b->world));
        double speed = (double)(shape[0] * shape[1]) / (now_s() - start);
        best = speed > best ? speed : best;
    }
    if (b->rank == 0)
        printf("copy of 128 MiB in rows of 2 KiB by %s: %.2f GB/s\n",
               banyan_copy_service_name(service), best / 1e9);
    banyan_copy_service_close(service);
}

int main(void)
{
    struct gpu_bench b = {0};
    bench_open(&b);
    bench_local(&b);
    bench_puts(&b);
    bench_ports(&b);
    bench_copy(&b);
    need(banyan_world_barrier(b.world));
    banyan_memory_free(b.memory);
    need(banyan_world_close(b.world));
    return 0;
}
