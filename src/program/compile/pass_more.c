/* Join operations that MSCCL++'s language leaves separate. */
#include "program/compile/fuse.h"
#include "program/compile/pass.h"

static bool same_port(const plan_op *a, const plan_op *b)
{
    return a->channel_type == PLAN_PORT && b->channel_type == PLAN_PORT && a->channel_count == 1 &&
           b->channel_count == 1 && a->channels[0] == b->channels[0];
}

/* The proxy processes a port channel's requests in order, so the put's own thread may post its
 * follower too. Synchronization that the follower requires before itself is provided before the
 * put. */
static bool join_put(plan_op *put, const plan_op *next)
{
    if (!same_port(put, next))
        return false;
    if (put->kind == PLAN_PUT && next->kind == PLAN_SIGNAL)
        put->kind = PLAN_PUT_WITH_SIGNAL;
    else if (put->kind == PLAN_PUT_WITH_SIGNAL && next->kind == PLAN_FLUSH)
        put->kind = PLAN_PUT_WITH_SIGNAL_AND_FLUSH;
    else
        return false;
    put->sync |= next->sync;
    return true;
}

banyan_status pass_more(const ops_place *place, plan_op **ops, uint32_t *count)
{
    fuse with = {place, {0}};
    uint32_t kept = 0;
    for (uint32_t i = 0; i < *count; i++) {
        plan_op next = (*ops)[i];
        bool joined = kept > 0 && join_put(&(*ops)[kept - 1], &next);
        if (kept > 0 && !joined)
            RETURN_IF_FAILED(fuse_chain(&with, &(*ops)[kept - 1], &next, &joined));
        if (!joined) {
            (*ops)[kept++] = next;
            with.room = (fuse_room){0};
        }
    }
    *count = kept;
    return BANYAN_OK;
}
