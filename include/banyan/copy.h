/* Banyan: the copy service, batches of tensor sends and receives.
 *
 * Every rank submits its sends and receives, and then all ranks run the batch together. A send to a
 * rank and the receive of it there form one task. Both sides give the same (task id, part), and
 * tensors with the same number of elements of the same size, unless the elements are cast. Shapes
 * may differ: elements move in row-major order. Tensors are DLTensors with any strides.
 *
 * A service has a backend: "direct" copies straight from tensor to tensor, "pipeline" stages
 * batches in slots (pipeline.h), and modules add others ("mpi", "nccl"). You may pass a backend of
 * your own.
 *
 * To move one batch: open a service, submit each send and receive, and call
 * banyan_copy_service_run. To move the same batch many times: submit, call
 * banyan_copy_service_prepare once, and banyan_copy_schedule_run for each run.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BANYAN_COPY_H
#define BANYAN_COPY_H

#include <banyan/transport.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Maximum number of dimensions of a tensor. */
#define BANYAN_MAX_DIMS 8

/* A task without an id. If the backend supports it (BANYAN_COPY_MATCH_BY_ORDER), the n-th send
 * without an id from rank a to rank b pairs with the n-th receive without an id at b from a. */
#define BANYAN_TASK_ID_NONE UINT64_MAX

/* One side of a task. The tensor's shape and strides must outlive the use of the operation. Strides
 * NULL means row-major and dense. `ndim` is at most BANYAN_MAX_DIMS. */
typedef struct banyan_copy_op {
    DLTensor tensor;  /* the elements to send, or their place */
    int peer;         /* destination of a send, source of a receive */
    uint64_t task_id; /* equal on both sides; BANYAN_TASK_ID_NONE: none */
    uint32_t part;    /* for a task of several tensors: data 0, scales 1 */
    uint32_t flags;   /* BANYAN_COPY_OP_… */
} banyan_copy_op;

enum {
    /* Cast the elements from the sender's type to the receiver's: any two of f32, f16 and bf16,
     * with rounding to nearest even. Both sides set the flag. The backend must have
     * BANYAN_COPY_CASTS. "pipeline" casts at the end where fewer bytes travel, at the sender if
     * that makes no difference. Without the flag only element sizes are compared, not types. */
    BANYAN_COPY_OP_CAST = 1 << 0,
    /* Quantize the elements from f32, f16 or bf16 to MXFP8 (transform.h): e4m3, in blocks of 32
     * along the last dimension. The extent of that dimension must be a multiple of 32 on both
     * sides. Both sides set the flag. The backend must have BANYAN_COPY_CASTS. */
    BANYAN_COPY_OP_MXFP8 = 1 << 1,
    /* With MXFP8: this part has the scales. The sender gives the same tensor as for the elements;
     * the receiver gives a tensor of bytes, one for each block. */
    BANYAN_COPY_OP_SCALES = 1 << 2,
    BANYAN_COPY_OP_OCP = 1 << 3 /* with MXFP8: the OCP rule for scales, instead of rounding up */
};

/* The sender's side of a task, and the receiver's. */
typedef banyan_copy_op banyan_send_op;
typedef banyan_copy_op banyan_recv_op;

/* A send of a rank to itself and its receive. */
typedef struct banyan_copy_pair {
    size_t send; /* index in the list of sends */
    size_t recv; /* index in the list of receives */
} banyan_copy_pair;

/* Pair the sends and receives that `rank` has with itself, by id. `pairs` must have space for the
 * smaller of the two counts; it receives `*pair_count` pairs in the order of the sends. Operations
 * with other peers are ignored. `who`, a backend's name, is for error messages. Errors: MISMATCH
 * (an id is missing, occurs twice or has one side only; counts or sizes differ; the message names
 * up to ten ids), NO_MEMORY. Any thread. */
BANYAN_API banyan_status banyan_copy_match_local(const char *who, int rank,
                                                 const banyan_send_op *sends, size_t send_count,
                                                 const banyan_recv_op *recvs, size_t recv_count,
                                                 banyan_copy_pair *pairs, size_t *pair_count);

