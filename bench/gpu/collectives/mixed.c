#include "collectives/mixed.h"

#include <stdlib.h>
#include <string.h>

#define HIDDEN 8192
#define ELEM_BYTES 2

/* Upper limits in µs for the two mixed operations on 4 GPUs; NCCL's time at all sizes. */
struct goal {
    uint64_t rows;
    double us;
};
static const struct goal goals[] = {{1, 5}, {8, 6.5}, {64, 15}, {512, 70}, {4096, 420}};

struct bench {
    const gpu *on;
    const limits *limit;
    banyan_mixed *mixed;
    banyan_mixed_grid grid;
    char *input, *output, *expected;
    FILE *json;
    bool first_row, wrong;
};

/* One operation and number of rows. */
struct row {
    banyan_mixed_op op;
    uint64_t rows;
    int64_t in[2], out[2];
    double us[BANYAN_MIXED_MODES];
    banyan_mixed_mode chosen;
};

static size_t bytes_of(const int64_t shape[2])
{
    return (size_t)shape[0] * (size_t)shape[1] * ELEM_BYTES;
}

static void shape_row(const struct bench *b, struct row *row)
{
    int64_t rows = (int64_t)row->rows, all = rows * b->grid.dp;
    bool scatters =
        row->op == BANYAN_MIXED_REDUCESCATTER || row->op == BANYAN_MIXED_REDUCESCATTER_ALLREDUCE;
    bool gathers = row->op == BANYAN_MIXED_ALLGATHER || row->op == BANYAN_MIXED_ALLREDUCE_ALLGATHER;
    row->in[0] = scatters ? all : rows;
    row->out[0] = gathers ? all : rows;
    row->in[1] = row->out[1] = HIDDEN;
}

/* Return the lower bound: the bytes that every GPU must receive, at the links' bandwidth in both
 * directions at once. */
static double floor_us(const struct bench *b, const struct row *row)
{
    double bytes = (double)row->rows * HIDDEN * ELEM_BYTES, tp = b->grid.tp, dp = b->grid.dp;
    double reduced = 2 * (tp - 1) / tp * bytes; /* an all-reduce over tp, on all links */
    double came = 0;
    switch (row->op) {
    case BANYAN_MIXED_ALLREDUCE:
        came = reduced;
        break;
    case BANYAN_MIXED_ALLGATHER:
    case BANYAN_MIXED_REDUCESCATTER:
        came = (dp - 1) * bytes;
        break;
    default:
        /* Every rank sums a tp-th of its rows, or of all ranks' rows, and then all is gathered. */
        came = reduced + (dp - 1) * bytes;
    }
    return came / b->limit->both_ways_gbs / 1e3;
}

static DLTensor tensor_of(const struct bench *b, void *data, int64_t *shape)
{
    return (DLTensor){.data = data,
                      .device = BANYAN_CUDA(b->on->device),
                      .ndim = 2,
                      .dtype = BANYAN_BF16,
                      .shape = shape};
}

/* Compare with the first mode's bytes: the numbers add up exactly. */
static void check(struct bench *b, const struct row *row, banyan_mixed_mode mode, bool *have)
{
    size_t bytes = bytes_of(row->out);
    if (!*have) {
        CUDA(cudaMemcpy(b->expected, b->output, bytes, cudaMemcpyDeviceToDevice));
        *have = true;
    } else if (!gpu_equal(b->expected, b->output, bytes)) {
        fprintf(stderr, "rank %d: %s of %llu rows in mode %s differs from what came before\n",
                b->on->rank, banyan_mixed_op_name(row->op), (unsigned long long)row->rows,
                banyan_mixed_mode_name(mode));
        b->wrong = true;
    }
}

static void measure_row(struct bench *b, struct row *row)
{
    static const banyan_mixed_mode peers_first[] = {BANYAN_MIXED_SEPARATE_NCCL,
                                                    BANYAN_MIXED_SINGLE_NCCL};
    banyan_mixed_mode modes[BANYAN_MIXED_MODES];
    size_t count;
    bool have = false;
    shape_row(b, row);
    DLTensor input = tensor_of(b, b->input, row->in), output = tensor_of(b, b->output, row->out);
    need(banyan_mixed_valid_modes(b->mixed, row->op, modes, BANYAN_MIXED_MODES, &count));
    need(banyan_mixed_select_autotune_mode(b->mixed, row->op, row->rows * HIDDEN * ELEM_BYTES,
                                           &row->chosen));
    /* The others' results are compared with NCCL's. */
    for (size_t i = 0; i < count; i++) {
        for (size_t k = i; k > 0 && (modes[k] == peers_first[0] || modes[k] == peers_first[1]);
             k--) {
            banyan_mixed_mode earlier = modes[k - 1];
            modes[k - 1] = modes[k];
            modes[k] = earlier;
        }
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t ns;
        CUDA(cudaMemset(b->output, 0x7F, bytes_of(row->out)));
        CUDA(cudaDeviceSynchronize());
        need(banyan_mixed_measure(b->mixed, row->op, &input, &output, modes[i], &ns));
        row->us[modes[i]] = (double)ns / 1000;
        check(b, row, modes[i], &have);
    }
}

