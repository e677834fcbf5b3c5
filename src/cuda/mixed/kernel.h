/* What a launch of a mixed collective's kernels is given, inside a node.
 *
 * Each rank's symmetric part is MIXED_TURNS receive buffers, which launches take in turn. A buffer
 * that nobody uses holds negative zeros of the type everywhere, in units of 16 bytes. Senders turn
 * what they send into something else, so that a unit has come when none of its elements is -0 any
 * more; nothing but the data travels. All-gather, which has to hand on every bit, sends packets
 * (banyan/device/packet.cuh) or chunks with a key each (gather.cuh).
 *
 * A launch takes the turn's buffer, and puts negative zeros back into the buffer of the launch
 * before it. Peers write to that one in the launch after the next, which they begin when they have
 * ended the next, and with it have had what this rank sends there: after this launch has ended. So
 * a launch needs no barrier at either end. The turn, and how much of the last buffer is to be put
 * back, lie in the device's memory and are changed by the kernels alone.
 *
 * With multicast one store goes to all, at the same place of each one's buffer, the sender's too:
 * its slot is one more there, whose units are awaited, used and put back like the others. What a
 * launch stores by multicast it reads by the buffers' own addresses only to see it arrive. */
#ifndef CUDA_MIXED_KERNEL_H
#define CUDA_MIXED_KERNEL_H

#include <stdbool.h>
#include <stdint.h>

#include <banyan/core.h>

#include "cuda/runtime/waits.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MIXED_RANKS_MAX 16
#define MIXED_TURNS 3
#define MIXED_UNIT 16 /* bytes */
#define MIXED_THREADS_MAX 1024
#define MIXED_CHUNK 1024 /* bytes that a warp gathers at a time */
#define MIXED_NO_RANK UINT16_MAX

/* What stays from launch to launch; one a thread block that the largest launch has, all alike. */
typedef struct mixed_state {
    uint32_t turn;
    uint32_t used;   /* units of the last turn's buffer that are not -0 */
    uint32_t broken; /* a wait has failed */
    uint32_t unused;
} mixed_state;

/* Pinned; written by the first wait that fails. */
typedef struct mixed_failure {
    uint32_t end;  /* enum banyan_device_end; 0: all is well. Written last */
    uint32_t rank; /* of the world */
    uint64_t waited_ns;
    uint32_t op, mode;
    device_waits waits; /* of a rank; of its own: op, mode << 8 */
} mixed_failure;

/* What all kernels are given. */
typedef struct mixed_base {
    mixed_state *states;
    uint32_t state_count;
    uint32_t used;  /* units of the receive buffer that this launch fills */
    char *received; /* this rank's first receive buffer */
    uint64_t buffer_bytes;
    uint32_t *broken;     /* set by the first wait that fails, to end the others */
    const uint32_t *stop; /* pinned: not 0 when kernels are to end */
    mixed_failure *failure;
    uint64_t timeout_ns;
    uint32_t op, mode;
    uint32_t nothing;  /* two elements of -0, or one */
    uint32_t is_early; /* it may begin while the launch before it ends */
    uint32_t share;    /* of what is put back, for each round: by 2^32, and rounded up */
} mixed_base;

/* Bytes to a peer, or by multicast to several: `to` is in the first receive buffer. */
typedef struct mixed_send {
    char *to;
    const char *from;
    uint64_t bytes;
} mixed_send;

/* Fewest waits. Ranks are those of the node; the slots of all others lie side by side in the
 * receive buffer, in the order of ranks. With multicast this rank is one of the others: `rank` is
 * MIXED_NO_RANK then, and the first of the sends goes to several. `fold` ranks in a row make a sum,
 * and sums lie `apart_bytes` apart in the output. */
typedef struct mixed_waits_args {
    mixed_base base;
    const char *own; /* this rank's input to the sums */
    char *output;
    uint64_t bytes; /* of a rank's data, and of a sum */
    uint64_t apart_bytes;
    uint32_t units; /* of `bytes` */
    uint16_t ranks, rank, fold, send_count;
    uint32_t sends_alike;              /* all have the same data */
    mixed_send sends[MIXED_RANKS_MAX]; /* beginning with another peer on every rank */
} mixed_waits_args;

/* Sums that a peer pushes here, and where they belong. */
typedef struct mixed_arrival {
    uint64_t offset; /* in the receive buffer */
    char *to;
    uint64_t bytes;
    uint32_t rank;
} mixed_arrival;

/* Fewest bytes inside the node: this rank adds up a piece, whose sums go to all who need them. With
 * multicast that is one share, and this rank's is among the arrivals, not its output. */
typedef struct mixed_bytes_args {
    mixed_base base;
    const char *own; /* this rank's input to its piece */
    char *output;    /* of its piece */
    uint64_t bytes;  /* of its piece */
    uint32_t units;  /* of the longest piece */
    uint16_t send_count, source_count, own_source, share_count, arrival_count;
    uint16_t source_ranks[MIXED_RANKS_MAX]; /* in the order of the sum */
    uint64_t slot_bytes; /* sources' slots but its own lie side by side, so far apart */
    mixed_send sends[MIXED_RANKS_MAX];
    char *shares[MIXED_RANKS_MAX]; /* where its sums go, in peers' first receive buffers */
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
    uint64_t keys; /* of chunks: where in a slot they are, a unit each */
    uint32_t chunks;
    uint16_t ranks, rank, send_count;
    char *sends[MIXED_RANKS_MAX]; /* this rank's slots, beginning with another peer on every rank */
    char *all;                    /* with multicast: all of them */
} mixed_gather_args;

/* Make all of [at, at + bytes) -0. */
typedef struct mixed_clear_args {
    char *at;
    uint64_t bytes;
    uint32_t nothing;
} mixed_clear_args;

/* ANY: addresses and lengths need not be multiples of MIXED_UNIT. ONCE: every thread has one unit
 * at most. */
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
    MIXED_UNTYPED, /* those that follow */
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
    MIXED_LOADED, /* those that follow: nodes/puts.h has them */
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
