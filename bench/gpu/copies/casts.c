#include "copies/casts.h"

#include <stdlib.h>

#include "copies/ways.h"

#define SOURCE_BYTES ((size_t)1 << 30)
#define ROW 8192 /* elements */
#define BLOCK 32 /* of MXFP8 */

typedef struct cast_case {
    const char *name;
    DLDataType from, to;
    bool quantizes;
} cast_case;

typedef struct caster {
    const gpu *on;
    const cast_case *of;
    banyan_copy_service *service;
    banyan_copy_schedule *schedule;
    size_t elems;
} caster;

static size_t source_elem_bytes(const cast_case *of)
{
    return banyan_dtype_bytes(of->from);
}

/* Return the bytes of elements, followed by scales. */
static size_t received_bytes(const caster *c)
{
    size_t elements = c->elems * banyan_dtype_bytes(c->of->to);
    return elements + (c->of->quantizes ? c->elems / BLOCK : 0);
}

static void submit_part(const caster *c, char *from, char *to, int ahead, int behind, bool scales)
{
    const cast_case *of = c->of;
    int64_t shape[] = {(int64_t)(c->elems / ROW), ROW};
    int64_t scales_shape[] = {shape[0], ROW / BLOCK};
    uint32_t flags = of->quantizes ? BANYAN_COPY_OP_MXFP8 : BANYAN_COPY_OP_CAST;
    DLDevice device = BANYAN_CUDA(c->on->device);
    banyan_copy_op op = {
        .tensor = {.data = from, .device = device, .ndim = 2, .dtype = of->from, .shape = shape},
        .peer = ahead,
        .task_id = 1,
        .part = scales,
        .flags = flags | (scales ? BANYAN_COPY_OP_SCALES : 0)};
    need(banyan_copy_service_submit_send_op(c->service, &op));
    op.tensor.data = scales ? to + c->elems * banyan_dtype_bytes(of->to) : to;
    op.tensor.dtype = scales ? BANYAN_F8_E8M0 : of->to;
    op.tensor.shape = scales ? scales_shape : shape;
    op.peer = behind;
    need(banyan_copy_service_submit_recv_op(c->service, &op));
}

static void prepare(caster *c, char *from, char *to, int step)
{
    int ranks = c->on->ranks, rank = c->on->rank;
    for (int part = 0; part < (c->of->quantizes ? 2 : 1); part++)
        submit_part(c, from, to, (rank + step) % ranks, (rank + ranks - step) % ranks, part > 0);
    need(banyan_copy_service_prepare(c->service, &c->schedule));
}

static void run(void *context, cudaStream_t stream)
{
    const caster *c = context;
    need(banyan_copy_schedule_run(c->schedule, stream));
}

/* Cast here the data that the rank before this one has sent. */
static bool is_right(caster *c, char *scratch, char *expected, const char *received)
{
    gpu before = *c->on;
    before.rank = (c->on->rank + c->on->ranks - 1) % c->on->ranks;
    gpu_fill(&before, scratch, SOURCE_BYTES, 5);
    banyan_copy_schedule *sent = c->schedule;
    prepare(c, scratch, expected, 0);
    run(c, c->on->stream);
    CUDA(cudaStreamSynchronize(c->on->stream));
    banyan_copy_schedule_destroy(c->schedule);
    c->schedule = sent;
    return gpu_equal(expected, received, received_bytes(c));
}

static void print(const caster *c, double us, double home_us, double engine_gbs, FILE *json,
                  bool *follows)
{
    double gbs = (double)received_bytes(c) * 1e-3 / us;
    if (c->on->rank != 0)
        return;
    printf("%-26s direct           %10.1f µs %8.1f GB/s  %5.1f %% of the copy engine; from 1 GiB; "
           "within a GPU %.1f µs\n",
           c->of->name, us, gbs, 100 * gbs / engine_gbs, home_us);
    fflush(stdout);
    if (json)
        fprintf(json,
                "%s\n    {\"copy\": \"%s\", \"backend\": \"direct\", \"us\": %.2f, \"gb_s\": %.1f, "
                "\"copy_engine_gb_s\": %.1f, \"within_gpu_us\": %.2f}",
                *follows ? "," : "", c->of->name, us, gbs, engine_gbs, home_us);
    *follows = true;
}

static double measure_us(caster *c, char *from, char *to, int step)
{
    prepare(c, from, to, step);
    double us = gpu_time_us(c->on, run, c);
    need(banyan_copy_service_check(c->service));
    return us;
}

bool casts_measure(const gpu *on, const limits *limit, FILE *json, bool *follows)
{
    static const cast_case cases[] = {
        {"f32 to bf16", BANYAN_F32, BANYAN_BF16, false},
        {"bf16 to f32", BANYAN_BF16, BANYAN_F32, false},
        {"bf16 to MXFP8", BANYAN_BF16, BANYAN_F8_E4M3, true},
        {"f32 to MXFP8", BANYAN_F32, BANYAN_F8_E4M3, true},
    };
    char *source, *expected;
    banyan_memory *received;
    bool right = true;
    caster c = {.on = on};
    if (on->ranks < 2 || !copy_way_open(on, &copy_ways[0], &c.service))
        return true;
    CUDA(cudaMalloc((void **)&source, SOURCE_BYTES));
    CUDA(cudaMalloc((void **)&expected, 2 * SOURCE_BYTES));
    need(banyan_memory_alloc_on(on->world, BANYAN_CUDA(on->device), 2 * SOURCE_BYTES, &received));
    char *to = banyan_memory_local(received);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        c.of = &cases[i];
        c.elems = SOURCE_BYTES / source_elem_bytes(c.of);
        gpu_fill(on, source, SOURCE_BYTES, 5);
        double home_us = measure_us(&c, source, expected, 0);
        banyan_copy_schedule_destroy(c.schedule);
        CUDA(cudaMemset(to, 0x7F, 2 * SOURCE_BYTES));
        CUDA(cudaDeviceSynchronize());
        need(banyan_world_barrier(on->world));
        double us = measure_us(&c, source, to, 1);
        need(banyan_world_barrier(on->world));
        if (!is_right(&c, source, expected, to)) {
            fprintf(stderr, "rank %d: %s came out wrong\n", on->rank, c.of->name);
            right = false;
        }
        print(&c, us, home_us, limit->both_ways_gbs, json, follows);
        need(banyan_world_barrier(on->world));
        banyan_copy_schedule_destroy(c.schedule);
    }
    banyan_copy_service_close(c.service);
    banyan_memory_free(received);
    CUDA(cudaFree(source));
    CUDA(cudaFree(expected));
    return right;
}
