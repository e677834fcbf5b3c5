/* Two ranks of two nodes: bandwidth and latency of puts, and bandwidth of a copy service. Run by
 * bench/network.py, which makes the nodes. Rank 0 prints one JSON object. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

#define BYTES ((size_t)64 << 20)
#define PIECE ((size_t)1 << 20)
#define ROUNDS 5
#define ROUND_TRIPS 5000

struct bench {
    banyan_world *world;
    banyan_transport *transport;
    banyan_memory *memory;
    banyan_remote peer;
    uint32_t signal;
    int rank;
};

static void bench_open(struct bench *b)
{
    banyan_memory_handle mine, handles[2];
    need(banyan_world_open(NULL, &b->world));
    b->rank = banyan_world_rank(b->world);
    need(banyan_transport_open(b->world, NULL, &b->transport));
    need(banyan_transport_signals_alloc(b->transport, 1, &b->signal));
    need(banyan_memory_alloc(b->world, BYTES, &b->memory));
    memset(banyan_memory_local(b->memory), b->rank, BYTES);
    need(banyan_memory_find(b->world, banyan_memory_local(b->memory), BYTES, &mine));
    need(banyan_world_allgather(b->world, &mine, sizeof mine, handles));
    b->peer = (banyan_remote){handles[1 - b->rank], 0};
}

/* The best round of puts from rank 0 to rank 1, until all bytes are there. */
static double put_bytes_per_s(struct bench *b, const char *source)
{
    double best = 0;
    banyan_iovec pieces[BYTES / PIECE];
    for (size_t i = 0; i < BYTES / PIECE; i++)
        pieces[i] = (banyan_iovec){i * PIECE, (void *)(uintptr_t)(source + i * PIECE), PIECE};
    for (int round = 0; round < ROUNDS; round++) {
        need(banyan_world_barrier(b->world));
        double start = now_s();
        if (b->rank == 0) {
            need(banyan_transport_put_many(b->transport, &b->peer, pieces, BYTES / PIECE));
            need(banyan_transport_flush(b->transport, 1));
        }
        double speed = (double)BYTES / (now_s() - start);
        best = speed > best ? speed : best;
    }
    return best;
}

/* Half of the round trip of 8 bytes with a signal. */
static double put_latency_s(struct bench *b)
{
    uint64_t word = 1;
    int peer = 1 - b->rank;
    double best = 1;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t begun = banyan_transport_read(b->transport, b->signal);
        need(banyan_world_barrier(b->world));
        double start = now_s();
        for (uint64_t i = 1; i <= ROUND_TRIPS; i++) {
            if (b->rank == 1)
                need(banyan_transport_wait(b->transport, b->signal, begun + i, peer, "a ping"));
            need(banyan_transport_put_with_signal(b->transport, &b->peer, &word, sizeof word,
                                                  b->signal, 1));
            if (b->rank == 0)
                need(banyan_transport_wait(b->transport, b->signal, begun + i, peer, "a pong"));
        }
        double half = (now_s() - start) / ROUND_TRIPS / 2;
        best = half < best ? half : best;
    }
    return best;
}

/* One tensor from rank 0 to rank 1 by the default copy service. */
static double copy_bytes_per_s(struct bench *b, char *source)
{
    banyan_copy_service *service;
    banyan_copy_schedule *schedule;
    int64_t elems = BYTES;
    double best = 0;
    DLTensor tensor = {
        .device = BANYAN_HOST, .ndim = 1, .dtype = BANYAN_U8, .shape = &elems, .data = source};
    need(banyan_copy_service_open(b->world, NULL, NULL, &service));
    if (b->rank == 0)
        need(banyan_copy_service_submit_send(service, &tensor, 1, 1));
    tensor.data = banyan_memory_local(b->memory);
    if (b->rank == 1)
        need(banyan_copy_service_submit_recv(service, &tensor, 0, 1));
    need(banyan_copy_service_prepare(service, &schedule));
    for (int round = 0; round < ROUNDS; round++) {
        need(banyan_world_barrier(b->world));
        double start = now_s();
        need(banyan_copy_schedule_run(schedule, NULL));
        need(banyan_world_barrier(b->world));
        double speed = (double)BYTES / (now_s() - start);
        best = speed > best ? speed : best;
    }
    banyan_copy_schedule_destroy(schedule);
    banyan_copy_service_close(service);
    return best;
}

int main(void)
{
    struct bench b;
    char *source = malloc(BYTES);
    if (!source)
        return 1;
    memset(source, 7, BYTES);
    bench_open(&b);
    double put = put_bytes_per_s(&b, source), latency = put_latency_s(&b),
           copy = copy_bytes_per_s(&b, source);
    if (b.rank == 0)
        printf("{\"transport\": \"%s\", \"put_bytes_per_s\": %.0f, \"put_latency_us\": %.2f, "
               "\"copy_bytes_per_s\": %.0f}\n",
               banyan_transport_peer(b.transport, 1, NULL), put, latency * 1e6, copy);
    banyan_memory_free(b.memory);
    banyan_transport_close(b.transport);
    need(banyan_world_close(b.world));
    free(source);
}