/* Copy all elements of `source` to `destination`, in row-major order. Both are in host memory, do
 * not overlap, and may have any strides. Errors: MISMATCH (numbers or sizes of elements differ),
 * INVALID (a tensor is malformed). Any thread. */
BANYAN_API banyan_status banyan_tensor_copy(const DLTensor *destination, const DLTensor *source);

/* ---- backends ---- */

/* Capabilities of a backend. */
enum {
    BANYAN_COPY_STRIDED = 1 << 0,         /* accepts tensors that are not dense */
    BANYAN_COPY_MATCH_BY_ORDER = 1 << 1,  /* accepts operations without an id */
    BANYAN_COPY_KEEPS_SCHEDULES = 1 << 2, /* has prepare, execute and release */
    BANYAN_COPY_CASTS = 1 << 3            /* accepts BANYAN_COPY_OP_CAST and _MXFP8 */
};

/* Options of banyan_copy_service_open. A backend receives them in its `open`. */
typedef struct banyan_copy_options {
    size_t size; /* of this struct; BANYAN_COPY_OPTIONS_INIT sets it */
    /* NULL: the default of banyan_transport_open. On a device: "peer" or "nvshmem", for the
     * pipeline. */
    const char *transport;
    size_t slot_bytes;   /* pipeline: bytes of a staging slot; 0: the backend's default */
    bool optimal_rounds; /* pipeline: fewest rounds, by edge colouring; false: by rotation */
    DLDevice device;     /* GPU of all tensors of this rank; zero-initialized: the host */
    uint64_t timeout_ns; /* of every wait of its calls (world.h); 0: the world's */
    /* NULL, or called by the thread of a run that takes more than 0.1 s: at most ten times a
     * second, and at its end. `done_bytes` of the `total_bytes` that this rank sends, receives or
     * copies in the batch are moved. "direct" and "pipeline" call it, on the host. A reshard runs a
     * batch for each of its waves. */
    void (*progress)(void *context, uint64_t done_bytes, uint64_t total_bytes);
    void *context; /* passed to `progress` */
} banyan_copy_options;

#define BANYAN_COPY_OPTIONS_INIT BANYAN_INIT(banyan_copy_options)

/* A batch that the service has checked on this rank. Ids are unique for each direction and peer.
 * Tensors are well formed. The rank's moves to itself are paired. `sends` and `recvs` include these
 * moves. */
typedef struct banyan_copy_batch {
    const banyan_send_op *sends; /* in the order of submission */
    size_t send_count;
    const banyan_recv_op *recvs; /* in the order of submission */
    size_t recv_count;
    const banyan_copy_pair *local; /* moves of the rank to itself */
    size_t local_count;
} banyan_copy_batch;

/* A backend. `open`, `close` and one of two groups are required: (submit_send, submit_recv, run) or
 * (prepare, execute, release). The rest may be NULL.
 *
 * With the first group alone, the service copies a rank's moves to itself and passes the rest to
 * the backend in every run. With the second group, the backend keeps schedules and also performs
 * the moves of the rank to itself. open, run, prepare and execute are collective. */
typedef struct banyan_copy_backend {
    size_t size;           /* of this struct */
    const char *name;      /* for banyan_copy_service_name and messages */
    uint64_t capabilities; /* BANYAN_COPY_… */
    /* Open the backend. `*state` is passed to all other operations. */
    banyan_status (*open)(banyan_world *world, const banyan_copy_options *options, void **state);
    /* Close the backend and free its state. */
    void (*close)(void *state);

    /* Queue a send for the next run. */
    banyan_status (*submit_send)(void *state, const banyan_send_op *op);
    /* Queue a receive for the next run. */
    banyan_status (*submit_recv)(void *state, const banyan_recv_op *op);
    /* Move everything that is queued. */
    banyan_status (*run)(void *state, void *stream);

    /* Match the batch with the partners' batches (banyan_copy_match_batch) and plan it. If the part
     * of any rank is wrong, all ranks return the error and nothing has moved. The caller may free
     * `batch` and its arrays afterwards, but not the tensors' memory. */
    banyan_status (*prepare)(void *state, const banyan_copy_batch *batch, void **schedule);
    /* Move the batch, without planning and without allocation that grows with the batch. Return
     * when this rank's receives are complete and its sends may be overwritten; on a device, when
     * this is enqueued in the stream. */
    banyan_status (*execute)(void *state, void *schedule, void *stream);
    /* Free a schedule. */
    void (*release)(void *state, void *schedule);
    /* Return the error of the queued runs that have ended, or BANYAN_OK. Do not wait. May be NULL.
     */
    banyan_status (*check)(void *state);
} banyan_copy_backend;

