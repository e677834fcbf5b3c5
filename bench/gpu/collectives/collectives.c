#include "collectives/collectives.h"

#include <stdlib.h>
#include <string.h>

#include "collectives/handwritten.h"
#include "common/nccl.h"

enum column { REGISTERED, ORDINARY, NCCL_PEER, BY_HAND, COLUMNS };
static const char *const column_names[] = {"registered", "ordinary", "nccl", "by hand"};

typedef struct collective {
    const char *name;
    banyan_collective_kind kind;
} collective;

static const collective collectives[COLLECTIVES] = {
    {"allreduce", BANYAN_ALLREDUCE},
    {"allgather", BANYAN_ALLGATHER},
    {"reducescatter", BANYAN_REDUCESCATTER},
    {"alltoall", BANYAN_ALLTOALL},
};

typedef struct bench {
    const gpu *on;
    banyan_comm *comm;
    nccl *peer;
    banyan_memory *registered[2];
    char *ordinary[2], *expected;
    banyan_memory *scratch; /* of the kernel by hand */
    uint32_t *run;
    FILE *json;
    bool follows, wrong;
    uint64_t most;
} bench;

/* One measured thing. */
typedef struct job {
    bench *of;
    banyan_collective_kind kind;
    size_t count; /* elements of a rank's block */
    enum column column;
    const void *in;
    void *out;
} job;

#define HAND_BYTES ((size_t)1 << 20)

static void run_banyan(const job *j, cudaStream_t stream)
{
    banyan_comm *comm = j->of->comm;
    switch ((int)j->kind) {
    case BANYAN_ALLREDUCE:
        need(banyan_comm_allreduce(comm, j->in, j->out, j->count, BANYAN_BF16, BANYAN_SUM, stream));
        break;
    case BANYAN_ALLGATHER:
        need(banyan_comm_allgather(comm, j->in, j->out, j->count, BANYAN_BF16, stream));
        break;
    case BANYAN_ALLTOALL:
        need(banyan_comm_alltoall(comm, j->in, j->out, j->count, BANYAN_BF16, stream));
        break;
    default:
        need(banyan_comm_reducescatter(comm, j->in, j->out, j->count, BANYAN_BF16, BANYAN_SUM,
                                       stream));
    }
}

static void run_nccl(const job *j, cudaStream_t stream)
{
    switch ((int)j->kind) {
    case BANYAN_ALLREDUCE:
        nccl_allreduce(j->of->peer, j->in, j->out, j->count, stream);
        break;
    case BANYAN_ALLGATHER:
        nccl_allgather(j->of->peer, j->in, j->out, j->count, stream);
        break;
    case BANYAN_ALLTOALL:
        nccl_alltoall(j->of->peer, j->in, j->out, j->count, stream);
        break;
    default:
        nccl_reducescatter(j->of->peer, j->in, j->out, j->count, stream);
    }
}

static void run_by_hand(const job *j, cudaStream_t stream)
{
    const bench *b = j->of;
    handwritten_args args = {.in = j->in,
                             .out = j->out,
                             .words = j->count * 2 / 16,
                             .most_words = HAND_BYTES / 16,
                             .run = b->run,
                             .rank = b->on->rank,
                             .ranks = b->on->ranks};
    for (int r = 0; r < b->on->ranks; r++) {
        void *at;
        size_t bytes;
        need(banyan_memory_peer(b->scratch, r, &at, &bytes));
        args.scratch[r] = at;
    }
    size_t threads = args.words < 512 ? (args.words + 31) / 32 * 32 : 512;
    size_t blocks = (args.words + threads - 1) / threads;
    CUDA(handwritten_allreduce(&args, (int)(blocks < 64 ? blocks : 64), (int)threads, stream));
}

static void run_job(void *context, cudaStream_t stream)
{
    const job *j = context;
    if (j->column == NCCL_PEER)
        run_nccl(j, stream);
    else if (j->column == BY_HAND)
        run_by_hand(j, stream);
    else
        run_banyan(j, stream);
}

static bool can(const bench *b, const job *j, enum column column)
{
    if (column == NCCL_PEER)
        return b->peer != NULL;
    if (column == BY_HAND)
        return j->kind == BANYAN_ALLREDUCE && j->count * 2 <= HAND_BYTES &&
               j->count * 2 % 16 == 0 && b->on->ranks <= HANDWRITTEN_RANKS;
    return true;
}

static size_t blocks_out(const bench *b, banyan_collective_kind kind)
{
    bool whole = kind == BANYAN_ALLGATHER || kind == BANYAN_ALLTOALL;
    return whole ? (size_t)b->on->ranks : 1;
}

/* Compare with NCCL's bytes, or with those of the first one measured. */
static void check(bench *b, const job *j, size_t out_bytes, bool *have_expected)
{
    if (!*have_expected) {
        CUDA(cudaMemcpy(b->expected, j->out, out_bytes, cudaMemcpyDeviceToDevice));
        *have_expected = true;
        return;
    }
    if (gpu_equal(b->expected, j->out, out_bytes))
        return;
    fprintf(stderr, "rank %d: %s of %zu elements by %s differs from what came before\n",
            b->on->rank, banyan_collective_kind_name(j->kind), j->count, column_names[j->column]);
    b->wrong = true;
}

static double bus_factor(const bench *b, banyan_collective_kind kind)
{
    double others = (double)(b->on->ranks - 1) / b->on->ranks;
    return kind == BANYAN_ALLREDUCE ? 2 * others : others;
}

