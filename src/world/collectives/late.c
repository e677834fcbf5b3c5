#include "world/net/endpoint.h"

#include <string.h>

#include "core/deadline.h"
#include "core/error.h"

/* A rank that is asked by many forwards the question once per this time. */
#define ASK_AGAIN_NS (25 * NS_PER_MS)

static void send_rank(struct endpoint *endpoint, uint64_t context_id, uint32_t kind, int to,
                      uint64_t number, int rank)
{
    int32_t payload = rank;
    struct wire_frame frame = {
        .kind = kind, .context = context_id, .tag = number, .bytes = sizeof payload};
    (void)endpoint_send(endpoint, to, &frame, &payload, -1);
}

void late_begin(struct context *context, uint64_t number, int job_rank)
{
    struct waiting *waiting = late_wait(context, number);
    if (waiting->active && waiting->number == number && waiting->rank == job_rank)
        return;
    late_end(waiting);
    waiting->active = true;
    waiting->number = number;
    waiting->rank = job_rank;
}

void late_end(struct waiting *waiting)
{
    waiting->active = waiting->gives_up = waiting->answered = waiting->in_turn = false;
    waiting->asked_ns = 0;
    waiting->late = -1;
    waiting->askers.count = 0;
}

int late_rank(const struct endpoint *endpoint, const struct waiting *waiting)
{
    return waiting->late >= 0 && waiting->late != endpoint->rank ? waiting->late : waiting->rank;
}

const char *late_how(const struct waiting *waiting)
{
    if (waiting->late >= 0 || waiting->asked_ns == 0)
        return "has not come";
    if (waiting->in_turn)
        return "waits for this rank";
    return waiting->answered ? "has come, but is slow" : "does not answer";
}

