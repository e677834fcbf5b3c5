#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/deadline.h"
#include "core/error.h"
#include "core/log.h"
#include "world/net/endpoint.h"

#define LIVENESS_TEXT_BYTES 2048
/* Reads of a lost rank's pending data: more than a socket holds. */
#define LAST_WORDS_TURNS 64
/* Time to wait for a report of another cause after a connection has ended. */
#define NEWS_NS (200 * NS_PER_MS)

/* Send to all connected ranks but `except` (-1: none), whichever side connected. With the lock
 * held. */
static void liveness_send_all(struct endpoint *endpoint, const struct wire_frame *frame,
                              const char *text, int except)
{
    for (struct link *link = endpoint->reactor.links; link; link = link->next) {
        if (!link_may_stand(link) || link->rank == except)
            continue;
        link_send(link, frame, text, -1);
        reactor_update(&endpoint->reactor, link);
    }
}

static struct wire_frame loss_frame(int rank, const struct peer *peer)
{
    return (struct wire_frame){.kind = WIRE_LOST,
                               .flags = (uint32_t)peer->lost_status,
                               .tag = (uint64_t)rank,
                               .bytes = peer->lost_how ? strlen(peer->lost_how) : 0};
}

static bool has_living_world(const struct endpoint *endpoint)
{
    for (size_t i = 0; i < endpoint->contexts.count; i++) {
        const struct context *context = endpoint->contexts.data[i];
        if (context->open && atomic_load(&context->ended) == BANYAN_OK)
            return true;
    }
    return false;
}

/* Return the nearest ancestor that is present, else the lowest rank that is. */
static int present_parent(const struct endpoint *endpoint)
{
    int rank = endpoint->peers[endpoint->rank].parent, lowest = 0;
    while (rank >= 0 && endpoint->peers[rank].state != PEER_HERE)
        rank = endpoint->peers[rank].parent;
    if (rank >= 0)
        return rank;
    while (endpoint->peers[lowest].state != PEER_HERE)
        lowest++; /* this rank itself, at the latest */
    return lowest;
}

void liveness_connect(struct endpoint *endpoint)
{
    endpoint_want(endpoint, present_parent(endpoint));
}

static bool is_connected(const struct endpoint *endpoint, int rank)
{
    const struct link *out = endpoint->peers[rank].out;
    return rank == endpoint->rank || (out && out->stage == LINK_READY);
}

bool liveness_is_connected(const struct endpoint *endpoint, int *missing)
{
    *missing = present_parent(endpoint);
    return is_connected(endpoint, *missing);
}

void liveness_join(struct endpoint *endpoint, struct context *context)
{
    char name[ENDPOINT_RANK_TEXT_BYTES], text[LIVENESS_TEXT_BYTES];
    const struct context *parent = context->parent;
    int ended = parent ? atomic_load(&parent->ended) : BANYAN_OK;
    if (ended != BANYAN_OK && ended != BANYAN_ERR_PEER_LOST && ended != BANYAN_ERR_TIMEOUT)
        context_end(context, (banyan_status)ended, parent->reason ? parent->reason : "aborted");
    for (int rank = 0; rank < context->size; rank++) {
        int job_rank = context_job_rank(context, rank);
        if (endpoint->peers[job_rank].state != PEER_LOST)
            continue;
        snprintf(text, sizeof text, "%s %s", endpoint_rank_text(endpoint, context, job_rank, name),
                 endpoint->peers[job_rank].lost_how ? endpoint->peers[job_rank].lost_how : "died");
        context_end(context, endpoint->peers[job_rank].lost_status, text);
    }
}

static void end_worlds_of(struct endpoint *endpoint, int rank, banyan_status status,
                          const char *how)
{
    char name[ENDPOINT_RANK_TEXT_BYTES], text[LIVENESS_TEXT_BYTES];
    for (size_t i = 0; i < endpoint->contexts.count; i++) {
        struct context *context = endpoint->contexts.data[i];
        if (!context->open || context_rank_of(context, rank) < 0)
            continue;
        snprintf(text, sizeof text, "%s %s", endpoint_rank_text(endpoint, context, rank, name),
                 how);
        context_end(context, status, text);
    }
}

/* Record a loss. All peers are informed before any local thread wakes up, so that a rank that
 * leaves because of this loss is not taken for its cause. */
