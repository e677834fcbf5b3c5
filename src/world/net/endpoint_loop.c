#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/deadline.h"
#include "core/error.h"
#include "world/net/endpoint.h"

/* Time that a machine may be unreachable before its rank counts as lost. */
#define CONNECT_TIMEOUT_NS (3 * NS_PER_S)
#define CONNECT_RETRY_NS (20 * NS_PER_MS)
/* Time to wait, after a rank refuses a connection, for a report of the loss that may have made it
 * leave. */
#define REFUSED_TIMEOUT_NS (200 * NS_PER_MS)
/* Time for which this rank tries to connect while it lacks descriptors or memory. */
#define OWN_TIMEOUT_NS (200 * NS_PER_MS)
#define IDLE_NS (60 * NS_PER_S)

static bool is_message(uint32_t kind)
{
    return kind == WIRE_MESSAGE || kind == WIRE_COLLECTIVE || kind == WIRE_EXCHANGE ||
           kind == WIRE_DESCRIPTOR;
}

static banyan_status admit_rank(void *owner, struct link *link)
{
    struct endpoint *endpoint = owner;
    int rank = link->hello.from;
    if (rank < 0 || rank >= endpoint->size || rank == endpoint->rank)
        return error_set(BANYAN_ERR_REFUSED, "%s claims to be rank %d, which it cannot be",
                         link->who, rank);
    banyan_status status = BANYAN_OK;
    struct peer *peer = &endpoint->peers[rank];
    pthread_mutex_lock(&endpoint->reactor.lock);
    if (peer->in || peer->state != PEER_HERE)
        status = error_set(BANYAN_ERR_REFUSED, "%s claims to be rank %d, which is %s", link->who,
                           rank, peer->in ? "connected already" : "gone");
    else
        peer->in = link;
    pthread_mutex_unlock(&endpoint->reactor.lock);
    if (status != BANYAN_OK)
        return status;
    link->rank = rank;
    snprintf(link->who, sizeof link->who, "rank %d", rank);
    return BANYAN_OK;
}

static void note_ready(void *owner, struct link *link)
{
    struct endpoint *endpoint = owner;
    pthread_mutex_lock(&endpoint->reactor.lock);
    if (link->connects)
        endpoint_send_pending(endpoint, &endpoint->peers[link->rank]);
    else
        endpoint->peers[link->rank].came = true;
    liveness_send_losses(endpoint, link);
    pthread_cond_broadcast(&endpoint->changed);
    pthread_mutex_unlock(&endpoint->reactor.lock);
    liveness_watch(endpoint, link);
}

static banyan_status endpoint_loop_take_message(struct endpoint *endpoint, struct link *link,
                                                const struct wire_frame *frame, void *payload,
                                                int fd)
{
    pthread_mutex_lock(&endpoint->reactor.lock);
    banyan_status status = endpoint_deliver(endpoint, link->rank, frame, payload, fd);
    if (status == BANYAN_OK && frame->kind == WIRE_EXCHANGE) {
        struct wire_frame ack = {.kind = WIRE_ACK, .context = frame->context, .tag = frame->tag};
        status = link_send(link, &ack, NULL, -1);
        reactor_update(&endpoint->reactor, link);
    }
    pthread_mutex_unlock(&endpoint->reactor.lock);
    return status;
}

static banyan_status take_news(struct endpoint *endpoint, struct link *link,
                               const struct wire_frame *frame, const char *text)
{
    switch (frame->kind) {
    case WIRE_LOST:
        return liveness_take_lost(endpoint, link, frame, text);
    case WIRE_ABORT:
        return liveness_take_abort(endpoint, link, frame, text);
    case WIRE_GOODBYE:
        liveness_take_goodbye(endpoint, link, frame, text);
        return BANYAN_OK;
    default:
        return error_set(BANYAN_ERR_FORMAT, "%s sends a frame of unexpected kind %u", link->who,
                         frame->kind);
    }
}

static banyan_status take_word_on_late(struct endpoint *endpoint, const struct link *link,
                                       const struct wire_frame *frame, const void *payload)
{
    pthread_mutex_lock(&endpoint->reactor.lock);
    banyan_status status = late_take(endpoint, link, frame, payload);
    pthread_mutex_unlock(&endpoint->reactor.lock);
    return status;
}

