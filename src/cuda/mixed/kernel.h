/* The arguments of a mixed collective's kernels inside a node.
 *
 * Each rank's symmetric part has MIXED_TURNS receive buffers, which launches use in turn. An idle
 * buffer contains negative zeros of the type, in units of 16 bytes. Senders replace -0 in their
 * data by another value, so a unit has arrived when none of its elements is -0; only the data
 * travel. All-gather must preserve every bit, so it sends packets (banyan/device/packet.cuh) or
 * chunks with a key each (gather.cuh).
 *
 * A launch uses the turn's buffer, and restores the negative zeros in the buffer of the previous
 * launch. Peers write to that buffer in the launch after the next. They begin it after they have
 * ended the next launch. For that they need this rank's data, which it sends after the present
 * launch has ended. So a launch needs no barrier at its beginning or end. The turn, and the part of
 * the last buffer to restore, lie in device memory; only the kernels change them.
 *
 * With multicast one store reaches all ranks, the sender included, at one place in each rank's
 * buffer. The sender's slot is an additional one there. A launch waits for its units, uses them and
 * restores them like the others. A launch reads the ordinary addresses of multicast stores only to
 * see their data arrive. */
#ifndef CUDA_MIXED_KERNEL_H
#define CUDA_MIXED_KERNEL_H

#include <stdbool.h>
#include <stdint.h>

#include <banyan/core.h>

#include "cuda/runtime/report.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MIXED_RANKS_MAX 16
#define MIXED_TURNS 3
#define MIXED_UNIT 16 /* bytes */
#define MIXED_THREADS_MAX 1024
#define MIXED_CHUNK 1024 /* a warp gathers this many bytes at a time */
#define MIXED_NO_RANK UINT16_MAX

/* State that persists between launches: an equal copy for each thread block of the largest
 * launch. */
typedef struct mixed_state {
    uint32_t turn;
    uint32_t used;   /* units of the last turn's buffer that are not -0 */
    uint32_t broken; /* a wait has failed */
    uint32_t unused;
} mixed_state;

/* Arguments of all kernels. */
typedef struct mixed_base {
    mixed_state *states;
    uint32_t state_count;
    uint32_t used;  /* units of the receive buffer that this launch fills */
    char *received; /* this rank's first receive buffer */
    uint64_t buffer_bytes;
    uint32_t *broken; /* set by the first failing wait, to end the others */
    report_words *reports;
    uint64_t timeout_ns;
    uint32_t call;     /* mixed_report_own */
    uint32_t nothing;  /* two elements of -0, or one */
    uint32_t is_early; /* it may begin while the previous launch ends */
    uint32_t share;    /* units to restore per round: times 2^32, rounded up */
} mixed_base;

/* A destination: a peer's buffer, or by multicast several. `to` is in the first receive buffer. */
typedef struct mixed_send {
    char *to;
    const char *from;
    uint64_t bytes;
} mixed_send;

/* One-shot. Ranks are those of the node. The slots of all other ranks are adjacent in the receive
 * buffer, in rank order. With multicast this rank is one of the others. Then `rank` is
 * MIXED_NO_RANK, and the first of the sends reaches several ranks. `fold` consecutive ranks make a
 * sum, and sums lie `apart_bytes` apart in the output. */
typedef struct mixed_waits_args {
    mixed_base base;
    const char *own; /* this rank's input to the sums */
    char *output;
    uint64_t bytes; /* of a rank's data, and of a sum */
    uint64_t apart_bytes;
    uint32_t units; /* in `bytes` */
    uint16_t ranks, rank, fold, send_count;
    uint32_t sends_are_equal;          /* all get equal data */
    mixed_send sends[MIXED_RANKS_MAX]; /* each rank begins with a different peer */
} mixed_waits_args;

/* Sums that a peer pushes here, and their destination. */
typedef struct mixed_arrival {
    uint64_t offset; /* in the receive buffer */
    char *to;
    uint64_t bytes;
    uint32_t rank;
} mixed_arrival;

/* Two-shot inside the node: this rank adds a piece, whose sums go to all ranks that need them.
 * With multicast that is one share, and this rank's result is among the arrivals, not in its
 * output. */
typedef struct mixed_bytes_args {
    mixed_base base;
    const char *own; /* this rank's input to its piece */
    char *output;    /* of its piece */
    uint64_t bytes;  /* of its piece */
    uint32_t units;  /* of the longest piece */
    uint16_t send_count, source_count, own_source, share_count, arrival_count;
    uint16_t source_ranks[MIXED_RANKS_MAX]; /* in the order of the sum */
    uint64_t slot_bytes; /* sources' slots except its own are adjacent, at this distance */
    mixed_send sends[MIXED_RANKS_MAX];
    char *shares[MIXED_RANKS_MAX]; /* destinations of its sums, in peers' first receive buffers */
    mixed_arrival arrivals[MIXED_RANKS_MAX];
} mixed_bytes_args;

