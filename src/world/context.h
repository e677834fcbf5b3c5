/* What belongs to one world at this rank: its members, the messages that wait to be received, and
 * how it ended. Messages may come before the world is opened here; they wait. */
#ifndef WORLD_CONTEXT_H
#define WORLD_CONTEXT_H

#include <pthread.h>
#include <stdatomic.h>

#include <banyan/world.h>

#include "world/wire.h"

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
};

struct context *context_create(uint64_t id);
void context_destroy(struct context *context);

static inline int context_job_rank(const struct context *context, int rank)
{
    return context->job_ranks ? context->job_ranks[rank] : rank;
}

/* -1 when a rank of the job is not in it. Takes time that grows with its size. */
int context_rank_of(const struct context *context, int job_rank);

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