static void liveness_lose_rank(struct endpoint *endpoint, int rank, banyan_status status,
                               const char *how)
{
    struct peer *peer = &endpoint->peers[rank];
    pthread_mutex_lock(&endpoint->reactor.lock);
    if (peer->state != PEER_HERE) {
        pthread_mutex_unlock(&endpoint->reactor.lock);
        return;
    }
    peer->state = PEER_LOST;
    peer->lost_status = status;
    peer->lost_how = strdup(how);
    if (!array_push(&endpoint->lost, rank))
        log_warn("rank %d is out of memory to record that rank %d %s", endpoint->rank, rank, how);
    if (has_living_world(endpoint)) {
        struct wire_frame frame = loss_frame(rank, peer);
        liveness_send_all(endpoint, &frame, peer->lost_how, rank);
        end_worlds_of(endpoint, rank, status, how);
        liveness_connect(endpoint);
    }
    endpoint_drop_pending(peer);
    pthread_cond_broadcast(&endpoint->changed);
    endpoint->reactor.quiet = !has_living_world(endpoint);
    struct link *out = peer->out, *in = peer->in;
    pthread_mutex_unlock(&endpoint->reactor.lock);
    log_info("rank %d: rank %d %s", endpoint->rank, rank, how);
    if (out)
        reactor_drop(&endpoint->reactor, out, BANYAN_OK);
    if (in)
        reactor_drop(&endpoint->reactor, in, BANYAN_OK);
}

/* Read everything that a rank sent before its loss, and process it first. Messages come on the
 * connection that the rank made; the end of either connection ends both. */
static void read_last_messages(struct endpoint *endpoint, struct peer *peer)
{
    if (endpoint->draining || peer->state != PEER_HERE)
        return;
    endpoint->draining = peer;
    for (int i = 0; i < LAST_WORDS_TURNS && peer->in; i++) {
        if (reactor_pump(&endpoint->reactor, peer->in))
            break;
    }
    for (int i = 0; i < LAST_WORDS_TURNS && peer->out; i++) {
        if (reactor_pump(&endpoint->reactor, peer->out))
            break;
    }
    endpoint->draining = NULL;
}

/* Queue a loss. The last messages of one rank may report the loss of others, and so on. They are
 * processed one after another; recursion would be as deep as there are ranks. */
static bool lose_later(struct endpoint *endpoint, int rank, banyan_status status, const char *how)
{
    if (!endpoint->draining || endpoint->draining == &endpoint->peers[rank])
        return false;
    struct loss loss = {rank, status, strdup(how)};
    if (loss.how && array_push(&endpoint->losses, loss))
        return true;
    free(loss.how);
    return false;
}

static void lose_those_put_off(struct endpoint *endpoint)
{
    while (!endpoint->draining && endpoint->losses.count > 0) {
        struct loss loss = endpoint->losses.data[--endpoint->losses.count];
        read_last_messages(endpoint, &endpoint->peers[loss.rank]);
        liveness_lose_rank(endpoint, loss.rank, loss.status, loss.how);
        free(loss.how);
    }
}

void liveness_lose(struct endpoint *endpoint, int rank, banyan_status status, const char *how)
{
    if (lose_later(endpoint, rank, status, how))
        return;
    read_last_messages(endpoint, &endpoint->peers[rank]);
    liveness_lose_rank(endpoint, rank, status, how);
    lose_those_put_off(endpoint);
}

void liveness_doubt(struct endpoint *endpoint, int rank, const char *how)
{
    struct suspected_loss loss = {rank, deadline_after(NEWS_NS), NULL};
    pthread_mutex_lock(&endpoint->reactor.lock);
    bool matters = has_living_world(endpoint);
    pthread_mutex_unlock(&endpoint->reactor.lock);
    if (matters && (loss.how = strdup(how)) && array_push(&endpoint->suspected, loss))
        return;
    free(loss.how);
    liveness_lose(endpoint, rank, BANYAN_ERR_PEER_LOST, how);
}

void liveness_settle_doubts(struct endpoint *endpoint, uint64_t *wait_ns)
{
    uint64_t now = time_now_ns();
    while (endpoint->suspected.count > 0) {
        struct suspected_loss first = endpoint->suspected.data[0];
        if (first.until_ns > now) {
            if (first.until_ns - now < *wait_ns)
                *wait_ns = first.until_ns - now;
            return;
        }
        endpoint->suspected.count--;
        memmove(endpoint->suspected.data, endpoint->suspected.data + 1,
                endpoint->suspected.count * sizeof first);
        liveness_lose(endpoint, first.rank, BANYAN_ERR_PEER_LOST, first.how);
        free(first.how);
    }
}

/* A rank that timed out leaves; the cause for the other worlds is still its timeout. */
static banyan_status cause_of(uint64_t status)
{
    return status == BANYAN_ERR_TIMEOUT ? BANYAN_ERR_TIMEOUT : BANYAN_ERR_PEER_LOST;
}

