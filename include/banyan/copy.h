/* Banyan: the copy service, sends and receives of tensors as one batch.
 *
 * Submit what this rank sends and receives, run, done: all of it moves, both directions at once. A
 * send to dest and the receive of it from this rank are the two sides of one task; both give the
 * same id (task id, part), and tensors of equally many elements of equal size (or cast on the way).
 * Shapes may differ: elements go in row-major order. Tensors are DLTensors with any strides, in
 * memory of this process.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BANYAN_COPY_H
#define BANYAN_COPY_H

#include <banyan/transport.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BANYAN_MAX_DIMS 8

/* No id: where the backend can (BANYAN_COPY_MATCH_BY_ORDER), the n-th send without an id from a to
 * b meets the n-th receive without an id at b from a. */
#define BANYAN_TASK_ID_NONE UINT64_MAX

/* One side of a task. `tensor` points to shape and strides that must outlive what uses the
 * operation; strides NULL means row-major and dense; ndim is at most BANYAN_MAX_DIMS. */
typedef struct banyan_copy_op {
    DLTensor tensor;
    int peer; /* destination of a send, source of a receive */
    uint64_t task_id;
    uint32_t part;  /* when one task travels as several tensors: data 0, scales 1 */
    uint32_t flags; /* BANYAN_COPY_OP_… */
} banyan_copy_op;

enum {
    /* Elements are cast on their way, to nearest even, from the sender's type to the receiver's,
     * any two of f32, f16 and bf16: both ends say so, and the backend is one that can
     * (BANYAN_COPY_CASTS). Elsewhere types are not looked at, only their sizes. */
    BANYAN_COPY_OP_CAST = 1 << 0,
    /* Elements are quantized to MXFP8 on their way (transform.h says what becomes of them), from
     * one of the three types to e4m3, by blocks of 32 along the last dimension, whose extent is a
     * multiple of 32 at both ends. Both ends say so. Needs BANYAN_COPY_CASTS, too. */
    BANYAN_COPY_OP_MXFP8 = 1 << 1,
    /* With MXFP8: this is the part with the scales. The sender gives the same tensor as for the
     * elements, the receiver one of bytes, one a block. */
    BANYAN_COPY_OP_SCALES = 1 << 2,
    BANYAN_COPY_OP_OCP = 1 << 3 /* with MXFP8: by the OCP rule instead of rounding scales up */
};

typedef banyan_copy_op banyan_send_op;
typedef banyan_copy_op banyan_recv_op;

/* A send to oneself and its receive: indices into the two lists. */
typedef struct banyan_copy_pair {
    size_t send;
    size_t recv;
} banyan_copy_pair;

/* Pair the sends and receives that `rank` has with itself, by id. `pairs` (room for the smaller of
 * the two counts) receives `pair_count` pairs in order of the sends; operations with other peers
 * are left alone. An id that is missing, there twice or on one side only, unequal counts, and
 * unequal sizes are MISMATCH: the sentence names `who` (a backend), the rank and up to ten ids. Any
 * thread. */
BANYAN_API banyan_status banyan_copy_match_local(const char *who, int rank,
                                                 const banyan_send_op *sends, size_t send_count,
                                                 const banyan_recv_op *recvs, size_t recv_count,
                                                 banyan_copy_pair *pairs, size_t *pair_count);

/* Copy every element of `source` to `destination`: any strides, equally many elements, equal
 * element size, host memory, no overlap. MISMATCH or INVALID otherwise. Any thread. */
BANYAN_API banyan_status banyan_tensor_copy(const DLTensor *destination, const DLTensor *source);

/* ---- backends ---- */

enum {
    BANYAN_COPY_STRIDED = 1 << 0,         /* takes tensors that are not dense */
    BANYAN_COPY_MATCH_BY_ORDER = 1 << 1,  /* takes operations without an id */
    BANYAN_COPY_KEEPS_SCHEDULES = 1 << 2, /* has prepare, execute and release */
    BANYAN_COPY_CASTS = 1 << 3            /* takes BANYAN_COPY_OP_CAST */
};

