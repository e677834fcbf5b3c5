/* The fused modes of mixed collectives beside NCCL's two collectives, on GPUs, through the module's
 * table: gpu_mixed_bench [TP DP [HIDDEN [ROWS…]]]. MIXED_SHAPES lists launches to compare, as
 * blocks/least threads/most threads/steps; every row is measured MIXED_REPEATS times. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/module.h"
#include "memory/device.h"
#include "mixed/engine.h"
#include "mixed/grid.h"

#define RANKS_MAX 16
#define MOST_CALLS 400

typedef struct bench {
    banyan_world *world;
    int rank, ranks;
    mixed_engine_setup setup;
    const mixed_engine_ops *ops;
    const memory_device_ops *memory_ops;
    void *engine;
    banyan_memory *memory;
    char *input, *output, *between, *reference;
    bool has_nccl, has_reference;
    mixed_call call; /* the measured call */
} bench;

static void need(banyan_status status)
{
    if (status == BANYAN_OK)
        return;
    fprintf(stderr, "gpu_mixed_bench: %s\n", banyan_last_error());
    exit(1);
}

static int node_zero(void *context, int rank)
{
    (void)context;
    (void)rank;
    return 0;
}

static void split(bench *b, mixed_group group, int count, int first, int apart)
{
    int ranks[RANKS_MAX];
    for (int i = 0; i < count; i++)
        ranks[i] = first + i * apart;
    if (count > 1)
        need(banyan_world_split(b->world, ranks, count, &b->setup.worlds[group]));
}

static void set_up(bench *b, int tp, int dp)
{
    const module_tables *tables;
    banyan_mixed_options options = BANYAN_MIXED_OPTIONS_INIT;
    need(banyan_world_open(NULL, &b->world));
    b->rank = banyan_world_rank(b->world);
    b->ranks = banyan_world_size(b->world);
    need(module_load("cuda", &tables));
    b->ops = tables->mixed;
    b->memory_ops = tables->device_memory;
    options.local_tp = tp;
    options.local_dp = dp;
    b->setup.dtype = options.dtype;
    b->setup.timeout_ns = UINT64_C(5000000000);
    b->setup.max_bytes = UINT64_C(64) << 20;
    int devices = 0;
    while (b->memory_ops->open(devices) == BANYAN_OK)
        devices++;
    b->setup.device = BANYAN_CUDA(b->rank % devices);
    need(grid_resolve(&options, b->rank, b->ranks, node_zero, NULL, &b->setup.grid));
    if (b->ranks > 1)
        b->setup.worlds[MIXED_WORLD] = b->setup.worlds[MIXED_NODE] = b->world;
    const banyan_mixed_grid *grid = &b->setup.grid;
    split(b, MIXED_TP, grid->tp, grid->dp_index * grid->tp, 1);
    split(b, MIXED_DP, grid->dp, grid->tp_index, grid->tp);
}

static void open_engine(bench *b)
{
    void *parts[RANKS_MAX];
    need(b->ops->open(&b->setup, &b->engine));
    need(banyan_memory_alloc_on(b->world, b->setup.device, b->ops->room(b->engine), &b->memory));
    for (int i = 0; i < b->ranks; i++) {
        size_t bytes;
        need(banyan_memory_peer(b->memory, i, &parts[i], &bytes));
    }
    need(b->ops->use(b->engine, (char *const *)parts));
}

static void close_engine(bench *b)
{
    need(banyan_world_barrier(b->world));
    b->ops->close(b->engine);
    banyan_memory_free(b->memory);
    b->memory = NULL;
}

static char *take(const bench *b, uint64_t bytes)
{
    void *taken;
    need(b->memory_ops->alloc(b->setup.device.device_id, bytes, &taken));
    return taken;
}

/* Whole numbers below 16 have exact sums. */
static void fill(const bench *b, uint64_t bytes)
{
    uint16_t *values = malloc(bytes);
    uint64_t state = (uint64_t)b->rank * 7919 + 1;
    if (!values)
        exit(1);
    for (uint64_t i = 0; i < bytes / 2; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        float number = (float)(state >> 40 & 15);
        uint32_t bits;
        memcpy(&bits, &number, sizeof bits);
        values[i] = (uint16_t)(bits >> 16);
    }
    need(b->memory_ops->copy(b->input, values, bytes));
    free(values);
}

