/* Banyan: the executor of the copy pipeline, for transports that need staging.
 *
 * A rank's work is a list of iterations. In each it sends at most one batch and receives at most
 * one: it packs pieces of its tensors into a send slot, the slot travels to the partner's receive
 * slot, and the partner unpacks it. There are two slots a direction, so that packing the next
 * batch, sending the current one and unpacking the prior one overlap. Sender and receiver hand
 * slots over by signals between the two of them: the receiver grants an empty slot, the sender
 * tells its arrival. Nobody waits for any other rank, and an iteration is an order, not a barrier:
 * sending goes on while receiving waits, and the other way round.
 *
 * The idea of overlapped pack, send and unpack over two slots: Megatron-Core's NVSHMEM resharding.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BANYAN_PIPELINE_H
#define BANYAN_PIPELINE_H

#include <banyan/copy.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BANYAN_PIPELINE_SLOTS 2

/* Elements [first_elem, first_elem + elem_count), in row-major order, of a tensor, which lie in a
 * slot from slot_offset on. */
typedef struct banyan_segment {
    DLTensor tensor;
    uint64_t first_elem;
    uint64_t elem_count;
    uint64_t slot_offset; /* bytes */
} banyan_segment;

/* What one slot carries between two ranks. */
typedef struct banyan_slot_batch {
    int peer; /* -1: nothing in this direction */
    const banyan_segment *segments;
    size_t segment_count;
    uint64_t bytes; /* of the slot that are used */
} banyan_slot_batch;

typedef struct banyan_iteration {
    banyan_slot_batch send;
    banyan_slot_batch recv;
} banyan_iteration;

/* Streams and events are the launcher's own. A call with a stream queues its work there, in order,
 * and returns; with NULL, as always on the host, the work is done when the call returns. */
typedef void *banyan_stream;
typedef void *banyan_event;

/* Moves elements between tensors and slots. The last four are called only when streams are set and
 * may be NULL otherwise. */
typedef struct banyan_pipeline_launcher {
    size_t size; /* of this struct */
    void *context;
    banyan_status (*pack)(void *context, banyan_stream stream, void *slot,
                          const banyan_segment *segments, size_t count);
    banyan_status (*unpack)(void *context, banyan_stream stream, const void *slot,
                            const banyan_segment *segments, size_t count);
    banyan_status (*copy)(void *context, banyan_stream stream, const DLTensor *destination,
                          const DLTensor *source);
    /* The event stands for all that was queued on the stream so far. */
    banyan_status (*record)(void *context, banyan_event event, banyan_stream stream);
    /* What is queued on the stream from now on runs after what the event stands for now. */
    banyan_status (*stream_wait)(void *context, banyan_stream stream, banyan_event event);
    /* Has what the event stands for been done? Does not wait. */
    banyan_status (*reached)(void *context, banyan_event event, bool *yes);
    /* Wait on the host for all that was queued on the stream. */
    banyan_status (*synchronize)(void *context, banyan_stream stream);
} banyan_pipeline_launcher;

/* What an execution waits for when nothing can move. */
typedef struct banyan_pipeline_stall {
    int grant_from;      /* the rank whose slot we want to fill; -1: none */
    int arrival_from;    /* the rank whose batch we want to unpack; -1: none */
    bool for_events;     /* for an event of ours, of which no signal tells */
    uint64_t stalled_ns; /* since something moved last */
} banyan_pipeline_stall;

/* The slots, numbered 0 and 1 a direction, and the way between them. */
typedef struct banyan_pipeline_buffers {
    size_t size; /* of this struct */
    void *context;
    int ranks;         /* peers have numbers below this */
    size_t slot_bytes; /* the same on every rank */
    /* grant and send are queued on their streams. Otherwise they are done when they return, and are
     * called when what they follow has been done. */
    bool stream_ordered;
    void *send_slot[BANYAN_PIPELINE_SLOTS];
    void *recv_slot[BANYAN_PIPELINE_SLOTS];
    /* An execution begins: grants and arrivals of earlier ones, that may have failed, do not count
     * any more. */
    banyan_status (*begin)(void *context);
    /* The peer's receive slot as an address of ours, or NULL when it has none, for all slots of a
     * peer alike: then packing goes straight into it and `send` only signals. May be NULL. */
    void *(*peer_slot)(void *context, int peer, int slot);
    /* Receiver: tell `peer` that our receive slot `slot` is empty and its to fill, once. */
    banyan_status (*grant)(void *context, banyan_stream stream, int peer, int slot);
    /* Sender: take the oldest grant of `peer` that was not taken; `slot` is -1 when there is none.
     */
    banyan_status (*take_grant)(void *context, int peer, int *slot);
    /* Sender: move `bytes` of send slot `from` (-1: they were packed into the peer's slot) to the
     * peer's slot `to`, which was granted, and signal their arrival. What was packed before is
     * visible to the peer. */
    banyan_status (*send)(void *context, banyan_stream stream, int peer, int from, int to,
                          uint64_t bytes);
    /* Receiver: has the oldest batch of `peer` that was not taken arrived, in `slot`? Then it is
     * taken. */
    banyan_status (*take_arrival)(void *context, int peer, int slot, bool *yes);
    /* Nothing to do: sleep a while, or until one of the two above may answer differently than when
     * it was last asked; no longer than it takes to look again when there is an event to wait for.
     * Fails when the wait is hopeless: a peer lost, a deadline passed. */
    banyan_status (*idle)(void *context, const banyan_pipeline_stall *stall);
} banyan_pipeline_buffers;

