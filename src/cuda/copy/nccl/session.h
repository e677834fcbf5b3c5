/* A world's NCCL communicator. It is abandoned after a failure of the world, or when a queued
 * operation does not end. */
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
    banyan_world
        *starting; /* a world of these ranks until all are connected: a rank that fails ends it */
    int rank, device;
    banyan_copy_service *direct; /* synchronizes partners; NULL: they do not synchronize */
    pthread_mutex_t lock;        /* guards the communicator */
    void *comm;                  /* NULL: abandoned */
    char reason[512];            /* the reason, if abandoned */
    uint64_t *marks; /* number of marks that the device has passed; odd: between begin and end */
    uint64_t *device_marks; /* device address of `marks` */
    uint64_t *passed;       /* the device's own counter */
    CUfunction mark;
    uint64_t seen, seen_ns; /* latest number that the watch has seen, and since when */
    module_wait waiting;    /* the device's wait, as the watch reports it */
    watch *watching;
} nccl_session;

/* A message of a group. */
typedef struct nccl_message {
    void *data;
    size_t bytes;
    int peer;
    bool is_send;
} nccl_message;

/* Collective; the device's context is entered. A failure on one rank immediately fails the ranks
 * that wait for it, with its message. */
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
    size_t count; /* elements: the total for an all-reduce; one rank's for an all-gather or
                     reduce-scatter */
    int type;
} nccl_collective;

/* Queue the collective; the device's context is entered. */
banyan_status nccl_session_collective(nccl_session *session, const nccl_collective *what,
                                      void *stream);

/* Queue a mark; groups lie between two of them in a stream. The world's timeout begins at the
 * first, so partners must have synchronized before. The device's context is entered. */
banyan_status nccl_session_mark(nccl_session *session, void *stream);

/* Return BANYAN_OK, or the reason why the communicator was abandoned. */
banyan_status nccl_session_check(nccl_session *session);

#endif
