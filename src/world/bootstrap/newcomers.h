/* Accepted connections that have not proved their membership, and the log lines about those that
 * never do. Their number is bounded, whatever strangers do: beyond the bound the oldest is dropped.
 * Log lines of one kind appear at most once a second. */
#ifndef WORLD_BOOTSTRAP_NEWCOMERS_H
#define WORLD_BOOTSTRAP_NEWCOMERS_H

#include "world/net/link.h"

struct newcomers {
    struct link *first; /* the latest */
    size_t count;
};

/* TCP: anyone can connect. */
#define NEWCOMERS_FAR 64
/* Unix sockets: only processes of this user. */
#define NEWCOMERS_NEAR 1024
/* Connections whose hello has the key's tag but whose proof is missing. Without the key, a stranger
 * can only replay a hello that it has seen. */
#define NEWCOMERS_PROVING 1024

/* Return these bounds, or smaller ones when the process may have few descriptors (RLIMIT_NOFILE).
 */
size_t newcomers_most(bool far);
size_t newcomers_most_proving(void);

/* True if `fd` is among the last descriptors that this process may have: unproved connections leave
 * those to it. */
bool newcomers_use_up(int fd);

/* Return the connection to drop: the oldest that has sent nothing, else the oldest. NULL: none. */
struct link *newcomers_oldest(const struct newcomers *newcomers);

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

#endif