banyan_status liveness_take_lost(struct endpoint *endpoint, const struct link *link,
                                 const struct wire_frame *frame, const char *how)
{
    if (frame->tag >= (uint64_t)endpoint->size)
        return error_set(BANYAN_ERR_FORMAT, "%s reports the loss of rank %llu of %d", link->who,
                         (unsigned long long)frame->tag, endpoint->size);
    liveness_lose(endpoint, (int)frame->tag, cause_of(frame->flags), how);
    return BANYAN_OK;
}

static bool comes_from(const struct context *context, const struct context *ancestor)
{
    while (context && context != ancestor)
        context = context->parent;
    return context == ancestor;
}

/* Return the reason without its rank's name, if it begins with that; otherwise NULL. */
static const char *skip_name(const char *reason, const char *name)
{
    size_t length = strlen(name);
    bool is_named = strncmp(reason, name, length) == 0;
    return is_named && (reason[length] == ' ' || reason[length] == ':') ? reason + length : NULL;
}

/* True for "rank 2: …": this rank fails because of that one. */
static bool begins_with_rank(const char *reason)
{
    int at = 0;
    sscanf(reason, "rank %*d:%n", &at);
    return at > 0;
}

/* Prefix the reason with "rank 3: ", once. */
static void name_abort(const struct context *context, int rank, banyan_status status,
                       const char *reason, char text[LIVENESS_TEXT_BYTES])
{
    char name[CONTEXT_RANK_BYTES], own[CONTEXT_RANK_BYTES];
    const char *between = status == BANYAN_ERR_ABORTED ? " aborted: " : ": ";
    if (status != BANYAN_ERR_ABORTED && (context_names_rank(reason) || begins_with_rank(reason))) {
        snprintf(text, LIVENESS_TEXT_BYTES, "%s", reason);
        return;
    }
    snprintf(own, sizeof own, "rank %d", rank);
    const char *rest = skip_name(reason, context_rank_text(context, rank, name));
    if (!rest)
        rest = skip_name(reason, own);
    bool is_said = rest && (status != BANYAN_ERR_ABORTED || strncmp(rest, " (rank ", 7) == 0 ||
                            strncmp(rest, between, strlen(between)) == 0);
    snprintf(text, LIVENESS_TEXT_BYTES, "%s%s%s", name, is_said ? "" : between,
             is_said ? rest : reason);
}

static struct wire_frame abort_frame(const struct context *context, int rank, banyan_status status,
                                     const char *reason)
{
    return (struct wire_frame){.kind = WIRE_ABORT,
                               .flags = (uint32_t)status,
                               .context = context->id,
                               .tag = (uint64_t)rank,
                               .bytes = strlen(reason)};
}

void liveness_send_losses(struct endpoint *endpoint, struct link *link)
{
    for (size_t i = 0; i < endpoint->contexts.count; i++) {
        const struct context *context = endpoint->contexts.data[i];
        if (!context->open || context->parent || !context->was_aborted)
            continue;
        const char *why = context->reason ? context->reason : "aborted";
        struct wire_frame frame = abort_frame(context, context->aborted_by,
                                              (banyan_status)atomic_load(&context->ended), why);
        link_send(link, &frame, why, -1);
    }
    for (size_t i = 0; i < endpoint->lost.count; i++) {
        int rank = endpoint->lost.data[i];
        struct wire_frame frame = loss_frame(rank, &endpoint->peers[rank]);
        link_send(link, &frame, endpoint->peers[rank].lost_how, -1);
    }
    reactor_update(&endpoint->reactor, link);
}

void liveness_abort(struct endpoint *endpoint, struct context *context, int rank,
                    banyan_status status, const char *reason)
{
    if (atomic_load(&context->ended) != BANYAN_OK)
        return;
    char text[LIVENESS_TEXT_BYTES];
    name_abort(context, rank, status, reason, text);
    struct wire_frame frame = abort_frame(context, rank, status, text);
    liveness_send_all(endpoint, &frame, text, -1);
    context->was_aborted = true;
    context->aborted_by = rank;
    for (size_t i = 0; i < endpoint->contexts.count; i++) {
        if (comes_from(endpoint->contexts.data[i], context))
            context_end(endpoint->contexts.data[i], status, text);
    }
    pthread_cond_broadcast(&endpoint->changed); /* a world may be about to be opened */
}

