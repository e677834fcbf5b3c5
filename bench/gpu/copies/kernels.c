#include "copies/kernels.h"

#include <stdlib.h>
#include <string.h>

#include "copies/ways.h"

#define MIB ((size_t)1 << 20)
#define MOVED (512 * MIB) /* bytes of the larger side, many times a cache */
#define ROOM (1100 * MIB)
#define BLOCK 32 /* of MXFP8 */
#define COLUMNS 8192
#define TILE 128 /* rows, and columns, of a tile of swizzled scales */

typedef enum scale_order { NO_SCALES, PLAIN, SWIZZLED } scale_order;

/* Rows of `row_bytes` at the source, `pitch` apart, become dense. */
typedef struct kernel_case {
    const char *name;
    size_t row_bytes, pitch, to_offset; /* copies */
    DLDataType from, to;                /* conversions */
    scale_order scales;
    bool elements;
} kernel_case;

static const kernel_case cases[] = {
    {"contiguous copy", MOVED, MOVED, 0, BANYAN_U8, BANYAN_U8, NO_SCALES, true},
    {"rows of 2 KiB", 2048, 4096, 0, BANYAN_U8, BANYAN_U8, NO_SCALES, true},
    {"rows of 256 B", 256, 512, 0, BANYAN_U8, BANYAN_U8, NO_SCALES, true},
    {"rows of 1000 B", 1000, 2000, 0, BANYAN_U8, BANYAN_U8, NO_SCALES, true},
    {"rows of 1004 B", 1004, 2008, 0, BANYAN_U8, BANYAN_U8, NO_SCALES, true},
    {"rows of 1002 B", 1002, 2004, 0, BANYAN_U8, BANYAN_U8, NO_SCALES, true},
    {"rows of 1001 B", 1001, 2002, 0, BANYAN_U8, BANYAN_U8, NO_SCALES, true},
    {"rows of 101 B", 101, 202, 0, BANYAN_U8, BANYAN_U8, NO_SCALES, true},
    {"contiguous, 1 byte apart", MOVED, MOVED, 1, BANYAN_U8, BANYAN_U8, NO_SCALES, true},
    {"contiguous, 8 bytes apart", MOVED, MOVED, 8, BANYAN_U8, BANYAN_U8, NO_SCALES, true},
    {"bf16 to f32", 0, 0, 0, BANYAN_BF16, BANYAN_F32, NO_SCALES, true},
    {"f32 to bf16", 0, 0, 0, BANYAN_F32, BANYAN_BF16, NO_SCALES, true},
    {"f32 to f16", 0, 0, 0, BANYAN_F32, BANYAN_F16, NO_SCALES, true},
    {"f32 to MXFP8 elements", 0, 0, 0, BANYAN_F32, BANYAN_F8_E4M3, NO_SCALES, true},
    {"f32 to MXFP8 scales", 0, 0, 0, BANYAN_F32, BANYAN_F8_E4M3, PLAIN, false},
    {"f32 to MXFP8", 0, 0, 0, BANYAN_F32, BANYAN_F8_E4M3, PLAIN, true},
    {"f32 to MXFP8, swizzled", 0, 0, 0, BANYAN_F32, BANYAN_F8_E4M3, SWIZZLED, true},
    {"bf16 to MXFP8 elements", 0, 0, 0, BANYAN_BF16, BANYAN_F8_E4M3, NO_SCALES, true},
    {"bf16 to MXFP8 scales", 0, 0, 0, BANYAN_BF16, BANYAN_F8_E4M3, PLAIN, false},
    {"bf16 to MXFP8", 0, 0, 0, BANYAN_BF16, BANYAN_F8_E4M3, PLAIN, true},
    {"bf16 to MXFP8, swizzled", 0, 0, 0, BANYAN_BF16, BANYAN_F8_E4M3, SWIZZLED, true},
};

typedef struct kernels {
    const gpu *on;
    banyan_copy_service *service;
    banyan_copy_schedule *schedule;
    banyan_loaded_plan *sum;
    char *source, *result, *other;
    double local_gbs;
    FILE *json;
    bool *follows;
} kernels;

static void run_schedule(void *context, cudaStream_t stream)
{
    need(banyan_copy_schedule_run(((const kernels *)context)->schedule, stream));
}

static void run_sum(void *context, cudaStream_t stream)
{
    const kernels *k = context;
    need(banyan_loaded_plan_run(k->sum, k->source, k->result, MOVED, BANYAN_F32, stream));
}

