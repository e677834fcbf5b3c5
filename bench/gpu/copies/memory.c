#include "copies/memory.h"

#include <stdlib.h>

#define MIB ((size_t)1 << 20)
#define TENSORS 10000
#define TENSOR_BYTES ((size_t)64 << 10)
#define ROUNDS 5

static double passed_ms(double *since)
{
    double now = gpu_now_ms(), passed = now - *since;
    *since = now;
    return passed;
}

void memory_measure_first(const gpu *on, double begin)
{
    double since = begin, opened_ms = passed_ms(&since);
    banyan_memory *memory;
    banyan_copy_service *service;
    banyan_copy_schedule *schedule;
    banyan_copy_options options = BANYAN_COPY_OPTIONS_INIT;
    options.device = BANYAN_CUDA(on->device);
    need(banyan_memory_alloc_on(on->world, BANYAN_CUDA(on->device), 2 * MIB, &memory));
    double memory_ms = passed_ms(&since);
    need(banyan_copy_service_open(on->world, "direct", &options, &service));
    double service_ms = passed_ms(&since);
    int64_t length = (int64_t)MIB;
    DLTensor tensor = {.device = BANYAN_CUDA(on->device),
                       .ndim = 1,
                       .dtype = BANYAN_U8,
                       .shape = &length,
                       .data = banyan_memory_local(memory)};
    need(banyan_copy_service_submit_send(service, &tensor, (on->rank + 1) % on->ranks, 0));
    tensor.data = (char *)tensor.data + MIB;
    need(banyan_copy_service_submit_recv(service, &tensor, (on->rank + on->ranks - 1) % on->ranks,
                                         0));
    need(banyan_copy_service_prepare(service, &schedule));
    need(banyan_copy_schedule_run(schedule, on->stream));
    CUDA(cudaStreamSynchronize(on->stream));
    double run_ms = passed_ms(&since);
    if (on->rank == 0)
        printf("first: world, context and stream %.0f ms; buffer %.0f ms; service %.0f ms; run "
               "%.0f ms\n",
               opened_ms, memory_ms, service_ms, run_ms);
    need(banyan_world_barrier(on->world));
    banyan_copy_schedule_destroy(schedule);
    banyan_copy_service_close(service);
    banyan_memory_free(memory);
}

/* Take the fastest of some rounds: the first ones create state that the process keeps. */
static void measure_alloc(const gpu *on, size_t bytes, FILE *json, bool *follows)
{
    double made_ms = 1e9, freed_ms = 1e9;
    for (int round = 0; round < ROUNDS; round++) {
        banyan_memory *memory;
        need(banyan_world_barrier(on->world));
        double begin = gpu_now_ms();
        need(banyan_memory_alloc_on(on->world, BANYAN_CUDA(on->device), bytes, &memory));
        double made = gpu_now_ms();
        need(banyan_world_barrier(on->world));
        double ready = gpu_now_ms();
        banyan_memory_free(memory);
        double freed = gpu_now_ms();
        made_ms = made - begin < made_ms ? made - begin : made_ms;
        freed_ms = freed - ready < freed_ms ? freed - ready : freed_ms;
    }
    if (on->rank != 0)
        return;
    printf("symmetric buffer of %6zu MiB a rank %9.2f ms, freed in %7.2f ms\n", bytes / MIB,
           made_ms, freed_ms);
    if (json)
        fprintf(json, "%s\n    {\"buffer_mib\": %zu, \"alloc_ms\": %.3f, \"free_ms\": %.3f}",
                *follows ? "," : "", bytes / MIB, made_ms, freed_ms);
    *follows = true;
}

typedef enum origin { SYMMETRIC, PLAIN, POOLED, ORIGINS } origin;

static const char *const origin_names[] = {"symmetric memory", "cudaMalloc",
                                           "cudaMallocAsync (staged)"};

typedef struct receiver {
    origin from;
    banyan_memory *symmetric;
    void *memory;
} receiver;

static void receiver_open(const gpu *on, receiver *made)
{
    size_t bytes = TENSORS * TENSOR_BYTES;
    if (made->from == SYMMETRIC) {
        need(banyan_memory_alloc_on(on->world, BANYAN_CUDA(on->device), bytes, &made->symmetric));
        made->memory = banyan_memory_local(made->symmetric);
    } else if (made->from == PLAIN) {
        CUDA(cudaMalloc(&made->memory, bytes));
    } else {
        CUDA(cudaMallocAsync(&made->memory, bytes, on->stream));
        CUDA(cudaStreamSynchronize(on->stream));
    }
    CUDA(cudaMemset(made->memory, 0xC9, bytes));
}

