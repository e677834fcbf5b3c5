/* A reshard from 4 ranks on 2 nodes to 4 ranks on 2 others, each box needed twice in a node. Run by
 * bench/network.py, which makes the nodes. The argument is a copy backend. Rank 0 prints one JSON
 * object: seconds of the best run, bytes of the tensors, and bytes that arrived at the network
 * cards of the receiving nodes in that run. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

#define RANKS 8
#define SOURCES 4
#define PER_NODE 2
#define TENSORS 8
#define ROWS 4096
#define COLUMNS 4096
#define ROUNDS 3

/* Bytes that have arrived at this node's network card. */
static uint64_t arrived_bytes(void)
{
    uint64_t bytes = 0;
    FILE *file = fopen("/sys/class/net/eth0/statistics/rx_bytes", "r");
    if (!file || fscanf(file, "%" SCNu64, &bytes) != 1)
        _exit(1);
    fclose(file);
    return bytes;
}

/* Sources hold a quarter of the rows each. The ranks of a receiving node hold the same half: of the
 * rows in even tensors, of the columns in odd ones. */
static void add_tensor(banyan_layout *sources, banyan_layout *destinations, int number, int rank)
{
    char name[32];
    int64_t shape[] = {ROWS, COLUMNS};
    banyan_mesh quarters = {.ndim = 1, .extent = {SOURCES}};
    banyan_mesh halves = {
        .ndim = 2, .extent = {SOURCES / PER_NODE, PER_NODE}, .first_rank = SOURCES};
    banyan_placement by_row = {BANYAN_SHARD, 0};
    banyan_placement by_half[] = {{BANYAN_SHARD, number % 2}, {BANYAN_REPLICATE, 0}};
    snprintf(name, sizeof name, "layers.%d.weight", number);
    if (rank < SOURCES)
        banyan_layout_add_sharded(sources, name, BANYAN_BF16, 2, shape, &quarters, &by_row, rank);
    else
        banyan_layout_add_sharded(destinations, name, BANYAN_BF16, 2, shape, &halves, by_half,
                                  rank);
}

static void fill(const banyan_tensors *tensors, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const DLTensor *tensor = banyan_tensors_get(tensors, i);
        memset(tensor->data, (int)i + 1, (size_t)(tensor->shape[0] * tensor->shape[1]) * 2);
    }
}

int main(int argc, char **argv)
{
    banyan_world *world;
    banyan_layout *from, *to;
    banyan_tensors *source, *destination;
    banyan_reshard_plan *plan;
    banyan_copy_service *service;
    double best = 1e9;
    uint64_t wire = 0, all[RANKS];
    if (argc != 2)
        return 1;
    need(banyan_world_open(NULL, &world));
    int rank = banyan_world_rank(world);
    need(banyan_layout_create(&from));
    need(banyan_layout_create(&to));
    for (int i = 0; i < TENSORS; i++)
        add_tensor(from, to, i, rank);
    need(banyan_tensors_alloc(from, NULL, &source));
    need(banyan_tensors_alloc(to, NULL, &destination));
    fill(source, rank < SOURCES ? TENSORS : 0);
    fill(destination, rank < SOURCES ? 0 : TENSORS);
    need(banyan_copy_service_open(world, argv[1], NULL, &service));
    need(banyan_reshard_plan_create(from, to, world, NULL, &plan));
    for (int round = 0; round <= ROUNDS; round++) { /* the first one prepares */
        need(banyan_world_barrier(world));
        uint64_t before = arrived_bytes();
        double start = now_s();
        need(banyan_reshard_execute(plan, source, destination, service, world, NULL, NULL));
        need(banyan_world_barrier(world));
        double took = now_s() - start;
        uint64_t mine = rank >= SOURCES && rank % PER_NODE == 0 ? arrived_bytes() - before : 0;
        need(banyan_world_allgather(world, &mine, sizeof mine, all));
        if (round == 0 || took >= best)
            continue;
        best = took;
        wire = 0;
        for (int i = 0; i < RANKS; i++)
            wire += all[i];
    }
    if (rank == 0)
        printf("{\"seconds\": %.6f, \"bytes\": %" PRIu64 ", \"wire_bytes\": %" PRIu64 "}\n", best,
               (uint64_t)TENSORS * ROWS * COLUMNS * 2, wire);
    banyan_reshard_plan_destroy(plan);
    banyan_copy_service_close(service);
    banyan_tensors_destroy(source);
    banyan_tensors_destroy(destination);
    banyan_layout_destroy(from);
    banyan_layout_destroy(to);
    need(banyan_world_close(world));
}