static banyan_status queue_fused(void *context, void *stream)
{
    bench *b = context;
    return b->ops->run(b->engine, &b->call, stream);
}

static banyan_status queue_two(bench *b, const banyan_mixed_op *ops, const mixed_group *groups,
                               void *stream)
{
    const mixed_call *call = &b->call;
    banyan_status status = b->ops->nccl_run(b->engine, groups[0], ops[0], call->input, b->between,
                                            call->elems, stream);
    if (status != BANYAN_OK)
        return status;
    return b->ops->nccl_run(b->engine, groups[1], ops[1], b->between, call->output, call->elems,
                            stream);
}

static banyan_status queue_nccl(void *context, void *stream)
{
    bench *b = context;
    const mixed_call *call = &b->call;
    const banyan_mixed_op gather[] = {BANYAN_MIXED_ALLREDUCE, BANYAN_MIXED_ALLGATHER};
    const banyan_mixed_op scatter[] = {BANYAN_MIXED_REDUCESCATTER, BANYAN_MIXED_ALLREDUCE};
    const mixed_group gather_groups[] = {MIXED_TP, MIXED_DP},
                      scatter_groups[] = {MIXED_DP, MIXED_TP};
    if (call->op == BANYAN_MIXED_ALLREDUCE_ALLGATHER)
        return queue_two(b, gather, gather_groups, stream);
    if (call->op == BANYAN_MIXED_REDUCESCATTER_ALLREDUCE)
        return queue_two(b, scatter, scatter_groups, stream);
    return b->ops->nccl_run(b->engine, call->op == BANYAN_MIXED_ALLREDUCE ? MIXED_TP : MIXED_DP,
                            call->op, call->input, call->output, call->elems, stream);
}

static double slowest_us(const bench *b, uint64_t ns)
{
    uint64_t all[RANKS_MAX], most = 0;
    need(banyan_world_allgather(b->world, &ns, sizeof ns, all));
    for (int i = 0; i < b->ranks; i++)
        most = all[i] > most ? all[i] : most;
    return (double)most * 1e-3;
}

static double measure(bench *b, banyan_status (*queue)(void *, void *))
{
    uint64_t ns, bytes = b->call.elems * 2;
    uint32_t times = (uint32_t)((UINT64_C(256) << 20) / bytes);
    times = times > MOST_CALLS ? MOST_CALLS : times < 6 ? 6 : times;
    need(b->ops->measure(b->engine, queue, b, times, &ns));
    device_report report;
    b->ops->check(b->engine, &report);
    if (report.verdict != DEVICE_FINE) {
        printf("rank %d waited %.1f s for rank %d in %s of %llu bytes\n", b->rank,
               (double)report.waited_ns * 1e-9, device_report_rank(&report),
               banyan_mixed_mode_name(mixed_report_mode(&report)), (unsigned long long)bytes);
        exit(1);
    }
    return slowest_us(b, ns);
}

/* True if the bits equal the reference's. */
static bool is_right(const bench *b)
{
    uint64_t bytes = 2 * mixed_output_elems(b->call.op, b->call.elems, b->setup.grid.dp);
    char *here = malloc(2 * bytes);
    if (!here)
        exit(1);
    need(b->memory_ops->copy(here, b->output, bytes));
    need(b->memory_ops->copy(here + bytes, b->reference, bytes));
    bool equal = memcmp(here, here + bytes, bytes) == 0;
    free(here);
    return equal;
}

