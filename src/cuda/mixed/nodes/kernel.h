/* What a launch between nodes is given: steps, in phases, which all thread blocks take one after
 * the other.
 *
 * A step adds up its sources, or copies the only one, tile by tile, into its targets. Of a phase
 * all steps are awaited, moved and told together, with one fence: none awaits what the phase itself
 * tells, here or on another rank, where phases have the same meaning. Ranks hand
 * each other messages, each into a slot of its own in the receiver's memory; behind every tile of
 * one the sender sets that tile's flag to the launch's number, which is one more at every launch,
 * alike on all ranks. Slots and flags are there twice, and launches take them in turn: who is in
 * launch n + 2 has ended n + 1, for which it needed something of every rank, so that all have ended
 * n.
 *
 * Staged slots are taken in turn, too, and that is all that puts need which nobody waits for here:
 * a rank has ended n when the flags of all messages to it in n are set, each behind its data, so
 * that what was put in n has been read when n + 2 writes there again. */
#ifndef CUDA_MIXED_NODES_KERNEL_H
#define CUDA_MIXED_NODES_KERNEL_H

#include <banyan/device/port.h>

#include "cuda/mixed/kernel.h"

#define NODES_TILES 64 /* of a message, at most */
#define NODES_PHASES 5
/* No grid takes more: the tests build all of them. */
#define NODES_STEPS (3 * MIXED_RANKS_MAX)
#define NODES_SOURCES (4 * MIXED_RANKS_MAX)
#define NODES_TARGETS (4 * MIXED_RANKS_MAX)

typedef struct nodes_source {
    const char *at;        /* a slot of the first turn's, or the caller's memory */
    const uint64_t *flags; /* the slot's; NULL: the caller's memory */
    uint32_t rank;         /* whose message it is */
    uint16_t is_far;       /* it comes from another node */
    uint16_t step;
} nodes_source;

typedef enum nodes_way {
    NODES_OUTPUT, /* the caller's memory */
    NODES_STORED, /* a slot that is mapped here: data, then its flag */
    NODES_CAST,   /* a multicast address of a slot that several have: the same, once for all */
    NODES_STAGED, /* a slot of this rank's, for what follows to read */
    NODES_POSTED, /* a slot that is not mapped: the proxy puts what is staged, and sets the flag */
    NODES_PUT     /* so do the threads themselves, by NVSHMEM's device library */
} nodes_way;

typedef struct nodes_target {
    char *to;
    uint64_t *flags;
    uint16_t way; /* enum nodes_way */
    uint16_t step;
    uint32_t peer; /* its queue, of what is posted; NVSHMEM's number for it, of what is put */
} nodes_target;

typedef struct nodes_step {
    uint64_t bytes;
    const char *staged; /* what is posted or put */
    uint16_t first_source, source_count, first_target, target_count;
} nodes_step;

/* All that its steps have. */
typedef struct nodes_phase {
    uint64_t bytes; /* of the longest step */
    uint16_t first_step, step_count, first_source, source_count, first_target, target_count;
    uint16_t awaited, put; /* sources with flags, and targets that are put */
} nodes_phase;

typedef struct nodes_args {
    mixed_base base; /* `turn` and `used` of its states are the number of launches */
    uint64_t turn_bytes;
    uint64_t tile_bytes;
    banyan_port_queue *queues; /* by rank */
    uint32_t step_count, phase_count;
    nodes_phase phases[NODES_PHASES];
    nodes_step steps[NODES_STEPS];
    nodes_source sources[NODES_SOURCES];
    nodes_target targets[NODES_TARGETS];
} nodes_args;

#endif
