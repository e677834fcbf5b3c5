#include "world/net/reactor.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/deadline.h"
#include "core/error.h"
#include "core/log.h"

static pthread_mutex_t guards_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t install_once = PTHREAD_ONCE_INIT;
static struct fork_guard *guards;

static void before_fork(void)
{
    pthread_mutex_lock(&guards_lock);
    for (struct fork_guard *guard = guards; guard; guard = guard->next)
        pthread_mutex_lock(guard->lock);
}

static void fork_guard_release_all(void)
{
    for (struct fork_guard *guard = guards; guard; guard = guard->next)
        pthread_mutex_unlock(guard->lock);
    pthread_mutex_unlock(&guards_lock);
}

/* The child cannot use what it inherited. It also forgets the guards, so that they do not run again
 * in a child of its own. */
static void in_child(void)
{
    fork_guard_release_all();
    struct fork_guard *guard = guards;
    guards = NULL;
    for (struct fork_guard *next; guard; guard = next) {
        next = guard->next;
        guard->previous = NULL;
        guard->in_child(guard->owner);
    }
}

static void fork_guard_install(void)
{
    pthread_atfork(before_fork, fork_guard_release_all, in_child);
}

static void fork_guard_add(struct fork_guard *guard)
{
    pthread_once(&install_once, fork_guard_install);
    pthread_mutex_lock(&guards_lock);
    guard->next = guards;
    guard->previous = &guards;
    if (guards)
        guards->previous = &guard->next;
    guards = guard;
    pthread_mutex_unlock(&guards_lock);
}

static void fork_guard_remove(struct fork_guard *guard)
{
    pthread_mutex_lock(&guards_lock);
    if (guard->previous) {
        *guard->previous = guard->next;
        if (guard->next)
            guard->next->previous = guard->previous;
    }
    pthread_mutex_unlock(&guards_lock);
}

#define HANDSHAKE_NS (5 * NS_PER_S)
#define READ_BYTES 16384
/* Bytes that one link may read before the other links have their turn. */
#define READ_TURN_BYTES (1 << 20)
#define EVENTS 64

static banyan_status reactor_watch_fd(struct reactor *reactor, struct event_source *source,
                                      uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = source};
    if (epoll_ctl(reactor->epoll_fd, EPOLL_CTL_ADD, source->fd, &event) != 0)
        return error_set_errno("epoll_ctl cannot add descriptor %d", source->fd);
    return BANYAN_OK;
}

static void reactor_unwatch_fd(struct reactor *reactor, struct event_source *source)
{
    epoll_ctl(reactor->epoll_fd, EPOLL_CTL_DEL, source->fd, NULL);
}

banyan_status reactor_watch(struct reactor *reactor, struct event_source *source)
{
    return reactor_watch_fd(reactor, source, EPOLLIN);
}

void reactor_unwatch(struct reactor *reactor, struct event_source *source)
{
    reactor_unwatch_fd(reactor, source);
}

static void close_in_child(void *owner)
{
    struct reactor *reactor = owner;
    struct link *lists[] = {reactor->links, reactor->finished, reactor->near.first,
                            reactor->far.first};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        for (struct link *link = lists[i]; link; link = link->next)
            link_close_descriptors(link);
    }
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
    status = reactor_watch_fd(reactor, &reactor->wake, EPOLLIN);
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

static void free_list(struct reactor *reactor, struct link **list)
{
    while (*list) {
        struct link *link = *list;
        *list = link->next;
        reactor->sent += link->out_count;
        reactor->received += link->in_count;
        link_destroy(link);
    }
}

void reactor_log_traffic(const struct reactor *reactor, const char *what)
{
    uint64_t sent = reactor->sent, received = reactor->received;
    const struct link *const lists[] = {reactor->links, reactor->finished};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        for (const struct link *link = lists[i]; link; link = link->next) {
            sent += link->out_count;
            received += link->in_count;
        }
    }
    log_debug("%s: connections %llu made, %llu accepted; messages %llu sent, %llu received", what,
              (unsigned long long)reactor->connected, (unsigned long long)reactor->accepted,
              (unsigned long long)sent, (unsigned long long)received);
}

/* With the lock held, so that no fork happens while a descriptor is in no list. */
static void free_finished(struct reactor *reactor)
{
    pthread_mutex_lock(&reactor->lock);
    free_list(reactor, &reactor->finished);
    pthread_mutex_unlock(&reactor->lock);
}

