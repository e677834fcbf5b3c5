#include "common/gpu.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/pattern.h"

#define GRAPH_US 400.0 /* of work in a graph */
#define LAUNCHES_MOST 40
#define ROUNDS 21

void need(banyan_status status)
{
    if (status == BANYAN_OK)
        return;
    fprintf(stderr, "gpu_bench: %s\n", banyan_last_error());
    exit(1);
}

void cuda_need(cudaError_t result, const char *call)
{
    if (result == cudaSuccess)
        return;
    fprintf(stderr, "gpu_bench: %s: %s\n", call, cudaGetErrorString(result));
    exit(1);
}

/* CUDA calls a missing driver insufficient. */
static void need_driver(void)
{
    int version;
    CUDA(cudaDriverGetVersion(&version));
    if (version > 0)
        return;
    fprintf(stderr, "gpu_bench: this machine has no CUDA driver\n");
    exit(1);
}

void gpu_open(gpu *made)
{
    int devices;
    need_driver();
    CUDA(cudaGetDeviceCount(&devices));
    need(banyan_world_open(NULL, &made->world));
    made->rank = banyan_world_rank(made->world);
    made->ranks = banyan_world_size(made->world);
    int local_rank = banyan_world_local_rank(made->world);
    int local_size = banyan_world_local_size(made->world);
    made->device = local_rank % devices;
    if (local_rank == 0 && devices < local_size)
        fprintf(stderr, "gpu_bench: %d ranks share %d GPU%s\n", local_size, devices,
                devices == 1 ? "" : "s");
    CUDA(cudaSetDevice(made->device));
    CUDA(cudaStreamCreateWithFlags(&made->stream, cudaStreamNonBlocking));
}

void gpu_close(gpu *old)
{
    CUDA(cudaStreamDestroy(old->stream));
    need(banyan_world_close(old->world));
}

double gpu_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

void gpu_wait_within(const gpu *on, double limit_s, const char *what)
{
    double begun = gpu_now_ms();
    cudaError_t seen;
    while ((seen = cudaStreamQuery(on->stream)) == cudaErrorNotReady) {
        if (gpu_now_ms() - begun > limit_s * 1e3) {
            fprintf(stderr, "gpu_bench: rank %d: %s did not end within %.0f s\n", on->rank, what,
                    limit_s);
            _exit(1);
        }
        sched_yield();
    }
    CUDA(seen);
}

static cudaGraphExec_t capture(const gpu *on, gpu_work work, void *context, int launches)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA(cudaStreamBeginCapture(on->stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < launches; i++)
        work(context, on->stream);
    CUDA(cudaStreamEndCapture(on->stream, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    CUDA(cudaGraphDestroy(graph));
    return exec;
}

static int compare_double(const void *a, const void *b)
{
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

double gpu_slowest(const gpu *on, double mine)
{
    double all[64];
    need(banyan_world_allgather(on->world, &mine, sizeof mine, all));
    double most = 0;
    for (int i = 0; i < on->ranks; i++)
        most = all[i] > most ? all[i] : most;
    return most;
}

double gpu_median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, compare_double);
    return values[count / 2];
}

static double replay(const gpu *on, cudaGraphExec_t exec, int launches, int rounds)
{
    double us[ROUNDS];
    cudaEvent_t begin, end;
    CUDA(cudaEventCreate(&begin));
    CUDA(cudaEventCreate(&end));
    CUDA(cudaGraphLaunch(exec, on->stream));
    CUDA(cudaStreamSynchronize(on->stream));
    for (int i = 0; i < rounds; i++) {
        float ms;
        need(banyan_world_barrier(on->world));
        CUDA(cudaEventRecord(begin, on->stream));
        CUDA(cudaGraphLaunch(exec, on->stream));
        CUDA(cudaEventRecord(end, on->stream));
        CUDA(cudaEventSynchronize(end));
        CUDA(cudaEventElapsedTime(&ms, begin, end));
        us[i] = (double)ms * 1e3 / launches;
    }
    CUDA(cudaEventDestroy(begin));
    CUDA(cudaEventDestroy(end));
    return gpu_median(us, (size_t)rounds);
}

/* The first launch in a graph waits for the slowest rank; several launches share that wait. */
double gpu_time_us(const gpu *on, gpu_work work, void *context)
{
    work(context, on->stream);
    CUDA(cudaStreamSynchronize(on->stream));
    cudaGraphExec_t exec = capture(on, work, context, 4);
    double once = gpu_slowest(on, replay(on, exec, 4, 3));
    CUDA(cudaGraphExecDestroy(exec));
    int launches = (int)(GRAPH_US / once);
    launches = launches < 4 ? 4 : launches > LAUNCHES_MOST ? LAUNCHES_MOST : launches;
    exec = capture(on, work, context, launches);
    double us = gpu_slowest(on, replay(on, exec, launches, once > 2000 ? 7 : ROUNDS));
    CUDA(cudaGraphExecDestroy(exec));
    return us;
}

#define FILL_BYTES ((size_t)1 << 20)

/* A whole number below 32, whose sums over eight ranks are exact in any order. */
static uint16_t small_bf16(unsigned value)
{
    float number = (float)value;
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return (uint16_t)(bits >> 16);
}

void gpu_fill(const gpu *on, void *memory, size_t bytes, unsigned seed)
{
    static uint16_t values[FILL_BYTES / 2];
    uint64_t state = ((uint64_t)seed * 1000003 + (unsigned)on->rank) * 2862933555777941757u + 1;
    for (size_t i = 0; i < FILL_BYTES / 2; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        values[i] = small_bf16(state >> 40 & 31);
    }
    for (size_t at = 0; at < bytes; at += FILL_BYTES) {
        size_t some = bytes - at < FILL_BYTES ? bytes - at : FILL_BYTES;
        CUDA(cudaMemcpy((char *)memory + at, values, some, cudaMemcpyHostToDevice));
    }
}

bool gpu_equal(const void *a, const void *b, size_t bytes)
{
    uint64_t *there, wrong;
    CUDA(cudaMalloc((void **)&there, sizeof *there));
    CUDA(cudaMemset(there, 0, sizeof *there));
    CUDA(pattern_compare(a, b, bytes, there, NULL));
    CUDA(cudaMemcpy(&wrong, there, sizeof wrong, cudaMemcpyDeviceToHost));
    CUDA(cudaFree(there));
    return wrong == 0;
}
