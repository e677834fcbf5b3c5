/* The state of a rendezvous, for the files of which it consists: rendezvous.c serves, seats.c takes
 * what ranks send, call_off.c gives up, and news.c informs ranks that wait. All of it runs in the
 * thread of the rendezvous. */
#ifndef WORLD_BOOTSTRAP_HOSTING_H
#define WORLD_BOOTSTRAP_HOSTING_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "core/error.h"
#include "world/bootstrap/joining.h"
#include "world/bootstrap/member.h"
#include "world/net/reactor.h"

#define MISSING_BYTES 256
#define NEWS_BYTES 512

/* A rank's state at the rendezvous. */
struct rank_entry {
    struct link *link; /* by which it joined, its own or that of a rank before it; NULL: none */
    struct join_request request;
    uint64_t gives_up_ns;
    bool gave_up, died;        /* the last process of this rank */
    bool came;                 /* a process was here, or none will be */
    int cut_off;               /* 1 + the rank whose end cut its way off; 0: none */
    uint64_t returns_until_ns; /* it is cut off, and looks for another way */
    bool ready;                /* has the table, and accepts connections */
};

enum phase {
    GATHERING, /* not all ranks have joined */
    PREPARING, /* all have: they receive the table, and become ready */
    ALL_READY  /* all know that all are ready, and leave */
};

struct rendezvous {
    struct reactor reactor;
    pthread_t thread;
    atomic_bool stop;
    bool detached;
    enum phase phase;
    struct rendezvous_place place;
    int world_size, joined, sized_by;
    struct tree_children children;
    error_kept lacks;          /* missing descriptors for all ranks */
    const error_kept *refuses; /* refuses every rank; NULL: only invalid requests */
    uint64_t refuses_until_ns;
    int refused;
    struct rank_entry *entries;
    /* when the first rank joined, and when the next status line is due */
    uint64_t came_ns, news_ns;
    error_kept failure; /* of a rank: sent to ranks that join later */
    uint64_t failure_number;
    bool turned_away;       /* the others have been informed of it */
    error_kept own_failure; /* of the hosting rank; set before `stop` */
    /* Set once all ranks have joined. */
    int ready;
    int lost; /* a rank whose connection ended; -1: none */
    uint64_t lost_ns, ends_ns;
};

/* ---- seats.c ---- */

extern const struct reactor_ops rendezvous_ops;

/* Note the number of ranks, which this rank gave, and make room for their state. LIMIT when this
 * process may not open enough descriptors for them. */
banyan_status rendezvous_fix_size(struct rendezvous *rendezvous, int rank, int world_size);

/* A rank has lost its way to this process. `died`: it will not come back. Otherwise another rank's
 * end has cut it off (-1: which is unknown). */
void rendezvous_rank_left(struct rendezvous *rendezvous, int rank, bool died, int ended);

/* ---- call_off.c ---- */

/* Give up opening the world, and inform all connected ranks. */
void rendezvous_call_off(struct rendezvous *rendezvous, const error_kept *why);

/* Give up because a rank cannot open the world; ranks that join later are informed, too. */
void rendezvous_call_off_for(struct rendezvous *rendezvous, int rank, const error_kept *why);

/* Give up because the rendezvous itself has failed. */
void rendezvous_call_off_here(struct rendezvous *rendezvous, banyan_status status);

/* Give up because a rank is lost while others may have the table. Ranks that joined through it are
 * informed when they connect again. */
void rendezvous_call_off_for_loss(struct rendezvous *rendezvous);

/* Send a rank the last error. It came on this link, its own or that of a rank before it. `for_all`:
 * it concerns the ranks behind it, too. */
void rendezvous_refuse_link(struct rendezvous *rendezvous, struct link *link, int rank,
                            banyan_status status, bool for_all);

/* ---- news.c ---- */

/* Send a frame to every rank that has a connection, for it and for those behind it. */
banyan_status rendezvous_send_down(struct rendezvous *rendezvous, const struct wire_frame *frame,
                                   const void *data);

/* Send a log line to all waiting ranks. */
void rendezvous_send_news(struct rendezvous *rendezvous, const char *text);

/* Inform all waiting ranks that a rank died. */
void rendezvous_send_death(struct rendezvous *rendezvous, int rank);

/* A rank has come again: it may have missed the news of deaths. */
void rendezvous_send_deaths(struct rendezvous *rendezvous, int to);

/* List the ranks that never joined or, if there are none, those that joined and gave up. */
void rendezvous_name_missing(const struct rendezvous *rendezvous, char *text, size_t bytes);

/* Send one rank a line about the missing ranks, at intervals. */
void rendezvous_send_missing(struct rendezvous *rendezvous);

#endif
