/* The table that is built in: measured on one machine of 2 cores with 2, 4 and 8 ranks, and meant
 * to be replaced by `banyan tune` where it matters. */
#include "collective/tuning.h"

#include <stdio.h>
#include <string.h>

#include "core/error.h"

#define ALL UINT64_MAX
#define KIB(count) (UINT64_C(count) << 10)

/* For so many ranks; 0: any that has no rows of its own. */
struct entry {
    banyan_collective_kind kind;
    int ranks;
    bool registered;
    uint64_t up_to_bytes;
    const char *algorithm;
};

static const struct entry entries[] = {
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

banyan_status tuning_default(tuning *table)
{
    size_t count = sizeof entries / sizeof *entries;
    if (!array_reserve(&table->rows, count))
        return BANYAN_ERR_NO_MEMORY;
    for (size_t i = 0; i < count; i++) {
        tuning_row row = {.kind = entries[i].kind,
                          .ranks = entries[i].ranks,
                          .registered = entries[i].registered,
                          .up_to_bytes = entries[i].up_to_bytes};
        snprintf(row.algorithm, sizeof row.algorithm, "%s", entries[i].algorithm);
        table->rows.data[table->rows.count++] = row;
    }
    return BANYAN_OK;
}
