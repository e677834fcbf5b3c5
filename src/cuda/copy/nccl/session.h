/* A world's NCCL communicator, which is given up when the world is not well, or when what was
 * queued with it does not end. */
#ifndef CUDA_COPY_NCCL_SESSION_H
#define CUDA_COPY_NCCL_SESSION_H

#include <pthread.h>

#include <banyan/copy.h>

#include "core/module.h"
#include "cuda/copy/nccl/library.h"
#include "cuda/driver.h"
#include "cuda/runtime/watch.h"

typedef struct nccl_session {
    banyan_world *world;
    banyan_world *starting; /* the same ranks, until all are connected: who fails ends it */
    int rank, device;
    banyan_copy_service *direct; /* through which partners meet; NULL: they do not */
    pthread_mutex_t lock;        /* of the communicator */
    void *comm;                  /* NULL: given up */
    char reason[512];            /* then: why */
    uint64_t *marks;             /* how many the device has passed; odd: between begin and end */
    uint64_t *device_marks;      /* the same, as the device knows it */
    uint64_t *passed;            /* the device's own count */
    CUfunction mark;
    uint64_t seen, seen_ns; /* by the watch, and since when */
    module_wait waiting;    /* of the device, as the watch tells of it */
    watch *watching;
} nccl_session;

/* One message of a group. */
typedef struct nccl_message {
    void *data;
    size_t bytes;
    int peer;
    bool is_send;
} nccl_message;

/* Collective; the device's context is entered. What fails on one rank fails on those that wait for
 * it at once, and they tell its sentence. */
banyan_status nccl_session_open(banyan_world *world, int device, banyan_copy_service *direct,
                                nccl_session *session);
void nccl_session_close(nccl_session *session);

/* Queue all messages as one group; the device's context is entered. */
banyan_status nccl_session_group(nccl_session *session, const nccl_message *messages, size_t count,
                                 void *stream);

/* A collective of all ranks. */
typedef struct nccl_collective {
    enum nccl_collective_kind { NCCL_ALLREDUCE, NCCL_ALLGATHER, NCCL_REDUCESCATTER } kind;
    const void *from;
    void *to;
    size_t count; /* elements: all-reduce's, all-gather's of a rank, reduce-scatter's of a rank */
    int type;
} nccl_collective;

/* Queue it; the device's context is entered. */
banyan_status nccl_session_collective(nccl_session *session, const nccl_collective *what,
                                      void *stream);

/* Groups go between two marks in a stream. From the first on the world's timeout counts: partners
 * must have met before. The device's context is entered. */
banyan_status nccl_session_mark(nccl_session *session, void *stream);

/* BANYAN_OK, or why the communicator was given up. */
banyan_status nccl_session_check(nccl_session *session);

#endif
