#include <errno.h>
#include <stdio.h>

#include "core/deadline.h"
#include "core/error.h"
#include "core/interrupt.h"
#include "core/log.h"
#include "world/net/endpoint.h"
#include "world/world.h"

/* A rank that knows the agreed result may end at once. The others still have this long to pass it
 * on among themselves. */
#define AGREEMENT_GRACE_NS (200 * NS_PER_MS)

/* After its deadline, a rank at a gate waits this long for the late rank to give the gate up. */
#define GIVE_UP_NS (2 * NS_PER_S)
#define ASK_AGAIN_NS (50 * NS_PER_MS)

/* Write the line, if there is one, or wait on `changed` until something changes or the program's
 * interrupt is due; an interrupt ends the world. The lock is held on entry and return. */
static void wait_for_change(banyan_world *world, pthread_cond_t *changed, uint64_t until_ns,
                            const char *line)
{
    pthread_mutex_t *lock = &world->endpoint->reactor.lock;
    if (line[0]) {
        pthread_mutex_unlock(lock);
        log_warn("%s", line);
        pthread_mutex_lock(lock);
        return;
    }
    uint64_t ns = interrupt_until(until_ns);
    struct timespec until = {.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};
    pthread_cond_timedwait(changed, lock, &until);
    pthread_mutex_unlock(lock);
    if (interrupt_requested())
        banyan_world_abort(world, INTERRUPT_TEXT);
    pthread_mutex_lock(lock);
}

static const char *wait_in_call(const banyan_world *world, char text[80])
{
    snprintf(text, 80, "%s%.70s", world->call ? " in " : "", world->call ? world->call : "");
    return text;
}

/* Report that the wait for a rank of this world ended because the world has ended. */
static banyan_status report_end(banyan_world *world, int rank, const char *what)
{
    char own[CONTROL_RANK_BYTES], call[80];
    const char *why = world->context->reason ? world->context->reason : "the world ended";
    world_note_name(why);
    return error_set((banyan_status)atomic_load(&world->context->ended),
                     "%s while %s waited%s for rank %d (%s)", why, control_own_name(world, own),
                     wait_in_call(world, call), rank, what);
}

static banyan_status lost_by_leaving(banyan_world *world, int source, const char *what)
{
    char name[ENDPOINT_RANK_TEXT_BYTES], own[CONTROL_RANK_BYTES], call[80];
    endpoint_rank_text(world->endpoint, world->context, context_job_rank(world->context, source),
                       name);
    return error_set(BANYAN_ERR_PEER_LOST, "%s closed its world while %s waited%s (%s)", name,
                     control_own_name(world, own), wait_in_call(world, call), what);
}

/* Write "rank 0 waited 60.0 s in banyan_memory_alloc for rank 3 (pid 7 on node x), which has not
 * come". */
static banyan_status name_late(const banyan_world *world, const control_wait *wait, int late,
                               const char *how, const char *what, const char *then)
{
    char own[CONTROL_RANK_BYTES], name[ENDPOINT_RANK_TEXT_BYTES], call[80];
    return error_set(
        BANYAN_ERR_TIMEOUT, "%s waited %.1f s%s for %s, which %s (%s); %s%s" TIMEOUT_SETS,
        control_own_name(world, own), (double)(time_now_ns() - wait->began_ns) / 1e9,
        wait_in_call(world, call), endpoint_rank_text(world->endpoint, world->context, late, name),
        how, what, then, timeout_name(wait->option));
}

/* End the world for all ranks: a rank whose wait failed cannot continue in step with the others,
 * and the late rank must not wait for it. */
static banyan_status end_by_timeout(banyan_world *world, const control_wait *wait, const char *how,
                                    const char *what)
{
    if (!how)
        how = late_how(&world->context->waiting);
    banyan_status status =
        name_late(world, wait, late_rank(world->endpoint, &world->context->waiting), how, what, "");
    if (world->in_vain)
        status = error_again(world->in_vain);
    const error_kept kept = error_keep(status);
    liveness_abort(world->endpoint, world->context, world->rank, status, kept.message);
    return error_again(&kept);
}

