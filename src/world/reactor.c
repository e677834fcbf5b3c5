#include "world/reactor.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/deadline.h"
#include "core/error.h"
#include "core/log.h"

#define HANDSHAKE_NS (5 * NS_PER_S)
#define CHECK_NS (250 * NS_PER_MS)
#define READ_BYTES 16384
/* One link may keep the loop from the others for so many bytes. */
#define READ_TURN_BYTES (1 << 20)
#define EVENTS 64

static banyan_status watch(struct reactor *reactor, struct event_source *source, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = source};
    if (epoll_ctl(reactor->epoll_fd, EPOLL_CTL_ADD, source->fd, &event) != 0)
        return error_set_errno("epoll_ctl cannot add descriptor %d", source->fd);
    return BANYAN_OK;
}

static void unwatch(struct reactor *reactor, struct event_source *source)
{
    epoll_ctl(reactor->epoll_fd, EPOLL_CTL_DEL, source->fd, NULL);
}

banyan_status reactor_watch(struct reactor *reactor, struct event_source *source)
{
    return watch(reactor, source, EPOLLIN);
}

void reactor_unwatch(struct reactor *reactor, struct event_source *source)
{
    unwatch(reactor, source);
}

static void close_in_child(void *owner)
{
    struct reactor *reactor = owner;
    for (struct link *link = reactor->links; link; link = link->next)
        link_close_descriptors(link);
    for (struct link *link = reactor->finished; link; link = link->next)
        link_close_descriptors(link);
    for (int i = 0; i < reactor->listener_count; i++)
        close(reactor->listeners[i].source.fd);
    close(reactor->wake.fd);
    close(reactor->epoll_fd);
    if (reactor->ops->forked)
        reactor->ops->forked(reactor->owner);
}

