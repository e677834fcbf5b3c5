/* Banyan: the executor of the copy pipeline, for transports that need staging.
 *
 * A rank's work is a list of iterations. In each it sends at most one batch and receives at most
 * one: it packs pieces of its tensors into a send slot, the slot travels to the partner's receive
 * slot, and the partner unpacks it. There are two slots a direction, so that packing iteration i +
 * 1, sending i and unpacking i - 1 overlap. Sender and receiver hand slots over by signals between
 * the two of them; no iteration waits for any other rank.
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

/* Streams and events are the launcher's own; on the host they are NULL and work is done in the
 * call. */
typedef void *banyan_stream;
typedef void *banyan_event;

/* Moves elements between tensors and slots. */
typedef struct banyan_pipeline_launcher {
    size_t size;
    void *context;
    banyan_status (*pack)(void *context, banyan_stream stream, void *slot,
                          const banyan_segment *segments, size_t count);
    banyan_status (*unpack)(void *context, banyan_stream stream, const void *slot,
                            const banyan_segment *segments, size_t count);
    banyan_status (*copy)(void *context, banyan_stream stream, const DLTensor *destination,
                          const DLTensor *source);
    banyan_status (*record)(void *context, banyan_event event, banyan_stream stream);
    banyan_status (*stream_wait)(void *context, banyan_stream stream, banyan_event event);
    /* Wait on the host for all that was queued on the stream. */
    banyan_status (*synchronize)(void *context, banyan_stream stream);
} banyan_pipeline_launcher;

/* The slots and the way between them. Slots are numbered 0 and 1; `use` counts, from 0, the batches
 * that have gone through this rank's (for grant and arrival: the partner's) slots since creation.
 */
typedef struct banyan_pipeline_buffers {
    size_t size;
    void *context;
    size_t slot_bytes;
    void *send_slot[BANYAN_PIPELINE_SLOTS];
    void *recv_slot[BANYAN_PIPELINE_SLOTS];
    /* The peer's receive slot as an address of ours, or NULL when it has none: then packing goes
     * straight into it and `send` only signals. May be NULL. */
    void *(*peer_slot)(void *context, int peer, int slot);
    /* Receiver: tell `peer` that our receive slot `slot` is empty and its to fill. */
    banyan_status (*grant)(void *context, banyan_stream stream, int peer, int slot);
    /* Sender: has `peer` granted us a slot, and which? `slot` is -1 when not yet. */
    banyan_status (*granted)(void *context, int peer, int *slot);
    /* Sender: move `bytes` of send slot `from` to the peer's slot `to` and signal their arrival. */
    banyan_status (*send)(void *context, banyan_stream stream, int peer, int from, int to,
                          uint64_t bytes);
    /* Receiver: has the batch that `peer` was granted `slot` for arrived? */
    banyan_status (*arrived)(void *context, int peer, int slot, bool *yes);
    /* Nothing to do: sleep until one of the two above may have changed. `what` names it for errors.
     */
    banyan_status (*idle)(void *context, int peer, const char *what);
} banyan_pipeline_buffers;

typedef struct banyan_pipeline banyan_pipeline;

/* Neither table is copied; both must outlive the pipeline. Local. */
BANYAN_API banyan_status banyan_pipeline_create(const banyan_pipeline_launcher *launcher,
                                                const banyan_pipeline_buffers *buffers, int rank,
                                                banyan_pipeline **pipeline);
BANYAN_API void banyan_pipeline_destroy(banyan_pipeline *pipeline);

/* Streams for the four kinds of work; all NULL by default. */
BANYAN_API banyan_status banyan_pipeline_set_streams(banyan_pipeline *pipeline, banyan_stream pack,
                                                     banyan_stream unpack, banyan_stream send,
                                                     banyan_stream copy);

/* Two events each, for the slots' hand-over between streams. */
BANYAN_API banyan_status banyan_pipeline_set_events(
    banyan_pipeline *pipeline, const banyan_event pack[BANYAN_PIPELINE_SLOTS],
    const banyan_event unpack[BANYAN_PIPELINE_SLOTS]);

/* Run `num_iterations` iterations. Any may be empty, send only or receive only. Partners must list
 * their common batches in the same order. Returns when all is unpacked here and all sends have left
 * their tensors. */
BANYAN_API banyan_status banyan_pipeline_execute(banyan_pipeline *pipeline,
                                                 const banyan_iteration *schedules,
                                                 size_t num_iterations);

/* Copy sends to receives of the same rank, matched by id, on the copy stream. */
BANYAN_API banyan_status banyan_pipeline_self_moves(banyan_pipeline *pipeline,
                                                    const banyan_send_op *sends, size_t send_count,
                                                    const banyan_recv_op *recvs, size_t recv_count);

#ifdef __cplusplus
}
#endif
#endif
