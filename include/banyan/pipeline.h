/* Banyan: the copy pipeline, for transfers that need staging.
 *
 * The work of a rank is a list of iterations. In an iteration the rank sends at most one batch and
 * receives at most one. To send a batch, it packs segments of its tensors into a send slot and puts
 * the slot into a receive slot of the peer. The peer unpacks it into its tensors.
 *
 * Each direction has two slots, so that packing the next batch, sending the current one and
 * unpacking the previous one overlap. Sender and receiver synchronize with each other only: the
 * receiver grants an empty slot, and the sender signals the arrival of a batch. There is no barrier
 * between iterations. A rank continues to send while it waits to receive, and the other way round.
 *
 * A launcher moves elements between tensors and slots; a table of buffers moves slots between
 * ranks. Banyan has both for host memory and shared memory, and you may pass your own. Most
 * programs use the pipeline through the copy service (copy.h).
 *
 * The idea to overlap pack, send and unpack over two slots comes from Megatron-Core's NVSHMEM
 * resharding.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BANYAN_PIPELINE_H
#define BANYAN_PIPELINE_H

#include <banyan/copy.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Slots in each direction. */
#define BANYAN_PIPELINE_SLOTS 2

/* Elements [first_elem, first_elem + elem_count) of a tensor, in row-major order, and their place
 * in a slot. */
typedef struct banyan_segment {
    DLTensor tensor; /* of this rank */
    uint64_t first_elem;
    uint64_t elem_count;
    uint64_t slot_offset; /* bytes */
} banyan_segment;

/* Content of one slot that travels between two ranks. */
typedef struct banyan_slot_batch {
    int peer;                       /* -1: no batch in this direction */
    const banyan_segment *segments; /* of the tensors of this rank */
    size_t segment_count;
    uint64_t bytes; /* used bytes of the slot */
} banyan_slot_batch;

/* One iteration of a rank: at most one batch in each direction. */
typedef struct banyan_iteration {
    banyan_slot_batch send; /* batch to send */
    banyan_slot_batch recv; /* batch to receive */
} banyan_iteration;

/* Streams and events of the launcher, such as cudaStream_t and cudaEvent_t. An operation with a
 * stream enqueues its work in stream order and returns. An operation with NULL, as always on the
 * host, returns when its work is done. */
typedef void *banyan_stream;
typedef void *banyan_event;

/* Operations that move elements between tensors and slots. The last four are called only if streams
 * are set (banyan_pipeline_set_streams); otherwise they may be NULL. */
typedef struct banyan_pipeline_launcher {
    size_t size;   /* of this struct */
    void *context; /* passed to every operation */
    /* Copy segments of tensors into a slot. */
    banyan_status (*pack)(void *context, banyan_stream stream, void *slot,
                          const banyan_segment *segments, size_t count);
    /* Copy a slot into segments of tensors. */
    banyan_status (*unpack)(void *context, banyan_stream stream, const void *slot,
                            const banyan_segment *segments, size_t count);
    /* Copy a tensor of this rank to another one. */
    banyan_status (*copy)(void *context, banyan_stream stream, const DLTensor *destination,
                          const DLTensor *source);
    /* Record the event after all work that is now queued in the stream. */
    banyan_status (*record)(void *context, banyan_event event, banyan_stream stream);
    /* Let later work in the stream wait for the event, as it is recorded now. */
    banyan_status (*stream_wait)(void *context, banyan_stream stream, banyan_event event);
    /* Set `*yes` to true if the event has completed. Do not wait. */
    banyan_status (*reached)(void *context, banyan_event event, bool *yes);
    /* Wait on the host for all work in the stream. */
    banyan_status (*synchronize)(void *context, banyan_stream stream);
} banyan_pipeline_launcher;

/* Reasons why an execution cannot make progress. */
typedef struct banyan_pipeline_stall {
    int grant_from;      /* rank that must grant a slot; -1: none */
    int arrival_from;    /* rank whose batch must arrive; -1: none */
    bool for_events;     /* an event of this rank must complete; no signal announces it */
    uint64_t stalled_ns; /* time since the last progress */
} banyan_pipeline_stall;