static void submit(const kernels *k, DLTensor from, DLTensor to, uint32_t part, uint32_t flags)
{
    banyan_copy_op op = {
        .tensor = from, .peer = k->on->rank, .task_id = 1, .part = part, .flags = flags};
    need(banyan_copy_service_submit_send_op(k->service, &op));
    op.tensor = to;
    need(banyan_copy_service_submit_recv_op(k->service, &op));
}

/* Return the bytes that are written, and those that are read, once. */
static size_t submit_copy(const kernels *k, const kernel_case *of)
{
    int64_t shape[] = {(int64_t)(MOVED / of->row_bytes), (int64_t)of->row_bytes};
    int64_t strides[] = {(int64_t)of->pitch, 1};
    DLTensor tensor = {.data = k->source,
                       .device = BANYAN_CUDA(k->on->device),
                       .ndim = 2,
                       .dtype = of->from,
                       .shape = shape,
                       .strides = strides};
    DLTensor to = tensor;
    to.data = k->result + of->to_offset;
    to.strides = NULL;
    submit(k, tensor, to, 0, 0);
    return 2 * (size_t)shape[0] * of->row_bytes;
}

static size_t submit_conversion(const kernels *k, const kernel_case *of)
{
    size_t from_bytes = banyan_dtype_bytes(of->from), to_bytes = banyan_dtype_bytes(of->to);
    size_t elems = MOVED / (from_bytes > to_bytes ? from_bytes : to_bytes);
    int64_t rows = (int64_t)elems / COLUMNS, shape[] = {rows, COLUMNS};
    int64_t plain[] = {rows, COLUMNS / BLOCK};
    /* Tiles of 128 rows and 4 columns: row 32 · q + r and column c lie at 16 · r + 4 · q + c. */
    int64_t tiles[] = {rows / TILE, 4, TILE / 4, COLUMNS / TILE, 4};
    int64_t strides[] = {COLUMNS / TILE * 512, 4, 16, 512, 1};
    uint32_t flags =
        banyan_dtype_equal(of->to, BANYAN_F8_E4M3) ? BANYAN_COPY_OP_MXFP8 : BANYAN_COPY_OP_CAST;
    DLTensor from = {.data = k->source,
                     .device = BANYAN_CUDA(k->on->device),
                     .ndim = 2,
                     .dtype = of->from,
                     .shape = shape};
    DLTensor to = from;
    to.data = k->result;
    to.dtype = of->to;
    if (of->elements)
        submit(k, from, to, 0, flags);
    to.data = k->result + elems * to_bytes;
    to.dtype = BANYAN_F8_E8M0;
    to.shape = plain;
    if (of->scales == SWIZZLED) {
        to.ndim = 5;
        to.shape = tiles;
        to.strides = strides;
    }
    if (of->scales != NO_SCALES)
        submit(k, from, to, 1, flags | BANYAN_COPY_OP_SCALES);
    return elems * (from_bytes + (of->elements ? to_bytes : 0)) +
           (of->scales != NO_SCALES ? elems / BLOCK : 0);
}

static size_t prepare(kernels *k, const kernel_case *of)
{
    size_t bytes = of->row_bytes > 0 ? submit_copy(k, of) : submit_conversion(k, of);
    need(banyan_copy_service_prepare(k->service, &k->schedule));
    return bytes;
}

static void print(kernels *k, const char *name, size_t bytes, double us)
{
    double gbs = (double)bytes * 1e-3 / us;
    if (k->on->rank != 0)
        return;
    printf("%-26s %8.1f µs %7.0f GB/s read and written  %5.1f %% of a copy within the GPU\n", name,
           us, gbs, 100 * gbs / k->local_gbs);
    fflush(stdout);
    if (k->json)
        fprintf(
            k->json,
            "%s\n    {\"kernel\": \"%s\", \"us\": %.2f, \"gb_s\": %.1f, \"local_copy_gb_s\": %.1f}",
            *k->follows ? "," : "", name, us, gbs, k->local_gbs);
    *k->follows = true;
}

/* Convert with no time taken, to `to`. */
static void convert(kernels *k, const kernel_case *of, char *from, char *to)
{
    kernels quiet = *k;
    quiet.source = from;
    quiet.result = to;
    prepare(&quiet, of);
    run_schedule(&quiet, k->on->stream);
    CUDA(cudaStreamSynchronize(k->on->stream));
    banyan_copy_schedule_destroy(quiet.schedule);
}

/* Compare a copy with the copy engine's, what was widened with the source after the way back, and
 * MXFP8 with elements and scales alone. Other conversions have tests. */