/* All-gather: packets, or chunks. Slots are as in one-shot modes. */
typedef struct mixed_gather_args {
    mixed_base base;
    const char *input;
    char *output;
    uint64_t bytes; /* of a rank */
    uint64_t apart_bytes;
    uint64_t slot_bytes;
    uint64_t keys; /* for chunks: offset of the keys in a slot, a unit each */
    uint32_t chunks;
    uint16_t ranks, rank, send_count;
    char *sends[MIXED_RANKS_MAX]; /* this rank's slots; each rank begins with a different peer */
    char *all;                    /* with multicast: the slots of all ranks */
} mixed_gather_args;

/* Set all of [at, at + bytes) to -0. */
typedef struct mixed_clear_args {
    char *at;
    uint64_t bytes;
    uint32_t nothing;
} mixed_clear_args;

/* ANY: addresses and lengths need not be multiples of MIXED_UNIT. ONCE: every thread has at most
 * one unit. */
typedef enum mixed_kernel {
    MIXED_WAITS,
    MIXED_WAITS_ANY,
    MIXED_WAITS_MULTICAST,
    MIXED_WAITS_MULTICAST_ANY,
    MIXED_WAITS_ONCE,
    MIXED_WAITS_ONCE_ANY,
    MIXED_WAITS_ONCE_MULTICAST,
    MIXED_WAITS_ONCE_MULTICAST_ANY,
    MIXED_BYTES,
    MIXED_BYTES_ANY,
    MIXED_BYTES_MULTICAST,
    MIXED_BYTES_MULTICAST_ANY,
    MIXED_BYTES_ONCE,
    MIXED_BYTES_ONCE_ANY,
    MIXED_BYTES_ONCE_MULTICAST,
    MIXED_BYTES_ONCE_MULTICAST_ANY,
    MIXED_NODES,
    MIXED_NODES_ANY,
    MIXED_NODES_MULTICAST,
    MIXED_NODES_MULTICAST_ANY,
    MIXED_UNTYPED, /* the kernels from here on have no element type */
    MIXED_PACKETS = MIXED_UNTYPED,
    MIXED_PACKETS_MULTICAST,
    MIXED_CHUNKS,
    MIXED_CHUNKS_ANY,
    MIXED_CHUNKS_MULTICAST,
    MIXED_CHUNKS_MULTICAST_ANY,
    MIXED_CHUNKS_ONCE,
    MIXED_CHUNKS_ONCE_ANY,
    MIXED_CHUNKS_ONCE_MULTICAST,
    MIXED_CHUNKS_ONCE_MULTICAST_ANY,
    MIXED_CLEAR,
    MIXED_LOADED, /* the kernels from here on are loaded apart: nodes/puts.h */
    MIXED_NODES_PUTS = MIXED_LOADED,
    MIXED_NODES_PUTS_ANY,
    MIXED_NODES_PUTS_MULTICAST,
    MIXED_NODES_PUTS_MULTICAST_ANY,
    MIXED_KERNELS
} mixed_kernel;

static inline bool mixed_kernel_is_multicast(mixed_kernel kernel)
{
    switch (kernel) {
    case MIXED_WAITS_MULTICAST:
    case MIXED_WAITS_MULTICAST_ANY:
    case MIXED_WAITS_ONCE_MULTICAST:
    case MIXED_WAITS_ONCE_MULTICAST_ANY:
    case MIXED_BYTES_MULTICAST:
    case MIXED_BYTES_MULTICAST_ANY:
    case MIXED_BYTES_ONCE_MULTICAST:
    case MIXED_BYTES_ONCE_MULTICAST_ANY:
    case MIXED_NODES_MULTICAST:
    case MIXED_NODES_MULTICAST_ANY:
    case MIXED_NODES_PUTS_MULTICAST:
    case MIXED_NODES_PUTS_MULTICAST_ANY:
    case MIXED_PACKETS_MULTICAST:
    case MIXED_CHUNKS_MULTICAST:
    case MIXED_CHUNKS_MULTICAST_ANY:
    case MIXED_CHUNKS_ONCE_MULTICAST:
    case MIXED_CHUNKS_ONCE_MULTICAST_ANY:
        return true;
    default:
        return false;
    }
}

/* For driver_kernel. */

const void *mixed_kernel_bf16(mixed_kernel kernel);
const void *mixed_kernel_f16(mixed_kernel kernel);
const void *mixed_kernel_f32(mixed_kernel kernel);
const void *mixed_kernel_untyped(mixed_kernel kernel);

#ifdef __cplusplus
}
#endif
#endif