/* The late rank has given up the gate for all. */
static banyan_status leave_gate(banyan_world *world, const control_wait *wait, const char *what)
{
    if (time_now_ns() < wait->ends_ns) {
        world->again = true;
        return BANYAN_ERR_TIMEOUT;
    }
    return name_late(world, wait, world->context->given_up_for, "has not come", what,
                     "nothing has moved, and the call may be called again; ");
}

/* With the lock held. */
static bool may_still_agree(const banyan_world *world)
{
    const struct context *context = world->context;
    return world->agreeing && atomic_load(&context->ended) == BANYAN_ERR_PEER_LOST &&
           time_now_ns() < context->ended_ns + AGREEMENT_GRACE_NS;
}

/* Messages sent before a loss are still valid; those before an abort are not. */
static struct message *wait_take_message(banyan_world *world, uint32_t kind, int job_rank,
                                         uint64_t tag)
{
    int ended = atomic_load(&world->context->ended);
    if (ended != BANYAN_OK && ended != BANYAN_ERR_PEER_LOST)
        return NULL;
    return context_take(world->context, kind, job_rank, tag);
}

/* The deadline has passed. At a gate the late rank may still give up until `*gives_up_ns`; ranks on
 * the way to it may have moved on since they were asked. */
static banyan_status pass_deadline(banyan_world *world, const control_wait *wait, const char *what,
                                   uint64_t *gives_up_ns, uint64_t *until_ns)
{
    uint64_t now = time_now_ns();
    if (!world->gate)
        return end_by_timeout(world, wait, NULL, what);
    if (*gives_up_ns == 0)
        *gives_up_ns = now + GIVE_UP_NS;
    if (now >= *gives_up_ns)
        return end_by_timeout(world, wait, "does not answer", what);
    late_ask(world->endpoint, world->context, &world->context->waiting, true);
    *until_ns = now + ASK_AGAIN_NS;
    return BANYAN_OK;
}

banyan_status world_receive(banyan_world *world, uint32_t kind, int source, uint64_t tag,
                            const char *what, struct message **message)
{
    struct context *context = world->context;
    int job_rank = context_job_rank(context, source);
    const struct peer *peer = &world->endpoint->peers[job_rank];
    uint64_t number = context->inside ? context->number : NO_NUMBER, gives_up_ns = 0;
    control_wait own = control_wait_begin(world), *wait = world->gate ? world->gate : &own;
    char text[192];
    snprintf(text, sizeof text, "for rank %d (%.140s)", source, what);
    struct message *found = NULL;
    banyan_status status = BANYAN_OK;
    pthread_mutex_lock(&world->endpoint->reactor.lock);
    for (;;) {
        bool ended = atomic_load(&context->ended) != BANYAN_OK;
        uint64_t until_ns = 0;
        char line[WORLD_LINE_BYTES] = "";
        if ((found = wait_take_message(world, kind, job_rank, tag)))
            break;
        if (world->gate && context_gave_up(context, number))
            status = leave_gate(world, wait, what);
        else if (ended && may_still_agree(world) && peer->state == PEER_HERE)
            until_ns = context->ended_ns + AGREEMENT_GRACE_NS;
        else if (ended)
            status = report_end(world, source, what);
        else if (peer->state == PEER_LEFT)
            status = lost_by_leaving(world, source, what);
        else
            until_ns = world_wait_due(wait, number, job_rank, text, line);
        if (status == BANYAN_OK && !ended && time_now_ns() >= wait->ends_ns) {
            status = pass_deadline(world, wait, what, &gives_up_ns, &until_ns);
        }
        if (status != BANYAN_OK)
            break;
        wait_for_change(world, &context->changed, until_ns, line);
    }
    late_end(&context->waiting);
    pthread_mutex_unlock(&world->endpoint->reactor.lock);
    if (status == BANYAN_OK)
        *message = found;
    return status;
}

/* Return a rank that has not acknowledged yet. */
static int find_silent(const banyan_world *world, const control_message *messages, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int job_rank = context_job_rank(world->context, messages[i].rank);
        if (world->endpoint->peers[job_rank].unacknowledged > 0)
            return messages[i].rank;
    }
    return world->rank;
}

