#include "copies/copies.h"

#include <stdlib.h>
#include <string.h>

#define BYTES ((size_t)256 << 20) /* bytes that a rank sends in most cases */

/* The lower half of the ranks send and the others receive, or all do both. */
typedef struct copy_case {
    const char *name;
    size_t row_bytes;  /* 0: data for a partner is contiguous */
    size_t task_count; /* for each partner */
    size_t task_bytes;
    bool both_ways;
    double goal;              /* share of the copy engine's speed; 0: none */
    bool transposed;          /* rows and columns change places */
    const char *engine_bytes; /* BANYAN_COPY_ENGINE_BYTES; NULL: its default */
} copy_case;

#define MIB ((size_t)1 << 20)

static const copy_case cases[] = {
    {"contiguous, one way", 0, 1, BYTES, false, 0.95, false, NULL},
    {"contiguous, both ways", 0, 1, BYTES, true, 0.95, false, NULL},
    {"the same by the kernel", 0, 1, BYTES, true, 0, false, "0"},
    {"16 × 16 MiB, both ways", 0, 16, 16 * MIB, true, 0, false, NULL},
    {"rows of 64 B, both ways", 64, 1, BYTES, true, 0, false, NULL},
    {"rows of 256 B, one way", 256, 1, BYTES, false, 0.85, false, NULL},
    {"rows of 2 KiB, one way", 2048, 1, BYTES, false, 0.85, false, NULL},
    {"rows of 2 KiB, both ways", 2048, 1, BYTES, true, 0.85, false, NULL},
    {"rows of 1002 B, both ways", 1002, 1, 1002 * ((size_t)256 << 10), true, 0, false, NULL},
    {"transposed, both ways", 16384, 1, 128 * MIB, true, 0, true, NULL},
    {"10,000 × 4 KiB, one way", 0, 10000, 4096, false, 0, false, NULL},
    {"256 × 1 MiB, both ways", 0, 256, MIB, true, 0, false, NULL},
    {"1 × 4 KiB, both ways", 0, 1, 4096, true, 0, false, NULL},
};

typedef struct traffic {
    const gpu *on;
    const copy_case *of;
    char *source, *destination;
    banyan_copy_schedule *schedule;
    FILE *json;
    bool *follows; /* another object in the file */
} traffic;

static int partner_of(const gpu *on)
{
    return (on->rank + on->ranks / 2) % on->ranks;
}

/* Rows of a wider matrix at the source, together at the destination: a column shard of it. */
static void describe(const traffic *t, char *data, bool at_source, size_t task, DLTensor *tensor,
                     int64_t *shape, int64_t *strides)
{
    const copy_case *of = t->of;
    size_t row = of->row_bytes ? of->row_bytes : of->task_bytes;
    shape[0] = (int64_t)(of->task_bytes / row);
    shape[1] = (int64_t)(row / 2);
    strides[0] = shape[1] * (at_source && of->row_bytes && !of->transposed ? 2 : 1);
    strides[1] = 1;
    if (of->transposed && at_source) {
        strides[0] = 1;
        strides[1] = shape[0];
    }
    *tensor = (DLTensor){.data = data,
                         .device = BANYAN_CUDA(t->on->device),
                         .ndim = 2,
                         .dtype = BANYAN_BF16,
                         .shape = shape,
                         .strides = strides,
                         .byte_offset = task * of->task_bytes};
}

static void submit(traffic *t, banyan_copy_service *service)
{
    bool sends = t->of->both_ways || t->on->rank < t->on->ranks / 2;
    bool receives = t->of->both_ways || !sends;
    for (size_t task = 0; task < t->of->task_count; task++) {
        DLTensor tensor;
        int64_t shape[2], strides[2];
        describe(t, t->source, true, task, &tensor, shape, strides);
        if (sends)
            need(banyan_copy_service_submit_send(service, &tensor, partner_of(t->on), task));
        describe(t, t->destination, false, task, &tensor, shape, strides);
        if (receives)
            need(banyan_copy_service_submit_recv(service, &tensor, partner_of(t->on), task));
    }
    need(banyan_copy_service_prepare(service, &t->schedule));
}

static void run(void *context, cudaStream_t stream)
{
    const traffic *t = context;
    need(banyan_copy_schedule_run(t->schedule, stream));
}

/* The contents of the partner's source, which is filled by rank, fetched the slow way. Elements
 * that change places are left to tests. */
