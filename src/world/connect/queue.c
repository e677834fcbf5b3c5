#include "world/connect/queue.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/deadline.h"
#include "core/error.h"
#include "core/interrupt.h"
#include "core/log.h"
#include "core/threads/thread.h"
#include "world/bootstrap/rendezvous.h"
#include "world/control.h"

/* Time for a connection with the secret to send its request. */
#define REQUEST_NS (5 * NS_PER_S)
/* Time between two looks at the listening world, and at connections without a request. */
#define LOOK_NS NS_PER_S

/* A connecting world, from its connection to its end. */
struct candidate {
    struct candidate *next;
    struct link *link; /* NULL: it has gone */
    bool asks;         /* it has sent its request */
    bool has_id;       /* and all its ranks have the joined world's id */
    bool is_done;      /* disconnect it */
    uint64_t until_ns; /* while it does not ask */
    struct connect_party party;
};

struct connect_queue {
    struct reactor reactor; /* its lock guards the members from `candidates` on */
    pthread_t thread;
    atomic_bool stop;
    banyan_world *world;
    char who[ADDRESS_TEXT_BYTES + 32];
    unsigned char key[WIRE_KEY_BYTES];
    char name[CONNECT_NAME_BYTES];
    struct connect_party self;
    pthread_cond_t changed;
    struct candidate *candidates; /* in the order of their arrival */
    struct candidate *taken;      /* by the listening world; in the list, too */
};

static struct candidate *find_candidate(const struct connect_queue *queue, const struct link *link)
{
    struct candidate *at = queue->candidates;
    while (at && at->link != link)
        at = at->next;
    return at;
}

static void forget_candidate(struct connect_queue *queue, struct candidate *gone)
{
    struct candidate **at = &queue->candidates;
    while (*at != gone)
        at = &(*at)->next;
    *at = gone->next;
    free(gone);
}

/* ---- the thread ---- */

static banyan_status queue_admit(void *owner, struct link *link)
{
    (void)owner;
    (void)link;
    return BANYAN_OK;
}

static void queue_add(void *owner, struct link *link)
{
    struct connect_queue *queue = owner;
    struct candidate *added = calloc(1, sizeof *added);
    if (!added) {
        reactor_drop(&queue->reactor, link, error_no_memory(sizeof *added, "a connecting world"));
        return;
    }
    added->link = link;
    added->until_ns = deadline_after(REQUEST_NS);
    pthread_mutex_lock(&queue->reactor.lock);
    struct candidate **end = &queue->candidates;
    while (*end)
        end = &(*end)->next;
    *end = added;
    pthread_mutex_unlock(&queue->reactor.lock);
}

static banyan_status queue_check_request(const struct connect_queue *queue,
                                         const struct connect_request *request)
{
    if (strcmp(request->name, queue->name) != 0)
        return error_set(BANYAN_ERR_MISMATCH,
                         "the connecting world asks for \"%s\", and the world at this address "
                         "listens as \"%s\"",
                         request->name, queue->name);
    if (request->party.size > BANYAN_MAX_RANKS - queue->self.size)
        return error_set(BANYAN_ERR_MISMATCH,
                         "worlds of %d and %d ranks cannot be joined: a world has at most %d",
                         queue->self.size, request->party.size, BANYAN_MAX_RANKS);
    return BANYAN_OK;
}

/* Put the world into the queue, and tell it who accepts it. With the lock held. */
static banyan_status queue_answer(struct connect_queue *queue, struct candidate *candidate,
                                  const struct connect_party *party)
{
    bytes_writer text = {0};
    connect_party_write(&text, &queue->self);
    struct wire_frame frame = {.kind = WIRE_NEWS, .bytes = text.count};
    banyan_status status = text.failed
                               ? error_no_memory(text.count, "an answer to a connecting world")
                               : link_send(candidate->link, &frame, text.data, -1);
    reactor_update(&queue->reactor, candidate->link);
    bytes_writer_free(&text);
    candidate->party = *party;
    candidate->asks = status == BANYAN_OK;
    pthread_cond_broadcast(&queue->changed);
    return status;
}

