#include "world/net/reactor.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/deadline.h"
#include "core/error.h"
#include "core/log.h"

/* TCP: anyone can connect. */
#define NEWCOMERS_FAR 64
/* Unix sockets: only processes of this user. */
#define NEWCOMERS_NEAR 1024
/* Connections whose hello has the key's tag but whose proof is missing. Without the key, a stranger
 * can only replay a hello that it has seen. */
#define NEWCOMERS_PROVING 1024
#define LINE_NS NS_PER_S
#define SPARE_DESCRIPTORS 32

static size_t descriptor_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur > INT32_MAX)
        return INT32_MAX;
    return (size_t)limit.rlim_cur;
}

static size_t at_most(size_t most, size_t part)
{
    size_t least = 4;
    return part > most ? most : part < least ? least : part;
}

/* Return the bounds, or smaller ones when the process may have few descriptors (RLIMIT_NOFILE).
 */
static size_t newcomers_most(bool far)
{
    size_t limit = descriptor_limit();
    return far ? at_most(NEWCOMERS_FAR, limit / 16) : at_most(NEWCOMERS_NEAR, limit / 4);
}

static size_t newcomers_most_proving(void)
{
    return at_most(NEWCOMERS_PROVING, descriptor_limit() / 4);
}

/* True if `fd` is among the last descriptors that this process may have: unproved connections leave
 * those to it. */
static bool newcomers_use_up(int fd)
{
    size_t limit = descriptor_limit();
    return (size_t)fd + at_most(SPARE_DESCRIPTORS, limit / 8) >= limit;
}

/* Return the connection to drop: the oldest that has sent nothing, else the oldest. NULL: none. */
static struct link *newcomers_oldest(const struct newcomers *newcomers)
{
    struct link *oldest = NULL, *silent = NULL;
    for (struct link *link = newcomers->first; link; link = link->next) {
        oldest = link;
        if (link->have == 0)
            silent = link;
    }
    return silent ? silent : oldest;
}

static const char *const done_to_them[STRANGER_KINDS] = {
    [STRANGER_CROWD] = "were dropped, because there were too many",
    [STRANGER_SILENT] = "were dropped, because they sent nothing",
    [STRANGER_LEFT] = "left before they had proved that they belong to the job",
    [STRANGER_BABBLE] = "were refused, because they do not follow the protocol",
    [STRANGER_SECRET] = "were refused, because they have another secret",
    [STRANGER_USER] = "were refused, because they belong to another user",
    [STRANGER_UNSEEN] = "could not be accepted",
};

enum stranger_kind stranger_kind_of(banyan_status status)
{
    switch (status) {
    case BANYAN_OK:
    case BANYAN_ERR_SYSTEM:
        return STRANGER_LEFT;
    case BANYAN_ERR_NO_MEMORY:
        return STRANGER_CROWD;
    case BANYAN_ERR_TIMEOUT:
        return STRANGER_SILENT;
    case BANYAN_ERR_REFUSED:
        return STRANGER_SECRET;
    default:
        return STRANGER_BABBLE;
    }
}

void stranger_log_line(struct stranger_log *log, enum stranger_kind kind, banyan_log_level level,
                       const char *format, ...)
{
    struct stranger_lines *lines = &log->kinds[kind];
    uint64_t now = time_now_ns();
    if (now < lines->next_ns) {
        lines->level = lines->unsaid == 0 || level < lines->level ? level : lines->level;
        lines->unsaid++;
        log->unsaid++;
        return;
    }
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    lines->next_ns = now + LINE_NS;
    log_line(level, "%s", text);
}

void stranger_log_sum_up(struct stranger_log *log, const char *name, bool at_end)
{
    uint64_t now = time_now_ns();
    for (int kind = 0; kind < STRANGER_KINDS && log->unsaid > 0; kind++) {
        struct stranger_lines *lines = &log->kinds[kind];
        if (lines->unsaid == 0 || (now < lines->next_ns && !at_end))
            continue;
        log_line(lines->level, "%s: %llu more connections %s", name,
                 (unsigned long long)lines->unsaid, done_to_them[kind]);
        log->unsaid -= lines->unsaid;
        lines->unsaid = 0;
        lines->next_ns = now + LINE_NS;
    }
}

/* Connections to accept before the next round of reading. */
#define ACCEPT_TURN 16