/* The launcher for host memory. It has no context and lives for ever. */
BANYAN_API const banyan_pipeline_launcher *banyan_pipeline_host_launcher(void);

/* Slots in symmetric memory and the way between them over `transport`, which must be open on
 * `world` and able to put with a signal. Where it has addresses (BANYAN_TRANSPORT_ADDRESS) packing
 * goes straight into the peer's slot. `slot_bytes` 0: a size that stays in the caches. Collective;
 * MISMATCH when ranks ask for different sizes. */
BANYAN_API banyan_status banyan_pipeline_buffers_open(banyan_world *world,
                                                      banyan_transport *transport,
                                                      size_t slot_bytes,
                                                      banyan_pipeline_buffers **buffers);
/* Local; before the transport is closed. NULL is ignored. */
BANYAN_API void banyan_pipeline_buffers_close(banyan_pipeline_buffers *buffers);

typedef struct banyan_pipeline banyan_pipeline;

/* Neither table is copied; both must outlive the pipeline. `rank` is this rank's number among the
 * peers. Local. INVALID for a table that lacks an operation. */
BANYAN_API banyan_status banyan_pipeline_create(const banyan_pipeline_launcher *launcher,
                                                const banyan_pipeline_buffers *buffers, int rank,
                                                banyan_pipeline **pipeline);
/* NULL is ignored. */
BANYAN_API void banyan_pipeline_destroy(banyan_pipeline *pipeline);

/* Streams for the four kinds of work. The first three are all NULL, as at first, or none of them
 * is; any may be the same. INVALID otherwise, and for a launcher without the operations on streams.
 */
BANYAN_API banyan_status banyan_pipeline_set_streams(banyan_pipeline *pipeline, banyan_stream pack,
                                                     banyan_stream unpack, banyan_stream send,
                                                     banyan_stream copy);

/* Two events each, which hand send slots to the send stream and back, and receive slots back to
 * their senders. Required when streams are set. */
BANYAN_API banyan_status banyan_pipeline_set_events(
    banyan_pipeline *pipeline, const banyan_event pack[BANYAN_PIPELINE_SLOTS],
    const banyan_event unpack[BANYAN_PIPELINE_SLOTS]);

/* Run `num_iterations` iterations. Any may be empty, send only or receive only; iterations without
 * work need not be listed, and two partners may have a batch between them in iterations of
 * different numbers. But there must be one order of all batches of all ranks that every rank's list
 * follows, such as that of rounds: then the first batch, in this order, that has not been moved is
 * next at both of its ends, so nobody waits for ever. Every rank that shares the buffers calls it
 * equally often, after an execution that failed on any of them only once all have returned from it.
 * Returns when all is unpacked here and all sends have left their tensors. INVALID, naming the
 * iteration, for a batch that does not fit its slot or its tensors; nothing has moved then. */
BANYAN_API banyan_status banyan_pipeline_execute(banyan_pipeline *pipeline,
                                                 const banyan_iteration *schedules,
                                                 size_t num_iterations);

/* Copy sends to receives of the same rank, matched by id, on the copy stream, and wait for it.
 * Operations with other peers are left alone. Local. Errors as banyan_copy_match_local's. */
BANYAN_API banyan_status banyan_pipeline_self_moves(banyan_pipeline *pipeline,
                                                    const banyan_send_op *sends, size_t send_count,
                                                    const banyan_recv_op *recvs, size_t recv_count);

#ifdef __cplusplus
}
#endif
#endif
