/* Banyan's collectives beside MPI's, in the same processes on the same cores, taking turns.
 * usage: mpirun -n RANKS collectives_beside_mpi [least bytes [most bytes [collective]]]
 * Sizes are bytes of the longer buffer, as nccl-tests count them. */
#include <inttypes.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <banyan/banyan.h>

#define ROUNDS 9
#define ROUND_S 4e-3
#define CALLS_MAX 20000

/* MEMCPY is the limit: every rank fills a buffer as long as the longer one from another. */
enum way { MEMCPY, MPI, ORDINARY, REGISTERED, WAYS };

struct bench {
    banyan_comm *comm;
    int rank, ranks;
    size_t most;
    char *input[WAYS], *output[WAYS];
};

struct collective {
    const char *name;
    banyan_collective_kind kind;
};

static const struct collective collectives[] = {
    {"all-reduce", BANYAN_ALLREDUCE},
    {"all-gather", BANYAN_ALLGATHER},
    {"all-to-all", BANYAN_ALLTOALL},
};

static void need(banyan_status status)
{
    if (status == BANYAN_OK)
        return;
    fprintf(stderr, "collectives_beside_mpi: %s\n", banyan_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Elements of a rank's block. */
static size_t block_elems(const struct bench *b, banyan_collective_kind kind, size_t bytes)
{
    size_t blocks = kind == BANYAN_ALLREDUCE ? 1 : (size_t)b->ranks;
    return bytes / blocks / sizeof(float);
}

static void call_mpi(const struct bench *b, banyan_collective_kind kind, size_t elems)
{
    int count = (int)elems;
    if (kind == BANYAN_ALLREDUCE)
        MPI_Allreduce(b->input[MPI], b->output[MPI], count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (kind == BANYAN_ALLGATHER)
        MPI_Allgather(b->input[MPI], count, MPI_FLOAT, b->output[MPI], count, MPI_FLOAT,
                      MPI_COMM_WORLD);
    else
        MPI_Alltoall(b->input[MPI], count, MPI_FLOAT, b->output[MPI], count, MPI_FLOAT,
                     MPI_COMM_WORLD);
}

static void call_banyan(const struct bench *b, enum way way, banyan_collective_kind kind,
                        size_t elems)
{
    const char *input = b->input[way];
    char *output = b->output[way];
    if (kind == BANYAN_ALLREDUCE)
        need(banyan_comm_allreduce(b->comm, input, output, elems, BANYAN_F32, BANYAN_SUM, NULL));
    else if (kind == BANYAN_ALLGATHER)
        need(banyan_comm_allgather(b->comm, input, output, elems, BANYAN_F32, NULL));
    else
        need(banyan_comm_alltoall(b->comm, input, output, elems, BANYAN_F32, NULL));
}

/* A call that the compiler cannot remove. */
static void copy_bytes(char *to, const char *from, banyan_collective_kind kind, size_t elems,
                       int ranks)
{
    size_t blocks = kind == BANYAN_ALLREDUCE ? 1 : (size_t)ranks;
    memcpy(to, from, blocks * elems * sizeof(float));
    __asm__ volatile("" ::: "memory");
}

/* Return the seconds per call of the slowest rank. */
static double time_calls(const struct bench *b, enum way way, banyan_collective_kind kind,
                         size_t elems, int calls)
{
    MPI_Barrier(MPI_COMM_WORLD);
    double began = MPI_Wtime();
    for (int i = 0; i < calls; i++) {
        if (way == MEMCPY)
            copy_bytes(b->output[way], b->input[way], kind, elems, b->ranks);
        else if (way == MPI)
            call_mpi(b, kind, elems);
        else
            call_banyan(b, way, kind, elems);
    }
    double mine = (MPI_Wtime() - began) / calls, slowest;
    MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

static int ascending(const void *a, const void *b)
{
    double first = *(const double *)a, second = *(const double *)b;
    return (first > second) - (first < second);
}

/* From 4 KiB on at least as fast, from 64 KiB on 1.5 times; below, within 3 times or 1.5 µs. */
static const char *verdict(size_t bytes, double mpi_s, double banyan_s)
{
    double ratio = mpi_s / banyan_s;
    bool met = bytes >= (64 << 10)  ? ratio >= 1.5
               : bytes >= (4 << 10) ? ratio >= 1
                                    : banyan_s <= 3 * mpi_s || banyan_s <= mpi_s + 1.5e-6;
    return met ? "" : "  MISSED";
}

static void compare(const struct bench *b, const struct collective *collective, size_t bytes)
{
    size_t elems = block_elems(b, collective->kind, bytes);
    if (elems == 0)
        return;
    double seconds[WAYS][ROUNDS];
    int calls[WAYS];
    for (int way = 0; way < WAYS; way++) {
        time_calls(b, (enum way)way, collective->kind, elems, 2);
        double once = time_calls(b, (enum way)way, collective->kind, elems, 3);
        calls[way] = once * CALLS_MAX < ROUND_S ? CALLS_MAX : 1 + (int)(ROUND_S / once);
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int way = 0; way < WAYS; way++)
            seconds[way][round] = time_calls(b, (enum way)way, collective->kind, elems, calls[way]);
    }
    for (int way = 0; way < WAYS; way++)
        qsort(seconds[way], ROUNDS, sizeof(double), ascending);
    if (b->rank != 0)
        return;
    double limit = seconds[MEMCPY][ROUNDS / 2], mpi = seconds[MPI][ROUNDS / 2],
           ordinary = seconds[ORDINARY][ROUNDS / 2], registered = seconds[REGISTERED][ROUNDS / 2];
    printf("%-10s %2d ranks %9zu B %10.2f µs %10.2f µs %10.2f µs %5.2fx %10.2f µs %5.2fx%s\n",
           collective->name, b->ranks, bytes, 1e6 * limit, 1e6 * mpi, 1e6 * ordinary,
           mpi / ordinary, 1e6 * registered, mpi / registered, verdict(bytes, mpi, ordinary));
    fflush(stdout);
}

static void open_bench(struct bench *b, banyan_world *world, size_t most, banyan_memory **memory)
{
    *b = (struct bench){
        .rank = banyan_world_rank(world), .ranks = banyan_world_size(world), .most = most};
    need(banyan_comm_create(world, NULL, &b->comm));
    need(banyan_memory_alloc(world, 2 * most, memory));
    need(banyan_comm_register(b->comm, *memory));
    b->input[REGISTERED] = banyan_memory_local(*memory);
    b->input[MEMCPY] = b->input[MPI] = b->input[ORDINARY] = malloc(2 * most);
    if (!b->input[MPI])
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (int way = 0; way < WAYS; way++) {
        b->output[way] = b->input[way] + most;
        memset(b->input[way], 0, 2 * most);
    }
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    size_t least = argc > 1 ? strtoull(argv[1], NULL, 10) : 8;
    size_t most = argc > 2 ? strtoull(argv[2], NULL, 10) : 64 << 20;
    banyan_world *world;
    banyan_memory *memory;
    struct bench b;
    need(banyan_world_open(NULL, &world));
    open_bench(&b, world, most, &memory);
    if (b.rank == 0)
        printf("%-10s %8s %11s %13s %13s %13s %6s %13s %6s\n", "", "", "longer", "memcpy",
               "Open MPI", "ordinary", "", "registered", "");
    for (size_t i = 0; i < sizeof collectives / sizeof *collectives; i++) {
        bool wanted = argc <= 3 || strcmp(argv[3], collectives[i].name) == 0;
        for (size_t bytes = least; wanted && bytes <= most; bytes *= 4)
            compare(&b, &collectives[i], bytes);
    }
    need(banyan_comm_unregister(b.comm, memory));
    need(banyan_comm_destroy(b.comm));
    banyan_memory_free(memory);
    free(b.input[MPI]);
    need(banyan_world_close(world));
    MPI_Finalize();
    return 0;
}
