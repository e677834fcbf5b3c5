/* Accepted connections that have proved nothing yet, and the log lines about those that never do.
 * They are few, whatever strangers do: their number has a bound, beyond which the oldest goes, and
 * lines of one kind come once a second. */
#ifndef WORLD_BOOTSTRAP_NEWCOMERS_H
#define WORLD_BOOTSTRAP_NEWCOMERS_H

#include "world/net/link.h"

struct newcomers {
    struct link *first; /* the latest */
    size_t count;
};

/* TCP: anybody may come. */
#define NEWCOMERS_FAR 64
/* Unix sockets: only processes of this user. */
#define NEWCOMERS_NEAR 1024
/* Their hello has the key's tag, the proof is still to come: others can at most repeat a hello that
 * they have seen. */
#define NEWCOMERS_PROVING 1024

/* These bounds, or less where the process may have few descriptors (RLIMIT_NOFILE). */
size_t newcomers_most(bool far);
size_t newcomers_most_proving(void);

/* True for the last descriptors that this process may have: those that have proved nothing leave
 * them to it. */
bool newcomers_use_up(int fd);

/* The one to drop: the oldest of those that have sent nothing, else the oldest. NULL: none. */
struct link *newcomers_oldest(const struct newcomers *newcomers);

enum stranger_kind {
    STRANGER_CROWD,  /* dropped, for there were too many */
    STRANGER_SILENT, /* said nothing for too long */
    STRANGER_LEFT,   /* hung up before it had proved anything */
    STRANGER_BABBLE, /* said what no rank says */
    STRANGER_SECRET, /* does not know the key */
    STRANGER_USER,   /* belongs to another user */
    STRANGER_UNSEEN, /* could not be accepted: no descriptor is left */
    STRANGER_KINDS
};

struct stranger_log {
    struct stranger_lines {
        uint64_t next_ns; /* when there may be a line again */
        uint64_t unsaid;  /* strangers since the last line */
        banyan_log_level level;
    } kinds[STRANGER_KINDS];
    uint64_t unsaid; /* of all kinds */
};

/* The kind of one that is dropped with this status. */
enum stranger_kind stranger_kind_of(banyan_status status);

/* Log a line about a stranger, or count it. `name` is the listener's. */
void stranger_log_line(struct stranger_log *log, enum stranger_kind kind, banyan_log_level level,
                       const char *format, ...) __attribute__((format(printf, 4, 5)));
/* Log how many were counted a second ago or, at the end, since. */
void stranger_log_sum_up(struct stranger_log *log, const char *name, bool at_end);

#endif