/* Compare the ids, counts, sizes and element sizes of a batch with those of every partner. A
 * backend calls this in prepare. Let two ranks then sort the tasks between them by (task id, part),
 * those without an id last, in the order of submission: after a success both have the same list.
 * Moves of a rank to itself are ignored. `who`, the backend's name, is for messages. Collective.
 * Errors: MISMATCH (the message names rank, partner and up to ten ids), NO_MEMORY, on all ranks. */
BANYAN_API banyan_status banyan_copy_match_batch(banyan_world *world, const char *who,
                                                 const banyan_copy_batch *batch);

/* Find a backend for host memory by its name: "direct", "pipeline", or that of a module ("mpi").
 * The table is static. Errors: NOT_FOUND (the message lists the backends), UNSUPPORTED (the
 * module's library is missing). Any thread. */
BANYAN_API banyan_status banyan_copy_backend_find(const char *name,
                                                  const banyan_copy_backend **backend);

/* Find a backend for the memory of `device`: "direct", "pipeline", or one of the device's module
 * ("nccl"). Otherwise as banyan_copy_backend_find. */
BANYAN_API banyan_status banyan_copy_backend_find_on(const char *name, DLDevice device,
                                                     const banyan_copy_backend **backend);

/* ---- service ---- */

/* Sends and receives of tensors between the ranks of a world, through one backend. */
typedef struct banyan_copy_service banyan_copy_service;

/* A prepared batch. */
typedef struct banyan_copy_schedule banyan_copy_schedule;

/* Open a service over `world`. `options` NULL means the defaults. Collective.
 *
 * `backend` NULL means the environment variable BANYAN_COPY, else the default. In host memory this
 * is "direct", on several nodes over the transport "ucx", or "mpi" if a rank cannot reach all
 * others. On a device it is "direct", and on several nodes "pipeline" over UCX or NVSHMEM. A batch
 * with tensors for a rank that the backend does not reach fails with UNSUPPORTED on every rank,
 * before anything moves.
 *
 * Between nodes, "direct" puts tensors straight into ordinary memory of their receiver, which it
 * registers as long as the schedule exists: keep this memory allocated until then.
 *
 * With options->device, all tensors are in the memory of this rank's GPU.
 * - Runs are enqueued in the caller's stream and ordered with it. They send what earlier work in
 *   the stream wrote. Later work sees all received data and may overwrite the sent data.
 * - A run may be captured in a CUDA graph.
 * - Runs of one service, graph launches included, follow each other in one stream, or in streams
 *   that the caller orders. Their order is the same on every rank.
 * - "direct" accepts tensors anywhere in the GPU's memory. When a schedule is prepared, peers map
 *   the tensors that are received into, unless these are in symmetric memory
 *   (banyan_memory_alloc_on). Such tensors must stay allocated until all ranks have freed the
 *   schedule. Memory that CUDA does not let peers map is staged; the log names it at level info.
 * - A run that waits longer than the world's timeout for a rank ends, and so does one whose peer is
 *   lost. banyan_copy_service_check returns the error.
 *
 * Errors: NOT_FOUND (unknown backend), UNSUPPORTED or NVSHMEM (the message names what is missing),
 * MISMATCH (ranks open different backends), NO_MEMORY, SYSTEM. */
BANYAN_API banyan_status banyan_copy_service_open(banyan_world *world, const char *backend,
                                                  const banyan_copy_options *options,
                                                  banyan_copy_service **service);

/* Open a service with your own backend; the table must outlive the service. Collective. Errors:
 * INVALID (the table lacks operations, or is smaller than this header's), MISMATCH (the names
 * differ between ranks), NO_MEMORY, and those of the backend's `open`. */