typedef struct banyan_copy_options {
    size_t size;           /* of this struct; BANYAN_COPY_OPTIONS_INIT sets it */
    const char *transport; /* NULL: the default of banyan_transport_open; "peer" or "nvshmem" for
                            * the pipeline on a device */
    size_t slot_bytes;     /* of a staging slot (pipeline); 0: the backend's default */
    bool optimal_rounds;   /* pipeline: colour the rounds instead of rotating */
    DLDevice device;       /* where all tensors of its tasks lie; not named: the host */
} banyan_copy_options;

#define BANYAN_COPY_OPTIONS_INIT BANYAN_INIT(banyan_copy_options)

/* What a service runs as one batch, checked on this rank: ids are unique a direction and peer,
 * tensors are sane, and the moves to oneself are paired. `sends` and `recvs` hold those to oneself
 * too. */
typedef struct banyan_copy_batch {
    const banyan_send_op *sends;
    size_t send_count;
    const banyan_recv_op *recvs;
    size_t recv_count;
    const banyan_copy_pair *local; /* moves to oneself */
    size_t local_count;
} banyan_copy_batch;

/* A backend is this table. open, close and either the first trio (submit_send, submit_recv, run) or
 * the second (prepare, execute, release) are required; the rest may be NULL. With the first trio
 * only, the service itself copies what goes to oneself and hands over the rest, batch by batch;
 * with the second it can keep schedules, and the backend moves local pairs too. All calls but close
 * are collective. */
typedef struct banyan_copy_backend {
    size_t size;
    const char *name;
    uint64_t capabilities;
    banyan_status (*open)(banyan_world *world, const banyan_copy_options *options, void **state);
    void (*close)(void *state);

    banyan_status (*submit_send)(void *state, const banyan_send_op *op);
    banyan_status (*submit_recv)(void *state, const banyan_recv_op *op);
    banyan_status (*run)(void *state, void *stream);

    /* Check the batch against the partners' and plan it. When any rank's part is wrong every rank
     * gets the error, and nothing has moved. What `batch` points to, but not the tensors' memory,
     * may be freed afterwards. */
    banyan_status (*prepare)(void *state, const banyan_copy_batch *batch, void **schedule);
    /* Move it: no planning, no allocation that grows with the batch. Returns when this rank's
     * receives are complete and its sends may be overwritten; on a device, when that is queued in
     * the stream. */
    banyan_status (*execute)(void *state, void *schedule, void *stream);
    void (*release)(void *state, void *schedule);
    /* How runs went that were queued and have ended. Does not wait. May be NULL. */
    banyan_status (*check)(void *state);
} banyan_copy_backend;

/* Compare a batch's ids, counts, sizes and element sizes with those of every partner: what prepare
 * must do before anything moves. Afterwards the tasks of two ranks are the same list at both, when
 * each sorts its own by (task id, part), those without an id last and as submitted. MISMATCH names
 * `who` (the backend), rank, partner and up to ten ids, on every rank. Moves to oneself are left
 * out. Collective. */
BANYAN_API banyan_status banyan_copy_match_batch(banyan_world *world, const char *who,
                                                 const banyan_copy_batch *batch);

/* The built-in backends ("direct", "pipeline") and those of modules ("mpi"), by name. NOT_FOUND
 * names those there are; UNSUPPORTED says which library a module lacks. */
BANYAN_API banyan_status banyan_copy_backend_find(const char *name,
                                                  const banyan_copy_backend **backend);
/* The same for tensors in memory of a device: "direct", "pipeline", and those that the device's
 * module brings ("nccl"). */
BANYAN_API banyan_status banyan_copy_backend_find_on(const char *name, DLDevice device,
                                                     const banyan_copy_backend **backend);

/* ---- service ---- */

typedef struct banyan_copy_service banyan_copy_service;
typedef struct banyan_copy_schedule banyan_copy_schedule;

