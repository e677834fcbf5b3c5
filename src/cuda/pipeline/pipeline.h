/* Internals of a GPU pipeline, shared by its files. */
#ifndef CUDA_PIPELINE_PIPELINE_H
#define CUDA_PIPELINE_PIPELINE_H

#include <banyan/memory.h>

#include "copy/pipeline/gpu_pipeline.h"

#include "cuda/copy/kernels.h"
#include "cuda/driver.h"
#include "cuda/pipeline/kernel.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/watch.h"

/* This rank's part of the symmetric memory, and where its words are. */
typedef struct gpu_pipeline_memory {
    char *local, *words;
} gpu_pipeline_memory;

/* How a word is added to. For a batch, `bytes` is the length of the put before it. */
typedef struct gpu_pipeline_signal {
    const struct gpu_pipeline *owner;
    uint64_t *count; /* how often this rank has done so */
    size_t to, from, bytes;
} gpu_pipeline_signal;

/* The transport between slots: symmetric memory of the ranks' devices, and puts and signals in the
 * order of a stream. A table with implementations for devices that map each other's memory, over
 * the world's transport, and over NVSHMEM. Places are offsets into the symmetric memory, equal on
 * every rank. */
typedef struct gpu_pipeline_transport_ops {
    const char *name;

    /* Allocate `bytes` of symmetric memory. Its first `zero_bytes`, or the words elsewhere, are
     * zero on every rank when all ranks have returned. Collective; ranks agree on the status
     * afterwards. The device's context is not entered. */
    banyan_status (*open)(banyan_world *world, int device, size_t bytes, size_t zero_bytes,
                          void **transport, gpu_pipeline_memory *memory);
    /* Local; no operation of this rank is in progress. */
    void (*close)(void *transport);

    /* The device's context is entered; both functions queue their work. signal: add one to the
     * peer's word at `word`, after all earlier work in the stream. */
    banyan_status (*signal)(void *transport, CUstream stream, int peer, size_t word,
                            const gpu_pipeline_signal *how);
    /* Move bytes; after it in the stream, and after the signal, the source may change. If
     * `put_signals`, it then adds one to the peer's word; otherwise the caller uses `signal`. */
    banyan_status (*put)(void *transport, CUstream stream, int peer, size_t to, size_t from,
                         size_t bytes, size_t word);
    bool put_signals;
    /* Return the host memory at which the peer's batches for a slot arrive; NULL: in the slot.
     * Without this function, all do. */
    const char *(*arrives)(void *transport, int peer, size_t slot);
} gpu_pipeline_transport_ops;

extern const gpu_pipeline_transport_ops gpu_pipeline_peer_ops;
extern const gpu_pipeline_transport_ops gpu_pipeline_nvshmem_ops;
extern const gpu_pipeline_transport_ops gpu_pipeline_ucx_ops;

#define SLOTS BANYAN_PIPELINE_SLOTS

/* The kinds of work that run concurrently. */
enum {
    STREAM_PACK,
    STREAM_STAMP,
    STREAM_SEND, /* one for each send slot */
    STREAM_UNPACK = STREAM_SEND + SLOTS,
    STREAM_LOCAL,
    STREAMS
};

/* Counters on the device, for each peer. */
enum { COUNT_STAMPED, COUNT_ACCEPTED, COUNT_SIGNALLED_BATCHES, COUNT_SIGNALLED_SLOTS, COUNTS };

typedef struct gpu_pipeline {
    int device, rank, ranks;
    int sharers; /* number of ranks that use the device */
    uint64_t timeout_ns;
    const gpu_pipeline_transport_ops *transport_ops;
    void *transport;
    char *symmetric; /* this rank's part: words, send slots, receive slots */
    char *words;     /* `symmetric`, or elsewhere */
    size_t slot_bytes;
    CUfunction kernel;
    copy_kernels copies;
    uint32_t blocks; /* of a copy */
    CUstream streams[STREAMS];
    CUevent fork, begun, join[STREAMS], packed[SLOTS], stamped[SLOTS], sent[SLOTS], granted[SLOTS];
    copy_shared *shared; /* followed by the counters */
    uint64_t *counts;
    report_words *reports; /* one address on host and device */
    watch *watching;
} gpu_pipeline;

#define WORD_BYTES 64 /* one cache line for each, since others write it */

/* Offsets in symmetric memory. A peer increments the words that have its rank. A slot begins with
 * its sequence check; the bytes follow. */

static inline size_t gpu_pipeline_round_up(size_t bytes, size_t to)
{
    return (bytes + to - 1) / to * to;
}

static inline size_t gpu_pipeline_batch_word(const gpu_pipeline *of, int rank)
{
    (void)of;
    return (size_t)rank * WORD_BYTES;
}

static inline size_t gpu_pipeline_slot_word(const gpu_pipeline *of, int rank)
{
    return (size_t)(of->ranks + rank) * WORD_BYTES;
}

static inline size_t gpu_pipeline_words_bytes(const gpu_pipeline *of)
{
    return gpu_pipeline_round_up((size_t)of->ranks * 2 * WORD_BYTES, 4096);
}

static inline size_t gpu_pipeline_slot_stride(const gpu_pipeline *of)
{
    return PIPELINE_HEADER_BYTES + gpu_pipeline_round_up(of->slot_bytes, PIPELINE_HEADER_BYTES);
}

static inline size_t gpu_pipeline_send_slot(const gpu_pipeline *of, int slot)
{
    return gpu_pipeline_words_bytes(of) + (size_t)slot * gpu_pipeline_slot_stride(of);
}

static inline size_t gpu_pipeline_recv_slot(const gpu_pipeline *of, int slot)
{
    return gpu_pipeline_words_bytes(of) + (size_t)(SLOTS + slot) * gpu_pipeline_slot_stride(of);
}

static inline uint64_t *gpu_pipeline_count(const gpu_pipeline *of, int kind, int peer)
{
    return of->counts + (size_t)kind * (size_t)of->ranks + peer;
}

static inline banyan_status gpu_pipeline_no_memory(size_t bytes, const char *what)
{
    return banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: out of memory: %zu bytes for %s", bytes,
                            what);
}

/* Functions of the table: work.c. */
banyan_status gpu_pipeline_prepare(void *argument, const gpu_pipeline_step *steps, size_t count,
                                   const direct_moves *local, void **work);
void gpu_pipeline_release(void *work);
banyan_status gpu_pipeline_run(void *work, void *stream);

#endif
