#include "world/net/reactor_accept.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/deadline.h"
#include "core/error.h"

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
    if (among && (among->count > newcomers_most(latest->sealed) ||
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
    if (listener->sealed)
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
        link = reactor_add(reactor, fd, true, listener->sealed, -1, reactor->rank,
                           listener->sealed ? &reactor->far : &reactor->near);
        if (link)
            memcpy(link->who, who, sizeof link->who);
        reactor->starved_ns = listener->sealed ? reactor->starved_ns : 0;
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
