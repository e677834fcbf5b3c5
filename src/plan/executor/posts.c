/* The order of posts to port channels. */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "plan/executor/mscclpp.h"

enum { NO_THREAD = -1, SEVERAL_THREADS = -2 };

static bool posts_data(plan_op_kind kind)
{
    return kind == PLAN_PUT || kind == PLAN_PUT_WITH_SIGNAL ||
           kind == PLAN_PUT_WITH_SIGNAL_AND_FLUSH || kind == PLAN_READ_PUT_PACKET ||
           kind == PLAN_PUT_PACKET;
}

/* True for operations that have a meaning for what was posted before. */
static bool posts_in_order(plan_op_kind kind)
{
    return kind == PLAN_SIGNAL || kind == PLAN_FLUSH || kind == PLAN_PUT_WITH_SIGNAL ||
           kind == PLAN_PUT_WITH_SIGNAL_AND_FLUSH;
}

banyan_status mscclpp_posts_make(const plan_thread_block *block, mscclpp_posts *posts)
{
    posts->count = block->channel_count[PLAN_PORT];
    posts->thread = malloc((posts->count + 1) * sizeof *posts->thread);
    if (!posts->thread)
        return error_no_memory(posts->count * sizeof *posts->thread, "a thread block's posts");
    for (uint32_t i = 0; i < posts->count; i++)
        posts->thread[i] = NO_THREAD;
    return BANYAN_OK;
}

void mscclpp_posts_free(mscclpp_posts *posts)
{
    free(posts->thread);
}

uint32_t mscclpp_posts_conflict(const mscclpp_posts *posts, const plan_op *op)
{
    if (op->channel_type != PLAN_PORT || !posts_in_order(op->kind))
        return op->channel_count;
    for (uint32_t i = 0; i < op->channel_count; i++) {
        int thread = posts->thread[op->channels[i]];
        for (uint32_t k = 0; k < i; k++) {
            if (op->channels[k] == op->channels[i])
                return i;
        }
        if (thread != NO_THREAD && thread != (int)i)
            return i;
    }
    return op->channel_count;
}

void mscclpp_posts_note(mscclpp_posts *posts, const plan_op *op)
{
    /* Threads that forward packets through a port synchronize before they post. */
    if (op->kind == PLAN_NOP || op->kind == PLAN_BARRIER ||
        (op->kind == PLAN_READ_PUT_PACKET && op->channel_type == PLAN_PORT)) {
        for (uint32_t i = 0; i < posts->count; i++)
            posts->thread[i] = NO_THREAD;
    }
    if (op->channel_type != PLAN_PORT || (!posts_data(op->kind) && !posts_in_order(op->kind)))
        return;
    for (uint32_t i = 0; i < op->channel_count; i++) {
        int *thread = &posts->thread[op->channels[i]];
        if (*thread != NO_THREAD && *thread != (int)i)
            *thread = SEVERAL_THREADS;
        else
            *thread = (int)i;
    }
}