static banyan_status queue_take_request(struct connect_queue *queue, struct link *link,
                                        const void *data, size_t bytes)
{
    struct connect_request request = {0};
    char text[CONNECT_PARTY_BYTES];
    banyan_status status = connect_request_read(data, bytes, &request);
    if (status == BANYAN_OK)
        status = queue_check_request(queue, &request);
    pthread_mutex_lock(&queue->reactor.lock);
    struct candidate *candidate = find_candidate(queue, link);
    if (status == BANYAN_OK && candidate->asks)
        status = error_set(BANYAN_ERR_FORMAT, "%s asks twice", link->who);
    if (status == BANYAN_OK)
        status = queue_answer(queue, candidate, &request.party);
    else
        (void)link_refuse(link, status, banyan_last_error());
    pthread_mutex_unlock(&queue->reactor.lock);
    if (status == BANYAN_OK)
        log_info("%s: %s asks to connect", queue->who, connect_party_text(&request.party, text));
    else
        log_warn("%s refused %s: %s", queue->who, link->who, banyan_last_error());
    return status;
}

static banyan_status queue_take_ready(struct connect_queue *queue, const struct link *link)
{
    pthread_mutex_lock(&queue->reactor.lock);
    struct candidate *candidate = find_candidate(queue, link);
    bool is_invited = candidate == queue->taken;
    candidate->has_id = is_invited;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->reactor.lock);
    return is_invited ? BANYAN_OK
                      : error_set(BANYAN_ERR_FORMAT, "%s is ready without an id", link->who);
}

static banyan_status queue_take_frame(void *owner, struct link *link,
                                      const struct wire_frame *frame, void *payload, int fd)
{
    struct connect_queue *queue = owner;
    banyan_status status;
    if (fd >= 0)
        close(fd);
    if (frame->kind == WIRE_JOIN)
        status = queue_take_request(queue, link, payload, (size_t)frame->bytes);
    else if (frame->kind == WIRE_READY)
        status = queue_take_ready(queue, link);
    else
        status = error_set(BANYAN_ERR_FORMAT, "%s sends frame kind %u instead of a request",
                           link->who, frame->kind);
    free(payload);
    return status;
}

static void queue_note_gone(void *owner, struct link *link, banyan_status status)
{
    struct connect_queue *queue = owner;
    char text[CONNECT_PARTY_BYTES], why[512] = "";
    if (status != BANYAN_OK)
        snprintf(why, sizeof why, ": %.500s", banyan_last_error());
    pthread_mutex_lock(&queue->reactor.lock);
    struct candidate *gone = find_candidate(queue, link);
    bool is_news = gone && gone->asks && !gone->is_done && gone != queue->taken;
    if (is_news)
        connect_party_text(&gone->party, text);
    if (gone && gone == queue->taken)
        gone->link = NULL;
    else if (gone)
        forget_candidate(queue, gone);
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->reactor.lock);
    if (status == BANYAN_ERR_TIMEOUT)
        log_warn("%s drops %s%s", queue->who, link->who, why);
    if (is_news)
        log_warn("%s: %s left before it was accepted%s", queue->who, text, why);
}

static const struct reactor_ops queue_ops = {
    .link = {.admit = queue_admit, .ready = queue_add, .frame = queue_take_frame},
    .closed = queue_note_gone,
};

/* Disconnect candidates that are done, or send no request. True when there may be more. */
static bool queue_disconnect_one(struct connect_queue *queue)
{
    uint64_t now = time_now_ns();
    pthread_mutex_lock(&queue->reactor.lock);
    struct candidate *at = queue->candidates;
    while (at && !(at->link && (at->is_done || (!at->asks && now >= at->until_ns))))
        at = at->next;
    struct link *link = at ? at->link : NULL;
    bool is_done = at && at->is_done;
    pthread_mutex_unlock(&queue->reactor.lock);
    if (link)
        reactor_drop(&queue->reactor, link,
                     is_done ? BANYAN_OK
                             : error_set(BANYAN_ERR_TIMEOUT, "it sent no request for %d s",
                                         (int)(REQUEST_NS / NS_PER_S)));
    return link != NULL;
}

/* Nobody can accept worlds any more: let them look for another listener. */
static void queue_check_world(struct connect_queue *queue)
{
    if (control_check(queue->world) == BANYAN_OK || queue->reactor.listener_count == 0)
        return;
    log_warn("%s stops: its world has ended: %s", queue->who, banyan_last_error());
    reactor_stop_listening(&queue->reactor);
    pthread_mutex_lock(&queue->reactor.lock);
    for (struct candidate *at = queue->candidates; at; at = at->next)
        at->is_done = true;
    pthread_mutex_unlock(&queue->reactor.lock);
}