static banyan_status endpoint_loop_take_frame(void *owner, struct link *link,
                                              const struct wire_frame *frame, void *payload, int fd)
{
    struct endpoint *endpoint = owner;
    if (is_message(frame->kind) && !link->connects)
        return endpoint_loop_take_message(endpoint, link, frame, payload, fd);
    banyan_status status = BANYAN_OK;
    if (frame->kind == WIRE_ACK && link->connects) {
        pthread_mutex_lock(&endpoint->reactor.lock);
        endpoint_acknowledge(endpoint, endpoint_find_context(endpoint, frame->context), link->rank);
        pthread_mutex_unlock(&endpoint->reactor.lock);
    } else if (frame->kind == WIRE_ASK || frame->kind == WIRE_ANSWER ||
               frame->kind == WIRE_GIVE_UP) {
        status = take_word_on_late(endpoint, link, frame, payload);
    } else {
        char text[1024];
        snprintf(text, sizeof text, "%.*s", (int)(frame->bytes < 1000 ? frame->bytes : 1000),
                 payload ? (const char *)payload : "");
        status = take_news(endpoint, link, frame, text);
    }
    free(payload);
    if (fd >= 0)
        close(fd);
    return status;
}

static void endpoint_loop_retry(struct endpoint *endpoint, struct peer *peer, int rank)
{
    if (peer->state == PEER_HERE && !peer->wanted && array_push(&endpoint->wanted, rank)) {
        peer->wanted = true;
        peer->retry_ns = deadline_after(CONNECT_RETRY_NS);
    }
}

/* True for an error of this process, not of the peer's machine. */
static bool is_own_error(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS ||
           error == ENOSPC || error == EPERM;
}

/* Handle a connection that failed for a reason of this rank. */
static void endpoint_loop_fail(struct endpoint *endpoint, struct link *link, int rank,
                               banyan_status status, const char *how)
{
    char reason[1200];
    snprintf(reason, sizeof reason, "rank %d lost its connection to rank %d: %s", endpoint->rank,
             rank, how);
    pthread_mutex_lock(&endpoint->reactor.lock);
    liveness_fail(endpoint, link, status, reason);
    pthread_mutex_unlock(&endpoint->reactor.lock);
}

/* Give up or retry. A rank listens before others learn its address, so a refused connection means
 * that it is gone. An unreachable machine may return. */
static void give_up_or_retry(struct endpoint *endpoint, int rank, int error, const char *how)
{
    struct peer *peer = &endpoint->peers[rank];
    uint64_t now = time_now_ns();
    bool own = is_own_error(error);
    uint64_t timeout_ns = own                     ? OWN_TIMEOUT_NS
                          : error == ECONNREFUSED ? REFUSED_TIMEOUT_NS
                                                  : CONNECT_TIMEOUT_NS;
    pthread_mutex_lock(&endpoint->reactor.lock);
    if (peer->gives_up_ns == 0)
        peer->gives_up_ns = now + timeout_ns;
    bool over = now >= peer->gives_up_ns;
    if (!over)
        endpoint_loop_retry(endpoint, peer, rank);
    pthread_mutex_unlock(&endpoint->reactor.lock);
    if (over && own)
        endpoint_loop_fail(endpoint, NULL, rank, BANYAN_ERR_SYSTEM, how);
    else if (over)
        liveness_lose(endpoint, rank, BANYAN_ERR_PEER_LOST, how);
}

/* Reconnect to a rank that was there but did not finish the handshake: this side may have been too
 * slow for it. */
static void shake_hands_again(struct endpoint *endpoint, int rank)
{
    struct peer *peer = &endpoint->peers[rank];
    pthread_mutex_lock(&endpoint->reactor.lock);
    peer->gives_up_ns = 0;
    endpoint_loop_retry(endpoint, peer, rank);
    pthread_mutex_unlock(&endpoint->reactor.lock);
}

static void note_closed(void *owner, struct link *link, banyan_status status)
{
    struct endpoint *endpoint = owner;
    int rank = link->rank;
    struct peer *peer = &endpoint->peers[rank];
    char how[1024];
    pthread_mutex_lock(&endpoint->reactor.lock);
    if (peer->out == link)
        peer->out = NULL;
    if (peer->in == link)
        peer->in = NULL;
    if (peer->said_goodbye && !peer->in)
        liveness_leave(endpoint, peer);
    bool expected = peer->state != PEER_HERE || peer->said_goodbye;
    pthread_mutex_unlock(&endpoint->reactor.lock);
    if (expected)
        return;
    if (link->connect_error != 0) {
        snprintf(how, sizeof how, "cannot be reached: %.900s", banyan_last_error());
        give_up_or_retry(endpoint, rank, link->connect_error, how);
        return;
    }
    bool own = link->own_error != 0 || status == BANYAN_ERR_NO_MEMORY;
    /* In the last stage the peer may regard this link as established, and its end as a death. */
    bool may_stand = link->stage == LINK_READY || (own && link->stage == LINK_WELCOME);
    if (!may_stand && (status == BANYAN_OK || status == BANYAN_ERR_SYSTEM || own)) {
        shake_hands_again(endpoint, rank);
        return;
    }
    if (own) {
        endpoint_loop_fail(endpoint, link, rank, status, banyan_last_error());
        return;
    }
    if (status == BANYAN_OK)
        snprintf(how, sizeof how, "died");
    else
        snprintf(how, sizeof how, "was lost: %.900s", banyan_last_error());
    liveness_doubt(endpoint, rank, how);
}

