#include "copies/many.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/many_layout.h"
#include "common/pattern.h"

#define COUNT                                                                                      \
    30000 /* transfers per rank; BENCH_TRANSFERS overrides it to find where a way hangs            \
           */
#define LEAST ((uint64_t)4 << 10)
#define MOST ((uint64_t)256 << 20)
#define BYTES_A_RANK ((uint64_t)10 << 30)
#define PIECE_PLACES ((uint64_t)1 << 18)
#define RUNS 5
#define SLOW_MS 500.0 /* a slower run is repeated once only */
#define LIMIT_S 20.0  /* of a run, or of preparing one */

typedef struct many {
    const gpu *on;
    many_layout layout;
    uint64_t seed;
    char *source;
    banyan_memory *received;
    char *destination;
    pattern_piece *sent_pieces, *received_pieces; /* on the GPU */
    size_t sent_count, received_count;
} many;

static size_t cut(const many_area *area, pattern_piece *pieces)
{
    uint64_t places = (area->outer - 1) * area->pitch + area->inner;
    size_t count = 0;
    for (uint64_t first = 0; first < places; first += PIECE_PLACES, count++) {
        uint64_t end = places - first < PIECE_PLACES ? places : first + PIECE_PLACES;
        if (pieces)
            pieces[count] = (pattern_piece){*area, first, end};
    }
    return count;
}

static size_t list_pieces(const many *of, bool is_source, pattern_piece *pieces)
{
    char *memory = is_source ? of->source : of->destination;
    size_t count = 0;
    for (size_t i = 0; i < of->layout.count; i++) {
        const many_transfer *one = &of->layout.list[i];
        if ((is_source ? one->from : one->to) != of->on->rank)
            continue;
        many_area area = many_area_of(one, is_source, memory);
        count += cut(&area, pieces ? pieces + count : NULL);
    }
    return count;
}

static pattern_piece *upload_pieces(const many *of, bool is_source, size_t *count)
{
    *count = list_pieces(of, is_source, NULL);
    size_t bytes = (*count + 1) * sizeof(pattern_piece);
    pattern_piece *here = malloc(bytes), *there;
    if (!here)
        exit(1);
    list_pieces(of, is_source, here);
    CUDA(cudaMalloc((void **)&there, bytes));
    CUDA(cudaMemcpy(there, here, bytes, cudaMemcpyHostToDevice));
    free(here);
    return there;
}

static void make(const gpu *on, many *made)
{
    const char *seed = getenv("BENCH_SEED");
    uint64_t chosen = seed ? strtoull(seed, NULL, 10) : (uint64_t)time(NULL);
    need(banyan_world_broadcast(on->world, &chosen, sizeof chosen, 0));
    const char *count = getenv("BENCH_TRANSFERS");
    many_options options = {.ranks = on->ranks,
                            .count = count ? strtoull(count, NULL, 10) : COUNT,
                            .least_bytes = LEAST,
                            .most_bytes = MOST,
                            .total_bytes = BYTES_A_RANK * (uint64_t)on->ranks,
                            .seed = chosen};
    *made = (many){.on = on, .seed = chosen};
    if (!many_layout_make(&options, &made->layout))
        exit(1);
    uint64_t most = 0;
    for (int rank = 0; rank < on->ranks; rank++)
        most = made->layout.destination_bytes[rank] > most ? made->layout.destination_bytes[rank]
                                                           : most;
    CUDA(cudaMalloc((void **)&made->source, made->layout.source_bytes[on->rank]));
    need(banyan_memory_alloc_on(on->world, BANYAN_CUDA(on->device), most, &made->received));
    made->destination = banyan_memory_local(made->received);
    made->sent_pieces = upload_pieces(made, true, &made->sent_count);
    made->received_pieces = upload_pieces(made, false, &made->received_count);
    CUDA(cudaMemset(made->source, 0, made->layout.source_bytes[on->rank]));
    CUDA(pattern_fill(made->sent_pieces, made->sent_count, on->stream));
    CUDA(cudaDeviceSynchronize());
}

static void drop(many *old)
{
    need(banyan_world_barrier(old->on->world));
    CUDA(cudaFree(old->sent_pieces));
    CUDA(cudaFree(old->received_pieces));
    CUDA(cudaFree(old->source));
    banyan_memory_free(old->received);
    many_layout_free(&old->layout);
}

/* No rank's destination is written before it is poisoned, and none before it was checked. */
static void poison(const many *of)
{
    CUDA(cudaMemset(of->destination, PATTERN_POISON, of->layout.destination_bytes[of->on->rank]));
    CUDA(cudaDeviceSynchronize());
    need(banyan_world_barrier(of->on->world));
}

static uint64_t count_wrong(const many *of)
{
    uint64_t *there, wrong;
    CUDA(cudaMalloc((void **)&there, sizeof *there));
    CUDA(cudaMemset(there, 0, sizeof *there));
    CUDA(cudaDeviceSynchronize());
    CUDA(pattern_check(of->received_pieces, of->received_count, there, of->on->stream));
    CUDA(cudaStreamSynchronize(of->on->stream));
    CUDA(cudaMemcpy(&wrong, there, sizeof wrong, cudaMemcpyDeviceToHost));
    CUDA(cudaFree(there));
    return wrong;
}

typedef struct result {
    double open_ms, prepare_ms, first_ms, us;
    uint64_t wrong;
} result;