static void *queue_serve(void *argument)
{
    struct connect_queue *queue = argument;
    while (!atomic_load(&queue->stop)) {
        reactor_step(&queue->reactor, LOOK_NS);
        queue_check_world(queue);
        while (queue_disconnect_one(queue))
            reactor_step(&queue->reactor, 0); /* closes it */
    }
    return NULL;
}

/* ---- opening and closing ---- */

static bool is_any(const struct address *address)
{
    char text[ADDRESS_TEXT_BYTES];
    address_text(address, text);
    return strncmp(text, "[::]:", 5) == 0 || strncmp(text, "0.0.0.0:", 8) == 0;
}

static banyan_status listen_at_host(const char *host, int port, int *fd)
{
    struct address found[RENDEZVOUS_ADDRESSES];
    int count = connect_resolve(host, port, found, RENDEZVOUS_ADDRESSES);
    banyan_status status = count > 0 ? BANYAN_OK : BANYAN_ERR_SYSTEM;
    for (int i = 0; i < count; i++) {
        status = address_listen(&found[i], fd);
        if (status == BANYAN_OK)
            break;
    }
    return status;
}

/* Open the listener, and write the address at which others reach it. */
static banyan_status queue_listen(const char *wanted, char text[ADDRESS_TEXT_BYTES], int *fd)
{
    char host[CONNECT_HOST_BYTES];
    int port = 0;
    struct address bound = {.bytes = sizeof bound.socket}, own;
    RETURN_IF_FAILED(connect_split_address(wanted, host, &port));
    RETURN_IF_FAILED(host[0] ? listen_at_host(host, port, fd)
                             : address_listen_tcp(false, port, fd, &port));
    if (getsockname(*fd, (struct sockaddr *)&bound.socket, &bound.bytes) != 0) {
        banyan_status status = error_set_errno("getsockname of a new listener");
        close(*fd);
        return status;
    }
    if (is_any(&bound) && rendezvous_own_address(address_port(&bound), &own))
        bound = own;
    address_text(&bound, text);
    return BANYAN_OK;
}

static banyan_status queue_start(struct connect_queue *queue, const char *address,
                                 char text[ADDRESS_TEXT_BYTES])
{
    int fd;
    RETURN_IF_FAILED(queue_listen(address, text, &fd));
    snprintf(queue->who, sizeof queue->who, "the listener at %s", text);
    banyan_status status =
        reactor_open(&queue->reactor, WIRE_PURPOSE_CONNECT, -1, queue->key, &queue_ops, queue);
    if (status != BANYAN_OK) {
        close(fd);
        return status;
    }
    queue->reactor.name = queue->who;
    status = reactor_listen(&queue->reactor, fd, true);
    if (status == BANYAN_OK)
        status = thread_start(&queue->thread, queue_serve, queue, false);
    if (status != BANYAN_OK)
        reactor_close(&queue->reactor);
    return status;
}

/* The clock of conditions is that of deadlines. */
static void init_condition(pthread_cond_t *condition)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

static void queue_free(struct connect_queue *queue)
{
    while (queue->candidates)
        forget_candidate(queue, queue->candidates);
    pthread_cond_destroy(&queue->changed);
    sodium_memzero(queue->key, sizeof queue->key);
    free(queue);
}

banyan_status connect_queue_open(banyan_world *world, const char *address,
                                 const unsigned char key[WIRE_KEY_BYTES], const char *name,
                                 char text[ADDRESS_TEXT_BYTES], struct connect_queue **queue)
{
    struct connect_queue *opened = calloc(1, sizeof *opened);
    if (!opened)
        return error_no_memory(sizeof *opened, "a listener");
    opened->world = world;
    opened->self = connect_party_of(world);
    memcpy(opened->key, key, sizeof opened->key);
    snprintf(opened->name, sizeof opened->name, "%s", name);
    init_condition(&opened->changed);
    banyan_status status = queue_start(opened, address, text);
    if (status == BANYAN_OK)
        *queue = opened;
    else
        queue_free(opened);
    return status;
}

void connect_queue_close(struct connect_queue *queue)
{
    if (!queue)
        return;
    atomic_store(&queue->stop, true);
    reactor_wake(&queue->reactor);
    pthread_join(queue->thread, NULL);
    reactor_close(&queue->reactor);
    queue_free(queue);
}

/* ---- for the listening world ---- */

