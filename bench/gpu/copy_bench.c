/* The copy service between GPUs beside the copy engines and NCCL, in CUDA graphs: every rank sends
 * to the next one and receives from the one before, all at once.
 * usage: banyan launch -n RANKS -- gpu_copy_bench [--backend NAME] [case …] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"
#include "hardware.h"

#define MIB ((size_t)1 << 20)
#define SIDE_BYTES ((size_t)1 << 30)

typedef struct bench {
    gpu on;
    const char *backend;
    char *sent; /* SIDE_BYTES each */
    banyan_memory *received;
    double engine_gbs;
} bench;

/* What goes to the next rank: `count` tensors of `rows` rows. */
typedef struct bench_case {
    const char *name, *what;
    size_t count, rows, row_bytes;
    size_t sent_stride, received_stride; /* of rows, in bytes */
    bool transposed;                     /* elements of 2 bytes, rows and columns exchanged */
    bool home;                           /* to itself instead */
    const char *engine_bytes;            /* BANYAN_COPY_ENGINE_BYTES; NULL: the default */
} bench_case;

#define ROWS(of, length, apart_there, apart_here)                                                  \
    .count = 1, .rows = (of), .row_bytes = (length), .sent_stride = (apart_there),                 \
    .received_stride = (apart_here)
#define TENSORS(of, length) .count = (of), .rows = 1, .row_bytes = (length)

static const bench_case cases[] = {
    {"contiguous", "1 GiB, contiguous", TENSORS(1, 1024 * MIB)},
    {"kernel", "1 GiB, without copy engines", TENSORS(1, 1024 * MIB), .engine_bytes = "0"},
    {"tensors", "64 tensors of 16 MiB", TENSORS(64, 16 * MIB)},
    {"rows64", "rows of 64 bytes", ROWS(4 * MIB, 64, 128, 64)},
    {"rows256", "rows of 256 bytes", ROWS(2 * MIB, 256, 512, 256)},
    {"rows1k", "rows of 1 KiB", ROWS(512 << 10, 1024, 2048, 1024)},
    {"rows4k", "rows of 4 KiB", ROWS(128 << 10, 4096, 4096, 8192)},
    {"rows16k", "rows of 16 KiB", ROWS(32 << 10, 16384, 32768, 16384)},
    {"rows1000", "rows of 1000 bytes", ROWS(512 << 10, 1000, 2000, 1000)},
    {"rows1002", "rows of 1002 bytes", ROWS(512 << 10, 1002, 2004, 1002)},
    {"transposed", "8192 x 8192 of bf16, transposed", ROWS(8192, 16384, 16384, 16384),
     .transposed = true},
    {"many", "10,000 tensors of 4 KiB", TENSORS(10000, 4096)},
    {"small", "1 tensor of 4 KiB", TENSORS(1, 4096)},
    {"home", "1 GiB to itself", TENSORS(1, 1024 * MIB), .home = true},
};

static void queue_schedule(void *schedule, cudaStream_t stream)
{
    need(banyan_copy_schedule_run(schedule, stream));
}

static banyan_copy_op op_of(const bench *b, const bench_case *of, bool is_send, size_t i,
                            int64_t *dims)
{
    size_t stride = is_send ? of->sent_stride : of->received_stride;
    char *memory = is_send ? b->sent : banyan_memory_local(b->received);
    DLDataType dtype = of->transposed ? BANYAN_BF16 : BANYAN_U8;
    int64_t elem_bytes = of->transposed ? 2 : 1;
    dims[0] = (int64_t)of->rows;
    dims[1] = (int64_t)of->row_bytes / elem_bytes;
    dims[2] = of->rows > 1 ? (int64_t)stride / elem_bytes : dims[1];
    dims[3] = 1;
    if (of->transposed && !is_send) {
        dims[2] = 1;
        dims[3] = (int64_t)of->rows;
    }
    int step = is_send ? 1 : b->on.ranks - 1;
    return (banyan_copy_op){
        .tensor = {.data = memory + i * of->rows * of->row_bytes,
                   .device = BANYAN_CUDA(b->on.device),
                   .ndim = 2,
                   .dtype = dtype,
                   .shape = dims,
                   .strides = dims + 2},
        .peer = of->home ? b->on.rank : (b->on.rank + step) % b->on.ranks,
        .task_id = i,
    };
}

static banyan_copy_service *open_service(const bench *b, const char *engine_bytes)
{
    banyan_copy_service *service;
    banyan_copy_options options = BANYAN_COPY_OPTIONS_INIT;
    options.device = BANYAN_CUDA(b->on.device);
    if (engine_bytes)
        setenv("BANYAN_COPY_ENGINE_BYTES", engine_bytes, 1);
    need(banyan_copy_service_open(b->on.world, b->backend, &options, &service));
    unsetenv("BANYAN_COPY_ENGINE_BYTES");
    return service;
}

static void measure(const bench *b, const bench_case *of)
{
    banyan_copy_service *service = open_service(b, of->engine_bytes);
    for (size_t i = 0; i < of->count; i++) {
        int64_t dims[4];
        banyan_copy_op send = op_of(b, of, true, i, dims);
        need(banyan_copy_service_submit_send_op(service, &send));
        banyan_copy_op recv = op_of(b, of, false, i, dims);
        need(banyan_copy_service_submit_recv_op(service, &recv));
    }
    banyan_copy_schedule *schedule;
    need(banyan_copy_service_prepare(service, &schedule));
    double us = gpu_time_us(&b->on, queue_schedule, schedule);
    need(banyan_copy_service_check(service));
    double gbs = (double)(of->count * of->rows * of->row_bytes) * 1e-3 / us;
    if (b->on.rank == 0)
        printf("%-42s %10.1f us %8.1f GB/s  %5.1f %%\n", of->what, us, gbs,
               100 * gbs / b->engine_gbs);
    need(banyan_world_barrier(b->on.world));
    banyan_copy_schedule_free(schedule);
    banyan_copy_service_close(service);
}

