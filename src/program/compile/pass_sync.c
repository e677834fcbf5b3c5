#include <inttypes.h>

#include "program/compile/pass.h"
#include "program/ops.h"

static uint64_t pass_sync_count_nops(const plan_op *ops, uint32_t count)
{
    uint64_t nops = 0;
    for (uint32_t i = 0; i < count; i++)
        nops += !!(ops[i].sync & PLAN_SYNC_BEFORE) + !!(ops[i].sync & PLAN_SYNC_AFTER);
    return nops;
}

banyan_status pass_sync(const ops_place *place, plan_op **ops, uint32_t *count)
{
    uint64_t nops = pass_sync_count_nops(*ops, *count);
    if (nops == 0)
        return BANYAN_OK;
    if (nops > UINT32_MAX - *count)
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d, thread block %" PRIu32 ": too many operations", place->rank,
                         place->block->id);
    plan_op *placed = plan_take(place->plan, *count + nops, sizeof *placed);
    if (!placed)
        return BANYAN_ERR_NO_MEMORY;
    uint32_t written = 0;
    for (uint32_t i = 0; i < *count; i++) {
        plan_op op = (*ops)[i];
        unsigned sync = op.sync;
        op.sync = 0;
        if (sync & PLAN_SYNC_BEFORE)
            placed[written++] = (plan_op){.kind = PLAN_NOP};
        placed[written++] = op;
        if (sync & PLAN_SYNC_AFTER)
            placed[written++] = (plan_op){.kind = PLAN_NOP};
    }
    *ops = placed;
    *count = written;
    return BANYAN_OK;
}