/* Open a service over `world`. `backend` NULL: BANYAN_COPY, else "direct" where it can serve every
 * peer and "pipeline" elsewhere; on a device, "direct". For a world of several nodes NULL is "mpi",
 * and on a device "pipeline" over NVSHMEM; UNSUPPORTED names what that lacks. "direct", and
 * "pipeline" on the host, serve tensors that stay on a node: a batch with others is UNSUPPORTED at
 * every rank before anything moves. Collective.
 *
 * With options->device a GPU of this rank's, tensors lie in its memory. Runs are queued in the
 * caller's stream and ordered with it: what they send is what the stream has written before, and
 * what the stream does next finds all received and may overwrite what was sent. A run may be
 * captured in a CUDA graph. Runs of one service, replays included, follow each other in one stream,
 * or in streams that the caller has ordered, and in the same order on every rank. With "direct"
 * tensors lie anywhere in the GPU's memory. Those that are received outside of symmetric memory
 * (banyan_memory_alloc_on) peers map when a schedule is prepared, and they must stay allocated
 * until all ranks have freed the schedule; what CUDA lets nobody map is staged, and the log says
 * so. A run that waits for a rank longer than the world's timeout ends, as does one whose peer is
 * lost, and banyan_copy_service_check tells. */
BANYAN_API banyan_status banyan_copy_service_open(banyan_world *world, const char *backend,
                                                  const banyan_copy_options *options,
                                                  banyan_copy_service **service);

/* The same with a backend of the caller's own. */
BANYAN_API banyan_status banyan_copy_service_open_backend(banyan_world *world,
                                                          const banyan_copy_backend *backend,
                                                          const banyan_copy_options *options,
                                                          banyan_copy_service **service);

/* Local. Schedules made from it end with it: they may then only be freed. NULL is ignored. */
BANYAN_API void banyan_copy_service_close(banyan_copy_service *service);

/* The backend's name and capabilities (BANYAN_COPY_…). Local. */
BANYAN_API const char *banyan_copy_service_name(const banyan_copy_service *service);
BANYAN_API uint64_t banyan_copy_service_capabilities(const banyan_copy_service *service);

/* Where its tensors lie: BANYAN_HOST when no device was named. Local. */
BANYAN_API DLDevice banyan_copy_service_device(const banyan_copy_service *service);

/* On a device: BANYAN_OK, or the error that has ended a run of the service; from then on its runs
 * fail, and queued ones move nothing. It does not wait: what a stream has not done yet is not
 * known. On the host runs tell themselves. Local. */
BANYAN_API banyan_status banyan_copy_service_check(const banyan_copy_service *service);

/* Queue one side of a task, part 0. Shape and strides are copied; the data must stay until the run
 * (or the last run of the schedule) is over. Local. INVALID for a peer that does not exist, a
 * tensor that is not in host memory, or not in that of the service's device, or has more than
 * BANYAN_MAX_DIMS dimensions. */
BANYAN_API banyan_status banyan_copy_service_submit_send(banyan_copy_service *service,
                                                         const DLTensor *tensor, int dest_rank,
                                                         uint64_t task_id);
BANYAN_API banyan_status banyan_copy_service_submit_recv(banyan_copy_service *service,
                                                         const DLTensor *tensor, int src_rank,
                                                         uint64_t task_id);
/* The same for any part. */
BANYAN_API banyan_status banyan_copy_service_submit_send_op(banyan_copy_service *service,
                                                            const banyan_send_op *op);
BANYAN_API banyan_status banyan_copy_service_submit_recv_op(banyan_copy_service *service,
                                                            const banyan_recv_op *op);

/* Move everything that was queued and clear the queue, also on failure; on a device too it returns
 * when that is done. Collective: a rank with
 * nothing queued calls it too. Errors that concern the batch (MISMATCH, naming backend, rank and up
 * to ten ids) come to every rank before anything has moved. */
BANYAN_API banyan_status banyan_copy_service_run(banyan_copy_service *service, void *stream);

/* Turn the queue into a schedule that can be run many times, and clear it. Collective. */
BANYAN_API banyan_status banyan_copy_service_prepare(banyan_copy_service *service,
                                                     banyan_copy_schedule **schedule);
BANYAN_API banyan_status banyan_copy_schedule_run(banyan_copy_schedule *schedule, void *stream);
BANYAN_API void banyan_copy_schedule_free(banyan_copy_schedule *schedule);

#ifdef __cplusplus
}
#endif
#endif