static void print_row(bench *b, const collective *what, uint64_t bytes, const double *us,
                      const char *algorithm)
{
    if (b->on->rank != 0)
        return;
    double best = us[REGISTERED];
    double bus = (double)bytes * bus_factor(b, what->kind) * 1e-3 / best;
    printf("%-13s %11llu", what->name, (unsigned long long)bytes);
    for (int c = 0; c < COLUMNS; c++)
        us[c] > 0 ? printf(" %10.2f", us[c]) : printf(" %10s", "-");
    printf(" %8.1f %6.2f  %s\n", bus, us[NCCL_PEER] > 0 ? us[NCCL_PEER] / best : 0, algorithm);
    fflush(stdout);
    if (!b->json)
        return;
    fprintf(b->json, "%s\n    {\"collective\": \"%s\", \"bytes\": %llu, \"algorithm\": \"%s\"",
            b->follows ? "," : "", what->name, (unsigned long long)bytes, algorithm);
    for (int c = 0; c < COLUMNS; c++)
        if (us[c] > 0)
            fprintf(b->json, ", \"%s_us\": %.3f", c == BY_HAND ? "by_hand" : column_names[c],
                    us[c]);
    fprintf(b->json, ", \"bus_gb_s\": %.1f}", bus);
    b->follows = true;
}

static void measure_size(bench *b, const collective *what, uint64_t bytes)
{
    bool divided = what->kind != BANYAN_ALLREDUCE;
    job j = {.of = b, .kind = what->kind};
    j.count = (size_t)bytes / 2 / (divided ? (size_t)b->on->ranks : 1);
    if (j.count == 0)
        return;
    size_t out_bytes = j.count * 2 * blocks_out(b, what->kind);
    double us[COLUMNS] = {0};
    bool have_expected = false;
    static const enum column order[] = {NCCL_PEER, REGISTERED, ORDINARY, BY_HAND};
    for (int i = 0; i < COLUMNS; i++) {
        j.column = order[i];
        if (!can(b, &j, j.column))
            continue;
        bool registered = j.column == REGISTERED || j.column == BY_HAND;
        j.in = registered ? banyan_memory_local(b->registered[0]) : b->ordinary[0];
        j.out = registered ? banyan_memory_local(b->registered[1]) : b->ordinary[1];
        CUDA(cudaMemset(j.out, 0x7F, out_bytes));
        us[j.column] = gpu_time_us(b->on, run_job, &j);
        check(b, &j, out_bytes, &have_expected);
    }
    const char *algorithm = "?";
    uint64_t message = what->kind == BANYAN_ALLGATHER ? j.count * 2 : bytes;
    banyan_comm_choice(b->comm, what->kind, message, BANYAN_BF16, BANYAN_SUM, false, true,
                       &algorithm);
    print_row(b, what, bytes, us, algorithm);
}

static void open_bench(bench *b)
{
    DLDevice device = BANYAN_CUDA(b->on->device);
    banyan_comm_options options = BANYAN_COMM_OPTIONS_INIT;
    options.device = device;
    need(banyan_comm_create(b->on->world, &options, &b->comm));
    for (int i = 0; i < 2; i++) {
        need(banyan_memory_alloc_on(b->on->world, device, b->most, &b->registered[i]));
        need(banyan_comm_register(b->comm, b->registered[i]));
        CUDA(cudaMalloc((void **)&b->ordinary[i], b->most));
    }
    CUDA(cudaMalloc((void **)&b->expected, b->most));
    gpu_fill(b->on, b->ordinary[0], b->most, 1);
    gpu_fill(b->on, banyan_memory_local(b->registered[0]), b->most, 1);
    need(banyan_memory_alloc_on(b->on->world, device, 4 * (size_t)b->on->ranks * HAND_BYTES,
                                &b->scratch));
    CUDA(cudaMalloc((void **)&b->run, 64 * sizeof *b->run));
    CUDA(cudaMemset(b->run, 0, 64 * sizeof *b->run));
    b->peer = nccl_open(b->on);
}

static void close_bench(bench *b)
{
    need(banyan_world_barrier(b->on->world));
    nccl_close(b->peer);
    need(banyan_comm_destroy(b->comm));
    for (int i = 0; i < 2; i++) {
        banyan_memory_free(b->registered[i]);
        CUDA(cudaFree(b->ordinary[i]));
    }
    CUDA(cudaFree(b->expected));
    banyan_memory_free(b->scratch);
    CUDA(cudaFree(b->run));
}

static void print_head(const bench *b)
{
    const char *version = b->peer ? nccl_version(b->peer) : "";
    if (b->on->rank != 0)
        return;
    printf("%-13s %11s", "", "bytes");
    for (int c = 0; c < COLUMNS; c++)
        printf(" %10s", column_names[c]);
    printf(" %8s %6s  NCCL %s\n", "bus GB/s", "× nccl", b->peer ? version : "is not there");
    if (b->json)
        fprintf(b->json, ", \"nccl\": \"%s\", \"rows\": [", version);
}

bool collectives_measure(const gpu *on, uint64_t least, uint64_t most,
                         const bool wanted[COLLECTIVES], FILE *json)
{
    bench b = {.on = on, .most = most, .json = json};
    open_bench(&b);
    print_head(&b);
    for (size_t i = 0; i < COLLECTIVES; i++)
        for (uint64_t bytes = least; wanted[i] && bytes <= most; bytes *= bytes < (1 << 20) ? 2 : 4)
            measure_size(&b, &collectives[i], bytes);
    if (json)
        fprintf(json, "\n]");
    close_bench(&b);
    return !b.wrong;
}
