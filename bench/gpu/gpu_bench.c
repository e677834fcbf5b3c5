/* Transfers between GPUs, beside the machine's limits and other libraries, in one run.
 * usage: banyan launch -n RANKS -- gpu_bench [--json FILE] [--size MIN:MAX] [--way WAY] [what …]
 * Times are the slowest rank's medians. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/collectives.h"
#include "collectives/fixed.h"
#include "collectives/mixed.h"
#include "common/gpu.h"
#include "common/hardware.h"
#include "copies/casts.h"
#include "copies/copies.h"
#include "copies/kernels.h"
#include "copies/many.h"
#include "copies/memory.h"
#include "copies/reshards.h"

enum what { FIXED = COLLECTIVES, COPIES, CASTS, KERNELS, MANY, MEMORY, RESHARD, MIXED, WHATS };

static const char *const what_names[WHATS] = {"allreduce", "allgather", "reducescatter", "alltoall",
                                              "fixed",     "copies",    "casts",         "kernels",
                                              "many",      "memory",    "reshard",       "mixed"};

typedef struct request {
    uint64_t least, most; /* bytes of collectives */
    const char *json, *way;
    bool wanted[WHATS];
} request;

static int refuse(void)
{
    fprintf(stderr, "usage: gpu_bench [--json FILE] [--size MIN:MAX] [--way WAY]");
    for (int i = 0; i < WHATS; i++)
        fprintf(stderr, " [%s]", what_names[i]);
    fprintf(stderr, "\nA way of copies is direct, nccl, pipeline/peer or pipeline/nvshmem.\n");
    return 2;
}

static uint64_t parse_bytes(const char *text, char **end)
{
    uint64_t value = strtoull(text, end, 10);
    static const char units[] = "KMG";
    const char *unit = **end ? strchr(units, **end) : NULL;
    if (unit)
        (*end)++;
    return unit ? value << 10 * (unit - units + 1) : value;
}

static bool parse_sizes(const char *text, request *parsed)
{
    char *end;
    parsed->least = parse_bytes(text, &end);
    parsed->most = *end == ':' ? parse_bytes(end + 1, &end) : parsed->least;
    return !*end && parsed->least > 0 && parsed->most >= parsed->least;
}

static bool parse_what(const char *text, request *parsed)
{
    for (int i = 0; i < WHATS; i++)
        if (strcmp(what_names[i], text) == 0)
            return parsed->wanted[i] = true;
    return false;
}

/* Without any word everything is measured. */
static bool parse(int argc, char **argv, request *parsed)
{
    int i = 1;
    for (; i + 1 < argc && argv[i][0] == '-'; i += 2) {
        if (strcmp(argv[i], "--json") == 0)
            parsed->json = argv[i + 1];
        else if (strcmp(argv[i], "--way") == 0)
            parsed->way = argv[i + 1];
        else if (strcmp(argv[i], "--size") != 0 || !parse_sizes(argv[i + 1], parsed))
            return false;
    }
    for (int k = 0; k < WHATS; k++)
        parsed->wanted[k] = i == argc;
    for (; i < argc; i++)
        if (!parse_what(argv[i], parsed))
            return false;
    return true;
}

static void print_head(const gpu *on, const limits *limit, FILE *json)
{
    struct cudaDeviceProp is;
    CUDA(cudaGetDeviceProperties(&is, on->device));
    if (on->rank != 0)
        return;
    printf("%d × %s; copy engine %.0f GB/s one way, %.0f each way; local copy %.0f GB/s; empty "
           "kernel %.2f µs\n",
           on->ranks, is.name, limit->one_way_gbs, limit->both_ways_gbs, limit->local_gbs,
           limit->empty_us);
    fflush(stdout);
    if (json)
        fprintf(json,
                "{\"device\": \"%s\", \"ranks\": %d, \"copy_engine_one_way_gb_s\": %.1f, "
                "\"copy_engine_both_ways_gb_s\": %.1f, \"local_copy_gb_s\": %.0f, "
                "\"empty_kernel_us\": %.3f",
                is.name, on->ranks, limit->one_way_gbs, limit->both_ways_gbs, limit->local_gbs,
                limit->empty_us);
}

/* Begin a list of the file, to which later calls add objects. */
static void begin_list(FILE *json, const char *name, bool *follows)
{
    *follows = false;
    if (json)
        fprintf(json, ", \"%s\": [", name);
}

static void end_list(FILE *json)
{
    if (json)
        fprintf(json, "\n]");
}

static bool measure(const gpu *on, const request *of, FILE *json)
{
    limits limit;
    bool right = true, follows;
    limits_measure(on, &limit);
    print_head(on, &limit, json);
    if (of->wanted[FIXED])
        fixed_measure(on);
    if (of->wanted[0] || of->wanted[1] || of->wanted[2] || of->wanted[3])
        right &= collectives_measure(on, of->least, of->most, of->wanted, json);
    begin_list(json, "copies", &follows);
    if (of->wanted[COPIES])
        right &= copies_measure(on, &limit, of->way, json, &follows);
    if (of->wanted[CASTS])
        right &= casts_measure(on, &limit, json, &follows);
    if (of->wanted[MANY])
        right &= many_measure(on, &limit, of->way, json, &follows);
    end_list(json);
    begin_list(json, "kernels", &follows);
    if (of->wanted[KERNELS])
        right &= kernels_measure(on, &limit, json, &follows);
    end_list(json);
    begin_list(json, "memory", &follows);
    if (of->wanted[MEMORY])
        right &= memory_measure(on, json, &follows);
    end_list(json);
    begin_list(json, "reshards", &follows);
    if (of->wanted[RESHARD])
        right &= reshards_measure(on, json);
    end_list(json);
    begin_list(json, "mixed", &follows);
    if (of->wanted[MIXED])
        right &= mixed_measure(on, &limit, json);
    end_list(json);
    return right;
}

int main(int argc, char **argv)
{
    request wanted = {.least = 1 << 10, .most = UINT64_C(1) << 30};
    FILE *json = NULL;
    gpu on;
    double begin = gpu_now_ms();
    if (!parse(argc, argv, &wanted))
        return refuse();
    gpu_open(&on);
    if (wanted.wanted[MEMORY])
        memory_measure_first(&on, begin);
    if (wanted.json && on.rank == 0 && !(json = fopen(wanted.json, "w"))) {
        perror(wanted.json);
        return 1;
    }
    bool right = measure(&on, &wanted, json);
    if (json) {
        fprintf(json, "}\n");
        if (fclose(json) != 0) {
            perror(wanted.json);
            return 1;
        }
    }
    gpu_close(&on);
    return !right;
}