banyan_status reactor_open(struct reactor *reactor, uint32_t purpose, int rank,
                           const unsigned char *key, const struct reactor_ops *ops, void *owner)
{
    *reactor = (struct reactor){.epoll_fd = -1, .purpose = purpose, .rank = rank};
    reactor->key = key;
    reactor->ops = ops;
    reactor->owner = owner;
    reactor->accepting = true;
    if (sodium_init() < 0)
        return error_set(BANYAN_ERR_SYSTEM, "libsodium finds no source of random numbers");
    reactor->wake = (struct event_source){.kind = EVENT_WAKE, .fd = -1};
    banyan_status status;
    if ((reactor->epoll_fd = epoll_create1(EPOLL_CLOEXEC)) < 0 ||
        (reactor->wake.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0) {
        status = error_set_errno("cannot make descriptors for the control plane");
        goto close_descriptors;
    }
    status = watch(reactor, &reactor->wake, EPOLLIN);
    if (status != BANYAN_OK)
        goto close_descriptors;
    pthread_mutex_init(&reactor->lock, NULL);
    reactor->guard =
        (struct fork_guard){.lock = &reactor->lock, .in_child = close_in_child, .owner = reactor};
    fork_guard_add(&reactor->guard);
    return BANYAN_OK;

close_descriptors:
    if (reactor->epoll_fd >= 0)
        close(reactor->epoll_fd);
    if (reactor->wake.fd >= 0)
        close(reactor->wake.fd);
    return status;
}

/* With the lock held, so that no fork happens while a descriptor is in nobody's list. */
static void free_finished(struct reactor *reactor)
{
    pthread_mutex_lock(&reactor->lock);
    while (reactor->finished) {
        struct link *link = reactor->finished;
        reactor->finished = link->next;
        link_destroy(link);
    }
    pthread_mutex_unlock(&reactor->lock);
}

void reactor_close(struct reactor *reactor)
{
    fork_guard_remove(&reactor->guard);
    free_finished(reactor);
    while (reactor->links) {
        struct link *link = reactor->links;
        reactor->links = link->next;
        link_destroy(link);
    }
    reactor_stop_listening(reactor);
    close(reactor->wake.fd);
    close(reactor->epoll_fd);
    pthread_mutex_destroy(&reactor->lock);
}

banyan_status reactor_listen(struct reactor *reactor, int fd, bool sealed)
{
    struct reactor_listener *listener = &reactor->listeners[reactor->listener_count];
    *listener = (struct reactor_listener){{EVENT_LISTENER, fd, listener}, sealed};
    reactor->listener_count++;
    return watch(reactor, &listener->source, EPOLLIN);
}

static void stop_listener(struct reactor *reactor, struct reactor_listener *listener)
{
    unwatch(reactor, &listener->source);
    close(listener->source.fd);
}

void reactor_stop_tcp(struct reactor *reactor)
{
    int last = reactor->listener_count - 1;
    if (last < 0 || !reactor->listeners[last].sealed)
        return;
    stop_listener(reactor, &reactor->listeners[last]);
    reactor->listener_count = last;
}

void reactor_stop_listening(struct reactor *reactor)
{
    reactor_stop_tcp(reactor);
    for (int i = 0; i < reactor->listener_count; i++)
        stop_listener(reactor, &reactor->listeners[i]);
    reactor->listener_count = 0;
}

/* ---- links ---- */

static bool in_handshake(const struct link *link)
{
    return !link->connects && link->stage != LINK_READY;
}

/* It has proved nothing yet: the other side knows it for nobody's connection. */
static bool awaits_answer(const struct reactor *reactor, const struct link *link)
{
    return reactor->answer_ns > 0 && link->connects && link->stage == LINK_CHALLENGE;
}

static bool is_timed(const struct reactor *reactor, const struct link *link)
{
    return in_handshake(link) || awaits_answer(reactor, link);
}

/* Takes the descriptor. With the lock held since it was made, so that no fork comes in between. */
static struct link *add_link(struct reactor *reactor, int fd, bool connects, bool connected,
                             bool sealed, int from, int to)
{
    struct link *link = calloc(1, sizeof *link);
    if (!link) {
        close(fd);
        errno = ENOMEM;
        return NULL;
    }
    link_init(link, fd, connects, connected, reactor->purpose, from, to);
    link->sealed = sealed;
    link->key = reactor->key;
    link->ops = &reactor->ops->link;
    link->owner = reactor->owner;
    link->lock = &reactor->lock;
    link->source = (struct event_source){EVENT_LINK, fd, link};
    link->handshake_ends_ns = deadline_after(connects ? reactor->answer_ns : HANDSHAKE_NS);
    link->watches_output = !connected;
    if (watch(reactor, &link->source, connected ? EPOLLIN : EPOLLIN | EPOLLOUT) != BANYAN_OK) {
        link_destroy(link);
        errno = ENOSPC;
        return NULL;
    }
    link->next = reactor->links;
    link->previous = &reactor->links;
    if (link->next)
        link->next->previous = &link->next;
    reactor->links = link;
    reactor->handshakes += is_timed(reactor, link);
    return link;
}

/* Who leaves in the middle of a handshake has most likely ended; at the rendezvous, once it has
 * been answered, it may have found that it has another secret. */
static void log_leaving(const struct reactor *reactor, const struct link *link)
{
    bool answered = reactor->purpose == WIRE_PURPOSE_JOIN && link->stage == LINK_PROOF;
    banyan_log_level level = link->sealed ? BANYAN_LOG_INFO : BANYAN_LOG_DEBUG;
    if (answered && !reactor->quiet)
        level = BANYAN_LOG_WARN;
    log_line(level, "%s: %s left before it had proved that it belongs to the job%s", reactor->name,
             link->who, answered ? ": it ended, or has another secret" : "");
}

static void log_stranger(const struct reactor *reactor, const struct link *link,
                         banyan_status status)
{
    if (status == BANYAN_OK || status == BANYAN_ERR_SYSTEM)
        log_leaving(reactor, link);
    else
        log_line(reactor->quiet ? BANYAN_LOG_DEBUG : BANYAN_LOG_WARN, "%s refused %s: %s",
                 reactor->name, link->who, banyan_last_error());
}

void reactor_drop(struct reactor *reactor, struct link *link, banyan_status status)
{
    if (link->closed)
        return;
    pthread_mutex_lock(&reactor->lock);
    link->closed = link->broken = true;
    *link->previous = link->next;
    if (link->next)
        link->next->previous = link->previous;
    link->next = reactor->finished;
    reactor->finished = link;
    pthread_mutex_unlock(&reactor->lock);
    unwatch(reactor, &link->source);
    reactor->handshakes -= is_timed(reactor, link);
    if (in_handshake(link))
        log_stranger(reactor, link, status);
    else
        reactor->ops->closed(reactor->owner, link, status);
}

struct link *reactor_connect(struct reactor *reactor, const struct address *address,
                             const char *who, int from, int to)
{
    int fd = -1, error = 0;
    struct link *link = NULL;
    pthread_mutex_lock(&reactor->lock);
    address_connect(address, &fd, &error);
    bool connected = error == 0;
    /* Whoever has taken the name before its owner could is not to be trusted. */
    char listener[ADDRESS_TEXT_BYTES];
    if (connected && !address_peer_allowed(fd, listener)) {
        close(fd);
        connected = false;
        error = EACCES;
    }
    if (connected || error == EINPROGRESS) {
        link = add_link(reactor, fd, true, connected, !address_is_unix(address), from, to);
        error = errno;
    }
    if (link) {
        link->rank = to;
        snprintf(link->who, sizeof link->who, "%s", who);
        if (connected)
            link_greet(link);
        reactor_update(reactor, link);
    }
    pthread_mutex_unlock(&reactor->lock);
    errno = error;
    return link;
}

void reactor_update(struct reactor *reactor, struct link *link)
{
    bool wanted = link->stage == LINK_CONNECTING || link_has_output(link);
    if (link->closed || wanted == link->watches_output)
        return;
    struct epoll_event event = {.events = wanted ? EPOLLIN | EPOLLOUT : EPOLLIN,
                                .data.ptr = &link->source};
    if (epoll_ctl(reactor->epoll_fd, EPOLL_CTL_MOD, link->fd, &event) == 0)
        link->watches_output = wanted;
}

/* ---- accepting ---- */

static void drop_oldest_handshake(struct reactor *reactor)
{
    struct link *oldest = NULL;
    for (struct link *link = reactor->links; link; link = link->next) {
        if (in_handshake(link))
            oldest = link;
    }
    if (oldest)
        reactor_drop(
            reactor, oldest,
            error_set(BANYAN_ERR_REFUSED, "no descriptors left for those who say nothing"));
}

static void pause_accepting(struct reactor *reactor)
{
    for (int i = 0; i < reactor->listener_count; i++)
        unwatch(reactor, &reactor->listeners[i].source);
    reactor->accepting = false;
    reactor->next_check_ns = deadline_after(CHECK_NS);
}

static void resume_accepting(struct reactor *reactor)
{
    for (int i = 0; i < reactor->listener_count; i++)
        watch(reactor, &reactor->listeners[i].source, EPOLLIN);
    reactor->accepting = true;
}

/* False, with errno set, when there is none to accept. */
static bool accept_one(struct reactor *reactor, struct reactor_listener *listener)
{
    char who[ADDRESS_TEXT_BYTES];
    bool allowed = true;
    pthread_mutex_lock(&reactor->lock);
    int fd = accept4(listener->source.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    int error = errno;
    if (fd >= 0 && (allowed = address_peer_allowed(fd, who))) {
        struct link *link = add_link(reactor, fd, false, true, listener->sealed, -1, reactor->rank);
        if (link)
            memcpy(link->who, who, sizeof link->who);
    }
    pthread_mutex_unlock(&reactor->lock);
    if (!allowed) {
        log_warn("%s refused %s: not the user that this job belongs to", reactor->name, who);
        close(fd);
    }
    errno = error;
    return fd >= 0;
}

static void accept_all(struct reactor *reactor, struct reactor_listener *listener)
{
    for (int i = 0; i < EVENTS; i++) {
        if (accept_one(reactor, listener))
            continue;
        if (errno == EMFILE || errno == ENFILE) {
            log_warn("%s cannot accept a connection: %s", reactor->name, strerror(errno));
            drop_oldest_handshake(reactor);
            pause_accepting(reactor);
            return;
        }
        if (errno != ECONNABORTED && errno != EINTR)
            return;
    }
}

/* ---- reading and writing ---- */

static void keep_descriptor(struct link *link, int fd)
{
    if (link->descriptor_count < LINK_DESCRIPTORS)
        link->descriptors[link->descriptor_count++] = fd;
    else if (fd >= 0)
        close(fd);
}

/* As recv, keeping the descriptors that come along. */
static ssize_t receive_some(struct link *link, unsigned char *data, size_t bytes)
{
    if (link->sealed || link->stage != LINK_READY)
        return recv(link->fd, data, bytes, MSG_DONTWAIT);
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(LINK_DESCRIPTORS * sizeof(int))];
    } control;
    struct iovec piece = {data, bytes};
    struct msghdr message = {.msg_iov = &piece,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    ssize_t got = recvmsg(link->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0)
        return got;
    if (message.msg_flags & MSG_CTRUNC)
        keep_descriptor(link, -1); /* this process has no room for it; its place is kept */
    for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header;
         header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
            keep_descriptor(link, fd);
        }
    }
    return got;
}