static double measure_mode(bench *b, banyan_mixed_mode mode)
{
    b->call.mode = mode;
    b->call.output = b->output;
    char reason[128];
    if (!b->ops->has(b->engine, b->call.op, mode, reason, sizeof reason))
        return 0;
    need(b->memory_ops->fill(b->output, 0xc9,
                             2 * mixed_output_elems(b->call.op, b->call.elems, b->setup.grid.dp)));
    double us = measure(b, queue_fused);
    if (!b->has_reference)
        need(b->memory_ops->copy(
            b->reference, b->output,
            2 * mixed_output_elems(b->call.op, b->call.elems, b->setup.grid.dp)));
    b->has_reference = true;
    if (!is_right(b))
        printf("rank %d: %s with %s differs\n", b->rank, banyan_mixed_op_name(b->call.op),
               banyan_mixed_mode_name(mode));
    return us;
}

static void measure_row(bench *b, banyan_mixed_op op, uint64_t elems)
{
    b->call = (mixed_call){.op = op, .input = b->input, .output = b->reference, .elems = elems};
    double nccl = b->has_nccl ? measure(b, queue_nccl) : 0;
    b->has_reference = b->has_nccl;
    double waits = measure_mode(b, BANYAN_MIXED_ONE_SHOT);
    double bytes = measure_mode(b, BANYAN_MIXED_TWO_SHOT);
    if (b->rank == 0)
        printf("%-24s %12llu %10.2f %10.2f %10.2f\n", banyan_mixed_op_name(op),
               (unsigned long long)(elems * 2), waits, bytes, nccl);
    fflush(stdout);
}

static bool next_shape(bench *b, const char **shapes)
{
    int used = 0;
    mixed_engine_setup *s = &b->setup;
    if (sscanf(*shapes, "%d/%d/%d/%d%n", &s->grid_size, &s->min_block_size, &s->max_block_size,
               &s->min_num_steps, &used) != 4)
        return false;
    *shapes += used;
    *shapes += strspn(*shapes, ", ");
    return true;
}

int main(int argc, char **argv)
{
    static bench b;
    set_up(&b, argc > 1 ? atoi(argv[1]) : 2, argc > 2 ? atoi(argv[2]) : 2);
    uint64_t hidden = argc > 3 ? strtoull(argv[3], NULL, 10) : 8192, most = 4096;
    static const char *const rows[] = {"1", "8", "64", "512", "4096"};
    int count = argc > 4 ? argc - 4 : 5;
    const char *const *sizes = argc > 4 ? (const char *const *)argv + 4 : rows;
    for (int i = 0; i < count; i++)
        most = strtoull(sizes[i], NULL, 10) > most ? strtoull(sizes[i], NULL, 10) : most;
    uint64_t bytes = most * hidden * 2 * (uint64_t)b.setup.grid.dp;
    b.input = take(&b, bytes);
    b.output = take(&b, bytes);
    b.reference = take(&b, bytes);
    b.between = take(&b, bytes);
    fill(&b, bytes);
    const char *shapes = getenv("MIXED_SHAPES"), *repeated = getenv("MIXED_REPEATS");
    int repeats = repeated ? atoi(repeated) : 1;
    shapes = shapes && *shapes ? shapes : "0/256/0/4";
    while (next_shape(&b, &shapes)) {
        open_engine(&b);
        b.has_nccl = b.ops->nccl_open(b.engine, MIXED_TP) == BANYAN_OK &&
                     b.ops->nccl_open(b.engine, MIXED_DP) == BANYAN_OK;
        if (b.rank == 0)
            printf("tp %d × dp %d, blocks %d, threads %d to %d, steps %d; µs\n%-24s %12s %10s %10s "
                   "%10s\n",
                   b.setup.grid.tp, b.setup.grid.dp, b.setup.grid_size, b.setup.min_block_size,
                   b.setup.max_block_size, b.setup.min_num_steps, "", "bytes", "waits", "bytes",
                   "nccl");
        for (int i = 0; i < count; i++) {
            uint64_t elems = strtoull(sizes[i], NULL, 10) * hidden;
            for (int turn = 0; turn < BANYAN_MIXED_OPS * repeats; turn++) {
                int op = turn % BANYAN_MIXED_OPS;
                if (grid_allows(&b.setup.grid, (banyan_mixed_op)op))
                    measure_row(&b, (banyan_mixed_op)op, elems);
            }
        }
        close_engine(&b);
    }
    need(banyan_world_close(b.world));
    return 0;
}
