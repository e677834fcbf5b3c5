/* The built-in table. Use `banyan tune` for a table of your own machine. Rows for the host were
 * measured on one machine of 2 cores with 2, 4 and 8 ranks. */
#include "collective/tuning.h"

#include <stdio.h>
#include <string.h>

#include "core/error.h"

#define ALL UINT64_MAX
#define KIB(count) (UINT64_C(count) << 10)

/* `ranks` 0: any number without rows of its own. */
struct tuning_entry {
    banyan_collective_kind kind;
    int ranks;
    bool registered;
    uint64_t up_to_bytes;
    const char *algorithm;
};

static const struct tuning_entry one_node[] = {
    {BANYAN_ALLREDUCE, 2, false, 256, "allreduce_packets"},
    {BANYAN_ALLREDUCE, 2, false, KIB(64), "allreduce_doubling"},
    {BANYAN_ALLREDUCE, 2, false, KIB(1024), "allreduce_twoshot"},
    {BANYAN_ALLREDUCE, 2, false, ALL, "allreduce_pipelined"},
    {BANYAN_ALLREDUCE, 8, false, KIB(2), "allreduce_doubling"},
    {BANYAN_ALLREDUCE, 8, false, KIB(1024), "allreduce_twoshot"},
    {BANYAN_ALLREDUCE, 8, false, ALL, "allreduce_pipelined"},
    {BANYAN_ALLREDUCE, 0, false, 256, "allreduce_packets"},
    {BANYAN_ALLREDUCE, 0, false, KIB(2), "allreduce_doubling"},
    {BANYAN_ALLREDUCE, 0, false, KIB(1024), "allreduce_twoshot"},
    {BANYAN_ALLREDUCE, 0, false, ALL, "allreduce_pipelined"},
    {BANYAN_ALLREDUCE, 8, true, KIB(2), "allreduce_doubling"},
    {BANYAN_ALLREDUCE, 8, true, ALL, "allreduce_twoshot_direct"},
    {BANYAN_ALLREDUCE, 0, true, 256, "allreduce_packets"},
    {BANYAN_ALLREDUCE, 0, true, KIB(2), "allreduce_doubling"},
    {BANYAN_ALLREDUCE, 0, true, ALL, "allreduce_twoshot_direct"},
    {BANYAN_ALLGATHER, 0, false, 256, "allgather_packets"},
    {BANYAN_ALLGATHER, 0, false, KIB(256), "allgather_allpairs"},
    {BANYAN_ALLGATHER, 0, false, ALL, "allgather_pipelined"},
    {BANYAN_ALLGATHER, 0, true, 256, "allgather_packets"},
    {BANYAN_ALLGATHER, 0, true, KIB(2), "allgather_allpairs"},
    {BANYAN_ALLGATHER, 0, true, ALL, "allgather_direct"},
    {BANYAN_REDUCESCATTER, 0, false, 512, "reducescatter_packets"},
    {BANYAN_REDUCESCATTER, 0, false, KIB(1024), "reducescatter_allpairs"},
    {BANYAN_REDUCESCATTER, 0, false, ALL, "reducescatter_pipelined"},
    {BANYAN_REDUCESCATTER, 0, true, 512, "reducescatter_packets"},
    {BANYAN_REDUCESCATTER, 0, true, KIB(4), "reducescatter_allpairs"},
    {BANYAN_REDUCESCATTER, 0, true, ALL, "reducescatter_direct"},
    {BANYAN_ALLTOALL, 0, false, 512, "alltoall_packets"},
    {BANYAN_ALLTOALL, 0, false, KIB(1024), "alltoall_allpairs"},
    {BANYAN_ALLTOALL, 0, false, ALL, "alltoall_pipelined"},
    {BANYAN_ALLTOALL, 0, true, 512, "alltoall_packets"},
    {BANYAN_ALLTOALL, 0, true, KIB(8), "alltoall_allpairs"},
    {BANYAN_ALLTOALL, 0, true, ALL, "alltoall_direct"},
    {BANYAN_SENDRECV, 0, false, KIB(1), "sendrecv_packets"},
    {BANYAN_SENDRECV, 0, false, ALL, "sendrecv_pipelined"},
    {BANYAN_SENDRECV, 0, true, 512, "sendrecv_packets"},
    {BANYAN_SENDRECV, 0, true, ALL, "sendrecv_direct"},
    {BANYAN_BROADCAST, 0, false, 128, "broadcast_packets"},
    {BANYAN_BROADCAST, 0, false, KIB(1024), "broadcast_allpairs"},
    {BANYAN_BROADCAST, 0, false, ALL, "broadcast_pipelined"},
    {BANYAN_BROADCAST, 0, true, 128, "broadcast_packets"},
    {BANYAN_BROADCAST, 0, true, KIB(2), "broadcast_allpairs"},
    {BANYAN_BROADCAST, 0, true, ALL, "broadcast_direct"},
    {BANYAN_REDUCE, 0, false, 512, "reduce_packets"},
    {BANYAN_REDUCE, 0, false, KIB(256), "reduce_oneshot"},
    {BANYAN_REDUCE, 0, false, ALL, "reduce_pipelined"},
    {BANYAN_REDUCE, 0, true, 512, "reduce_packets"},
    {BANYAN_REDUCE, 0, true, KIB(8), "reduce_oneshot"},
    {BANYAN_REDUCE, 0, true, ALL, "reduce_direct"},
};

