/* The bandwidth of copy engines when each GPU writes to all others at once, for several ways to cut
 * the copies and distribute them over streams.
 *
 * usage: banyan launch -n RANKS -- gpu_engines_bench [MIB …]
 * Prints for every pattern the GB/s that leave a GPU, the slowest one's, in a graph and queued one
 * by one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/gpu.h"
#include "common/nothing.h"

#define STREAMS 16
#define WORD 8

typedef struct pattern {
    const char *name;
    int streams_a_peer;                              /* 0: one for all peers */
    int pieces;                                      /* of the data for one peer */
    bool in_turn;                                    /* the peers' pieces, not peer by peer */
    enum { NO_WORDS, FROM_HOST, FROM_DEVICE } words; /* 8 bytes to the peer behind each piece */
    bool own;                                        /* the own block is copied, too */
    bool kernels;                                    /* one before and one behind */
    bool one_peer;
    bool same_order; /* all begin with rank 0 */
    bool urgent;     /* streams of the highest priority */
} pattern;

static const pattern patterns[] = {
    {"to the next rank alone", 1, 1, .one_peer = true},
    {"to the next rank, 2 streams", 2, 2, .one_peer = true},
    {"one stream", 0, 1, .in_turn = false},
    {"one stream, 4 pieces in turn", 0, 4, .in_turn = true},
    {"one stream, 16 pieces in turn", 0, 16, .in_turn = true},
    {"a stream a peer", 1, 1, .in_turn = false},
    {"a stream a peer, from rank 0 on", 1, 1, .same_order = true},
    {"a stream a peer, 4 pieces", 1, 4, .in_turn = true},
    {"a stream a peer, 16 pieces", 1, 16, .in_turn = true},
    {"a stream a peer, urgent", 1, 1, .urgent = true},
    {"2 streams a peer", 2, 2, .in_turn = true},
    {"4 streams a peer", 4, 4, .in_turn = true},
    {"a stream a peer, words of the host's", 1, 1, .words = FROM_HOST},
    {"a stream a peer, 8 pieces, host's words", 1, 8, .words = FROM_HOST},
    {"a stream a peer, 8 pieces, device's words", 1, 8, .words = FROM_DEVICE},
    {"one stream, host's words", 0, 1, .words = FROM_HOST},
    {"one stream, device's words", 0, 1, .words = FROM_DEVICE},
    {"a stream a peer, and the own block", 1, 1, .own = true},
    {"one stream, and the own block", 0, 1, .own = true},
    {"one stream between kernels", 0, 1, .kernels = true},
    {"a stream a peer between kernels", 1, 1, .kernels = true},
};
#define PATTERNS (sizeof(patterns) / sizeof(patterns[0]))

typedef struct job {
    const gpu *on;
    const pattern *as;
    size_t bytes; /* to a peer */
    char *from, *own, *to[16];
    char *words_here, *words_host;
    cudaStream_t sides[2][STREAMS];
    cudaEvent_t fork, join[STREAMS];
} job;

static void copy(char *to, const char *from, size_t bytes, cudaStream_t stream)
{
    CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
}

static cudaStream_t side(const job *j, int peer, int piece)
{
    const pattern *as = j->as;
    int number = as->streams_a_peer ? peer * as->streams_a_peer + piece % as->streams_a_peer : 0;
    return j->sides[as->urgent][number % STREAMS];
}

static void put(const job *j, int peer, int piece)
{
    const pattern *as = j->as;
    int ranks = j->on->ranks;
    int rank = (j->on->rank + 1 + peer) % ranks;
    if (as->same_order)
        rank = peer < j->on->rank ? peer : peer + 1;
    size_t some = j->bytes / (size_t)as->pieces, at = some * (size_t)piece;
    cudaStream_t stream = side(j, peer, piece);
    copy(j->to[rank] + (size_t)j->on->rank * j->bytes + at, j->from + at, some, stream);
    char *word = j->to[rank] + (size_t)ranks * j->bytes + (size_t)j->on->rank * WORD;
    if (as->words != NO_WORDS)
        copy(word, as->words == FROM_HOST ? j->words_host : j->words_here, WORD, stream);
}

static void put_all(const job *j)
{
    const pattern *as = j->as;
    int peers = as->one_peer ? 1 : j->on->ranks - 1;
    for (int i = 0; i < peers * as->pieces; i++)
        put(j, as->in_turn ? i % peers : i / as->pieces, as->in_turn ? i / peers : i % as->pieces);
}

static int streams_of(const job *j)
{
    int count = j->as->streams_a_peer ? j->as->streams_a_peer * (j->on->ranks - 1) : 1;
    return count < STREAMS - 1 ? count : STREAMS - 1;
}