static void note_process_ended(void *owner, struct event_source *source)
{
    liveness_process_ended(owner, source);
}

static void endpoint_loop_note_starved(void *owner, int error)
{
    struct endpoint *endpoint = owner;
    char reason[160];
    errno = error;
    snprintf(reason, sizeof reason, "rank %d cannot accept connections of its peers: %m",
             endpoint->rank);
    pthread_mutex_lock(&endpoint->reactor.lock);
    liveness_fail(endpoint, NULL, BANYAN_ERR_SYSTEM, reason);
    pthread_mutex_unlock(&endpoint->reactor.lock);
}

static void forget_in_child(void *owner)
{
    struct endpoint *endpoint = owner;
    char text[160];
    endpoint->forked = true;
    for (int rank = 0; endpoint->peers && rank < endpoint->size; rank++) {
        const struct peer *peer = &endpoint->peers[rank];
        if (peer->process.fd >= 0)
            close(peer->process.fd);
        for (size_t i = 0; i < peer->pending.count; i++) {
            if (peer->pending.data[i].fd >= 0)
                close(peer->pending.data[i].fd);
        }
    }
    snprintf(text, sizeof text,
             "this world belongs to the parent process: it was opened before the fork that made "
             "process %d",
             getpid());
    for (size_t i = 0; i < endpoint->contexts.count; i++)
        context_end(endpoint->contexts.data[i], BANYAN_ERR_INVALID, text);
}

const struct reactor_ops endpoint_ops = {
    .link = {.admit = admit_rank, .ready = note_ready, .frame = endpoint_loop_take_frame},
    .closed = note_closed,
    .watched = note_process_ended,
    .starved = endpoint_loop_note_starved,
    .forked = forget_in_child,
};

static void connect_to(struct endpoint *endpoint, int rank)
{
    struct peer *peer = &endpoint->peers[rank];
    const struct member *member = &endpoint->members[rank];
    bool near = peer->node == endpoint->peers[endpoint->rank].node;
    struct address address = near ? address_unix(member->name) : member->tcp;
    char text[ADDRESS_TEXT_BYTES], who[ADDRESS_TEXT_BYTES], how[512];
    snprintf(who, sizeof who, "rank %d at %.120s", rank, address_text(&address, text));
    struct link *link = reactor_connect(&endpoint->reactor, &address, who, endpoint->rank, rank);
    if (link) {
        pthread_mutex_lock(&endpoint->reactor.lock);
        peer->out = link;
        pthread_mutex_unlock(&endpoint->reactor.lock);
        return;
    }
    int error = errno;
    if (error == EAGAIN) { /* the queue of its listener is full */
        shake_hands_again(endpoint, rank);
        return;
    }
    char reason[96];
    snprintf(how, sizeof how, "cannot be reached at %.120s: %s", text,
             strerror_r(error, reason, sizeof reason));
    give_up_or_retry(endpoint, rank, error, near && error == ECONNREFUSED ? "died" : how);
}

/* Return the next rank whose connection is due, or -1; `*wait_ns` is the time until the earliest
 * other one. */
static int next_wanted(struct endpoint *endpoint, uint64_t *wait_ns)
{
    int rank = -1;
    uint64_t now = time_now_ns();
    pthread_mutex_lock(&endpoint->reactor.lock);
    for (size_t i = 0; i < endpoint->wanted.count; i++) {
        struct peer *peer = &endpoint->peers[endpoint->wanted.data[i]];
        if (peer->retry_ns > now) {
            if (peer->retry_ns - now < *wait_ns)
                *wait_ns = peer->retry_ns - now;
            continue;
        }
        rank = endpoint->wanted.data[i];
        endpoint->wanted.data[i] = endpoint->wanted.data[--endpoint->wanted.count];
        peer->wanted = false;
        break;
    }
    pthread_mutex_unlock(&endpoint->reactor.lock);
    return rank;
}

void *endpoint_run(void *argument)
{
    struct endpoint *endpoint = argument;
    while (!atomic_load(&endpoint->stop)) {
        uint64_t wait_ns = IDLE_NS;
        for (int rank; (rank = next_wanted(endpoint, &wait_ns)) >= 0;) {
            if (endpoint->peers[rank].state == PEER_HERE && !endpoint->peers[rank].out)
                connect_to(endpoint, rank);
        }
        liveness_settle_doubts(endpoint, &wait_ns);
        reactor_step(&endpoint->reactor, wait_ns);
    }
    return NULL;
}