banyan_status world_wait_delivered(banyan_world *world, const control_message *messages,
                                   size_t count, const char *what)
{
    struct context *context = world->context;
    control_wait wait = control_wait_begin(world);
    banyan_status status = BANYAN_OK;
    char text[192], line[WORLD_LINE_BYTES];
    pthread_mutex_lock(&world->endpoint->reactor.lock);
    while (context->unacknowledged > 0 && status == BANYAN_OK) {
        int silent = find_silent(world, messages, count);
        snprintf(text, sizeof text, "for rank %d to take a message (%.120s)", silent, what);
        uint64_t until_ns =
            world_wait_due(&wait, NO_NUMBER, context_job_rank(context, silent), text, line);
        if (atomic_load(&context->ended) != BANYAN_OK)
            status = report_end(world, silent, what);
        else if (time_now_ns() >= wait.ends_ns)
            status = end_by_timeout(world, &wait, "has not taken a message", what);
        else
            wait_for_change(world, &context->changed, until_ns, line);
    }
    late_end(&context->waiting);
    pthread_mutex_unlock(&world->endpoint->reactor.lock);
    return status;
}

banyan_status world_wait_connected(banyan_world *world)
{
    struct endpoint *endpoint = world->endpoint;
    control_wait wait = control_wait_begin(world);
    banyan_status status = BANYAN_OK;
    static const char what[] = "opening the world";
    char line[WORLD_LINE_BYTES];
    pthread_mutex_lock(&endpoint->reactor.lock);
    int rank;
    while (status == BANYAN_OK && !liveness_is_connected(endpoint, &rank)) {
        uint64_t until_ns = world_wait_due(&wait, NO_NUMBER, rank, "for a connection", line);
        if (atomic_load(&world->context->ended) != BANYAN_OK)
            status = report_end(world, rank, what);
        else if (time_now_ns() >= wait.ends_ns)
            status = end_by_timeout(world, &wait, "does not answer", what);
        else
            wait_for_change(world, &endpoint->changed, until_ns, line);
    }
    late_end(&world->context->waiting);
    pthread_mutex_unlock(&endpoint->reactor.lock);
    return status;
}

static banyan_status send_frame(banyan_world *world, int job_rank, const struct wire_frame *frame,
                                const void *data, int fd)
{
    if (frame->kind == WIRE_EXCHANGE) {
        world->context->unacknowledged++;
        world->endpoint->peers[job_rank].unacknowledged++;
    }
    return endpoint_send(world->endpoint, job_rank, frame, data, fd);
}

/* Without a connection all later messages are lost too, so that all worlds end. Otherwise only the
 * world ends that lacks this message. */
static banyan_status fail_to_send(banyan_world *world, banyan_status status)
{
    if (status != BANYAN_ERR_SYSTEM)
        return control_fail(world, status);
    error_kept kept = error_keep(status);
    pthread_mutex_lock(&world->endpoint->reactor.lock);
    liveness_fail(world->endpoint, NULL, status, kept.message);
    pthread_mutex_unlock(&world->endpoint->reactor.lock);
    return error_again(&kept);
}

banyan_status world_send(banyan_world *world, uint32_t kind, int destination, uint64_t tag,
                         const void *data, size_t bytes, int fd)
{
    if (bytes > WIRE_PAYLOAD_MAX)
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d sends %zu bytes to rank %d, but a message of the control plane "
                         "has %llu at most",
                         world->rank, bytes, destination, (unsigned long long)WIRE_PAYLOAD_MAX);
    if (world->before_messages && atomic_load(&world->context->ended) == BANYAN_OK) {
        banyan_status flushed = world->before_messages(world->before_context);
        if (flushed != BANYAN_OK)
            return control_fail(world, flushed);
    }
    struct wire_frame frame = {.kind = kind,
                               .flags = fd >= 0 ? WIRE_HAS_DESCRIPTOR : 0,
                               .context = world->context->id,
                               .tag = tag,
                               .bytes = bytes};
    pthread_mutex_lock(&world->endpoint->reactor.lock);
    banyan_status status = (banyan_status)atomic_load(&world->context->ended);
    bool alone = false;
    if (status != BANYAN_OK && !may_still_agree(world))
        error_set(status, "%s",
                  world->context->reason ? world->context->reason : "the world ended");
    else
        alone = (status = send_frame(world, context_job_rank(world->context, destination), &frame,
                                     data, fd)) != BANYAN_OK;
    pthread_mutex_unlock(&world->endpoint->reactor.lock);
    return alone && fd < 0 ? fail_to_send(world, status) : status;
}