void reactor_close(struct reactor *reactor)
{
    fork_guard_remove(&reactor->guard);
    stranger_log_sum_up(&reactor->strangers, reactor->name, true);
    free_list(reactor, &reactor->finished);
    free_list(reactor, &reactor->links);
    free_list(reactor, &reactor->near.first);
    free_list(reactor, &reactor->far.first);
    reactor_stop_listening(reactor);
    close(reactor->wake.fd);
    close(reactor->epoll_fd);
    pthread_mutex_destroy(&reactor->lock);
}

banyan_status reactor_listen(struct reactor *reactor, int fd, bool authenticated)
{
    struct reactor_listener *listener = &reactor->listeners[reactor->listener_count];
    *listener = (struct reactor_listener){{EVENT_LISTENER, fd, listener}, authenticated};
    reactor->listener_count++;
    return reactor_watch_fd(reactor, &listener->source, EPOLLIN);
}

static void stop_listener(struct reactor *reactor, struct reactor_listener *listener)
{
    reactor_unwatch_fd(reactor, &listener->source);
    close(listener->source.fd);
}

void reactor_stop_tcp(struct reactor *reactor)
{
    int last = reactor->listener_count - 1;
    if (last < 0 || !reactor->listeners[last].authenticated)
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

static bool in_handshake(const struct link *link)
{
    return !link->connects && link->stage != LINK_READY;
}

/* True for a link that has proved nothing yet: the other side has not identified it. */
static bool waits_for_answer(const struct reactor *reactor, const struct link *link)
{
    return reactor->answer_ns > 0 && link->connects && link->stage == LINK_CHALLENGE;
}

static bool reactor_is_timed(const struct reactor *reactor, const struct link *link)
{
    return in_handshake(link) || waits_for_answer(reactor, link);
}

static void put_in_list(struct link **list, struct link *link)
{
    link->next = *list;
    link->previous = list;
    if (link->next)
        link->next->previous = &link->next;
    *list = link;
}

static void take_from_list(struct link *link)
{
    *link->previous = link->next;
    if (link->next)
        link->next->previous = link->previous;
    if (link->among)
        link->among->count--;
    link->among = NULL;
}

struct link *reactor_add(struct reactor *reactor, int fd, bool connected, bool authenticated,
                         int from, int to, struct newcomers *among)
{
    bool connects = !among;
    struct link *link = calloc(1, sizeof *link);
    if (!link) {
        close(fd);
        errno = ENOMEM;
        return NULL;
    }
    link_init(link, fd, connects, connected, reactor->purpose, from, to);
    link->authenticated = authenticated;
    link->key = reactor->key;
    link->ops = &reactor->ops->link;
    link->owner = reactor->owner;
    link->lock = &reactor->lock;
    link->source = (struct event_source){EVENT_LINK, fd, link};
    link->handshake_ends_ns = deadline_after(connects ? reactor->answer_ns : HANDSHAKE_NS);
    link->watches_output = !connected;
    if (reactor_watch_fd(reactor, &link->source, connected ? EPOLLIN : EPOLLIN | EPOLLOUT) !=
        BANYAN_OK) {
        int error = errno;
        link_destroy(link);
        errno = error;
        return NULL;
    }
    put_in_list(among ? &among->first : &reactor->links, link);
    *(connects ? &reactor->connected : &reactor->accepted) += 1;
    if ((link->among = among))
        among->count++;
    reactor->handshakes += reactor_is_timed(reactor, link);
    return link;
}

/* Log a stranger. One that leaves during the handshake has most likely ended. */
static void log_stranger(struct reactor *reactor, const struct link *link, banyan_status status)
{
    enum stranger_kind kind = stranger_kind_of(status);
    banyan_log_level level = reactor->quiet ? BANYAN_LOG_DEBUG : BANYAN_LOG_WARN;
    if (kind == STRANGER_LEFT)
        stranger_log_line(&reactor->strangers, kind,
                          link->authenticated ? BANYAN_LOG_INFO : BANYAN_LOG_DEBUG,
                          "%s: %s left before it had proved that it belongs to the job",
                          reactor->name, link->who);
    else
        stranger_log_line(&reactor->strangers, kind, level, "%s refused %s: %s", reactor->name,
                          link->who, banyan_last_error());
}

/* Reset the connection when it is closed, so that the kernel keeps nothing of it. */
static void forget_at_once(const struct link *link)
{
    struct linger none = {.l_onoff = 1};
    if (link->authenticated && link->stage == LINK_HELLO)
        setsockopt(link->fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
}

banyan_status reactor_send(struct reactor *reactor, struct link *link, uint32_t kind,
                           const bytes_writer *text, const char *what)
{
    if (text->failed)
        return error_no_memory(text->count, what);
    struct wire_frame frame = {.kind = kind, .bytes = text->count};
    pthread_mutex_lock(&reactor->lock);
    banyan_status status = link_send(link, &frame, text->data, -1);
    reactor_update(reactor, link);
    pthread_mutex_unlock(&reactor->lock);
    return status;
}

void reactor_drop(struct reactor *reactor, struct link *link, banyan_status status)
{
    if (link->closed)
        return;
    reactor->handshakes -= reactor_is_timed(reactor, link);
    reactor->proving -= reactor_is_proving(link);
    pthread_mutex_lock(&reactor->lock);
    link->closed = true;
    /* After a failure of this side, the owner may still send the reason. */
    link->broken |= link->own_error == 0 && status != BANYAN_ERR_NO_MEMORY;
    take_from_list(link);
    link->next = reactor->finished;
    reactor->finished = link;
    pthread_mutex_unlock(&reactor->lock);
    reactor_unwatch_fd(reactor, &link->source);
    if (in_handshake(link)) {
        forget_at_once(link);
        log_stranger(reactor, link, status);
    } else {
        reactor->ops->closed(reactor->owner, link, status);
        link->broken = true;
    }
}

struct link *reactor_connect(struct reactor *reactor, const struct address *address,
                             const char *who, int from, int to)
{
    int fd = -1, error = 0;
    struct link *link = NULL;
    pthread_mutex_lock(&reactor->lock);
    address_connect(address, &fd, &error);
    bool connected = error == 0;
    /* A process that has taken the name before its owner is not trusted. */
    char listener[ADDRESS_TEXT_BYTES];
    if (connected && !address_peer_allowed(fd, listener)) {
        error = errno;
        close(fd);
        connected = false;
    }
    if (connected || error == EINPROGRESS) {
        link = reactor_add(reactor, fd, connected, !address_is_unix(address), from, to, NULL);
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
    if (epoll_ctl(reactor->epoll_fd, EPOLL_CTL_MOD, link->fd, &event) == 0) {
        link->watches_output = wanted;
    } else {
        link->own_error = errno;
        shutdown(link->fd, SHUT_RD); /* the reading thread drops it */
    }
}

static void keep_descriptor(struct link *link, int fd)
{
    if (link->descriptor_count < LINK_DESCRIPTORS)
        link->descriptors[link->descriptor_count++] = fd;
    else if (fd >= 0)
        close(fd);
}

/* Receive as recv does, and keep the descriptors that arrive. */
static ssize_t receive_some(struct link *link, unsigned char *data, size_t bytes)
{
    if (link->authenticated || link->stage != LINK_READY)
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
        keep_descriptor(link, -1); /* the kernel dropped it: -1 keeps the order of the others */
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

/* Its hello has the key's tag, so it is no longer a stranger. */
static void let_prove(struct reactor *reactor, struct link *link)
{
    pthread_mutex_lock(&reactor->lock);
    take_from_list(link);
    put_in_list(&reactor->links, link);
    pthread_mutex_unlock(&reactor->lock);
    reactor->proving += reactor_is_proving(link);
}

/* Return why a link ends that has nothing more to read, or cannot be read. */
static banyan_status reactor_find_end(struct link *link, ssize_t got)
{
    if (got < 0 && link->own_error == 0) {
        if (!link_is_peers_error(errno))
            link->own_error = errno;
        return error_set_errno("reading from %s", link->who);
    }
    errno = link->own_error;
    return errno == 0 ? BANYAN_OK : error_set_errno("cannot write to %s", link->who);
}

/* Receive once and process the bytes. False when there is no more to read now. */
static bool read_once(struct reactor *reactor, struct link *link, size_t *got_bytes)
{
    unsigned char buffer[READ_BYTES];
    size_t room = 0;
    unsigned char *payload = link_payload_room(link, &room);
    bool direct = payload && room >= sizeof buffer;
    ssize_t got;
    do
        got =
            direct ? receive_some(link, payload, room) : receive_some(link, buffer, sizeof buffer);
    while (got < 0 && errno == EINTR);
    if (got < 0 && (errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM))
        return false; /* it stays readable */
    if (got <= 0) {
        reactor_drop(reactor, link, reactor_find_end(link, got));
        return false;
    }
    *got_bytes += (size_t)got;
    bool was_ready = link->stage == LINK_READY, counted = reactor_is_timed(reactor, link);
    bool was_proving = reactor_is_proving(link);
    banyan_status status =
        direct ? link_filled(link, (size_t)got) : link_feed(link, buffer, (size_t)got);
    if (counted && !reactor_is_timed(reactor, link))
        reactor->handshakes--;
    if (was_proving && !reactor_is_proving(link))
        reactor->proving--;
    if (link->among && status == BANYAN_OK && link->stage != LINK_HELLO)
        let_prove(reactor, link);
    if (!was_ready) {
        pthread_mutex_lock(&reactor->lock);
        reactor_update(reactor, link);
        pthread_mutex_unlock(&reactor->lock);
    }
    if (status != BANYAN_OK)
        reactor_drop(reactor, link, status);
    return !link->closed;
}

/* Processing a frame may pump the link that it arrived on, which is being read already. */
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
    reactor->handshakes += waits_for_answer(reactor, link);
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
        if (link->own_error != 0) {
            reactor_drop(reactor, link, reactor_find_end(link, 0));
            return;
        }
    }
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
        reactor_pump(reactor, link);
}

static void drop_late(struct reactor *reactor, struct link *list, uint64_t now)
{
    for (struct link *link = list, *next; link && reactor->handshakes > 0; link = next) {
        next = link->next;
        if (now < link->handshake_ends_ns || !reactor_is_timed(reactor, link))
            continue;
        if (in_handshake(link))
            reactor_drop(reactor, link,
                         error_set(BANYAN_ERR_TIMEOUT, "it sent nothing for %d s",
                                   (int)(HANDSHAKE_NS / NS_PER_S)));
        else
            reactor_drop(reactor, link,
                         error_set(BANYAN_ERR_SYSTEM, "%s does not answer", link->who));
    }
}

static bool has_checks(const struct reactor *reactor)
{
    return reactor->handshakes > 0 || !reactor->accepting || reactor->strangers.unsaid > 0;
}

static void check_handshakes(struct reactor *reactor)
{
    uint64_t now = time_now_ns();
    if (now < reactor->next_check_ns)
        return;
    reactor->next_check_ns = now + REACTOR_CHECK_NS;
    if (!reactor->accepting)
        reactor_resume_accepting(reactor);
    drop_late(reactor, reactor->links, now);
    drop_late(reactor, reactor->near.first, now);
    drop_late(reactor, reactor->far.first, now);
    stranger_log_sum_up(&reactor->strangers, reactor->name, false);
}

static void reactor_handle(struct reactor *reactor, const struct epoll_event *event)
{
    struct event_source *source = event->data.ptr;
    uint64_t woken;
    switch (source->kind) {
    case EVENT_WAKE:
        while (read(source->fd, &woken, sizeof woken) > 0)
            ;
        break;
    case EVENT_LISTENER:
        reactor_accept(reactor, source->context);
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
    if (has_checks(reactor) && timeout_ns > REACTOR_CHECK_NS)
        timeout_ns = REACTOR_CHECK_NS;
    uint64_t timeout_ms = (timeout_ns + NS_PER_MS - 1) / NS_PER_MS;
    struct epoll_event events[EVENTS];
    int count =
        epoll_wait(reactor->epoll_fd, events, EVENTS, timeout_ms > 60000 ? 60000 : (int)timeout_ms);
    for (int i = 0; i < count; i++)
        reactor_handle(reactor, &events[i]);
    if (has_checks(reactor))
        check_handshakes(reactor);
    if (reactor->finished)
        free_finished(reactor);
}

void reactor_wake(struct reactor *reactor)
{
    uint64_t one = 1;
    ssize_t wrote = write(reactor->wake.fd, &one, sizeof one);
    (void)wrote; /* fails only when a wake-up is already pending */
}
