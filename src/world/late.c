#include "world/late.h"

#include <string.h>

#include "core/deadline.h"
#include "core/error.h"

/* A rank that is asked by many asks on once in so long. */
#define ASK_AGAIN_NS (25 * NS_PER_MS)

static void send_rank(struct endpoint *endpoint, const struct context *context, uint32_t kind,
                      int to, uint64_t number, int rank)
{
    int32_t payload = rank;
    struct wire_frame frame = {
        .kind = kind, .context = context->id, .tag = number, .bytes = sizeof payload};
    (void)endpoint_send(endpoint, to, &frame, &payload, -1);
}

void late_begin(struct context *context, uint64_t number, int job_rank)
{
    struct waiting *waiting = &context->waiting;
    if (waiting->active && waiting->number == number && waiting->rank == job_rank)
        return;
    late_end(context);
    waiting->active = true;
    waiting->number = number;
    waiting->rank = job_rank;
}

void late_end(struct context *context)
{
    struct waiting *waiting = &context->waiting;
    waiting->active = waiting->gives_up = waiting->answered = waiting->in_turn = false;
    waiting->asked_ns = 0;
    waiting->late = -1;
    waiting->askers.count = 0;
}

int late_rank(const struct endpoint *endpoint, const struct context *context)
{
    const struct waiting *waiting = &context->waiting;
    return waiting->late >= 0 && waiting->late != endpoint->rank ? waiting->late : waiting->rank;
}

const char *late_how(const struct context *context)
{
    const struct waiting *waiting = &context->waiting;
    if (waiting->late >= 0 || waiting->asked_ns == 0)
        return "has not come";
    if (waiting->in_turn)
        return "waits for this rank";
    return waiting->answered ? "has come, but is slow" : "does not answer";
}

void late_ask(struct endpoint *endpoint, struct context *context, bool gives_up)
{
    struct waiting *waiting = &context->waiting;
    if (!waiting->active || waiting->rank == endpoint->rank)
        return;
    waiting->asked_ns = time_now_ns();
    waiting->gives_up |= gives_up;
    waiting->answered = false;
    struct wire_frame frame = {.kind = WIRE_ASK,
                               .flags = waiting->gives_up ? WIRE_DEADLINE_PASSED : 0,
                               .context = context->id,
                               .tag = waiting->number};
    (void)endpoint_send(endpoint, waiting->rank, &frame, NULL, -1);
}

/* To all this rank sends to in a barrier: everybody is reached in log2(ranks) steps. */
static void spread(struct endpoint *endpoint, const struct context *context, uint64_t number,
                   int late)
{
    for (int64_t reach = 1; context->open && reach < context->size; reach *= 2) {
        int to = (int)((context->rank + reach) % context->size);
        send_rank(endpoint, context, WIRE_GIVE_UP, context_job_rank(context, to), number, late);
    }
}

/* False when the number is behind this rank, or memory ran out. */
static bool give_up(struct endpoint *endpoint, struct context *context, uint64_t number, int late)
{
    if (number < context->number || context_gave_up(context, number) ||
        !context_give_up(context, number, late))
        return false;
    spread(endpoint, context, number, late);
    return true;
}

static void remember_asker(struct waiting *waiting, int rank, uint64_t number)
{
    for (size_t i = 0; i < waiting->askers.count; i++) {
        if (waiting->askers.data[i].rank == rank) {
            waiting->askers.data[i].number = number;
            return;
        }
    }
    /* Without memory that rank names the one that this rank waits for. */
    (void)array_push(&waiting->askers, (struct asker){rank, number});
}

static bool has_entered(const struct context *context, uint64_t number)
{
    return context->number > number || (context->inside && context->number == number);
}

static void take_question(struct endpoint *endpoint, struct context *context, int from,
                          const struct wire_frame *frame)
{
    struct waiting *waiting = &context->waiting;
    uint64_t number = frame->tag;
    bool is_number = number != NO_NUMBER;
    bool gives_up = is_number && (frame->flags & WIRE_DEADLINE_PASSED);
    if (is_number && gives_up && !has_entered(context, number))
        give_up(endpoint, context, number,
                waiting->active ? late_rank(endpoint, context) : endpoint->rank);
    if (is_number && context_gave_up(context, number)) {
        send_rank(endpoint, context, WIRE_GIVE_UP, from, number, context->given_up_for);
        return;
    }
    /* A rank in a collective is late for a wait that belongs to none. */
    bool passed = is_number && context->number > number;
    bool elsewhere = !is_number && waiting->number != NO_NUMBER;
    if (passed || elsewhere || !waiting->active) {
        bool came = is_number && has_entered(context, number);
        send_rank(endpoint, context, WIRE_ANSWER, from, number, came ? -1 : endpoint->rank);
        return;
    }
    remember_asker(waiting, from, number);
    send_rank(endpoint, context, WIRE_ANSWER, from, number, late_rank(endpoint, context));
    gives_up &= waiting->number == number;
    bool is_old = time_now_ns() - waiting->asked_ns > ASK_AGAIN_NS;
    if (is_old || (gives_up && !waiting->gives_up))
        late_ask(endpoint, context, gives_up);
}

static void take_answer(struct endpoint *endpoint, struct context *context, int from,
                        uint64_t number, int late)
{
    struct waiting *waiting = &context->waiting;
    if (!waiting->active || from != waiting->rank || number != waiting->number)
        return;
    waiting->answered = true;
    waiting->in_turn = late == endpoint->rank;
    if (late == waiting->late || late == endpoint->rank)
        return;
    waiting->late = late;
    for (size_t i = 0; i < waiting->askers.count; i++)
        send_rank(endpoint, context, WIRE_ANSWER, waiting->askers.data[i].rank,
                  waiting->askers.data[i].number, late_rank(endpoint, context));
}

banyan_status late_take(struct endpoint *endpoint, const struct link *link,
                        const struct wire_frame *frame, const void *payload)
{
    int32_t late = -1;
    bool asks = frame->kind == WIRE_ASK;
    if (frame->bytes == sizeof late && payload)
        memcpy(&late, payload, sizeof late);
    if (frame->bytes != (asks ? 0 : sizeof late) || late < -1 || late >= endpoint->size)
        return error_set(BANYAN_ERR_FORMAT, "%s sends a malformed word on who is late", link->who);
    struct context *context = endpoint_context(endpoint, frame->context);
    if (!context)
        return error_no_memory(sizeof *context, "a world");
    if (asks)
        take_question(endpoint, context, link->rank, frame);
    else if (frame->kind == WIRE_ANSWER)
        take_answer(endpoint, context, link->rank, frame->tag, late);
    else if (frame->tag != NO_NUMBER)
        give_up(endpoint, context, frame->tag, late < 0 ? link->rank : late);
    return BANYAN_OK;
}