static double goal_of(const struct bench *b, const struct row *row)
{
    for (size_t i = 0; i < sizeof goals / sizeof *goals && b->grid.tp == 2 && b->grid.dp == 2;
         i++) {
        if (goals[i].rows == row->rows)
            return goals[i].us;
    }
    return 0;
}

static double best_peer(const struct row *row)
{
    double two = row->us[BANYAN_MIXED_SEPARATE_NCCL], world = row->us[BANYAN_MIXED_SINGLE_NCCL];
    return two > 0 && (world == 0 || two < world) ? two : world;
}

static void print_cell(double us, bool star)
{
    if (us > 0)
        printf(" %12.2f%c", us, star ? '*' : ' ');
    else
        printf(" %12s ", "-");
}

static void write_json(struct bench *b, const struct row *row)
{
    fprintf(b->json,
            "%s\n    {\"op\": \"%s\", \"rows\": %llu, \"chosen\": \"%s\", \"floor_us\": %.2f",
            b->first_row ? "" : ",", banyan_mixed_op_name(row->op), (unsigned long long)row->rows,
            banyan_mixed_mode_name(row->chosen), floor_us(b, row));
    if (goal_of(b, row) > 0)
        fprintf(b->json, ", \"goal_us\": %.1f", goal_of(b, row));
    for (int mode = 0; mode < BANYAN_MIXED_MODES; mode++) {
        if (row->us[mode] > 0)
            fprintf(b->json, ", \"%s_us\": %.3f", banyan_mixed_mode_name((banyan_mixed_mode)mode),
                    row->us[mode]);
    }
    fputs("}", b->json);
    b->first_row = false;
}

static const banyan_mixed_mode columns[] = {BANYAN_MIXED_ONE_SHOT,    BANYAN_MIXED_TWO_SHOT,
                                            BANYAN_MIXED_SINGLE,      BANYAN_MIXED_SEPARATE,
                                            BANYAN_MIXED_SINGLE_NCCL, BANYAN_MIXED_SEPARATE_NCCL};

static void print_row(struct bench *b, const struct row *row)
{
    if (b->on->rank != 0)
        return;
    printf("%-23s %6llu", banyan_mixed_op_name(row->op), (unsigned long long)row->rows);
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        print_cell(row->us[columns[i]], row->chosen == columns[i]);
    double chosen = row->us[row->chosen], peer = best_peer(row);
    printf(" %8.2f", floor_us(b, row));
    goal_of(b, row) > 0 ? printf(" %8.1f", goal_of(b, row)) : printf(" %8s", "");
    printf(" %6.2f\n", peer > 0 && chosen > 0 ? peer / chosen : 0);
    fflush(stdout);
    if (b->json)
        write_json(b, row);
}

static void print_head(const struct bench *b)
{
    if (b->on->rank != 0)
        return;
    printf("\nmixed collectives, tp %d × dp %d, rows of %d bf16, µs (*: autotuned)\n%-23s %6s",
           b->grid.tp, b->grid.dp, HIDDEN, "", "rows");
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        printf(" %12.12s ", banyan_mixed_mode_name(columns[i]));
    printf(" %8s %8s %6s\n", "floor", "goal", "× nccl");
}

static void measure_all(struct bench *b)
{
    banyan_mixed_op ops[BANYAN_MIXED_OPS];
    size_t count;
    need(banyan_mixed_valid_ops(b->mixed, ops, BANYAN_MIXED_OPS, &count));
    print_head(b);
    for (size_t i = 0; i < count; i++) {
        for (uint64_t rows = 1; rows <= 4096; rows *= 2) {
            struct row row = {.op = ops[i], .rows = rows};
            measure_row(b, &row);
            print_row(b, &row);
        }
    }
}

bool mixed_measure(const gpu *on, const limits *limit, FILE *json)
{
    struct bench b = {.on = on, .limit = limit, .json = json, .first_row = true};
    banyan_mixed_options options = BANYAN_MIXED_OPTIONS_INIT;
    options.device = BANYAN_CUDA(on->device);
    options.local_tp = on->ranks == 4 ? 2 : on->ranks;
    need(banyan_mixed_open(on->world, &options, &b.mixed));
    b.grid = banyan_mixed_describe(b.mixed);
    size_t bytes = (size_t)4096 * HIDDEN * ELEM_BYTES * (size_t)b.grid.dp;
    CUDA(cudaMalloc((void **)&b.input, bytes));
    CUDA(cudaMalloc((void **)&b.output, bytes));
    CUDA(cudaMalloc((void **)&b.expected, bytes));
    gpu_fill(on, b.input, bytes, (unsigned)on->rank + 1);
    measure_all(&b);
    need(banyan_world_barrier(on->world));
    CUDA(cudaFree(b.input));
    CUDA(cudaFree(b.output));
    CUDA(cudaFree(b.expected));
    need(banyan_mixed_close(b.mixed));
    return !b.wrong;
}