/* With the lock held. */
static struct candidate *queue_first(const struct connect_queue *queue)
{
    struct candidate *at = queue->candidates;
    while (at && (!at->asks || at->is_done))
        at = at->next;
    return at;
}

bool connect_queue_has(struct connect_queue *queue)
{
    pthread_mutex_lock(&queue->reactor.lock);
    bool has = queue_first(queue) != NULL;
    pthread_mutex_unlock(&queue->reactor.lock);
    return has;
}

/* Sleep until something changes. False when the wait is over: at its time, by an interrupt, which
 * ends the world, or because the world has ended. With the lock held, which is released meanwhile.
 */
static bool queue_sleep(struct connect_queue *queue, uint64_t until_ns)
{
    uint64_t look_ns = deadline_after(100 * NS_PER_MS);
    uint64_t wake_ns = interrupt_until(look_ns < until_ns ? look_ns : until_ns);
    struct timespec wake = {.tv_sec = (time_t)(wake_ns / NS_PER_S),
                            .tv_nsec = (long)(wake_ns % NS_PER_S)};
    if (deadline_left_ns(until_ns) == 0)
        return false;
    pthread_cond_timedwait(&queue->changed, &queue->reactor.lock, &wake);
    pthread_mutex_unlock(&queue->reactor.lock);
    if (interrupt_requested())
        (void)control_fail(queue->world,
                           error_set(BANYAN_ERR_ABORTED,
                                     "%s was waiting for worlds to connect: " INTERRUPT_TEXT,
                                     queue->who));
    bool goes_on = control_check(queue->world) == BANYAN_OK;
    pthread_mutex_lock(&queue->reactor.lock);
    return goes_on;
}

bool connect_queue_take(struct connect_queue *queue, uint64_t ns, struct connect_party *party,
                        struct address *local)
{
    uint64_t until_ns = deadline_after(ns);
    pthread_mutex_lock(&queue->reactor.lock);
    while (!queue_first(queue) && queue_sleep(queue, until_ns))
        ;
    if ((queue->taken = queue_first(queue))) {
        *party = queue->taken->party;
        *local = (struct address){.bytes = sizeof local->socket};
        (void)getsockname(queue->taken->link->fd, (struct sockaddr *)&local->socket, &local->bytes);
    }
    bool has = queue->taken != NULL;
    pthread_mutex_unlock(&queue->reactor.lock);
    return has;
}

banyan_status connect_queue_invite(struct connect_queue *queue, const banyan_unique_id *id,
                                   uint64_t ns)
{
    struct wire_frame frame = {.kind = WIRE_TABLE, .bytes = sizeof *id};
    uint64_t until_ns = deadline_after(ns);
    pthread_mutex_lock(&queue->reactor.lock);
    struct candidate *taken = queue->taken;
    banyan_status status = BANYAN_OK;
    if (taken->link) {
        status = link_send(taken->link, &frame, id, -1);
        reactor_update(&queue->reactor, taken->link);
    }
    while (status == BANYAN_OK && taken->link && !taken->has_id && queue_sleep(queue, until_ns))
        ;
    bool has_gone = !taken->link, has_id = taken->has_id;
    pthread_mutex_unlock(&queue->reactor.lock);
    if (status == BANYAN_OK && has_gone)
        status = error_set(BANYAN_ERR_PEER_LOST, "it left when it was accepted");
    else if (status == BANYAN_OK && !has_id)
        status = error_set(BANYAN_ERR_TIMEOUT, "it did not answer for %.1f s when it was accepted",
                           (double)ns / 1e9);
    return status;
}

banyan_status connect_queue_check(struct connect_queue *queue)
{
    pthread_mutex_lock(&queue->reactor.lock);
    bool has_gone = !queue->taken->link;
    pthread_mutex_unlock(&queue->reactor.lock);
    return has_gone ? error_set(BANYAN_ERR_ABORTED, "rank 0 of the connecting world has gone")
                    : BANYAN_OK;
}

void connect_queue_release(struct connect_queue *queue, const error_kept *why)
{
    pthread_mutex_lock(&queue->reactor.lock);
    struct candidate *taken = queue->taken;
    queue->taken = NULL;
    taken->is_done = true;
    if (!taken->link) {
        forget_candidate(queue, taken);
    } else if (why) {
        (void)link_refuse(taken->link, why->status, why->message);
        reactor_update(&queue->reactor, taken->link);
    }
    pthread_mutex_unlock(&queue->reactor.lock);
    reactor_wake(&queue->reactor);
}