static void receiver_close(const gpu *on, receiver *old)
{
    if (old->from == SYMMETRIC)
        banyan_memory_free(old->symmetric);
    else if (old->from == PLAIN)
        CUDA(cudaFree(old->memory));
    else
        CUDA(cudaFreeAsync(old->memory, on->stream));
    CUDA(cudaStreamSynchronize(on->stream));
}

/* To the next rank, from the one before. */
static void submit(const gpu *on, banyan_copy_service *service, void *sent, void *received)
{
    int64_t length = (int64_t)TENSOR_BYTES;
    DLTensor tensor = {
        .device = BANYAN_CUDA(on->device), .ndim = 1, .dtype = BANYAN_U8, .shape = &length};
    for (size_t i = 0; i < TENSORS; i++) {
        tensor.data = (char *)sent + i * TENSOR_BYTES;
        need(banyan_copy_service_submit_send(service, &tensor, (on->rank + 1) % on->ranks, i));
        tensor.data = (char *)received + i * TENSOR_BYTES;
        need(banyan_copy_service_submit_recv(service, &tensor,
                                             (on->rank + on->ranks - 1) % on->ranks, i));
    }
}

static void queue_schedule(void *schedule, cudaStream_t stream)
{
    need(banyan_copy_schedule_run(schedule, stream));
}

static bool measure_receive(const gpu *on, origin from, void *sent, const void *expected,
                            FILE *json, bool *follows)
{
    receiver at = {.from = from};
    banyan_copy_options options = BANYAN_COPY_OPTIONS_INIT;
    options.device = BANYAN_CUDA(on->device);
    banyan_copy_service *service;
    banyan_copy_schedule *schedule;
    receiver_open(on, &at);
    need(banyan_copy_service_open(on->world, "direct", &options, &service));
    submit(on, service, sent, at.memory);
    need(banyan_world_barrier(on->world));
    double begin = gpu_now_ms();
    need(banyan_copy_service_prepare(service, &schedule));
    double prepared_ms = gpu_now_ms() - begin;
    double us = gpu_time_us(on, queue_schedule, schedule);
    need(banyan_copy_service_check(service));
    bool equal = gpu_equal(at.memory, expected, TENSORS * TENSOR_BYTES);
    double gbs = (double)(TENSORS * TENSOR_BYTES) * 1e-3 / us;
    if (!equal)
        fprintf(stderr, "rank %d: what came into %s is wrong\n", on->rank, origin_names[from]);
    if (on->rank == 0) {
        printf("10,000 tensors of 64 KiB into %-26s prepared in %7.1f ms, run in %8.1f µs, "
               "%6.1f GB/s\n",
               origin_names[from], prepared_ms, us, gbs);
        if (json)
            fprintf(
                json,
                "%s\n    {\"into\": \"%s\", \"prepare_ms\": %.2f, \"us\": %.2f, \"gb_s\": %.1f}",
                *follows ? "," : "", origin_names[from], prepared_ms, us, gbs);
        *follows = true;
    }
    need(banyan_world_barrier(on->world));
    banyan_copy_schedule_destroy(schedule);
    banyan_copy_service_close(service);
    need(banyan_world_barrier(on->world));
    receiver_close(on, &at);
    return equal;
}

bool memory_measure(const gpu *on, FILE *json, bool *follows)
{
    void *sent, *expected;
    bool right = true;
    for (size_t mib = 2; mib <= 8192; mib *= 16)
        measure_alloc(on, mib * MIB, json, follows);
    CUDA(cudaMalloc(&sent, TENSORS * TENSOR_BYTES));
    CUDA(cudaMalloc(&expected, TENSORS * TENSOR_BYTES));
    gpu before = *on; /* whose data arrives here */
    before.rank = (on->rank + on->ranks - 1) % on->ranks;
    gpu_fill(on, sent, TENSORS * TENSOR_BYTES, 1);
    gpu_fill(&before, expected, TENSORS * TENSOR_BYTES, 1);
    for (origin from = SYMMETRIC; from < ORIGINS; from++)
        right &= measure_receive(on, from, sent, expected, json, follows);
    need(banyan_world_barrier(on->world));
    CUDA(cudaFree(sent));
    CUDA(cudaFree(expected));
    return right;
}