void late_ask(struct endpoint *endpoint, const struct context *context, struct waiting *waiting,
              bool gives_up)
{
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

/* Send to this rank's barrier partners: all ranks are reached in log2(ranks) steps. */
static void late_send(struct endpoint *endpoint, const struct context *context, uint64_t number,
                      int late)
{
    for (int64_t reach = 1; context->open && reach < context->size; reach *= 2) {
        int to = (int)((context->rank + reach) % context->size);
        send_rank(endpoint, context->id, WIRE_GIVE_UP, context_job_rank(context, to), number, late);
    }
}

/* False when this rank has passed the number, or when out of memory. */
static bool late_give_up(struct endpoint *endpoint, struct context *context, uint64_t number,
                         int late)
{
    if (number < context->number || context_gave_up(context, number) ||
        !context_give_up(context, number, late))
        return false;
    late_send(endpoint, context, number, late);
    return true;
}

static void remember_asker(struct waiting *waiting, struct asker asker)
{
    for (size_t i = 0; i < waiting->askers.count; i++) {
        struct asker *known = &waiting->askers.data[i];
        if (known->rank == asker.rank && known->context_id == asker.context_id) {
            known->number = asker.number;
            return;
        }
    }
    /* Without memory for its name, the asker will name the rank that this rank waits for. */
    (void)array_push(&waiting->askers, asker);
}

static bool late_has_entered(const struct context *context, uint64_t number)
{
    return context->number > number || (context->inside && context->number == number);
}

/* Return a wait in another world, which keeps this rank from arriving; NULL: none. */
static struct waiting *find_elsewhere(const struct endpoint *endpoint, struct context **context,
                                      bool on_device)
{
    for (size_t i = 0; i < endpoint->contexts.count; i++) {
        struct context *other = endpoint->contexts.data[i];
        struct waiting *waiting = on_device ? &other->on_device : &other->waiting;
        if (other != *context && waiting->active) {
            *context = other;
            return waiting;
        }
    }
    return NULL;
}

/* Return the wait that keeps this rank from the awaited call, and its world; NULL: this rank does
 * not wait. For a wait outside collectives, a rank in a collective that waits for the asking rank
 * `from` is late. */
static struct waiting *find_hindrance(const struct endpoint *endpoint, struct context **context,
                                      int from, uint64_t number)
{
    struct context *asked = *context;
    bool is_number = number < DEVICE_NUMBER;
    if (is_number && asked->number > number)
        return NULL;
    if (number == DEVICE_NUMBER && asked->on_device.active)
        return &asked->on_device;
    if (asked->waiting.active)
        return is_number || asked->waiting.number == NO_NUMBER ||
                       late_rank(endpoint, &asked->waiting) != from
                   ? &asked->waiting
                   : NULL;
    if (is_number && late_has_entered(asked, number))
        return NULL;
    if (number == NO_NUMBER && asked->on_device.active)
        return &asked->on_device;
    struct waiting *elsewhere = find_elsewhere(endpoint, context, false);
    return elsewhere || is_number ? elsewhere : find_elsewhere(endpoint, context, true);
}

static void take_question(struct endpoint *endpoint, struct context *context, int from,
                          const struct wire_frame *frame)
{
    uint64_t number = frame->tag;
    bool is_number = number < DEVICE_NUMBER;
    bool gives_up = is_number && (frame->flags & WIRE_DEADLINE_PASSED);
    struct context *in = context;
    struct waiting *waiting = find_hindrance(endpoint, &in, from, number);
    int late = waiting ? late_rank(endpoint, waiting) : endpoint->rank;
    if (gives_up && !late_has_entered(context, number))
        late_give_up(endpoint, context, number, late);
    if (is_number && context_gave_up(context, number)) {
        send_rank(endpoint, context->id, WIRE_GIVE_UP, from, number, context->given_up_for);
        return;
    }
    if (!waiting) {
        bool came = is_number && late_has_entered(context, number);
        send_rank(endpoint, context->id, WIRE_ANSWER, from, number, came ? -1 : endpoint->rank);
        return;
    }
    remember_asker(waiting, (struct asker){from, context->id, number});
    send_rank(endpoint, context->id, WIRE_ANSWER, from, number, late);
    gives_up &= in == context && waiting->number == number;
    bool is_old = time_now_ns() - waiting->asked_ns > ASK_AGAIN_NS;
    if (is_old || (gives_up && !waiting->gives_up))
        late_ask(endpoint, in, waiting, gives_up);
}

static void late_take_answer(struct endpoint *endpoint, struct context *context, int from,
                             uint64_t number, int late)
{
    struct waiting *waiting = late_wait(context, number);
    if (!waiting->active || from != waiting->rank || number != waiting->number)
        return;
    waiting->answered = true;
    waiting->in_turn = late == endpoint->rank;
    pthread_cond_broadcast(&context->changed);
    if (late == waiting->late || late == endpoint->rank)
        return;
    waiting->late = late;
    for (size_t i = 0; i < waiting->askers.count; i++) {
        const struct asker *asker = &waiting->askers.data[i];
        send_rank(endpoint, asker->context_id, WIRE_ANSWER, asker->rank, asker->number,
                  late_rank(endpoint, waiting));
    }
}

banyan_status late_take(struct endpoint *endpoint, const struct link *link,
                        const struct wire_frame *frame, const void *payload)
{
    int32_t late = -1;
    bool asks = frame->kind == WIRE_ASK;
    if (frame->bytes == sizeof late && payload)
        memcpy(&late, payload, sizeof late);
    if (frame->bytes != (asks ? 0 : sizeof late) || late < -1 || late >= endpoint->size)
        return error_set(BANYAN_ERR_FORMAT, "%s sends a malformed message about the late rank",
                         link->who);
    struct context *context = endpoint_context(endpoint, frame->context);
    if (!context)
        return error_no_memory(sizeof *context, "a world");
    if (asks)
        take_question(endpoint, context, link->rank, frame);
    else if (frame->kind == WIRE_ANSWER)
        late_take_answer(endpoint, context, link->rank, frame->tag, late);
    else if (frame->tag < DEVICE_NUMBER)
        late_give_up(endpoint, context, frame->tag, late < 0 ? link->rank : late);
    return BANYAN_OK;
}