/* Ordinary outputs on the host receive puts of other nodes without staging (transport.h). */
static const struct tuning_entry several_nodes_on_host[] = {
    {BANYAN_ALLGATHER, 2, false, KIB(1024), "allgather_hierarchical"},
    {BANYAN_ALLGATHER, 2, false, ALL, "allgather_hierarchical_direct"},
    {BANYAN_ALLTOALL, 0, false, KIB(256), "alltoall_hierarchical"},
    {BANYAN_ALLTOALL, 0, false, ALL, "alltoall_hierarchical_direct"},
};
static const struct tuning_entry several_nodes_on_gpus[] = {
    {BANYAN_ALLGATHER, 2, false, ALL, "allgather_hierarchical"},
    {BANYAN_ALLTOALL, 0, false, KIB(1024), "alltoall_hierarchical"},
    {BANYAN_ALLTOALL, 0, false, ALL, "alltoall_hierarchical_pairs"},
};

/* Measured with 2 and 4 ranks on 2 nodes. Two ranks on several nodes have a node each. */
static const struct tuning_entry several_nodes[] = {
    {BANYAN_ALLREDUCE, 2, false, ALL, "allreduce_hierarchical_leaders"},
    {BANYAN_ALLREDUCE, 2, true, ALL, "allreduce_hierarchical_leaders"},
    {BANYAN_ALLREDUCE, 0, false, KIB(4), "allreduce_hierarchical_leaders"},
    {BANYAN_ALLREDUCE, 0, false, KIB(256), "allreduce_hierarchical_oneshot"},
    {BANYAN_ALLREDUCE, 0, false, ALL, "allreduce_hierarchical"},
    {BANYAN_ALLREDUCE, 0, true, KIB(4), "allreduce_hierarchical_leaders"},
    {BANYAN_ALLREDUCE, 0, true, KIB(256), "allreduce_hierarchical_oneshot"},
    {BANYAN_ALLREDUCE, 0, true, ALL, "allreduce_hierarchical"},
    {BANYAN_ALLGATHER, 2, true, KIB(1024), "allgather_hierarchical"},
    {BANYAN_ALLGATHER, 2, true, ALL, "allgather_hierarchical_direct"},
    {BANYAN_ALLGATHER, 0, false, KIB(4), "allgather_hierarchical_leaders"},
    {BANYAN_ALLGATHER, 0, false, ALL, "allgather_hierarchical"},
    {BANYAN_ALLGATHER, 0, true, KIB(4), "allgather_hierarchical_leaders"},
    {BANYAN_ALLGATHER, 0, true, KIB(1024), "allgather_hierarchical"},
    {BANYAN_ALLGATHER, 0, true, ALL, "allgather_hierarchical_direct"},
    {BANYAN_REDUCESCATTER, 0, false, ALL, "reducescatter_hierarchical"},
    {BANYAN_REDUCESCATTER, 0, true, ALL, "reducescatter_hierarchical"},
    {BANYAN_ALLTOALL, 0, true, KIB(256), "alltoall_hierarchical"},
    {BANYAN_ALLTOALL, 0, true, ALL, "alltoall_hierarchical_direct"},
    {BANYAN_SENDRECV, 0, false, ALL, "sendrecv_hierarchical"},
    {BANYAN_SENDRECV, 0, true, ALL, "sendrecv_hierarchical"},
    {BANYAN_BROADCAST, 0, false, ALL, "broadcast_hierarchical"},
    {BANYAN_BROADCAST, 0, true, ALL, "broadcast_hierarchical"},
    {BANYAN_REDUCE, 0, false, ALL, "reduce_hierarchical"},
    {BANYAN_REDUCE, 0, true, ALL, "reduce_hierarchical"},
};

