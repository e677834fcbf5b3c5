/* Peephole passes over each thread block, and over the body of each loop in it. */
#include "program/compile/fuse.h"

typedef banyan_status (*fuse_join)(fuse *with, plan_op *current, plan_op *next, bool *joined);

static banyan_status fuse_list(const ops_place *place, plan_op **ops, uint32_t *count,
                               fuse_join join)
{
    fuse with = {place, {0}};
    uint32_t kept = 0;
    for (uint32_t i = 0; i < *count; i++) {
        plan_op next = (*ops)[i];
        bool joined = false;
        if (kept > 0)
            RETURN_IF_FAILED(join(&with, &(*ops)[kept - 1], &next, &joined));
        if (!joined) {
            (*ops)[kept++] = next;
            with.room = (fuse_room){0};
        }
    }
    *count = kept;
    return BANYAN_OK;
}

static banyan_status pass_fuse_join(fuse *with, plan_op *current, plan_op *next, bool *joined)
{
    RETURN_IF_FAILED(fuse_sync(with, current, next, joined));
    if (!*joined)
        RETURN_IF_FAILED(fuse_moves(with, current, next, joined));
    if (!*joined)
        RETURN_IF_FAILED(fuse_reduce(with, current, next, joined));
    if (!*joined)
        RETURN_IF_FAILED(fuse_switch(with, current, next, joined));
    return BANYAN_OK;
}

banyan_status pass_fuse(const ops_place *place, plan_op **ops, uint32_t *count)
{
    return fuse_list(place, ops, count, pass_fuse_join);
}

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

static banyan_status pass_more_join(fuse *with, plan_op *current, plan_op *next, bool *joined)
{
    *joined = join_put(current, next);
    return *joined ? BANYAN_OK : fuse_chain(with, current, next, joined);
}

/* Join operations that MSCCL++'s language leaves separate. */
banyan_status pass_more(const ops_place *place, plan_op **ops, uint32_t *count)
{
    return fuse_list(place, ops, count, pass_more_join);
}