static bool is_right(kernels *k, const kernel_case *of, size_t bytes)
{
    kernel_case apart = *of;
    size_t elems = MOVED / 4;
    if (of->row_bytes > 0) {
        CUDA(cudaMemcpy2D(k->other, of->row_bytes, k->source, of->pitch, of->row_bytes,
                          bytes / 2 / of->row_bytes, cudaMemcpyDefault));
        return gpu_equal(k->other, k->result + of->to_offset, bytes / 2);
    }
    if (banyan_dtype_equal(of->to, BANYAN_F32)) {
        apart.from = of->to;
        apart.to = of->from;
        convert(k, &apart, k->result, k->other);
        return gpu_equal(k->other, k->source, elems * banyan_dtype_bytes(of->from));
    }
    if (of->scales == NO_SCALES || !of->elements)
        return true;
    apart.elements = false;
    convert(k, &apart, k->source, k->other);
    apart.elements = true;
    apart.scales = NO_SCALES;
    convert(k, &apart, k->source, k->other);
    elems = MOVED / banyan_dtype_bytes(of->from);
    return gpu_equal(k->other, k->result, elems + elems / BLOCK);
}

static bool measure(kernels *k, const kernel_case *of)
{
    size_t bytes = prepare(k, of);
    CUDA(cudaMemset(k->result, 0x7F, ROOM));
    CUDA(cudaDeviceSynchronize());
    double us = gpu_time_us(k->on, run_schedule, k);
    need(banyan_copy_service_check(k->service));
    banyan_copy_schedule_destroy(k->schedule);
    bool right = is_right(k, of, bytes);
    if (!right)
        fprintf(stderr, "rank %d: %s came out wrong\n", k->on->rank, of->name);
    print(k, of->name, bytes, us);
    return right;
}

/* The plan engine adds the halves of a rank's input, with no other rank. */
static banyan_plan *make_sum(int ranks)
{
    banyan_collective collective = {.kind = BANYAN_CUSTOM, .input_chunks = 2, .output_chunks = 1};
    banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
    banyan_program *program;
    banyan_plan *plan;
    options.instances = 128;
    options.threads_per_block = 512;
    need(banyan_program_create("sum", &collective, ranks, &options, &program));
    for (int rank = 0; rank < ranks; rank++) {
        banyan_chunk other = banyan_program_input(program, rank, 1, 2);
        banyan_program_reduce(program, rank, banyan_program_input(program, rank, 0, 1), &other, 1,
                              banyan_program_output(program, rank, 0, 1), BANYAN_SUM, BANYAN_TB(0));
    }
    need(banyan_program_compile(program, &plan));
    banyan_program_destroy(program);
    return plan;
}

static void measure_sum(kernels *k)
{
    banyan_executor_options options = BANYAN_EXECUTOR_OPTIONS_INIT;
    banyan_loaded_plan_options loading = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    banyan_executor *executor;
    banyan_plan *plan = make_sum(k->on->ranks);
    options.device = BANYAN_CUDA(k->on->device);
    need(banyan_executor_open(k->on->world, &options, &executor));
    loading.max_message_bytes = MOVED;
    need(banyan_loaded_plan_open(executor, plan, &loading, &k->sum));
    double us = gpu_time_us(k->on, run_sum, k);
    need(banyan_loaded_plan_status(k->sum));
    print(k, "sum of two, f32, by a plan", MOVED / 2 * 3, us);
    need(banyan_world_barrier(k->on->world));
    need(banyan_loaded_plan_close(k->sum));
    banyan_executor_close(executor);
    banyan_plan_destroy(plan);
}

bool kernels_measure(const gpu *on, const limits *limit, FILE *json, bool *follows)
{
    bool right = true;
    kernels k = {.on = on, .local_gbs = limit->local_gbs, .json = json, .follows = follows};
    if (!copy_way_open(on, &copy_ways[0], &k.service))
        return true;
    CUDA(cudaMalloc((void **)&k.source, ROOM));
    CUDA(cudaMalloc((void **)&k.result, ROOM));
    CUDA(cudaMalloc((void **)&k.other, ROOM));
    gpu_fill(on, k.source, ROOM, 3);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        right &= measure(&k, &cases[i]);
    measure_sum(&k);
    need(banyan_world_barrier(on->world));
    banyan_copy_service_close(k.service);
    CUDA(cudaFree(k.source));
    CUDA(cudaFree(k.result));
    CUDA(cudaFree(k.other));
    return right;
}