BANYAN_API banyan_status banyan_copy_service_open_backend(banyan_world *world,
                                                          const banyan_copy_backend *backend,
                                                          const banyan_copy_options *options,
                                                          banyan_copy_service **service);

/* Close a service, before its world. Its schedules can no longer run, but must still be freed. NULL
 * is ignored. Local. */
BANYAN_API void banyan_copy_service_close(banyan_copy_service *service);

/* Return the name of the service's backend. Local. */
BANYAN_API const char *banyan_copy_service_name(const banyan_copy_service *service);

/* Return the capabilities of the service's backend (BANYAN_COPY_…). Local. */
BANYAN_API uint64_t banyan_copy_service_capabilities(const banyan_copy_service *service);

/* Return the device of the service's tensors, BANYAN_HOST if none was given. Local. */
BANYAN_API DLDevice banyan_copy_service_device(const banyan_copy_service *service);

/* On a device: return BANYAN_OK, or the error that ended a run. After such an error all later runs
 * of the service fail, and queued ones move nothing. The call does not wait, so it does not cover
 * work that a stream has not done yet. On the host, runs return their own errors. Local. */
BANYAN_API banyan_status banyan_copy_service_check(const banyan_copy_service *service);

/* Queue the send of a tensor to `dest_rank`, as part 0 of a task. Shape and strides are copied. The
 * data must stay in place until the run, or the last run of the schedule, has ended. Local. Errors:
 * INVALID (no such peer; a tensor with more than BANYAN_MAX_DIMS dimensions, or not in the memory
 * of the service's device; or a tensor that is not dense, if the backend needs that), NO_MEMORY. */
BANYAN_API banyan_status banyan_copy_service_submit_send(banyan_copy_service *service,
                                                         const DLTensor *tensor, int dest_rank,
                                                         uint64_t task_id);

/* Queue the receive of a tensor from `src_rank`. A tensor with stride 0 is INVALID, too. Otherwise
 * as banyan_copy_service_submit_send. */
BANYAN_API banyan_status banyan_copy_service_submit_recv(banyan_copy_service *service,
                                                         const DLTensor *tensor, int src_rank,
                                                         uint64_t task_id);

/* Queue a send with any part and flags. Otherwise as banyan_copy_service_submit_send. Errors also:
 * UNSUPPORTED (the backend does not cast). */
BANYAN_API banyan_status banyan_copy_service_submit_send_op(banyan_copy_service *service,
                                                            const banyan_send_op *op);

/* Queue a receive with any part and flags. Otherwise as banyan_copy_service_submit_recv. Errors
 * also: UNSUPPORTED (the backend does not cast). */
BANYAN_API banyan_status banyan_copy_service_submit_recv_op(banyan_copy_service *service,
                                                            const banyan_recv_op *op);

/* Move everything that is queued, and wait for it, on a device too. The queue is empty afterwards,
 * even after an error. A rank without operations calls this, too. Collective. Errors: MISMATCH (the
 * batches of two ranks differ; the message names backend, rank and up to ten ids; all ranks receive
 * it before anything moves), and those of the backend. */
BANYAN_API banyan_status banyan_copy_service_run(banyan_copy_service *service, void *stream);

/* Make a schedule of everything that is queued, to run it many times. The queue is empty
 * afterwards, even after an error. The caller owns the schedule. Collective. Errors: as
 * banyan_copy_service_run. */
BANYAN_API banyan_status banyan_copy_service_prepare(banyan_copy_service *service,
                                                     banyan_copy_schedule **schedule);

/* Run a schedule. On the host, the call returns when this rank's receives are complete and its
 * sends may be overwritten. On a device, the call enqueues the run in `stream`. Collective. Errors:
 * INVALID (the service is closed; a stream on the host), and those of the backend. */
BANYAN_API banyan_status banyan_copy_schedule_run(banyan_copy_schedule *schedule, void *stream);

/* Free a schedule. NULL is ignored. Local. */
BANYAN_API void banyan_copy_schedule_destroy(banyan_copy_schedule *schedule);

#ifdef __cplusplus
}
#endif
#endif
