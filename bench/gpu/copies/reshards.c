#include "copies/reshards.h"

#include <stdlib.h>
#include <string.h>

#define RUNS 9
#define LAYERS 32
#define HIDDEN 4096
#define INNER 14336
#define KEYS 1024
#define VOCABULARY 128256

/* A matrix of the model, sharded along `dim`; -1: a vector that all ranks have. */
typedef struct matrix {
    const char *name;
    int64_t rows, columns;
    int dim;
} matrix;

static const matrix in_layers[] = {
    {"self_attn.q_proj", HIDDEN, HIDDEN, 0},     {"self_attn.k_proj", KEYS, HIDDEN, 0},
    {"self_attn.v_proj", KEYS, HIDDEN, 0},       {"self_attn.o_proj", HIDDEN, HIDDEN, 1},
    {"mlp.gate_proj", INNER, HIDDEN, 0},         {"mlp.up_proj", INNER, HIDDEN, 0},
    {"mlp.down_proj", HIDDEN, INNER, 1},         {"input_layernorm", HIDDEN, 0, -1},
    {"post_attention_layernorm", HIDDEN, 0, -1},
};
static const matrix once[] = {
    {"embed_tokens", VOCABULARY, HIDDEN, 0},
    {"lm_head", VOCABULARY, HIDDEN, 0},
    {"norm", HIDDEN, 0, -1},
};

/* Add a matrix with `copies` replicas; the ranks of each are consecutive. */
static void add_matrix(banyan_layout *layout, const gpu *on, const matrix *of, const char *name,
                       int copies)
{
    banyan_mesh mesh = {.ndim = 2, .extent = {copies, on->ranks / copies}};
    banyan_placement placements[] = {{BANYAN_REPLICATE, 0},
                                     {of->dim < 0 ? BANYAN_REPLICATE : BANYAN_SHARD, of->dim}};
    int64_t shape[] = {of->rows, of->columns};
    banyan_layout_add_sharded(layout, name, BANYAN_BF16, of->dim < 0 ? 1 : 2, shape, &mesh,
                              placements, on->rank);
}

static banyan_layout *make_layout(const gpu *on, int copies)
{
    char name[96];
    banyan_layout *layout;
    need(banyan_layout_create(&layout));
    for (int layer = 0; layer < LAYERS; layer++)
        for (size_t i = 0; i < sizeof(in_layers) / sizeof(in_layers[0]); i++) {
            snprintf(name, sizeof name, "layers.%d.%s", layer, in_layers[i].name);
            add_matrix(layout, on, &in_layers[i], name, copies);
        }
    for (size_t i = 0; i < sizeof(once) / sizeof(once[0]); i++)
        add_matrix(layout, on, &once[i], once[i].name, copies);
    need(banyan_layout_check(layout));
    return layout;
}

static void fill(const gpu *on, const banyan_tensors *set)
{
    for (size_t i = 0; i < banyan_tensors_count(set); i++) {
        const DLTensor *tensor = banyan_tensors_get(set, i);
        size_t bytes = 2;
        for (int d = 0; d < tensor->ndim; d++)
            bytes *= (size_t)tensor->shape[d];
        gpu_fill(on, tensor->data, bytes / ((size_t)1 << 20) * ((size_t)1 << 20), (unsigned)i);
    }
}

