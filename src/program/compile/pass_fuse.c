/* A peephole pass over each thread block, and over the body of each loop in it. */
#include "program/compile/fuse.h"
#include "program/compile/pass.h"

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
    fuse with = {place, {0}};
    uint32_t kept = 0;
    for (uint32_t i = 0; i < *count; i++) {
        plan_op next = (*ops)[i];
        bool joined = false;
        if (kept > 0)
            RETURN_IF_FAILED(pass_fuse_join(&with, &(*ops)[kept - 1], &next, &joined));
        if (!joined) {
            (*ops)[kept++] = next;
            with.room = (fuse_room){0};
        }
    }
    *count = kept;
    return BANYAN_OK;
}
