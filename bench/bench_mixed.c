/* Mixed collectives between processes: the autotuned mode beside two collectives of the
 * communicator, which it must not be slower than, and beside the time that memcpy takes to bring
 * every rank its output.
 * usage: bench_mixed */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

#include "run/measure.h"

#define HIDDEN 8192
#define ROWS_MOST 1024
#define ELEM_BYTES 2
#define TURNS 7
/* relative difference below which two times are equal */
#define SLOWER 1.05

struct bench {
    banyan_world *world;
    banyan_mixed *mixed;
    banyan_mixed_grid grid;
    int rank, size;
    double memcpy_per_s; /* bytes, of all ranks */
    char *input, *output;
    int missed;
};

struct row {
    banyan_mixed_op op;
    int64_t rows, in[2], out[2];
    banyan_mixed_mode chosen;
    double chosen_us, two_us;
};

static void shape(const struct bench *b, struct row *row)
{
    bool gathers = row->op == BANYAN_MIXED_ALLREDUCE_ALLGATHER;
    row->in[0] = gathers ? row->rows : row->rows * b->grid.dp;
    row->out[0] = gathers ? row->rows * b->grid.dp : row->rows;
    row->in[1] = row->out[1] = HIDDEN;
}

static double time_us(const struct bench *b, struct row *row, banyan_mixed_mode mode)
{
    uint64_t ns;
    DLTensor input = {
        .data = b->input, .device = BANYAN_HOST, .ndim = 2, .dtype = BANYAN_BF16, .shape = row->in};
    DLTensor output = input;
    output.data = b->output;
    output.shape = row->out;
    need(banyan_mixed_measure(b->mixed, row->op, &input, &output, mode, &ns));
    return (double)ns / 1000;
}

static double least(double a, double b)
{
    return a == 0 || b < a ? b : a;
}

/* Measure in turns, and take the fastest of each: other work of the machine only adds time. */
static void measure(const struct bench *b, struct row *row)
{
    uint64_t bytes = (uint64_t)row->rows * HIDDEN * ELEM_BYTES;
    need(banyan_mixed_select_autotune_mode(b->mixed, row->op, bytes, &row->chosen));
    for (int i = 0; i < TURNS; i++) {
        row->chosen_us = least(row->chosen_us, time_us(b, row, row->chosen));
        row->two_us = least(row->two_us, time_us(b, row, BANYAN_MIXED_SEPARATE));
    }
}

static void print(struct bench *b, const struct row *row)
{
    double bytes = (double)row->out[0] * HIDDEN * ELEM_BYTES * b->size;
    bool missed = row->chosen != BANYAN_MIXED_SEPARATE && row->chosen_us > row->two_us * SLOWER;
    b->missed += missed;
    if (b->rank == 0)
        printf("%-24s %6lld rows  %-19s %10.1f us  two %10.1f us  %5.2f x  memcpy %9.1f us%s\n",
               banyan_mixed_op_name(row->op), (long long)row->rows,
               banyan_mixed_mode_name(row->chosen), row->chosen_us, row->two_us,
               row->two_us / row->chosen_us, bytes / b->memcpy_per_s * 1e6,
               missed ? "  MISSED (1 x)" : "");
    fflush(stdout);
}

static void run_grid(struct bench *b, int local_tp, int nodes)
{
    static const banyan_mixed_op ops[] = {BANYAN_MIXED_ALLREDUCE_ALLGATHER,
                                          BANYAN_MIXED_REDUCESCATTER_ALLREDUCE};
    banyan_mixed_options options = BANYAN_MIXED_OPTIONS_INIT;
    options.local_tp = local_tp;
    options.nodes = nodes;
    options.max_bytes = (uint64_t)ROWS_MOST * HIDDEN * ELEM_BYTES;
    options.inter_dp = nodes;
    need(banyan_mixed_open(b->world, &options, &b->mixed));
    b->grid = banyan_mixed_describe(b->mixed);
    if (b->rank == 0)
        printf("\n%d ranks, nodes: %d, tp %d x dp %d, rows of %d bf16\n", b->size, nodes,
               b->grid.tp, b->grid.dp, HIDDEN);
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        for (int64_t rows = 1; rows <= ROWS_MOST; rows *= 4) {
            struct row row = {.op = ops[i], .rows = rows};
            shape(b, &row);
            measure(b, &row);
            print(b, &row);
        }
    }
    need(banyan_mixed_close(b->mixed));
}

int main(void)
{
    struct bench b = {.size = 4};
    banyan_unique_id id;
    need(banyan_unique_id_create(&id));
    for (b.rank = 0; b.rank < b.size - 1; b.rank++) {
        if (fork() == 0)
            break;
    }
    bound_to_processor(b.rank, b.size);
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    options.rank = b.rank;
    options.world_size = b.size;
    options.unique_id = &id;
    need(banyan_world_open(&options, &b.world));
    need(memcpy_limit_measure(b.world, 16 << 20, &b.memcpy_per_s));
    b.input = calloc((size_t)ROWS_MOST * 2 * HIDDEN, ELEM_BYTES);
    b.output = calloc((size_t)ROWS_MOST * 2 * HIDDEN, ELEM_BYTES);
    run_grid(&b, 2, 1);
    run_grid(&b, 2, 2);
    need(banyan_world_close(b.world));
    bool parent = b.rank == b.size - 1;
    while (parent && wait(NULL) > 0)
        continue;
    return b.missed > 0;
}