/* On GPUs of one machine. All-reduce, all-gather, reduce-scatter and all-to-all were measured on
 * four H200 joined by NVLink; the others follow from their plans' operations. An instance is one
 * thread block of most algorithms, and two or three of a pipeline; on a smaller device fewer are
 * used. */
struct gpu_entry {
    banyan_collective_kind kind;
    int ranks; /* as in struct tuning_entry */
    bool registered;
    uint64_t up_to_bytes;
    const char *algorithm;
    int instances;
    uint64_t unit_bytes;
};

static const struct gpu_entry gpu_entries[] = {
    {BANYAN_ALLREDUCE, 2, false, KIB(2), "allreduce_packets", 2, 0},
    {BANYAN_ALLREDUCE, 2, false, KIB(8), "allreduce_packets", 8, 0},
    {BANYAN_ALLREDUCE, 2, false, KIB(24), "allreduce_packets", 16, 0},
    {BANYAN_ALLREDUCE, 2, false, KIB(384), "allreduce_packets", 64, 0},
    {BANYAN_ALLREDUCE, 2, false, KIB(1536), "allreduce_oneshot", 64, 0},
    {BANYAN_ALLREDUCE, 2, true, KIB(2), "allreduce_packets", 2, 0},
    {BANYAN_ALLREDUCE, 2, true, KIB(8), "allreduce_packets", 8, 0},
    {BANYAN_ALLREDUCE, 2, true, KIB(24), "allreduce_packets", 16, 0},
    {BANYAN_ALLREDUCE, 2, true, KIB(384), "allreduce_packets", 64, 0},
    {BANYAN_ALLREDUCE, 2, true, KIB(1536), "allreduce_oneshot", 64, 0},
    {BANYAN_ALLREDUCE, 0, false, KIB(2), "allreduce_packets", 2, 0},
    {BANYAN_ALLREDUCE, 0, false, KIB(8), "allreduce_packets", 8, 0},
    {BANYAN_ALLREDUCE, 0, false, KIB(24), "allreduce_packets", 16, 0},
    {BANYAN_ALLREDUCE, 0, false, KIB(96), "allreduce_packets", 64, 0},
    {BANYAN_ALLREDUCE, 0, false, KIB(384), "allreduce_packets_twoshot", 64, 0},
    {BANYAN_ALLREDUCE, 0, false, KIB(768), "allreduce_packets_twoshot", 32, 0},
    {BANYAN_ALLREDUCE, 0, false, KIB(3072), "allreduce_twoshot", 64, 0},
    {BANYAN_ALLREDUCE, 0, false, KIB(114688), "allreduce_twoshot", 128, 0},
    {BANYAN_ALLREDUCE, 0, false, ALL, "allreduce_ports_scratch", 64, 0},
    {BANYAN_ALLREDUCE, 0, true, KIB(2), "allreduce_packets", 2, 0},
    {BANYAN_ALLREDUCE, 0, true, KIB(8), "allreduce_packets", 8, 0},
    {BANYAN_ALLREDUCE, 0, true, KIB(24), "allreduce_packets", 16, 0},
    {BANYAN_ALLREDUCE, 0, true, KIB(96), "allreduce_packets", 64, 0},
    {BANYAN_ALLREDUCE, 0, true, KIB(384), "allreduce_packets_twoshot", 64, 0},
    {BANYAN_ALLREDUCE, 0, true, KIB(768), "allreduce_packets_twoshot", 32, 0},
    {BANYAN_ALLREDUCE, 0, true, KIB(1536), "allreduce_twoshot_direct", 32, 0},
    {BANYAN_ALLREDUCE, 0, true, KIB(3072), "allreduce_twoshot_direct", 64, 0},
    {BANYAN_ALLREDUCE, 0, true, KIB(8192), "allreduce_push_direct", 64, 0},
    {BANYAN_ALLREDUCE, 0, true, KIB(114688), "allreduce_push_direct", 128, 0},
    {BANYAN_ALLREDUCE, 0, true, ALL, "allreduce_ports", 128, 0},
    {BANYAN_ALLGATHER, 0, false, KIB(1), "allgather_packets", 4, 0},
    {BANYAN_ALLGATHER, 0, false, KIB(2), "allgather_packets", 8, 0},
    {BANYAN_ALLGATHER, 0, false, KIB(4), "allgather_packets", 16, 0},
    {BANYAN_ALLGATHER, 0, false, KIB(8), "allgather_packets", 32, 0},
    {BANYAN_ALLGATHER, 0, false, KIB(96), "allgather_packets", 64, 0},
    {BANYAN_ALLGATHER, 0, false, KIB(1024), "allgather_allpairs", 64, 0},
    {BANYAN_ALLGATHER, 0, false, KIB(12288), "allgather_allpairs", 128, 0},
    {BANYAN_ALLGATHER, 0, false, KIB(1048576), "allgather_ports_scratch", 64, 0},
    {BANYAN_ALLGATHER, 0, false, ALL, "allgather_allpairs", 128, 0},
    {BANYAN_ALLGATHER, 0, true, KIB(1), "allgather_packets", 4, 0},
    {BANYAN_ALLGATHER, 0, true, KIB(2), "allgather_packets", 8, 0},
    {BANYAN_ALLGATHER, 0, true, KIB(4), "allgather_packets", 16, 0},
    {BANYAN_ALLGATHER, 0, true, KIB(8), "allgather_packets", 32, 0},
    {BANYAN_ALLGATHER, 0, true, KIB(96), "allgather_packets", 64, 0},
    {BANYAN_ALLGATHER, 0, true, KIB(8192), "allgather_direct", 64, 0},
    {BANYAN_ALLGATHER, 0, true, KIB(20480), "allgather_direct", 128, 0},
    {BANYAN_ALLGATHER, 0, true, ALL, "allgather_ports", 8, 0},
    {BANYAN_REDUCESCATTER, 0, false, KIB(2), "reducescatter_packets", 2, 0},
    {BANYAN_REDUCESCATTER, 0, false, KIB(16), "reducescatter_packets", 8, 0},
    {BANYAN_REDUCESCATTER, 0, false, KIB(64), "reducescatter_packets", 32, 0},
    {BANYAN_REDUCESCATTER, 0, false, KIB(768), "reducescatter_packets", 64, 0},
    {BANYAN_REDUCESCATTER, 0, false, KIB(8192), "reducescatter_allpairs", 64, 0},
    {BANYAN_REDUCESCATTER, 0, false, KIB(114688), "reducescatter_allpairs", 128, 0},
    {BANYAN_REDUCESCATTER, 0, false, ALL, "reducescatter_ports", 128, 0},
    {BANYAN_REDUCESCATTER, 0, true, KIB(2), "reducescatter_packets", 2, 0},
    {BANYAN_REDUCESCATTER, 0, true, KIB(16), "reducescatter_packets", 8, 0},
    {BANYAN_REDUCESCATTER, 0, true, KIB(64), "reducescatter_packets", 32, 0},
    {BANYAN_REDUCESCATTER, 0, true, KIB(768), "reducescatter_packets", 64, 0},
    {BANYAN_REDUCESCATTER, 0, true, KIB(8192), "reducescatter_allpairs", 64, 0},
    {BANYAN_REDUCESCATTER, 0, true, KIB(32768), "reducescatter_allpairs", 128, 0},
    {BANYAN_REDUCESCATTER, 0, true, KIB(114688), "reducescatter_direct", 96, 0},
    {BANYAN_REDUCESCATTER, 0, true, ALL, "reducescatter_ports", 128, 0},
    {BANYAN_ALLTOALL, 0, false, KIB(2), "alltoall_packets", 2, 0},
    {BANYAN_ALLTOALL, 0, false, KIB(16), "alltoall_packets", 8, 0},
    {BANYAN_ALLTOALL, 0, false, KIB(64), "alltoall_packets", 32, 0},
    {BANYAN_ALLTOALL, 0, false, KIB(512), "alltoall_packets", 64, 0},
    {BANYAN_ALLTOALL, 0, false, KIB(8192), "alltoall_allpairs", 64, 0},
    {BANYAN_ALLTOALL, 0, false, KIB(65536), "alltoall_allpairs", 128, 0},
    {BANYAN_ALLTOALL, 0, false, KIB(4194304), "alltoall_ports_scratch", 64, 0},
    {BANYAN_ALLTOALL, 0, false, ALL, "alltoall_pipelined", 32, KIB(64)},
    {BANYAN_ALLTOALL, 0, true, KIB(2), "alltoall_packets", 2, 0},
    {BANYAN_ALLTOALL, 0, true, KIB(16), "alltoall_packets", 8, 0},
    {BANYAN_ALLTOALL, 0, true, KIB(64), "alltoall_packets", 32, 0},
    {BANYAN_ALLTOALL, 0, true, KIB(256), "alltoall_packets", 64, 0},
    {BANYAN_ALLTOALL, 0, true, KIB(65536), "alltoall_direct", 64, 0},
    {BANYAN_ALLTOALL, 0, true, ALL, "alltoall_ports", 8, 0},
    {BANYAN_SENDRECV, 0, false, KIB(4), "sendrecv_packets", 2, 0},
    {BANYAN_SENDRECV, 0, false, KIB(256), "sendrecv_packets", 16, 0},
    {BANYAN_SENDRECV, 0, false, ALL, "sendrecv_pipelined", 32, KIB(64)},
    {BANYAN_SENDRECV, 0, true, KIB(4), "sendrecv_packets", 2, 0},
    {BANYAN_SENDRECV, 0, true, KIB(128), "sendrecv_packets", 16, 0},
    {BANYAN_SENDRECV, 0, true, ALL, "sendrecv_direct", 64, 0},
    {BANYAN_BROADCAST, 0, false, KIB(4), "broadcast_packets", 2, 0},
    {BANYAN_BROADCAST, 0, false, KIB(256), "broadcast_packets", 16, 0},
    {BANYAN_BROADCAST, 0, false, ALL, "broadcast_pipelined", 32, KIB(64)},
    {BANYAN_BROADCAST, 0, true, KIB(4), "broadcast_packets", 2, 0},
    {BANYAN_BROADCAST, 0, true, KIB(128), "broadcast_packets", 16, 0},
    {BANYAN_BROADCAST, 0, true, ALL, "broadcast_direct", 64, 0},
    {BANYAN_REDUCE, 0, false, KIB(16), "reduce_packets", 2, 0},
    {BANYAN_REDUCE, 0, false, KIB(256), "reduce_packets", 32, 0},
    {BANYAN_REDUCE, 0, false, ALL, "reduce_pipelined", 32, KIB(64)},
};