static bool is_right(const traffic *t, const banyan_memory *sources)
{
    const copy_case *of = t->of;
    if (of->transposed || (!of->both_ways && t->on->rank < t->on->ranks / 2))
        return true;
    void *theirs;
    size_t bytes, row = of->row_bytes ? of->row_bytes : of->task_bytes;
    need(banyan_memory_peer(sources, partner_of(t->on), &theirs, &bytes));
    size_t total = of->task_bytes * of->task_count, pitch = of->row_bytes ? 2 * row : row;
    char *wanted;
    CUDA(cudaMalloc((void **)&wanted, total));
    CUDA(cudaMemcpy2D(wanted, row, theirs, pitch, row, total / row, cudaMemcpyDefault));
    bool equal = gpu_equal(wanted, t->destination, total);
    CUDA(cudaFree(wanted));
    return equal;
}

static void print(const traffic *t, const char *way, double prepare_ms, double us, double limit)
{
    const copy_case *of = t->of;
    double gbs = (double)(of->task_bytes * of->task_count) * 1e-3 / us;
    if (t->on->rank != 0)
        return;
    printf("%-26s %-16s %10.1f µs %8.1f GB/s  %5.1f %% of the copy engine, prepared in %.1f ms",
           of->name, way, us, gbs, 100 * gbs / limit, prepare_ms);
    printf(of->goal > 0 && strcmp(way, "direct") == 0 && gbs < of->goal * limit ? ", goal %.0f\n"
                                                                                : "\n",
           100 * of->goal);
    fflush(stdout);
    if (t->json)
        fprintf(t->json,
                "%s\n    {\"copy\": \"%s\", \"backend\": \"%s\", \"us\": %.2f, \"gb_s\": %.1f, "
                "\"copy_engine_gb_s\": %.1f, \"prepare_ms\": %.2f}",
                *t->follows ? "," : "", of->name, way, us, gbs, limit, prepare_ms);
    *t->follows = true;
}

static bool measure(traffic *t, const banyan_memory *sources, const char *way,
                    banyan_copy_service *service, double limit)
{
    double begun = gpu_now_ms();
    submit(t, service);
    double prepare_ms = gpu_slowest(t->on, gpu_now_ms() - begun);
    CUDA(cudaMemset(t->destination, 0x7F, t->of->task_bytes * t->of->task_count));
    CUDA(cudaDeviceSynchronize());
    need(banyan_world_barrier(t->on->world));
    double us = gpu_time_us(t->on, run, t);
    need(banyan_copy_service_check(service));
    bool right = is_right(t, sources);
    if (!right)
        fprintf(stderr, "rank %d: %s by %s came out wrong\n", t->on->rank, t->of->name, way);
    print(t, way, prepare_ms, us, limit);
    need(banyan_world_barrier(t->on->world));
    banyan_copy_schedule_destroy(t->schedule);
    return right;
}

/* A case with its own threshold for copy engines applies to the direct way only, and needs a
 * separate service. */
static bool measure_apart(traffic *t, const banyan_memory *sources, double limit)
{
    banyan_copy_service *service;
    setenv("BANYAN_COPY_ENGINE_BYTES", t->of->engine_bytes, 1);
    bool opened = copy_way_open(t->on, &copy_ways[0], &service);
    unsetenv("BANYAN_COPY_ENGINE_BYTES");
    if (!opened)
        return true;
    bool right = measure(t, sources, copy_ways[0].name, service, limit);
    banyan_copy_service_close(service);
    return right;
}

static bool measure_way(traffic *t, const banyan_memory *sources, const copy_way *way,
                        const limits *limit)
{
    banyan_copy_service *service;
    bool right = true;
    if (!copy_way_open(t->on, way, &service))
        return true;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        t->of = &cases[i];
        double best = t->of->both_ways ? limit->both_ways_gbs : limit->one_way_gbs;
        if (!t->of->engine_bytes)
            right &= measure(t, sources, way->name, service, best);
        else if (way == copy_ways)
            right &= measure_apart(t, sources, best);
    }
    banyan_copy_service_close(service);
    return right;
}

bool copies_measure(const gpu *on, const limits *limit, const char *wanted, FILE *json,
                    bool *follows)
{
    DLDevice device = BANYAN_CUDA(on->device);
    banyan_memory *sources, *destinations;
    bool right = true;
    if (on->ranks % 2 != 0)
        return true;
    need(banyan_memory_alloc_on(on->world, device, 2 * BYTES, &sources));
    need(banyan_memory_alloc_on(on->world, device, BYTES, &destinations));
    gpu_fill(on, banyan_memory_local(sources), 2 * BYTES, 7);
    traffic t = {.on = on,
                 .source = banyan_memory_local(sources),
                 .destination = banyan_memory_local(destinations),
                 .json = json,
                 .follows = follows};
    for (size_t i = 0; i < COPY_WAYS; i++)
        if (!wanted || strcmp(wanted, copy_ways[i].name) == 0)
            right &= measure_way(&t, sources, &copy_ways[i], limit);
    need(banyan_world_barrier(on->world));
    banyan_memory_free(sources);
    banyan_memory_free(destinations);
    return right;
}
