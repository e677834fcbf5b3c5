/* One world's state at this rank: its members, the messages that wait to be received, and its end.
 * Messages that arrive before the world is opened here wait. */
#ifndef WORLD_CONTEXT_H
#define WORLD_CONTEXT_H

#include <pthread.h>
#include <stdatomic.h>

#include <banyan/world.h>

#include "core/containers.h"
#include "world/net/wire.h"

/* A message from a rank of the job. */
struct message {
    struct message *next;
    uint32_t kind; /* enum wire_kind */
    int source;
    uint64_t tag;
    void *data;
    size_t bytes;
    int fd; /* -1: none */
};

struct message_queue {
    struct message *first, **last;
};

#define CONTEXT_BUCKETS 64

/* The number of a wait outside collectives. */
#define NO_NUMBER UINT64_MAX
/* The number of a wait of this rank's device. Numbers of collectives are smaller. */
#define DEVICE_NUMBER (UINT64_MAX - 1)
/* The steps of a collective have consecutive tags. */
#define NUMBER_SHIFT 8

/* Collectives [first, end) of a world. */
struct number_range {
    uint64_t first, end;
};

/* A rank of the job that waits for this one, in collective `number` of a world. */
struct asker {
    int rank;
    uint64_t context_id, number;
};

/* A world's current wait, for ranks that ask (late_ask). Ranks are those of the job. */
struct waiting {
    bool active;
    uint64_t number;   /* of the collective, NO_NUMBER or DEVICE_NUMBER */
    int rank;          /* the rank whose message is awaited */
    int late;          /* the late rank, as far as is known; -1: unknown */
    uint64_t asked_ns; /* time of the last question to `rank`; 0: never */
    /* `rank` was asked to give up; `rank` has answered the last question */
    bool gives_up, answered;
    bool in_turn; /* `rank` waits for this rank */
    ARRAY(struct asker) askers;
};

/* Guarded by the endpoint's lock, except `ended`. */
struct context {
    uint64_t id;
    struct context *parent; /* this world ends with it */
    bool open;              /* a world of this process uses it */
    int rank, size;         /* while open */
    int *job_ranks;         /* ranks in the job; NULL: the job's own world */
    struct message_queue buckets[CONTEXT_BUCKETS];
    struct message_queue exchanged;
    size_t unacknowledged; /* sent exchange messages without acknowledgement */
    pthread_cond_t changed;
    _Atomic int ended; /* a banyan_status */
    char *reason;      /* the reason, once ended */
    uint64_t ended_ns; /* when */
    bool was_aborted;  /* by a rank, or because a rank failed */
    int aborted_by;    /* its rank in this world */

    /* All ranks number the world's collectives identically. A number that all have given up counts
     * too: it is never used again, and its messages are discarded. */
    uint64_t number; /* of the collective that this rank is in or enters next */
    bool inside;
    ARRAY(struct number_range) given_up; /* ascending */
    int given_up_for;                    /* the late rank of the job */
    struct waiting waiting;              /* the host's wait */
    struct waiting on_device;            /* the device's wait; the first one reported counts */
    const void *device_owner;            /* of on_device; NULL: none */
};

struct context *context_create(uint64_t id);
void context_destroy(struct context *context);

static inline int context_job_rank(const struct context *context, int rank)
{
    return context->job_ranks ? context->job_ranks[rank] : rank;
}

/* Return a job rank's number in this world; -1 when it is not a member. Takes time proportional to
 * the world's size. */
int context_rank_of(const struct context *context, int job_rank);

/* Write "rank 0", or "rank 0 (rank 4 of the job)" if the numbers differ, into `text`, and return
 * it. */
#define CONTEXT_RANK_BYTES 64
const char *context_ranks_text(int rank, int job_rank, char text[CONTEXT_RANK_BYTES]);
const char *context_rank_text(const struct context *context, int rank,
                              char text[CONTEXT_RANK_BYTES]);

/* True if the message begins with a rank's full name, "rank 1 (rank 3 of the job" or "rank 3 (pid".
 */
bool context_names_rank(const char *message);

/* True if all ranks have given up the collective with this number. */
bool context_gave_up(const struct context *context, uint64_t number);
/* Give up a collective here that was not given up before. False when out of memory. */
bool context_give_up(struct context *context, uint64_t number, int late);

/* Deliver a message. Takes ownership of it. */
void context_deliver(struct context *context, struct message *message);

/* Take the oldest message of this kind, source (of the job) and tag; NULL when there is none. */
struct message *context_take(struct context *context, uint32_t kind, int source, uint64_t tag);
/* Take all exchange messages with the tag, as a linked list. */
struct message *context_take_exchanged(struct context *context, uint64_t tag);
void message_free(struct message *message);

/* End the world. The first cause stays. `reason` is copied. */
void context_end(struct context *context, banyan_status status, const char *reason);

#endif
