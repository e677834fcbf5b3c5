/* Choose which signals of a device publish data.
 *
 * A relaxed signal announces an event and publishes no writes. Some plans still give
 * one after their last stores; their callers wait for all ranks before they read. But a run that
 * stages its buffers reads them as soon as its waits are over. So a signal remains relaxed only
 * where it has nothing to publish. */
#include "execute/device/program.h"

#include <stdlib.h>
#include <string.h>

#include "execute/load/binding.h"

/* A traversal of a thread block. */
struct follower {
    engine_arrays *all;
    engine_step *steps;
    bool *pending; /* by channel end: the block has writes that it has not published there */
    uint32_t end_count;
};

static void set_all(struct follower *at, bool pending)
{
    memset(at->pending, pending, at->end_count * sizeof *at->pending);
}

/* Packets publish themselves, so they do not count. */
static bool writes_data(const struct follower *at, const engine_step *s)
{
    if (!s->in_loop && s->piece_count == 0)
        return false;
    const uint32_t *destinations = at->all->operands.data + s->operands + s->source_count;
    bool data = false;
    for (uint32_t i = 0; i < s->destination_count; i++)
        data |= !(destinations[i] & ENGINE_PACKETS);
    return data;
}

static bool brings_something(const struct follower *at, const engine_step *s)
{
    switch ((step_kind)s->kind) {
    case STEP_COPY:
    case STEP_UNPACK:
    case STEP_COMBINE:
        return writes_data(at, s);
    case STEP_WAIT:
    case STEP_FLUSH:
    case STEP_ACQUIRE:
    case STEP_BARRIER:
        return true;
    default:
        return false;
    }
}

static void order_publish(struct follower *at, engine_step *s)
{
    const uint32_t *ends = at->all->ends.data + s->ends;
    for (uint32_t i = 0; i < s->end_count; i++) {
        if (at->pending[ends[i]])
            s->relaxed = 0;
    }
    for (uint32_t i = 0; i < s->end_count && !s->relaxed; i++)
        at->pending[ends[i]] = false;
}

static void order_follow(struct follower *at, uint32_t begin, uint32_t end)
{
    for (uint32_t i = begin; i < end; i++) {
        if (at->steps[i].kind == STEP_SIGNAL)
            order_publish(at, &at->steps[i]);
        else if (brings_something(at, &at->steps[i]))
            set_all(at, true);
    }
}

/* Follow the body of a loop twice: its last steps precede its first signals of the next iteration.
 * Later iterations have the effect of the second. */
static void follow_block(struct follower *at, uint32_t step_count)
{
    for (uint32_t i = 0; i < step_count; i++) {
        if (at->steps[i].kind != STEP_LOOP) {
            order_follow(at, i, i + 1);
            continue;
        }
        uint32_t behind = at->steps[i].jump;
        for (uint32_t k = 0; k < at->steps[i].iterations && k < 2; k++)
            order_follow(at, i + 1, behind);
        i = behind - 1;
    }
}

banyan_status engine_order(const banyan_loaded_plan *loaded, engine_arrays *arrays)
{
    const plan_rank *rank = &loaded->plan->ranks[loaded->executor->rank];
    struct follower at = {.all = arrays,
                          .end_count =
                              rank->channel_count[PLAN_MEMORY] + rank->channel_count[PLAN_PORT]};
    at.pending = calloc(at.end_count + 1, sizeof *at.pending);
    if (!at.pending)
        return error_no_memory(at.end_count + 1, "a plan's channels");
    bool staged = binding_is_staged(loaded, loaded->executor->rank,
                                    loaded->plan->in_place ? loaded->longer : PLAN_INPUT);
    for (size_t b = 0; b < arrays->blocks.count; b++) {
        const engine_block *block = &arrays->blocks.data[b];
        at.steps = arrays->steps.data + block->first_step;
        set_all(&at, staged);
        follow_block(&at, block->step_count);
    }
    free(at.pending);
    return BANYAN_OK;
}