static void work(void *context, cudaStream_t stream)
{
    const job *j = context;
    int count = streams_of(j) + 1;
    if (j->as->kernels)
        CUDA(nothing_launch(stream));
    CUDA(cudaEventRecord(j->fork, stream));
    for (int i = 0; i < count; i++)
        CUDA(cudaStreamWaitEvent(j->sides[j->as->urgent][i], j->fork, 0));
    put_all(j);
    if (j->as->own)
        copy(j->to[j->on->rank] + (size_t)j->on->rank * j->bytes, j->from, j->bytes,
             j->sides[j->as->urgent][count - 1]);
    for (int i = 0; i < count; i++) {
        CUDA(cudaEventRecord(j->join[i], j->sides[j->as->urgent][i]));
        CUDA(cudaStreamWaitEvent(stream, j->join[i], 0));
    }
    if (j->as->kernels)
        CUDA(nothing_launch(stream));
}

/* Run it as a proxy does. */
static double time_eagerly(const job *j)
{
    enum { ROUNDS = 9 };
    double us[ROUNDS], all[16], most = 0;
    cudaEvent_t begin, end;
    CUDA(cudaEventCreate(&begin));
    CUDA(cudaEventCreate(&end));
    for (int i = 0; i < ROUNDS; i++) {
        float ms;
        need(banyan_world_barrier(j->on->world));
        CUDA(cudaEventRecord(begin, j->on->stream));
        work((void *)j, j->on->stream);
        CUDA(cudaEventRecord(end, j->on->stream));
        CUDA(cudaEventSynchronize(end));
        CUDA(cudaEventElapsedTime(&ms, begin, end));
        us[i] = ms * 1e3;
        for (int k = i; k > 0 && us[k] < us[k - 1]; k--) {
            double later = us[k];
            us[k] = us[k - 1];
            us[k - 1] = later;
        }
    }
    CUDA(cudaEventDestroy(begin));
    CUDA(cudaEventDestroy(end));
    need(banyan_world_allgather(j->on->world, &us[ROUNDS / 2], sizeof *us, all));
    for (int r = 0; r < j->on->ranks; r++)
        most = all[r] > most ? all[r] : most;
    return most;
}

static void measure(job *j, const pattern *as)
{
    j->as = as;
    double sent = (double)j->bytes * (as->one_peer ? 1 : j->on->ranks - 1) * 1e-3;
    double graph = gpu_time_us(j->on, work, j), eager = time_eagerly(j);
    if (j->on->rank == 0)
        printf("%8zu KiB a peer: %-44s %9.2f us %6.1f GB/s, queued %9.2f us %6.1f GB/s\n",
               j->bytes >> 10, as->name, graph, sent / graph, eager, sent / eager);
    fflush(stdout);
}

static void open_job(job *j, banyan_memory **memory, size_t most)
{
    int least_urgent, most_urgent, ranks = j->on->ranks;
    CUDA(cudaDeviceGetStreamPriorityRange(&least_urgent, &most_urgent));
    size_t bytes = (size_t)ranks * (most + WORD);
    need(banyan_memory_alloc_on(j->on->world, BANYAN_CUDA(j->on->device), bytes, memory));
    for (int r = 0; r < ranks; r++) {
        void *at;
        need(banyan_memory_peer(*memory, r, &at, &bytes));
        j->to[r] = at;
    }
    CUDA(cudaMalloc((void **)&j->from, most));
    gpu_fill(j->on, j->from, most, 1);
    CUDA(cudaMalloc((void **)&j->words_here, WORD));
    CUDA(cudaMallocHost((void **)&j->words_host, WORD));
    CUDA(cudaEventCreateWithFlags(&j->fork, cudaEventDisableTiming));
    for (int i = 0; i < STREAMS; i++) {
        CUDA(cudaEventCreateWithFlags(&j->join[i], cudaEventDisableTiming));
        CUDA(cudaStreamCreateWithFlags(&j->sides[0][i], cudaStreamNonBlocking));
        CUDA(cudaStreamCreateWithPriority(&j->sides[1][i], cudaStreamNonBlocking, most_urgent));
    }
}

int main(int argc, char **argv)
{
    gpu on;
    banyan_memory *memory;
    size_t most = 0;
    for (int i = 1; i < argc; i++) {
        size_t mib = strtoull(argv[i], NULL, 10);
        most = mib > most ? mib : most;
    }
    if (most == 0 || most > 1024) {
        fprintf(stderr, "usage: gpu_engines_bench MIB …\n");
        return 2;
    }
    gpu_open(&on);
    job j = {.on = &on};
    open_job(&j, &memory, most << 20);
    for (int i = 1; i < argc; i++) {
        j.bytes = strtoull(argv[i], NULL, 10) << 20;
        for (size_t k = 0; k < PATTERNS; k++)
            measure(&j, &patterns[k]);
    }
    need(banyan_world_barrier(on.world));
    banyan_memory_free(memory);
    gpu_close(&on);
    return 0;
}