/* One recv and what follows from it. False when there is no more to read now. */
static bool read_once(struct reactor *reactor, struct link *link, size_t *got_bytes)
{
    unsigned char buffer[READ_BYTES];
    size_t room = 0;
    unsigned char *payload = link_payload_room(link, &room);
    bool direct = payload && room >= sizeof buffer;
    ssize_t got =
        direct ? receive_some(link, payload, room) : receive_some(link, buffer, sizeof buffer);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (got <= 0) {
        banyan_status status = BANYAN_OK;
        if (got < 0)
            status = error_set_errno("reading from %s", link->who);
        reactor_drop(reactor, link, status);
        return false;
    }
    *got_bytes += (size_t)got;
    bool was_ready = link->stage == LINK_READY, counted = is_timed(reactor, link);
    banyan_status status =
        direct ? link_filled(link, (size_t)got) : link_feed(link, buffer, (size_t)got);
    if (counted && !is_timed(reactor, link))
        reactor->handshakes--;
    if (!was_ready) {
        pthread_mutex_lock(&reactor->lock);
        reactor_update(reactor, link);
        pthread_mutex_unlock(&reactor->lock);
    }
    if (status != BANYAN_OK)
        reactor_drop(reactor, link, status);
    return !link->closed;
}

/* What a frame leads to may pump the link that it came on: it is being read already. */
bool reactor_pump(struct reactor *reactor, struct link *link)
{
    size_t got = 0;
    bool more = !link->reading && !link->closed;
    if (!more)
        return true;
    link->reading = true;
    while (more && got < READ_TURN_BYTES)
        more = read_once(reactor, link, &got);
    link->reading = false;
    return !more;
}

