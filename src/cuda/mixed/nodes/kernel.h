/* The arguments of a launch between nodes. A launch is a list of phases, and a phase is a list of
 * steps. All thread blocks execute the phases one after another.
 *
 * A step adds its sources, or copies the only one, tile by tile, into its targets. The steps of a
 * phase wait for their sources together, then move data, then signal their targets, with one fence.
 * Phases have equal meanings on all ranks, and no step waits for a signal of its own phase.
 *
 * Ranks send each other messages. Each message has a slot of its own in the receiver's memory.
 * After every tile of a message the sender sets the tile's flag to the launch's number, which grows
 * by one with every launch, equally on all ranks. Slots and flags exist twice, and launches use
 * them in turn. A rank in launch n + 2 has ended launch n + 1, for which it needed data from every
 * rank. So all ranks have ended launch n, and its slots are free.
 *
 * Staged slots are used in turn, too. This suffices for puts, although no rank waits for their
 * completion. A rank has ended n when the flags of all messages to it in n are set, each after its
 * data. So every source of a put in n has been read when n + 2 writes there again. */
#ifndef CUDA_MIXED_NODES_KERNEL_H
#define CUDA_MIXED_NODES_KERNEL_H

#include <banyan/device/port.h>

#include "cuda/mixed/kernel.h"

#define NODES_TILES 64 /* most tiles of a message */
#define NODES_PHASES 5
/* No grid needs more: the tests build all of them. */
#define NODES_STEPS (3 * MIXED_RANKS_MAX)
#define NODES_SOURCES (4 * MIXED_RANKS_MAX)
#define NODES_TARGETS (4 * MIXED_RANKS_MAX)

typedef struct nodes_source {
    const char *at;        /* a slot of the first turn's, or the caller's memory */
    const uint64_t *flags; /* the slot's flags; NULL: the caller's memory */
    uint32_t rank;         /* sender of the message */
    uint16_t is_far;       /* it comes from another node */
    uint16_t step;
} nodes_source;

typedef enum nodes_way {
    NODES_OUTPUT, /* the caller's memory */
    NODES_STORED, /* a slot mapped here: data, then its flag */
    NODES_CAST,   /* a multicast address of a slot that several ranks have: one store for all */
    NODES_STAGED, /* a slot of this rank, which later phases read */
    NODES_POSTED, /* an unmapped slot: the proxy puts the staged data, and sets the flag */
    NODES_PUT     /* an unmapped slot: the threads put by NVSHMEM's device library */
} nodes_way;

typedef struct nodes_target {
    char *to;
    uint64_t *flags;
    uint16_t way; /* enum nodes_way */
    uint16_t step;
    uint32_t peer; /* NODES_POSTED: the queue's number; NODES_PUT: NVSHMEM's number of the peer */
} nodes_target;

typedef struct nodes_step {
    uint64_t bytes;
    const char *staged; /* source of a post or put */
    uint16_t first_source, source_count, first_target, target_count;
} nodes_step;

/* Totals of its steps. */
typedef struct nodes_phase {
    uint64_t bytes; /* of the longest step */
    uint16_t first_step, step_count, first_source, source_count, first_target, target_count;
    uint16_t flagged, put; /* sources with flags, and targets of puts */
} nodes_phase;

typedef struct nodes_args {
    mixed_base base; /* `turn` and `used` of its states are the number of launches */
    uint64_t turn_bytes;
    uint64_t tile_bytes;
    banyan_port_queue *queues; /* indexed by rank */
    uint32_t step_count, phase_count;
    nodes_phase phases[NODES_PHASES];
    nodes_step steps[NODES_STEPS];
    nodes_source sources[NODES_SOURCES];
    nodes_target targets[NODES_TARGETS];
} nodes_args;

#endif