static int compare_double(const void *a, const void *b)
{
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

/* Return the median time of runs that the host starts one by one, of the slowest rank, in
 * milliseconds. */
static double time_ms(const gpu *on, banyan_reshard_plan *plan, banyan_tensors *source,
                      banyan_tensors *destination, banyan_copy_service *service)
{
    double ms[RUNS], all[64], most = 0;
    cudaEvent_t begin, end;
    CUDA(cudaEventCreate(&begin));
    CUDA(cudaEventCreate(&end));
    for (int i = -2; i < RUNS; i++) {
        float took;
        need(banyan_world_barrier(on->world));
        CUDA(cudaEventRecord(begin, on->stream));
        need(banyan_reshard_execute(plan, source, destination, service, on->world, NULL,
                                    on->stream));
        CUDA(cudaEventRecord(end, on->stream));
        CUDA(cudaEventSynchronize(end));
        CUDA(cudaEventElapsedTime(&took, begin, end));
        if (i >= 0)
            ms[i] = (double)took;
    }
    CUDA(cudaEventDestroy(begin));
    CUDA(cudaEventDestroy(end));
    qsort(ms, RUNS, sizeof *ms, compare_double);
    need(banyan_world_allgather(on->world, &ms[RUNS / 2], sizeof ms[0], all));
    for (int i = 0; i < on->ranks; i++)
        most = all[i] > most ? all[i] : most;
    return most;
}

/* Return the bytes from other ranks at the rank that receives most. */
static uint64_t received_bytes(const gpu *on, const banyan_reshard_plan *plan)
{
    uint64_t bytes = 0, all[64];
    for (size_t i = 0; i < banyan_reshard_plan_recv_count(plan); i++) {
        const banyan_transfer *transfer = banyan_reshard_plan_recv(plan, i);
        bytes += transfer->source_rank != on->rank ? transfer->bytes : 0;
    }
    need(banyan_world_allgather(on->world, &bytes, sizeof bytes, all));
    for (int i = 0; i < on->ranks; i++)
        bytes = all[i] > bytes ? all[i] : bytes;
    return bytes;
}

static void print(const gpu *on, const char *backend, double ms, double direct_ms, uint64_t bytes,
                  FILE *json, bool *follows)
{
    if (on->rank != 0)
        return;
    printf("Llama-3.1-8B, tp=%d to tp=%d,dp=2  %-9s %8.2f ms, %.2f GB to one rank at %.1f GB/s; "
           "direct "
           "is %.2f times as fast\n",
           on->ranks, on->ranks / 2, backend, ms, (double)bytes * 1e-9, (double)bytes * 1e-6 / ms,
           ms / direct_ms);
    fflush(stdout);
    if (json)
        fprintf(json, "%s\n    {\"reshard\": \"llama-3.1-8b\", \"backend\": \"%s\", \"ms\": %.3f}",
                *follows ? "," : "", backend, ms);
    *follows = true;
}

static bool are_equal(const banyan_tensors *a, const banyan_tensors *b)
{
    bool equal = true;
    for (size_t i = 0; i < banyan_tensors_count(a) && equal; i += 7) {
        const DLTensor *tensor = banyan_tensors_get(a, i);
        size_t bytes = 2;
        for (int d = 0; d < tensor->ndim; d++)
            bytes *= (size_t)tensor->shape[d];
        equal = gpu_equal(tensor->data, banyan_tensors_get(b, i)->data, bytes);
    }
    return equal;
}

bool reshards_measure(const gpu *on, FILE *json)
{
    static const char *const backends[] = {"direct", "nccl", "pipeline"};
    DLDevice device = BANYAN_CUDA(on->device);
    bool right = true, follows = false;
    double direct_ms = 0;
    if (on->ranks % 2 != 0)
        return true;
    banyan_layout *from = make_layout(on, 1), *to = make_layout(on, 2);
    banyan_tensors *source, *destinations[2];
    need(banyan_tensors_alloc_on(from, on->world, device, &source));
    for (int i = 0; i < 2; i++)
        need(banyan_tensors_alloc_on(to, on->world, device, &destinations[i]));
    fill(on, source);
    for (size_t i = 0; i < sizeof(backends) / sizeof(backends[0]); i++) {
        banyan_copy_options options = BANYAN_COPY_OPTIONS_INIT;
        banyan_copy_service *service;
        banyan_reshard_plan *plan;
        options.device = device;
        if (banyan_copy_service_open(on->world, backends[i], &options, &service) != BANYAN_OK) {
            if (on->rank == 0)
                printf("Llama-3.1-8B by %s not measured: %s\n", backends[i], banyan_last_error());
            continue;
        }
        need(banyan_reshard_plan_create(from, to, on->world, NULL, &plan));
        double ms = time_ms(on, plan, source, destinations[i > 0], service);
        need(banyan_copy_service_check(service));
        direct_ms = i == 0 ? ms : direct_ms;
        uint64_t bytes = received_bytes(on, plan);
        print(on, backends[i], ms, direct_ms, bytes, json, &follows);
        if (i > 0 && !are_equal(destinations[0], destinations[1])) {
            fprintf(stderr, "rank %d: direct and %s bring different bytes\n", on->rank,
                    backends[i]);
            right = false;
        }
        need(banyan_world_barrier(on->world));
        banyan_reshard_plan_destroy(plan);
        banyan_copy_service_close(service);
    }
    banyan_tensors_destroy(source);
    banyan_tensors_destroy(destinations[0]);
    banyan_tensors_destroy(destinations[1]);
    banyan_layout_destroy(from);
    banyan_layout_destroy(to);
    return right;
}
