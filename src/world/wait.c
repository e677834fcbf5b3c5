#include <errno.h>
#include <stdio.h>

#include "core/deadline.h"
#include "core/error.h"
#include "world/world.h"

/* A rank that knows what all have agreed on may end at once. The others still have so long to pass
 * it on among themselves. */
#define AGREEMENT_GRACE_NS (200 * NS_PER_MS)

static struct timespec timespec_of(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};
}

/* The lock is held on entry and return. False when the deadline has passed. */
static bool wait_for_change(banyan_world *world, uint64_t deadline_ns)
{
    struct timespec until = timespec_of(deadline_ns);
    return pthread_cond_timedwait(&world->context->changed, &world->endpoint->reactor.lock,
                                  &until) != ETIMEDOUT;
}

/* "waited in banyan_memory_alloc for rank 3 (…)". */
static void describe_wait(const banyan_world *world, int rank, const char *how, const char *what,
                          char text[256])
{
    snprintf(text, 256, "waited%s%.60s for rank %d%s (%.140s)", world->call ? " in " : "",
             world->call ? world->call : "", rank, how, what);
}

/* Why the wait ended that `text` describes: the world has ended. */
static banyan_status report_end(banyan_world *world, const char *text)
{
    return error_set((banyan_status)atomic_load(&world->context->ended), "%s while rank %d %s",
                     world->context->sentence ? world->context->sentence : "the world ended",
                     world->rank, text);
}

/* A rank that waited in vain cannot go on in step with the others: the world ends for it. */
static banyan_status end_by_timeout(banyan_world *world, const char *text)
{
    banyan_status status = error_set(BANYAN_ERR_TIMEOUT, "rank %d %s for %.1f s", world->rank, text,
                                     (double)world->timeout_ns / 1e9);
    context_end(world->context, status, banyan_last_error());
    return status;
}

static banyan_status lost_by_leaving(banyan_world *world, int source, const char *text)
{
    char name[ENDPOINT_RANK_TEXT_BYTES];
    endpoint_rank_text(world->endpoint, world->context, context_job_rank(world->context, source),
                       name);
    return error_set(BANYAN_ERR_PEER_LOST, "%s closed its world while rank %d %s", name,
                     world->rank, text);
}

/* With the lock held. */
static bool may_still_agree(const banyan_world *world)
{
    const struct context *context = world->context;
    return world->agreeing && atomic_load(&context->ended) == BANYAN_ERR_PEER_LOST &&
           time_now_ns() < context->ended_ns + AGREEMENT_GRACE_NS;
}

/* What came before a loss is still of use, other than before an abort. */
static struct message *take_message(banyan_world *world, uint32_t kind, int job_rank, uint64_t tag)
{
    int ended = atomic_load(&world->context->ended);
    if (ended != BANYAN_OK && ended != BANYAN_ERR_PEER_LOST)
        return NULL;
    return context_take(world->context, kind, job_rank, tag);
}

banyan_status world_await(banyan_world *world, uint32_t kind, int source, uint64_t tag,
                          const char *what, struct message **message)
{
    uint64_t deadline_ns = deadline_after(world->timeout_ns), until_ns = deadline_ns;
    struct context *context = world->context;
    int job_rank = context_job_rank(context, source);
    const struct peer *peer = &world->endpoint->peers[job_rank];
    char text[256];
    struct message *found = NULL;
    banyan_status status = BANYAN_OK;
    bool in_time = true;
    pthread_mutex_lock(&world->endpoint->reactor.lock);
    for (;;) {
        bool ended = atomic_load(&context->ended) != BANYAN_OK;
        describe_wait(world, source, "", what, text);
        if ((found = take_message(world, kind, job_rank, tag)))
            break;
        if (ended && may_still_agree(world) && peer->state == PEER_HERE)
            until_ns = context->ended_ns + AGREEMENT_GRACE_NS;
        else if (ended)
            status = report_end(world, text);
        else if (peer->state == PEER_LEFT)
            status = lost_by_leaving(world, source, text);
        else if (!in_time)
            status = end_by_timeout(world, text);
        if (status != BANYAN_OK)
            break;
        in_time = wait_for_change(world, until_ns);
    }
    pthread_mutex_unlock(&world->endpoint->reactor.lock);
    if (status == BANYAN_OK)
        *message = found;
    return status;
}

/* A rank that has not acknowledged yet, for the error. */
static int find_silent(const banyan_world *world, const control_message *messages, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int job_rank = context_job_rank(world->context, messages[i].rank);
        if (world->endpoint->peers[job_rank].unacknowledged > 0)
            return messages[i].rank;
    }
    return -1;
}

banyan_status world_await_delivery(banyan_world *world, const control_message *messages,
                                   size_t count, const char *what)
{
    uint64_t deadline_ns = deadline_after(world->timeout_ns);
    struct context *context = world->context;
    banyan_status status = BANYAN_OK;
    bool in_time = true;
    char text[256];
    pthread_mutex_lock(&world->endpoint->reactor.lock);
    while (context->unacknowledged > 0 && status == BANYAN_OK) {
        bool ended = atomic_load(&context->ended) != BANYAN_OK;
        if (ended || !in_time)
            describe_wait(world, find_silent(world, messages, count), " to take a message", what,
                          text);
        if (ended)
            status = report_end(world, text);
        else if (!in_time)
            status = end_by_timeout(world, text);
        else
            in_time = wait_for_change(world, deadline_ns);
    }
    pthread_mutex_unlock(&world->endpoint->reactor.lock);
    return status;
}

banyan_status world_await_liveness(banyan_world *world)
{
    struct endpoint *endpoint = world->endpoint;
    uint64_t deadline_ns = deadline_after(world->timeout_ns);
    struct timespec until = timespec_of(deadline_ns);
    banyan_status status = BANYAN_OK;
    bool in_time = true;
    char text[80];
    pthread_mutex_lock(&endpoint->reactor.lock);
    int rank;
    while (status == BANYAN_OK && !liveness_is_connected(endpoint, &rank)) {
        snprintf(text, sizeof text, "waited for its connection to rank %d (opening the world)",
                 rank);
        if (atomic_load(&world->context->ended) != BANYAN_OK)
            status = report_end(world, text);
        else if (!in_time)
            status = end_by_timeout(world, text);
        else
            in_time = pthread_cond_timedwait(&endpoint->changed, &endpoint->reactor.lock, &until) !=
                      ETIMEDOUT;
    }
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

banyan_status world_send(banyan_world *world, uint32_t kind, int destination, uint64_t tag,
                         const void *data, size_t bytes, int fd)
{
    if (bytes > WIRE_PAYLOAD_MAX)
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d sends %zu bytes to rank %d, but a message of the control plane "
                         "has %llu at most",
                         world->rank, bytes, destination, (unsigned long long)WIRE_PAYLOAD_MAX);
    struct wire_frame frame = {.kind = kind,
                               .flags = fd >= 0 ? WIRE_HAS_DESCRIPTOR : 0,
                               .context = world->context->id,
                               .tag = tag,
                               .bytes = bytes};
    pthread_mutex_lock(&world->endpoint->reactor.lock);
    banyan_status status = (banyan_status)atomic_load(&world->context->ended);
    if (status != BANYAN_OK && !may_still_agree(world))
        error_set(status, "%s",
                  world->context->sentence ? world->context->sentence : "the world ended");
    else
        status = send_frame(world, context_job_rank(world->context, destination), &frame, data, fd);
    pthread_mutex_unlock(&world->endpoint->reactor.lock);
    return status;
}