void liveness_fail(struct endpoint *endpoint, struct link *link, banyan_status status,
                   const char *reason)
{
    for (size_t i = 0; i < endpoint->contexts.count; i++) {
        struct context *context = endpoint->contexts.data[i];
        if (!context->open || context->parent || atomic_load(&context->ended) != BANYAN_OK)
            continue;
        struct wire_frame frame = abort_frame(context, context->rank, status, reason);
        if (link && link_may_stand(link))
            link_send(link, &frame, reason, -1);
        liveness_abort(endpoint, context, context->rank, status, reason);
    }
}

void liveness_give_up(struct endpoint *endpoint, const struct context *context, int rank,
                      banyan_status status, const char *reason)
{
    struct wire_frame frame = abort_frame(context, rank, status, reason);
    liveness_send_all(endpoint, &frame, reason, -1);
}

banyan_status liveness_take_abort(struct endpoint *endpoint, const struct link *link,
                                  const struct wire_frame *frame, const char *reason)
{
    if (frame->tag >= (uint64_t)endpoint->size)
        return error_set(BANYAN_ERR_FORMAT, "%s reports an abort by rank %llu of %d", link->who,
                         (unsigned long long)frame->tag, endpoint->size);
    pthread_mutex_lock(&endpoint->reactor.lock);
    struct context *context = endpoint_context(endpoint, frame->context);
    bool failed = frame->flags > BANYAN_OK && frame->flags <= BANYAN_ERR_NVSHMEM;
    if (context)
        liveness_abort(endpoint, context, (int)frame->tag,
                       failed ? (banyan_status)frame->flags : BANYAN_ERR_ABORTED, reason);
    pthread_mutex_unlock(&endpoint->reactor.lock);
    return context ? BANYAN_OK : error_no_memory(sizeof *context, "a world that is aborted");
}

void liveness_leave(struct endpoint *endpoint, struct peer *peer)
{
    if (peer->state == PEER_HERE)
        peer->state = PEER_LEFT;
    for (size_t i = 0; i < endpoint->contexts.count; i++)
        pthread_cond_broadcast(&endpoint->contexts.data[i]->changed);
}

/* A goodbye on this rank's own connection may overtake messages on the other. */
void liveness_take_goodbye(struct endpoint *endpoint, const struct link *link,
                           const struct wire_frame *frame, const char *reason)
{
    if (frame->tag != BANYAN_OK) {
        char how[1200];
        snprintf(how, sizeof how, "left the world: %s", reason);
        liveness_lose(endpoint, link->rank, cause_of(frame->tag), how);
        return;
    }
    pthread_mutex_lock(&endpoint->reactor.lock);
    struct peer *peer = &endpoint->peers[link->rank];
    peer->said_goodbye = true;
    if (link == peer->in || !peer->in)
        liveness_leave(endpoint, peer);
    pthread_mutex_unlock(&endpoint->reactor.lock);
}

void liveness_watch(struct endpoint *endpoint, const struct link *link)
{
    struct peer *peer = &endpoint->peers[link->rank];
    struct ucred process = {0};
    socklen_t bytes = sizeof process;
    if (link->authenticated || peer->process.fd >= 0 ||
        getsockopt(link->fd, SOL_SOCKET, SO_PEERCRED, &process, &bytes) != 0 || process.pid <= 0 ||
        process.pid == getpid())
        return;
    pthread_mutex_lock(&endpoint->reactor.lock);
    peer->process.fd = (int)syscall(SYS_pidfd_open, process.pid, 0);
    int error = errno;
    if (peer->process.fd >= 0 && reactor_watch(&endpoint->reactor, &peer->process) != BANYAN_OK) {
        close(peer->process.fd);
        peer->process.fd = -1;
    }
    pthread_mutex_unlock(&endpoint->reactor.lock);
    /* After other errors, only the connection shows the process's end. */
    if (peer->process.fd < 0 && error == ESRCH)
        liveness_process_ended(endpoint, &peer->process);
}

/* Everything that the process wrote can be read now; its goodbye decides how it ended. */
void liveness_process_ended(struct endpoint *endpoint, struct event_source *source)
{
    struct peer *peer = source->context;
    int rank = (int)(peer - endpoint->peers);
    pthread_mutex_lock(&endpoint->reactor.lock);
    if (source->fd >= 0) {
        reactor_unwatch(&endpoint->reactor, source);
        close(source->fd);
        source->fd = -1;
    }
    pthread_mutex_unlock(&endpoint->reactor.lock);
    read_last_messages(endpoint, peer);
    if (!peer->said_goodbye)
        liveness_lose(endpoint, rank, BANYAN_ERR_PEER_LOST, "died");
    lose_those_put_off(endpoint);
}
