#include "copy/service/device_report.h"

#include "core/deadline.h"
#include "core/error.h"

banyan_status device_report_status(banyan_world *world, const char *who, control_timeout timeout,
                                   const device_report *report, const char *lacks)
{
    int rank = banyan_world_rank(world);
    char own[CONTROL_RANK_BYTES], late[CONTROL_LATE_BYTES];
    switch (report->verdict) {
    case DEVICE_FINE:
        return BANYAN_OK;
    case DEVICE_LATE:
        control_device_late(world, report->peer, late, sizeof late);
        return error_set(BANYAN_ERR_TIMEOUT, "%s: %s waited %.1f s for %s%s; %s" TIMEOUT_SETS, who,
                         control_own_name(world, own), (double)report->waited_ns / (double)NS_PER_S,
                         lacks, late, timeout_name(timeout.option));
    case DEVICE_SPOILT:
        return error_set(BANYAN_ERR_ABORTED,
                         "%s: rank %d got no batch from rank %d, whose run has failed", who, rank,
                         report->peer);
    case DEVICE_STOPPED:
        break;
    }
    RETURN_IF_FAILED(banyan_world_check(world));
    return error_set(BANYAN_ERR_ABORTED,
                     "%s: an earlier run on this service of rank %d ended in the middle", who,
                     rank);
}
