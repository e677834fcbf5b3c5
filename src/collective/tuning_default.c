/* The table that is built in, for any number of ranks: measured on one machine of 2 cores with 2 to
 * 8 ranks, and meant to be replaced by `banyan tune` where it matters. */
#include "collective/tuning.h"

#include <stdio.h>
#include <string.h>

#include "core/error.h"

#define ALL UINT64_MAX
#define KIB(count) (UINT64_C(count) << 10)

struct entry {
    banyan_collective_kind kind;
    bool registered;
    uint64_t up_to_bytes;
    const char *algorithm;
};

static const struct entry entries[] = {
    {BANYAN_ALLREDUCE, false, 256, "allreduce_packets"},
    {BANYAN_ALLREDUCE, false, KIB(64), "allreduce_doubling"},
    {BANYAN_ALLREDUCE, false, KIB(1024), "allreduce_twoshot"},
    {BANYAN_ALLREDUCE, false, ALL, "allreduce_pipelined"},
    {BANYAN_ALLREDUCE, true, 256, "allreduce_packets"},
    {BANYAN_ALLREDUCE, true, KIB(2), "allreduce_doubling"},
    {BANYAN_ALLREDUCE, true, ALL, "allreduce_twoshot_direct"},
    {BANYAN_ALLGATHER, false, 256, "allgather_packets"},
    {BANYAN_ALLGATHER, false, KIB(256), "allgather_allpairs"},
    {BANYAN_ALLGATHER, false, ALL, "allgather_pipelined"},
    {BANYAN_ALLGATHER, true, 256, "allgather_packets"},
    {BANYAN_ALLGATHER, true, KIB(2), "allgather_allpairs"},
    {BANYAN_ALLGATHER, true, ALL, "allgather_direct"},
    {BANYAN_REDUCESCATTER, false, 512, "reducescatter_packets"},
    {BANYAN_REDUCESCATTER, false, KIB(1024), "reducescatter_allpairs"},
    {BANYAN_REDUCESCATTER, false, ALL, "reducescatter_pipelined"},
    {BANYAN_REDUCESCATTER, true, 512, "reducescatter_packets"},
    {BANYAN_REDUCESCATTER, true, KIB(4), "reducescatter_allpairs"},
    {BANYAN_REDUCESCATTER, true, ALL, "reducescatter_direct"},
    {BANYAN_ALLTOALL, false, 512, "alltoall_packets"},
    {BANYAN_ALLTOALL, false, KIB(1024), "alltoall_allpairs"},
    {BANYAN_ALLTOALL, false, ALL, "alltoall_pipelined"},
    {BANYAN_ALLTOALL, true, 512, "alltoall_packets"},
    {BANYAN_ALLTOALL, true, KIB(8), "alltoall_allpairs"},
    {BANYAN_ALLTOALL, true, ALL, "alltoall_direct"},
    {BANYAN_SENDRECV, false, KIB(1), "sendrecv_packets"},
    {BANYAN_SENDRECV, false, ALL, "sendrecv_pipelined"},
    {BANYAN_SENDRECV, true, 512, "sendrecv_packets"},
    {BANYAN_SENDRECV, true, ALL, "sendrecv_direct"},
    {BANYAN_BROADCAST, false, 128, "broadcast_packets"},
    {BANYAN_BROADCAST, false, KIB(1024), "broadcast_allpairs"},
    {BANYAN_BROADCAST, false, ALL, "broadcast_pipelined"},
    {BANYAN_BROADCAST, true, 128, "broadcast_packets"},
    {BANYAN_BROADCAST, true, KIB(2), "broadcast_allpairs"},
    {BANYAN_BROADCAST, true, ALL, "broadcast_direct"},
    {BANYAN_REDUCE, false, 512, "reduce_packets"},
    {BANYAN_REDUCE, false, KIB(256), "reduce_oneshot"},
    {BANYAN_REDUCE, false, ALL, "reduce_pipelined"},
    {BANYAN_REDUCE, true, 512, "reduce_packets"},
    {BANYAN_REDUCE, true, KIB(8), "reduce_oneshot"},
    {BANYAN_REDUCE, true, ALL, "reduce_direct"},
};

banyan_status tuning_default(tuning *table)
{
    size_t count = sizeof entries / sizeof *entries;
    if (!array_reserve(&table->rows, count))
        return BANYAN_ERR_NO_MEMORY;
    for (size_t i = 0; i < count; i++) {
        tuning_row row = {.kind = entries[i].kind,
                          .registered = entries[i].registered,
                          .up_to_bytes = entries[i].up_to_bytes};
        snprintf(row.algorithm, sizeof row.algorithm, "%s", entries[i].algorithm);
        table->rows.data[table->rows.count++] = row;
    }
    return BANYAN_OK;
}
