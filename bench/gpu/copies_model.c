#include "copies_model.h"

#include <stdlib.h>

#define MIB ((size_t)1 << 20)
#define MODEL_TENSORS 30000
#define MODEL_BYTES ((size_t)10 << 30)
#define MODEL_LEAST ((size_t)4096)
#define MODEL_MOST (256 * MIB)

static uint64_t random_next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* Most are small and most of the bytes are in few: alike on every rank. `*total` is theirs. */
static size_t *model_sizes(size_t *total)
{
    size_t *sizes = malloc(MODEL_TENSORS * sizeof *sizes), sum = 0, most = MODEL_BYTES;
    uint64_t state = 7;
    for (size_t i = 0; i < MODEL_TENSORS; i++) {
        size_t left = most - sum - (MODEL_TENSORS - i) * MODEL_LEAST;
        size_t size = MODEL_LEAST << random_next(&state) % 4;
        if (i % 400 == 0)
            size = MODEL_MOST >> random_next(&state) % 3;
        size += random_next(&state) % 256 * 16;
        sizes[i] = size > MODEL_MOST ? MODEL_MOST : size < left ? size : MODEL_LEAST;
        sum += sizes[i];
    }
    *total = sum;
    return sizes;
}

/* From `from` to `to`, to all other ranks in turn; `back`: to where it came from. */
static banyan_copy_schedule *prepare_all(const gpu *on, banyan_copy_service *service,
                                         const size_t *sizes, char *from, char *to, bool back)
{
    int ranks = on->ranks, rank = on->rank;
    for (size_t i = 0, at = 0; i < MODEL_TENSORS; at += sizes[i++]) {
        int step = 1 + (int)(i % (size_t)(ranks - 1));
        int ahead = (rank + step) % ranks, behind = (rank + ranks - step) % ranks;
        int64_t length = (int64_t)sizes[i];
        DLTensor tensor = {.data = from + at,
                           .device = BANYAN_CUDA(on->device),
                           .ndim = 1,
                           .dtype = BANYAN_U8,
                           .shape = &length};
        need(banyan_copy_service_submit_send(service, &tensor, back ? behind : ahead, i));
        tensor.data = to + at;
        need(banyan_copy_service_submit_recv(service, &tensor, back ? ahead : behind, i));
    }
    banyan_copy_schedule *schedule;
    need(banyan_copy_service_prepare(service, &schedule));
    return schedule;
}

static bool is_back(const char *sent, const char *back, size_t total)
{
    bool equal = true;
    for (size_t at = 0; at < total && equal; at += MODEL_MOST)
        equal = gpu_equal(sent + at, back + at, total - at < MODEL_MOST ? total - at : MODEL_MOST);
    return equal;
}

static void run(void *schedule, cudaStream_t stream)
{
    need(banyan_copy_schedule_run(schedule, stream));
}

static void print(const gpu *on, const char *backend, size_t total, double us, double engine_gbs,
                  FILE *json, bool *follows)
{
    double gbs = (double)total * 1e-3 / us;
    if (on->rank != 0)
        return;
    printf("%-26s %-9s %10.1f µs %8.1f GB/s  %5.1f %% of the copy engine, %.1f GiB a rank\n",
           "30,000 tensors, to all", backend, us, gbs, 100 * gbs / engine_gbs,
           (double)total / (double)((size_t)1 << 30));
    fflush(stdout);
    if (json)
        fprintf(json,
                "%s\n    {\"copy\": \"30,000 tensors, to all\", \"backend\": \"%s\", \"us\": "
                "%.2f, \"gb_s\": %.1f, \"copy_engine_gb_s\": %.1f}",
                *follows ? "," : "", backend, us, gbs, engine_gbs);
    *follows = true;
}

bool copies_measure_model(const gpu *on, const char *backend, double engine_gbs, FILE *json,
                          bool *follows)
{
    DLDevice device = BANYAN_CUDA(on->device);
    banyan_copy_options options = BANYAN_COPY_OPTIONS_INIT;
    banyan_copy_service *service;
    options.device = device;
    if (on->ranks < 2 ||
        banyan_copy_service_open(on->world, backend, &options, &service) != BANYAN_OK)
        return true;
    size_t total, *sizes = model_sizes(&total);
    char *sent;
    banyan_memory *there, *back;
    CUDA(cudaMalloc((void **)&sent, total));
    gpu_fill(on, sent, total / MIB * MIB, 3);
    need(banyan_memory_alloc_on(on->world, device, total, &there));
    need(banyan_memory_alloc_on(on->world, device, total, &back));
    char *far = banyan_memory_local(there), *home = banyan_memory_local(back);
    banyan_copy_schedule *out = prepare_all(on, service, sizes, sent, far, false);
    banyan_copy_schedule *in = prepare_all(on, service, sizes, far, home, true);
    print(on, backend, total, gpu_time_us(on, run, out), engine_gbs, json, follows);
    run(in, on->stream);
    CUDA(cudaStreamSynchronize(on->stream));
    need(banyan_copy_service_check(service));
    bool equal = is_back(sent, home, total);
    if (!equal)
        fprintf(stderr, "rank %d: 30,000 tensors by %s came out wrong\n", on->rank, backend);
    need(banyan_world_barrier(on->world));
    banyan_copy_schedule_free(out);
    banyan_copy_schedule_free(in);
    banyan_copy_service_close(service);
    banyan_memory_free(there);
    banyan_memory_free(back);
    CUDA(cudaFree(sent));
    free(sizes);
    return equal;
}