static void finish_connecting(struct reactor *reactor, struct link *link)
{
    int error = 0;
    socklen_t bytes = sizeof error;
    getsockopt(link->fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
    if (error != 0) {
        errno = link->connect_error = error;
        reactor_drop(reactor, link, error_set_errno("cannot connect to %s", link->who));
        return;
    }
    pthread_mutex_lock(&reactor->lock);
    link_greet(link);
    reactor_update(reactor, link);
    pthread_mutex_unlock(&reactor->lock);
    link->handshake_ends_ns = deadline_after(reactor->answer_ns);
    reactor->handshakes += awaits_answer(reactor, link);
}

static void handle_link(struct reactor *reactor, struct link *link, uint32_t events)
{
    if (link->closed)
        return;
    if (link->stage == LINK_CONNECTING) {
        finish_connecting(reactor, link);
        return;
    }
    if (events & EPOLLOUT) {
        pthread_mutex_lock(&reactor->lock);
        link_flush(link);
        reactor_update(reactor, link);
        pthread_mutex_unlock(&reactor->lock);
    }
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
        reactor_pump(reactor, link);
}

/* ---- the loop ---- */

static void check_handshakes(struct reactor *reactor)
{
    uint64_t now = time_now_ns();
    if (now < reactor->next_check_ns)
        return;
    reactor->next_check_ns = now + CHECK_NS;
    if (!reactor->accepting)
        resume_accepting(reactor);
    for (struct link *link = reactor->links, *next; link && reactor->handshakes > 0; link = next) {
        next = link->next;
        if (now < link->handshake_ends_ns || !is_timed(reactor, link))
            continue;
        if (in_handshake(link))
            reactor_drop(reactor, link,
                         error_set(BANYAN_ERR_TIMEOUT, "it said nothing for %d s",
                                   (int)(HANDSHAKE_NS / NS_PER_S)));
        else
            reactor_drop(reactor, link,
                         error_set(BANYAN_ERR_SYSTEM, "%s does not answer", link->who));
    }
}

static void handle(struct reactor *reactor, const struct epoll_event *event)
{
    struct event_source *source = event->data.ptr;
    uint64_t woken;
    switch (source->kind) {
    case EVENT_WAKE:
        while (read(source->fd, &woken, sizeof woken) > 0)
            ;
        break;
    case EVENT_LISTENER:
        accept_all(reactor, source->context);
        break;
    case EVENT_LINK:
        handle_link(reactor, source->context, event->events);
        break;
    case EVENT_WATCH:
        reactor->ops->watched(reactor->owner, source);
        break;
    }
}

void reactor_step(struct reactor *reactor, uint64_t timeout_ns)
{
    if ((reactor->handshakes > 0 || !reactor->accepting) && timeout_ns > CHECK_NS)
        timeout_ns = CHECK_NS;
    uint64_t timeout_ms = (timeout_ns + NS_PER_MS - 1) / NS_PER_MS;
    struct epoll_event events[EVENTS];
    int count =
        epoll_wait(reactor->epoll_fd, events, EVENTS, timeout_ms > 60000 ? 60000 : (int)timeout_ms);
    for (int i = 0; i < count; i++)
        handle(reactor, &events[i]);
    if (reactor->handshakes > 0 || !reactor->accepting)
        check_handshakes(reactor);
    if (reactor->finished)
        free_finished(reactor);
}

void reactor_wake(struct reactor *reactor)
{
    uint64_t one = 1;
    ssize_t wrote = write(reactor->wake.fd, &one, sizeof one);
    (void)wrote; /* fails only when a wake-up is pending already */
}