/* The slots, numbered 0 and 1 in each direction, and operations that move them between ranks. */
typedef struct banyan_pipeline_buffers {
    size_t size;       /* of this struct */
    void *context;     /* passed to every operation */
    int ranks;         /* peers are 0 to ranks - 1 */
    size_t slot_bytes; /* equal on all ranks */
    /* True: grant and send enqueue their work in a stream. False: they are called after the work
     * that they follow has completed, and return when they are done. */
    bool stream_ordered;
    void *send_slot[BANYAN_PIPELINE_SLOTS]; /* addresses of the send slots */
    void *recv_slot[BANYAN_PIPELINE_SLOTS]; /* addresses of the receive slots */
    /* Begin an execution. Grants and arrivals of earlier executions, which may have failed, no
     * longer count. */
    banyan_status (*begin)(void *context);
    /* Return the address at which this rank maps a receive slot of `peer`, or NULL. It must be NULL
     * for all slots of a peer or for none. If it is not NULL, the sender packs straight into the
     * slot, and `send` only signals. The operation may be NULL. */
    void *(*peer_slot)(void *context, int peer, int slot);
    /* As the receiver: grant the empty receive slot `slot` to `peer`, for one batch. */
    banyan_status (*grant)(void *context, banyan_stream stream, int peer, int slot);
    /* As the sender: take the oldest grant of `peer` that is not yet taken. Set `*slot` to -1 if
     * there is none. */
    banyan_status (*take_grant)(void *context, int peer, int *slot);
    /* As the sender: put `bytes` bytes of send slot `from` into the granted slot `to` of `peer`,
     * and signal their arrival. `from` is -1 if they are packed into the peer's slot already.
     * Everything packed before is visible to the peer after the signal. */
    banyan_status (*send)(void *context, banyan_stream stream, int peer, int from, int to,
                          uint64_t bytes);
    /* As the receiver: set `*yes` to true, and take the batch, if the oldest batch of `peer` that
     * is not yet taken has arrived in `slot`. */
    banyan_status (*take_arrival)(void *context, int peer, int slot, bool *yes);
    /* Sleep until take_grant or take_arrival may have a new result, or a short time has passed.
     * With stall->for_events, return as soon as the event is worth polling again. Fail if the wait
     * is hopeless: a peer is lost, or a deadline has passed. */
    banyan_status (*idle)(void *context, const banyan_pipeline_stall *stall);
} banyan_pipeline_buffers;

/* Return the launcher for host memory. It has no context and is static. Any thread. */
BANYAN_API const banyan_pipeline_launcher *banyan_pipeline_host_launcher(void);

/* Open slots in symmetric host memory, with `transport` between them. `transport` must be open on
 * `world`, and must outlive the buffers. If it maps a peer's memory (BANYAN_TRANSPORT_ADDRESS),
 * this rank packs straight into the peer's slots. `slot_bytes` 0: 512 KiB, which stays in the
 * caches. Collective. Errors: MISMATCH (ranks pass different sizes), INVALID (too large),
 * NO_MEMORY. */
BANYAN_API banyan_status banyan_pipeline_buffers_open(banyan_world *world,
                                                      banyan_transport *transport,
                                                      size_t slot_bytes,
                                                      banyan_pipeline_buffers **buffers);

/* Close the buffers, before their transport. NULL is ignored. Local. */
BANYAN_API void banyan_pipeline_buffers_close(banyan_pipeline_buffers *buffers);

/* A pipeline: it carries out iterations over two slots in each direction. */
typedef struct banyan_pipeline banyan_pipeline;

/* Create a pipeline. Both tables must outlive it; they are not copied. `rank` is this rank's number
 * among the peers. Local. Errors: INVALID (a table lacks an operation, or is smaller than this
 * header's), NO_MEMORY. */
BANYAN_API banyan_status banyan_pipeline_create(const banyan_pipeline_launcher *launcher,
                                                const banyan_pipeline_buffers *buffers, int rank,
                                                banyan_pipeline **pipeline);

/* Destroy a pipeline. NULL is ignored. Local. */
BANYAN_API void banyan_pipeline_destroy(banyan_pipeline *pipeline);

/* Set the streams for the four kinds of work. Set the first three together, or pass NULL for all of
 * them (the default). Several may be the same stream. Local. Errors: INVALID (only some of the
 * first three are set, or the launcher has no operations on streams). */
BANYAN_API banyan_status banyan_pipeline_set_streams(banyan_pipeline *pipeline, banyan_stream pack,
                                                     banyan_stream unpack, banyan_stream send,
                                                     banyan_stream copy);

/* Set one event for each slot and direction. They order packing, sending and unpacking between the
 * streams. Required if streams are set. Local. */
BANYAN_API banyan_status banyan_pipeline_set_events(
    banyan_pipeline *pipeline, const banyan_event pack[BANYAN_PIPELINE_SLOTS],
    const banyan_event unpack[BANYAN_PIPELINE_SLOTS]);

/* Run `num_iterations` iterations. The call returns when this rank has unpacked all its batches and
 * no longer reads the tensors that it sends.
 *
 * An iteration may have a send, a receive, both or neither; you may leave out empty ones. The two
 * ends of a batch may have it in iterations of different numbers. To exclude deadlock, one order of
 * all batches of all ranks must exist that every rank's list follows, for example an order by
 * rounds. Then the first batch in that order that has not moved is next at both of its ends, so it
 * can move.
 *
 * All ranks that share the buffers call this equally often. After an execution failed on any rank,
 * start the next one when all ranks have returned. Errors: INVALID (a batch does not fit its slot
 * or its tensors, or has a wrong peer; the message names the iteration; nothing has moved), and
 * those of the two tables. */
BANYAN_API banyan_status banyan_pipeline_execute(banyan_pipeline *pipeline,
                                                 const banyan_iteration *iterations,
                                                 size_t num_iterations);

/* Copy the sends of this rank to itself to the receives with equal ids, on the copy stream, and
 * wait for the copies. Operations with other peers are ignored. Local. Errors: as
 * banyan_copy_match_local. */
BANYAN_API banyan_status banyan_pipeline_self_moves(banyan_pipeline *pipeline,
                                                    const banyan_send_op *sends, size_t send_count,
                                                    const banyan_recv_op *recvs, size_t recv_count);

#ifdef __cplusplus
}
#endif
#endif
