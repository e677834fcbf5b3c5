/* What the programs of fused modes are written with. */
#ifndef MIXED_FUSED_PROGRAM_H
#define MIXED_FUSED_PROGRAM_H

#include "collective/algorithms/algorithm.h"
#include "mixed/fused/fused.h"

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
    const struct fused_form *form;
    banyan_mixed_grid grid; /* of the rank whose part is being written */
    int rank;
    fused_kind kind;
    bool gathers;   /* all-reduce and all-gather's side, else reduce-scatter's */
    bool two_shots; /* between nodes too */
    /* A block of b rows is cut into `chunks`: a part for each local tp rank, of `shares` each. */
    int chunks, shares;
    fused_layout at;
    int stage; /* units: the thread block at hand, and what links it to the next */
    banyan_program_semaphore *room, *link;
} fused;

/* Turn to a rank: whose part is written from now on. */
void fused_turn_to(fused *f, int rank);

/* ---- who is who ---- */

int fused_ranks(const fused *f);
/* The rank at a place: of this node, or on another node at this rank's place. */
int fused_local(const fused *f, int tp, int dp);
int fused_node(const fused *f, int inter_tp, int inter_dp);
int fused_rank_on(const fused *f, int node);
int fused_node_number(const fused *f, int inter_tp, int inter_dp);
/* The dp index of a place in the node and among nodes. */
int fused_block(const fused *f, int local_dp, int inter_dp);
/* What a rank has of all nodes: a row for each share of each data-parallel node. */
int fused_rows(const fused *f);

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

/* ---- forms ---- */

/* What is added up: a->parts[0, count), in scratch; but the own_at-th, if it is not -1, is `own`,
 * for which there is a slot as well. */
typedef struct fused_sum {
    int count, own_at;
    banyan_chunk own;
} fused_sum;

#define FUSED_SUM_INIT                                                                             \
    {                                                                                              \
        .own_at = -1                                                                               \
    }

/* Ranks that meet. */
typedef enum fused_circle { IN_ALL, IN_TP, IN_NODE, AMONG_NODES, AMONG_TP_NODES } fused_circle;

/* How data goes to a peer's slot and is summed, and how results reach all that are to have them.
 * Rows are counted by node of the data-parallel side and share; a scattering rank has one node's.
 */
typedef struct fused_form {
    void (*put)(fused *f, banyan_chunk slot, banyan_chunk data);
    void (*sum)(fused *f, const fused_sum *sum, banyan_chunk destination);
    /* What the circle's ranks have put is here. NULL: it shows by itself. */
    void (*meet)(fused *f, int mesh, fused_circle who);
    /* Where a row's sum goes; and it is there (NULL: nothing to do). */
    banyan_chunk (*result)(const fused *f, int row);
    void (*show)(fused *f, int row);
    /* Gathering: each node's share to all nodes, and each rank's results to all of the node. */
    void (*gather_shares)(fused *f);
    void (*gather_in_node)(fused *f);
    /* Scattering: to the nodes that have the other shares, and the ranks with the other parts. */
    void (*share_between_nodes)(fused *f);
    void (*share_in_node)(fused *f);
} fused_form;

/* The steps of the rank at hand. */
void fused_walk(fused *f);

/* ---- the programs ---- */

void fused_write_packets(fused *f);
void fused_write_units(fused *f);

#endif