/* ---- the sizes of a model, many at once ---- */

#define MIXED_TENSORS 30000
#define MIXED_LEAST 4096
#define MIXED_MOST (256 * MIB)

static uint64_t random_next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* Most are small and most of the bytes are in few: alike on every rank. `*total` is theirs. */
static size_t *mixed_sizes(size_t *total)
{
    size_t *sizes = malloc(MIXED_TENSORS * sizeof *sizes), sum = 0, most = (size_t)10 << 30;
    uint64_t state = 7;
    for (size_t i = 0; i < MIXED_TENSORS; i++) {
        size_t left = most - sum - (MIXED_TENSORS - i) * MIXED_LEAST;
        size_t size = MIXED_LEAST << random_next(&state) % 4;
        if (i % 400 == 0)
            size = MIXED_MOST >> random_next(&state) % 3;
        size += random_next(&state) % 256 * 16;
        sizes[i] = size > MIXED_MOST ? MIXED_MOST : size < left ? size : MIXED_LEAST;
        sum += sizes[i];
    }
    *total = sum;
    return sizes;
}

/* From `from` to `to`, to all other ranks in turn; `back`: to where it came from. */
static banyan_copy_schedule *prepare_mixed(const bench *b, banyan_copy_service *service,
                                           const size_t *sizes, char *from, char *to, bool back)
{
    int ranks = b->on.ranks, rank = b->on.rank;
    for (size_t i = 0, at = 0; i < MIXED_TENSORS; at += sizes[i++]) {
        int step = 1 + (int)(i % (size_t)(ranks - 1));
        int ahead = (rank + step) % ranks, behind = (rank + ranks - step) % ranks;
        int64_t length = (int64_t)sizes[i];
        DLTensor tensor = {.data = from + at,
                           .device = BANYAN_CUDA(b->on.device),
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

static void measure_mixed(const bench *b)
{
    size_t total;
    size_t *sizes = mixed_sizes(&total);
    char *sent;
    banyan_memory *there, *back;
    banyan_copy_service *service = open_service(b, NULL);
    CUDA(cudaMalloc((void **)&sent, total));
    gpu_fill(&b->on, sent, total / MIB * MIB, 3);
    need(banyan_memory_alloc_on(b->on.world, BANYAN_CUDA(b->on.device), total, &there));
    need(banyan_memory_alloc_on(b->on.world, BANYAN_CUDA(b->on.device), total, &back));
    banyan_copy_schedule *out =
        prepare_mixed(b, service, sizes, sent, banyan_memory_local(there), false);
    banyan_copy_schedule *home = prepare_mixed(b, service, sizes, banyan_memory_local(there),
                                               banyan_memory_local(back), true);
    double us = gpu_time_us(&b->on, queue_schedule, out);
    need(banyan_copy_schedule_run(home, b->on.stream));
    CUDA(cudaStreamSynchronize(b->on.stream));
    need(banyan_copy_service_check(service));
    bool equal = true;
    for (size_t at = 0; at < total && equal; at += 256 * MIB)
        equal = gpu_equal(sent + at, (char *)banyan_memory_local(back) + at,
                          total - at < 256 * MIB ? total - at : 256 * MIB);
    double gbs = (double)total * 1e-3 / us;
    printf("rank %d: 30,000 tensors, %.1f GiB %16.1f us %8.1f GB/s  %5.1f %%, and back: %s\n",
           b->on.rank, (double)total / (double)(1 << 30), us, gbs, 100 * gbs / b->engine_gbs,
           equal ? "equal" : "NOT EQUAL");
    need(banyan_world_barrier(b->on.world));
    banyan_copy_schedule_free(out);
    banyan_copy_schedule_free(home);
    banyan_copy_service_close(service);
    banyan_memory_free(there);
    banyan_memory_free(back);
    CUDA(cudaFree(sent));
    free(sizes);
}

static bool is_wanted(const char *name, char **names, int count)
{
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return count == 0;
}

int main(int argc, char **argv)
{
    bench b = {.backend = "direct"};
    int first = 1;
    if (argc > 2 && strcmp(argv[1], "--backend") == 0) {
        b.backend = argv[2];
        first = 3;
    }
    gpu_open(&b.on);
    limits found;
    limits_measure(&b.on, &found);
    b.engine_gbs = found.both_ways_gbs;
    if (b.on.rank == 0)
        printf("%s, %d ranks; copy engine %.1f GB/s one way, %.1f each way of both, local %.0f\n",
               b.backend, b.on.ranks, found.one_way_gbs, found.both_ways_gbs, found.local_gbs);
    CUDA(cudaMalloc((void **)&b.sent, SIDE_BYTES));
    gpu_fill(&b.on, b.sent, SIDE_BYTES, 1);
    need(banyan_memory_alloc_on(b.on.world, BANYAN_CUDA(b.on.device), SIDE_BYTES, &b.received));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        if (is_wanted(cases[i].name, argv + first, argc - first))
            measure(&b, &cases[i]);
    if (b.on.ranks > 1 && is_wanted("mixed", argv + first, argc - first))
        measure_mixed(&b);
    need(banyan_world_barrier(b.on.world));
    banyan_memory_free(b.received);
    CUDA(cudaFree(b.sent));
    gpu_close(&b.on);
    return 0;
}
