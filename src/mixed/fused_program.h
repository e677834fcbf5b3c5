/* What the programs of fused modes are written with. */
#ifndef MIXED_FUSED_PROGRAM_H
#define MIXED_FUSED_PROGRAM_H

#include "collective/algorithm.h"
#include "mixed/fused.h"

/* Steps that must be told apart between the same two ranks. */
enum { MESH_LOCAL_FIRST, MESH_NODES_FIRST, MESH_NODES_LAST, MESH_LOCAL_LAST };

/* First chunks of regions of scratch, which is laid out alike on all ranks. */
typedef struct fused_layout {
    uint64_t first;    /* what comes from ranks of the node */
    uint64_t partial;  /* the node's sums */
    uint64_t inter;    /* what comes from other nodes to be summed */
    uint64_t across;   /* sums that come from other nodes */
    uint64_t gathered; /* sums of the node's ranks; in units those that this rank shows */
    uint64_t chunks;
} fused_layout;

typedef struct fused {
    algorithm a;
    banyan_mixed_grid grid; /* of the rank whose part is being written */
    int rank;
    fused_kind kind;
    bool gathers;   /* all-reduce and all-gather's side, else reduce-scatter's */
    bool two_shots; /* between nodes too */
    /* A block of b rows is cut into `chunks`: a part for each local tp rank, of `shares` each. */
    int chunks, shares;
    fused_layout at;
    int stage; /* units: the thread block at hand, and what links it to the next */
    banyan_semaphore *room, *link;
} fused;

/* Turn to a rank: whose part is written from now on. */
void fused_turn_to(fused *f, int rank);

/* ---- who is who ---- */

int fused_ranks(const fused *f);
/* The rank at a place: of this node, or on another node at this rank's place. */
int fused_local(const fused *f, int tp, int dp);
int fused_node(const fused *f, int inter_tp, int inter_dp);
int fused_node_number(const fused *f, int inter_tp, int inter_dp);
/* The dp index of a place in the node and among nodes. */
int fused_block(const fused *f, int local_dp, int inter_dp);

/* `size` indices from the one behind `own` around to it, without it: so that not everybody turns to
 * the same peer at once. */
#define EACH_OTHER(size, own, other)                                                               \
    for (int other##_step = 1, other = ((own) + 1) % (size); other##_step < (size);                \
         other##_step++, other = (other + 1) % (size))

/* ---- chunks of the rank at hand ---- */

/* A block of the input: gathering sides have one. A block of the output: scattering ones have one.
 * `part`: of which local tp rank; `share`: of which inter tp rank. */
banyan_chunk fused_input(const fused *f, int block, int part, int share);
banyan_chunk fused_output(const fused *f, int block, int part, int share);
banyan_chunk fused_slot(const fused *f, int rank, uint64_t region, int index);

/* ---- the programs ---- */

void fused_write_packets(fused *f);
void fused_write_units(fused *f);

#endif
