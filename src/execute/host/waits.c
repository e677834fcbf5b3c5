#include "execute/host/waits.h"

#include <inttypes.h>
#include <stdio.h>

#include "execute/load/loaded.h"

static const step *step_at(const task *t)
{
    return &t->steps[t->at];
}

bool wait_is_inside(const task *t)
{
    step_kind kind = step_at(t)->kind;
    return kind == STEP_ACQUIRE || kind == STEP_BARRIER;
}

/* Return the rank that writes the packets of a source; -1: none does. */
static int packet_writer(const banyan_plan *plan, int reader, const plan_operand *source)
{
    int found = -1;
    for (plan_cursor at = {.plan = plan}; plan_cursor_next(&at);) {
        if (plan_op_writes_to(plan, at.rank, at.block, at.op, reader, source))
            found = at.rank;
    }
    return found;
}

static void describe_end(const step *s, const task *t, char *who, char *where, size_t bytes)
{
    const channel_end *end = s->ends[t->index < s->end_count ? t->index : 0];
    if (s->kind == STEP_WAIT)
        snprintf(who, bytes, "rank %d", end->peer);
    else
        snprintf(who, bytes, "its puts to rank %d", end->peer);
    snprintf(where, bytes, " on %s channel %" PRIu32, plan_channel_name(s->whole->channel_type),
             end->number);
}

static void describe_packets(const plan_run *of, const step *s, const task *t, char *who,
                             char *where, size_t bytes)
{
    const plan_operand *source = &s->op->sources[t->index < s->op->source_count ? t->index : 0];
    int writer = packet_writer(of->loaded->plan, of->loaded->executor->rank, source);
    if (writer < 0)
        snprintf(who, bytes, "packets that nobody writes");
    else
        snprintf(who, bytes, "rank %d", writer);
    snprintf(where, bytes, " on packets in scratch chunks [%" PRIu64 ", %" PRIu64 ")",
             source->index, source->index + source->size);
}

static bool waits_for_end(const step *s)
{
    return s->kind == STEP_WAIT || s->kind == STEP_FLUSH || s->kind == STEP_POST_SIGNAL ||
           s->kind == STEP_POST_COPY || s->kind == STEP_POST_PACK;
}

bool wait_is_for_peer(const task *t)
{
    const step *s = step_at(t);
    if (wait_is_inside(t))
        return false;
    return waits_for_end(s) ? s->end_count > 0 : s->op && s->op->source_count > 0;
}

int wait_peer(const plan_run *of, const task *t)
{
    const step *s = step_at(t);
    if (!wait_is_for_peer(t))
        return -1;
    if (waits_for_end(s))
        return s->ends[t->index < s->end_count ? t->index : 0]->peer;
    return packet_writer(of->loaded->plan, of->loaded->executor->rank,
                         &s->op->sources[t->index < s->op->source_count ? t->index : 0]);
}

void wait_describe(const plan_run *of, const task *t, char text[WAIT_TEXT_BYTES])
{
    const step *s = step_at(t);
    char who[64] = "its other thread blocks", where[96] = "", round[48] = "";
    if (waits_for_end(s))
        describe_end(s, t, who, where, sizeof who);
    else if (s->kind == STEP_BARRIER)
        snprintf(where, sizeof where, " at barrier %" PRIu32, s->op->barrier);
    else if (s->kind == STEP_ACQUIRE)
        snprintf(where, sizeof where, " on semaphore %" PRIu32, s->op->semaphores[t->index]);
    else
        describe_packets(of, s, t, who, where, sizeof who);
    if (s->loop)
        snprintf(round, sizeof round, ", iteration %" PRIu64, t->iteration);
    snprintf(text, WAIT_TEXT_BYTES,
             "for %s: thread block %" PRIu32 ", operation %" PRIu32 " (%s%s)%s", who, t->block->id,
             s->number, plan_op_name(s->whole->kind), round, where);
}
