/* What belongs to one world at this rank: its members, the messages that wait to be received, and
 * how it ended. Messages may come before the world is opened here; they wait. */
#ifndef WORLD_CONTEXT_H
#define WORLD_CONTEXT_H

#include <pthread.h>
#include <stdatomic.h>

#include <banyan/world.h>

#include "core/containers/array.h"
#include "world/net/wire.h"

/* What arrived from a rank of the job. */
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

/* The number of a wait that belongs to no collective. */
#define NO_NUMBER UINT64_MAX
/* The number of a wait of this rank's device. Numbers of collectives are smaller. */
#define DEVICE_NUMBER (UINT64_MAX - 1)
/* A collective's steps have consecutive tags. */
#define NUMBER_SHIFT 8

/* Collectives [first, end) of a world. */
struct number_range {
    uint64_t first, end;
};

/* A rank of the job that waits for this one, in the collective with this number of a world. */
struct asker {
    int rank;
    uint64_t context_id, number;
};

/* The wait that goes on in a world, for those who ask (late.h). Ranks are of the job. */
struct waiting {
    bool active;
    uint64_t number;         /* of the collective, NO_NUMBER or DEVICE_NUMBER */
    int rank;                /* whose message is waited for */
    int late;                /* the rank that has not come, as far as is known; -1: unknown */
    uint64_t asked_ns;       /* when `rank` was asked last; 0: never */
    bool gives_up, answered; /* it was asked to give up; it has answered the last question */
    bool in_turn;            /* it waits for this rank */
    ARRAY(struct asker) askers;
};

/* Under the endpoint's lock, but for `ended`. */
struct context {
    uint64_t id;
    struct context *parent; /* ends when it does */
    bool open;              /* a world of this process uses it */
    int rank, size;         /* while open */
    int *job_ranks;         /* of its ranks; NULL: the job's own world */
    struct message_queue buckets[CONTEXT_BUCKETS];
    struct message_queue exchanged;
    size_t unacknowledged; /* exchange messages that were sent */
    pthread_cond_t changed;
    _Atomic int ended; /* a banyan_status */
    char *sentence;    /* why, once ended */
    uint64_t ended_ns; /* when */
    bool was_aborted;  /* by a rank, or since a rank has failed */
    int aborted_by;    /* in the context's numbering */

    /* All ranks number the world's collectives alike. A number that all have given up counts too:
     * nobody takes it any more, and no message of it is kept. */
    uint64_t number; /* of the collective that this rank is in or enters next */
    bool inside;
    ARRAY(struct number_range) given_up; /* ascending */
    int given_up_for;                    /* the rank of the job that had not come */
    struct waiting waiting;              /* of the host */
    struct waiting on_device;            /* of the device; the first that says so counts */
    const void *device_owner;            /* of the latter; NULL: none */
};

struct context *context_create(uint64_t id);
void context_destroy(struct context *context);

static inline int context_job_rank(const struct context *context, int rank)
{
    return context->job_ranks ? context->job_ranks[rank] : rank;
}

/* -1 when a rank of the job is not in it. Takes time that grows with its size. */
int context_rank_of(const struct context *context, int job_rank);

/* "rank 0", and "rank 0 (rank 4 of the job)" where that differs. Returns `text`. */
#define CONTEXT_RANK_BYTES 64
const char *context_ranks_text(int rank, int job_rank, char text[CONTEXT_RANK_BYTES]);
const char *context_rank_text(const struct context *context, int rank,
                              char text[CONTEXT_RANK_BYTES]);

/* Does the message begin with a rank's whole name, "rank 1 (rank 3 of the job" or "rank 3 (pid"? */
bool context_names_rank(const char *sentence);

/* Has the collective with this number been given up by all ranks? */
bool context_gave_up(const struct context *context, uint64_t number);
/* Give it up here, which it was not yet. False when memory ran out. */
bool context_give_up(struct context *context, uint64_t number, int late);

/* Takes the message. */
void context_deliver(struct context *context, struct message *message);

/* The oldest message of this kind, source (of the job) and tag; NULL when there is none. */
struct message *context_take(struct context *context, uint32_t kind, int source, uint64_t tag);
/* All exchange messages with the tag, linked. */
struct message *context_take_exchanged(struct context *context, uint64_t tag);
void message_free(struct message *message);

/* The first cause stays. `sentence` is copied. */
void context_end(struct context *context, banyan_status status, const char *sentence);

#endif