/* Drop a newcomer and close its descriptor at once, which may be needed. NULL is ignored. */
static bool drop_newcomer(struct reactor *reactor, struct link *link)
{
    if (!link)
        return false;
    reactor_drop(reactor, link,
                 error_set(BANYAN_ERR_NO_MEMORY, "too many come that prove nothing"));
    pthread_mutex_lock(&reactor->lock);
    close(link->fd);
    link->fd = -1;
    pthread_mutex_unlock(&reactor->lock);
    return true;
}

static struct link *oldest_proving(const struct reactor *reactor)
{
    struct link *oldest = NULL;
    for (struct link *link = reactor->links; link; link = link->next) {
        if (reactor_is_proving(link))
            oldest = link;
    }
    return oldest;
}

/* After a new connection: drop another one if there are too many. */
static void keep_few(struct reactor *reactor, const struct link *latest)
{
    struct newcomers *among = latest->among;
    if (among && (among->count > newcomers_most(latest->authenticated) ||
                  (among->count > 1 && newcomers_use_up(latest->fd))))
        drop_newcomer(reactor, newcomers_oldest(among));
    if (reactor->proving > newcomers_most_proving())
        drop_newcomer(reactor, oldest_proving(reactor));
}

static bool drop_any_newcomer(struct reactor *reactor)
{
    return drop_newcomer(reactor, newcomers_oldest(&reactor->far)) ||
           drop_newcomer(reactor, newcomers_oldest(&reactor->near));
}

static void pause_accepting(struct reactor *reactor)
{
    for (int i = 0; i < reactor->listener_count; i++)
        reactor_unwatch(reactor, &reactor->listeners[i].source);
    reactor->accepting = false;
    reactor->next_check_ns = deadline_after(REACTOR_CHECK_NS);
}

void reactor_resume_accepting(struct reactor *reactor)
{
    for (int i = 0; i < reactor->listener_count; i++)
        reactor_watch(reactor, &reactor->listeners[i].source);
    reactor->accepting = true;
}

/* Only processes of this user on this machine connect to this listener: most likely peers, which
 * wait. The owner is informed if the shortage lasts. */
static void reactor_accept_note_starved(struct reactor *reactor,
                                        const struct reactor_listener *listener, int error)
{
    uint64_t now = time_now_ns();
    if (listener->authenticated)
        return;
    if (reactor->starved_ns == 0)
        reactor->starved_ns = now;
    else if (now - reactor->starved_ns >= 2 * REACTOR_CHECK_NS && reactor->ops->starved)
        reactor->ops->starved(reactor->owner, error);
}

/* Accept one connection. NULL, with errno set, when there is none; errno is 0 when one was turned
 * away. */
static struct link *accept_one(struct reactor *reactor, struct reactor_listener *listener)
{
    char who[ADDRESS_TEXT_BYTES];
    struct link *link = NULL;
    bool allowed = true;
    pthread_mutex_lock(&reactor->lock);
    int fd = accept4(listener->source.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    int error = fd < 0 ? errno : 0;
    if (fd >= 0 && (allowed = address_peer_allowed(fd, who))) {
        link = reactor_add(reactor, fd, true, listener->authenticated, -1, reactor->rank,
                           listener->authenticated ? &reactor->far : &reactor->near);
        if (link)
            memcpy(link->who, who, sizeof link->who);
        reactor->starved_ns = listener->authenticated ? reactor->starved_ns : 0;
    }
    pthread_mutex_unlock(&reactor->lock);
    if (!allowed) {
        stranger_log_line(&reactor->strangers, STRANGER_USER, BANYAN_LOG_WARN,
                          "%s refused %s: not the user that this job belongs to", reactor->name,
                          who);
        close(fd);
    }
    errno = error;
    return link;
}

/* Accept connections. A newcomer's hello usually arrives with it and is read at once, so that ranks
 * of the job do not wait among strangers. */
void reactor_accept(struct reactor *reactor, struct reactor_listener *listener)
{
    for (int i = 0; i < ACCEPT_TURN; i++) {
        struct link *link = accept_one(reactor, listener);
        if (link) {
            reactor_pump(reactor, link);
            if (!link->closed)
                keep_few(reactor, link);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE) {
            int error = errno;
            if (drop_any_newcomer(reactor))
                continue;
            reactor_accept_note_starved(reactor, listener, error);
            errno = error;
            stranger_log_line(&reactor->strangers, STRANGER_UNSEEN, BANYAN_LOG_WARN,
                              "%s cannot accept a connection: %s", reactor->name, strerror(errno));
            pause_accepting(reactor);
            return;
        }
        if (errno != 0 && errno != ECONNABORTED && errno != EINTR)
            return;
    }
}