static void add_gpu_rows(tuning *table, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        tuning_row row = {.kind = gpu_entries[i].kind,
                          .on_gpu = true,
                          .ranks = gpu_entries[i].ranks,
                          .registered = gpu_entries[i].registered,
                          .up_to_bytes = gpu_entries[i].up_to_bytes,
                          .instances = gpu_entries[i].instances,
                          .unit_bytes = gpu_entries[i].unit_bytes};
        snprintf(row.algorithm, sizeof row.algorithm, "%s", gpu_entries[i].algorithm);
        table->rows.data[table->rows.count++] = row;
    }
}

/* A GPU's puts to other nodes pass through few slots, so more parts do not make them faster. */
#define INSTANCES_OVER_NODES 4

static void tuning_default_add_rows(tuning *table, const struct tuning_entry *entries, size_t count,
                                    bool several, bool on_gpu)
{
    for (size_t i = 0; i < count; i++) {
        tuning_row row = {.kind = entries[i].kind,
                          .on_gpu = on_gpu,
                          .instances = on_gpu ? INSTANCES_OVER_NODES : 0,
                          .ranks = entries[i].ranks,
                          .several_nodes = several,
                          .registered = entries[i].registered,
                          .up_to_bytes = entries[i].up_to_bytes};
        snprintf(row.algorithm, sizeof row.algorithm, "%s", entries[i].algorithm);
        table->rows.data[table->rows.count++] = row;
    }
}

banyan_status tuning_default(tuning *table)
{
    size_t count = sizeof one_node / sizeof *one_node;
    size_t several_count = sizeof several_nodes / sizeof *several_nodes;
    size_t on_host = sizeof several_nodes_on_host / sizeof *several_nodes_on_host;
    size_t on_gpus = sizeof several_nodes_on_gpus / sizeof *several_nodes_on_gpus;
    size_t gpu_count = sizeof gpu_entries / sizeof *gpu_entries;
    if (!array_reserve(&table->rows, count + 2 * several_count + on_host + on_gpus + gpu_count))
        return BANYAN_ERR_NO_MEMORY;
    add_gpu_rows(table, gpu_count);
    tuning_default_add_rows(table, one_node, count, false, false);
    tuning_default_add_rows(table, several_nodes, several_count, true, false);
    tuning_default_add_rows(table, several_nodes_on_host, on_host, true, false);
    tuning_default_add_rows(table, several_nodes_on_gpus, on_gpus, true, true);
    tuning_default_add_rows(table, several_nodes, several_count, true, true);
    return BANYAN_OK;
}