static banyan_copy_schedule *prepare(const many *of, banyan_copy_service *service)
{
    DLDevice device = BANYAN_CUDA(of->on->device);
    banyan_copy_schedule *schedule;
    for (size_t i = 0; i < of->layout.count; i++) {
        const many_transfer *one = &of->layout.list[i];
        int64_t dims[4];
        if (one->from == of->on->rank) {
            DLTensor tensor = many_tensor(one, true, of->source, device, dims);
            need(banyan_copy_service_submit_send(service, &tensor, one->to, i));
        }
        if (one->to == of->on->rank) {
            DLTensor tensor = many_tensor(one, false, of->destination, device, dims);
            need(banyan_copy_service_submit_recv(service, &tensor, one->from, i));
        }
    }
    need(banyan_copy_service_prepare(service, &schedule));
    return schedule;
}

/* Run as a program would: queued, not in a graph. */
static double run_ms(const many *of, banyan_copy_schedule *schedule)
{
    const gpu *on = of->on;
    need(banyan_world_barrier(on->world));
    double begun = gpu_now_ms();
    need(banyan_copy_schedule_run(schedule, on->stream));
    gpu_wait_within(on, LIMIT_S, "30,000 transfers");
    return gpu_now_ms() - begun;
}

/* Print the way first, so that a way that hangs is known. */
static void print_time(const many *of, const char *what, double ms)
{
    if (of->on->rank == 0)
        fprintf(stderr, "  %s: %.1f ms\n", what, ms);
}

static result measure(const many *of, banyan_copy_service *service, double open_ms)
{
    result found = {.open_ms = open_ms};
    double ms[RUNS];
    need(banyan_world_barrier(of->on->world));
    double begun = gpu_now_ms();
    banyan_copy_schedule *schedule = prepare(of, service);
    found.prepare_ms = gpu_slowest(of->on, gpu_now_ms() - begun);
    print_time(of, "prepared", found.prepare_ms);
    poison(of);
    found.first_ms = gpu_slowest(of->on, run_ms(of, schedule));
    print_time(of, "first run", found.first_ms);
    need(banyan_copy_service_check(service));
    found.wrong = count_wrong(of);
    poison(of);
    size_t runs = found.first_ms < SLOW_MS ? RUNS : 1;
    for (size_t i = 0; i < runs; i++)
        ms[i] = gpu_slowest(of->on, run_ms(of, schedule));
    found.us = gpu_median(ms, runs) * 1e3;
    need(banyan_copy_service_check(service));
    found.wrong += count_wrong(of);
    need(banyan_world_barrier(of->on->world));
    banyan_copy_schedule_destroy(schedule);
    return found;
}

/* Return the bytes that the busiest link carries. */
static uint64_t busiest_bytes(const many *of)
{
    uint64_t most = 0;
    for (int rank = 0; rank < of->on->ranks; rank++) {
        const many_layout *layout = &of->layout;
        most = layout->sent_bytes[rank] > most ? layout->sent_bytes[rank] : most;
        most = layout->received_bytes[rank] > most ? layout->received_bytes[rank] : most;
    }
    return most;
}

static void print(const many *of, const char *way, const result *found, double engine_gbs,
                  FILE *json, bool *follows)
{
    double gbs = (double)busiest_bytes(of) * 1e-3 / found->us;
    if (of->on->rank != 0)
        return;
    printf("30,000 transfers a rank    %-16s %10.1f µs %8.1f GB/s  %5.1f %% of the copy engine, "
           "opened in %.0f ms, prepared in %.0f ms, first run %.0f ms\n",
           way, found->us, gbs, 100 * gbs / engine_gbs, found->open_ms, found->prepare_ms,
           found->first_ms);
    fflush(stdout);
    if (json)
        fprintf(json,
                "%s\n    {\"copy\": \"30,000 transfers a rank\", \"backend\": \"%s\", \"us\": "
                "%.2f, \"gb_s\": %.1f, \"copy_engine_gb_s\": %.1f, \"prepare_ms\": %.1f, "
                "\"first_ms\": %.1f, \"bytes\": %llu, \"seed\": %llu}",
                *follows ? "," : "", way, found->us, gbs, engine_gbs, found->prepare_ms,
                found->first_ms, (unsigned long long)of->layout.bytes,
                (unsigned long long)of->seed);
    *follows = true;
}

bool many_measure(const gpu *on, const limits *limit, const char *wanted, FILE *json, bool *follows)
{
    many all;
    bool right = true;
    if (on->ranks < 2)
        return true;
    make(on, &all);
    if (on->rank == 0)
        printf("%zu transfers a rank, %.2f GiB in all, BENCH_SEED=%llu; GB/s of the busiest "
               "rank's %.2f GiB\n",
               all.layout.count / (size_t)on->ranks, (double)all.layout.bytes / 0x1p30,
               (unsigned long long)all.seed, (double)busiest_bytes(&all) / 0x1p30);
    for (size_t i = 0; i < COPY_WAYS; i++) {
        banyan_copy_service *service;
        double begun = gpu_now_ms();
        if ((wanted && strcmp(wanted, copy_ways[i].name) != 0) ||
            !copy_way_open(on, &copy_ways[i], &service))
            continue;
        double open_ms = gpu_slowest(on, gpu_now_ms() - begun);
        print_time(&all, copy_ways[i].name, open_ms);
        result found = measure(&all, service, open_ms);
        print(&all, copy_ways[i].name, &found, limit->both_ways_gbs, json, follows);
        if (found.wrong > 0)
            fprintf(stderr, "rank %d: %llu elements of 30,000 transfers by %s are wrong\n",
                    on->rank, (unsigned long long)found.wrong, copy_ways[i].name);
        right &= found.wrong == 0;
        need(banyan_world_barrier(on->world));
        banyan_copy_service_close(service);
    }
    drop(&all);
    return right;
}
