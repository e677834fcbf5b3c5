#include "copy/service/device.h"

#include <stdlib.h>
#include <string.h>

#include "copy/match/match.h"
#include "core/deadline.h"
#include "core/error.h"

banyan_status copy_device_find(DLDevice device, const memory_device_ops **memory,
                               const module_tables **tables)
{
    RETURN_IF_FAILED(memory_device_find(device.device_type, memory));
    RETURN_IF_FAILED((*memory)->open(device.device_id));
    return module_load((*memory)->name, tables);
}

banyan_status copy_device_sharers(banyan_world *world, const memory_device_ops *memory, int device,
                                  int *sharers)
{
    size_t size = (size_t)banyan_world_size(world);
    unsigned char mine[DEVICE_UUID_BYTES] = {0}, *all = malloc(size * sizeof mine);
    banyan_status status = all ? memory->identify(device, mine)
                               : error_no_memory(size * sizeof mine, "the devices of a world");
    status = copy_agree(world, status);
    if (status == BANYAN_OK)
        status = banyan_world_allgather(world, mine, sizeof mine, all);
    int found = 0;
    for (size_t i = 0; status == BANYAN_OK && i < size; i++)
        found += memcmp(all + i * sizeof mine, mine, sizeof mine) == 0;
    free(all);
    if (status == BANYAN_OK)
        *sharers = found;
    return status;
}

banyan_status copy_device_status(banyan_world *world, const char *who, control_timeout timeout,
                                 const device_report *report, const char *lacks)
{
    int rank = banyan_world_rank(world);
    char own[CONTROL_RANK_BYTES], late[CONTROL_LATE_BYTES];
    int peer = device_report_rank(report);
    switch ((device_verdict)report->verdict) {
    case DEVICE_FINE:
        return BANYAN_OK;
    case DEVICE_LATE:
        control_device_late(world, peer, late, sizeof late);
        return error_set(BANYAN_ERR_TIMEOUT, "%s: %s waited %.1f s for %s%s; %s" TIMEOUT_SETS, who,
                         control_own_name(world, own), (double)report->waited_ns / (double)NS_PER_S,
                         lacks, late, timeout_name(timeout.option));
    case DEVICE_SPOILT:
        return error_set(BANYAN_ERR_ABORTED,
                         "%s: rank %d got no batch from rank %d, whose run has failed", who, rank,
                         peer);
    case DEVICE_STOPPED:
        break;
    }
    RETURN_IF_FAILED(banyan_world_check(world));
    return error_set(BANYAN_ERR_ABORTED,
                     "%s: an earlier run on this service of rank %d ended in the middle", who,
                     rank);
}
