/* The event loop of control connections: listening, accepting, reading, writing, and timeouts for
 * connections that do not identify themselves. The rendezvous and every rank's endpoint have one
 * each. */
#ifndef WORLD_NET_REACTOR_H
#define WORLD_NET_REACTOR_H

#include <pthread.h>

#include "core/containers.h"
#include "world/net/link.h"

/* Accepted connections that have not proved their membership, and the log lines about those that
 * never do. Their number is bounded, whatever strangers do: beyond the bound the oldest is dropped.
 * Log lines of one kind appear at most once a second. */
struct newcomers {
    struct link *first; /* the latest */
    size_t count;
};

enum stranger_kind {
    STRANGER_CROWD,  /* dropped, because there were too many */
    STRANGER_SILENT, /* sent nothing for too long */
    STRANGER_LEFT,   /* closed the connection before proving anything */
    STRANGER_BABBLE, /* sent something that no rank sends */
    STRANGER_SECRET, /* does not know the key */
    STRANGER_USER,   /* belongs to another user */
    STRANGER_UNSEEN, /* could not be accepted: no descriptor was free */
    STRANGER_KINDS
};

struct stranger_log {
    struct stranger_lines {
        uint64_t next_ns; /* earliest time of the next line */
        uint64_t unsaid;  /* strangers since the last line */
        banyan_log_level level;
    } kinds[STRANGER_KINDS];
    uint64_t unsaid; /* of all kinds */
};

/* Return the kind of a stranger that is dropped with this status. */
enum stranger_kind stranger_kind_of(banyan_status status);

/* Log a line about a stranger, or count it. `name` is the listener's. */
void stranger_log_line(struct stranger_log *log, enum stranger_kind kind, banyan_log_level level,
                       const char *format, ...) __attribute__((format(printf, 4, 5)));
/* Log the strangers counted for a second or, at the end, since the last line. */
void stranger_log_sum_up(struct stranger_log *log, const char *name, bool at_end);

/* Children that the user's program forks must not keep this process's connections open, or read
 * from them: their copies are closed right after the fork. */
struct fork_guard {
    struct fork_guard *next, **previous;
    pthread_mutex_t *lock; /* held over the fork, so that in_child sees consistent data */
    void (*in_child)(void *owner);
    void *owner;
};

struct reactor_listener {
    struct event_source source;
    bool authenticated; /* TCP: frames carry MACs */
};

struct reactor_ops {
    struct link_ops link;
    /* The link ends: EOF (OK) or an error, with its message. The owner forgets it. */
    void (*closed)(void *owner, struct link *link, banyan_status status);
    void (*watched)(void *owner, struct event_source *source);
    /* No descriptors are left to accept connections from this machine. May be NULL. */
    void (*starved)(void *owner, int error);
    /* In a forked child: close descriptors that the reactor does not know. May be NULL. */
    void (*forked)(void *owner);
};

#define REACTOR_LISTENERS 3

struct reactor {
    pthread_mutex_t lock; /* guards outputs and stages of links, and data of the owner */
    struct fork_guard guard;
    int epoll_fd;
    struct event_source wake;
    struct reactor_listener listeners[REACTOR_LISTENERS];
    int listener_count;
    struct link *links; /* except newcomers */
    struct link *finished;
    struct newcomers near, far; /* accepted from Unix sockets, and TCP; the loop's thread */
    size_t proving;             /* accepted links whose hello has the key's tag */
    struct stranger_log strangers;
    size_t handshakes;            /* handshakes with a deadline */
    uint64_t connected, accepted; /* connections made by this side, and by others */
    uint64_t sent, received;      /* frames of links that have ended */
    /* Longest time for a peer's first answer to a connection; 0: no limit. For owners that
     * reconnect. */
    uint64_t answer_ns;
    uint64_t next_check_ns;
    uint64_t starved_ns; /* since when local connections are not accepted; 0: they are */
    bool accepting;
    bool quiet;       /* the job is over: do not log its own ranks as strangers */
    const char *name; /* for the log: "rank 3" */
    uint32_t purpose;
    int rank; /* expected in hellos */
    const unsigned char *key;
    const struct reactor_ops *ops;
    void *owner;
};

banyan_status reactor_open(struct reactor *reactor, uint32_t purpose, int rank,
                           const unsigned char *key, const struct reactor_ops *ops, void *owner);
/* Close all links without a message, and everything else. No other thread uses the reactor any
 * more. */
void reactor_close(struct reactor *reactor);

/* Accept at a listener. Takes ownership of the descriptor, even on failure. */
banyan_status reactor_listen(struct reactor *reactor, int fd, bool authenticated);
/* Stop TCP; its listener must be the last one. */
void reactor_stop_tcp(struct reactor *reactor);
void reactor_stop_listening(struct reactor *reactor);

/* Start to connect as `from` to rank `to` at an address. NULL, with errno set, when it fails at
 * once; EACCES: another user listens there. The loop's thread. */
struct link *reactor_connect(struct reactor *reactor, const struct address *address,
                             const char *who, int from, int to);

/* Tell the loop about output that link_send left queued. With the lock held; any thread. */
void reactor_update(struct reactor *reactor, struct link *link);

/* Send a frame that carries a text. `what` names it in the message of NO_MEMORY. Any thread. */
banyan_status reactor_send(struct reactor *reactor, struct link *link, uint32_t kind,
                           const bytes_writer *text, const char *what);

/* End a link from within the loop's thread. */
void reactor_drop(struct reactor *reactor, struct link *link, banyan_status status);

/* Read what has arrived on a link, now. False when its turn ended before all was read. The loop's
 * thread. */
bool reactor_pump(struct reactor *reactor, struct link *link);

banyan_status reactor_watch(struct reactor *reactor, struct event_source *source);
void reactor_unwatch(struct reactor *reactor, struct event_source *source);

/* Wait for events, at most `timeout_ns`, and handle them. */
void reactor_step(struct reactor *reactor, uint64_t timeout_ns);

/* Log, for debugging, the number of connections and frames so far; `what` begins the line. With the
 * lock held, or in the loop's thread. */
void reactor_log_traffic(const struct reactor *reactor, const char *what);

/* Make a reactor_step return. Any thread. */
void reactor_wake(struct reactor *reactor);

#define REACTOR_CHECK_NS (250 * NS_PER_MS)

/* True for a link whose hello has the key's tag and whose proof is missing. */
static inline bool reactor_is_proving(const struct link *link)
{
    return !link->among && !link->connects && link->stage == LINK_PROOF;
}

/* Add a link. Takes ownership of the descriptor. `among`: it was accepted; NULL: it connects. NULL
 * with errno set on failure. Hold the lock since the descriptor was created, so that no fork
 * happens in between. */
struct link *reactor_add(struct reactor *reactor, int fd, bool connected, bool authenticated,
                         int from, int to, struct newcomers *among);

/* Accept waiting connections at a listener, up to a bound. */
void reactor_accept(struct reactor *reactor, struct reactor_listener *listener);

/* Resume after a pause for lack of descriptors. */
void reactor_resume_accepting(struct reactor *reactor);

#endif
