/* Helpers for the programs of fused modes. */
#ifndef MIXED_FUSED_PROGRAM_H
#define MIXED_FUSED_PROGRAM_H

#include "collective/algorithms/algorithm.h"
#include "mixed/fused/fused.h"

/* Meshes for steps between one pair of ranks whose signals must not be confused. */
enum { MESH_LOCAL_FIRST, MESH_NODES_FIRST, MESH_NODES_LAST, MESH_LOCAL_LAST };

/* First chunks of regions of scratch. All ranks have one layout. */
typedef struct fused_layout {
    uint64_t first;    /* data from ranks of the node */
    uint64_t partial;  /* the node's sums */
    uint64_t inter;    /* data from other nodes, to be summed */
    uint64_t across;   /* sums from other nodes */
    uint64_t gathered; /* sums from the node's ranks; with units, those that this rank publishes */
    uint64_t chunks;
} fused_layout;

typedef struct fused {
    algorithm a;
    const struct fused_form *form;
    banyan_mixed_grid grid; /* of the rank whose program is being written */
    int rank;
    fused_kind kind;
    bool gathers;   /* all-reduce and all-gather, not reduce-scatter */
    bool two_shots; /* between nodes as well */
    /* A block of b rows is divided into `chunks`: a part for each local tp rank, of `shares`
     * each. */
    int chunks, shares;
    fused_layout at;
    int stage; /* units: the current thread block, and its semaphores to the next */
    banyan_program_semaphore *room, *link;
} fused;

/* Select the rank whose program is written from now on. */
void fused_turn_to(fused *f, int rank);

int fused_ranks(const fused *f);
/* Return a rank: one of this node, or one on another node with this rank's local index. */
int fused_local(const fused *f, int tp, int dp);
int fused_node(const fused *f, int inter_tp, int inter_dp);
int fused_rank_on(const fused *f, int node);
int fused_node_number(const fused *f, int inter_tp, int inter_dp);
/* Return the dp index of a position in the node and among nodes. */
int fused_block(const fused *f, int local_dp, int inter_dp);
/* Return the number of rows that a rank has from all nodes: one for each share of each
 * data-parallel node. */
int fused_rows(const fused *f);

/* `size` indices except `own`, beginning with the next, so that not all ranks access one peer at
 * once. */
#define EACH_OTHER(size, own, other)                                                               \
    for (int other##_step = 1, other = ((own) + 1) % (size); other##_step < (size);                \
         other##_step++, other = (other + 1) % (size))

/* A block of the input: gathering ranks have one. A block of the output: scattering ranks have
 * one. `part`: index of the local tp rank; `share`: index of the inter tp rank. */
banyan_chunk fused_input(const fused *f, int block, int part, int share);
banyan_chunk fused_output(const fused *f, int block, int part, int share);
banyan_chunk fused_slot(const fused *f, int rank, uint64_t region, int index);

/* A sum of a->parts[0, count), in scratch. If own_at is not -1, that part is `own` instead; a slot
 * exists for it as well. */
typedef struct fused_sum {
    int count, own_at;
    banyan_chunk own;
} fused_sum;

#define FUSED_SUM_INIT                                                                             \
    {                                                                                              \
        .own_at = -1                                                                               \
    }

/* Groups of ranks that synchronize. */
typedef enum fused_circle { IN_ALL, IN_TP, IN_NODE, AMONG_NODES, AMONG_TP_NODES } fused_circle;

/* Functions that put data into a peer's slot, sum it, and send results to their receivers. Rows are
 * numbered by data-parallel node and share; a scattering rank has one node's rows. */
typedef struct fused_form {
    void (*put)(fused *f, banyan_chunk slot, banyan_chunk data);
    void (*sum)(fused *f, const fused_sum *sum, banyan_chunk destination);
    /* Wait for the puts of the circle's ranks. NULL: packets show their own arrival. */
    void (*barrier)(fused *f, int mesh, fused_circle who);
    /* result: the place of a row's sum. show: publish the sum once it is there (NULL: nothing to
     * do). */
    banyan_chunk (*result)(const fused *f, int row);
    void (*show)(fused *f, int row);
    /* Gathering: each node's share goes to all nodes, and each rank's results to all ranks of the
     * node. */
    void (*gather_shares)(fused *f);
    void (*gather_in_node)(fused *f);
    /* Scattering: put to the nodes that have the other shares, and to the ranks with the other
     * parts. */
    void (*share_between_nodes)(fused *f);
    void (*share_in_node)(fused *f);
} fused_form;

/* Write the steps of the selected rank. */
void fused_walk(fused *f);

void fused_write_packets(fused *f);
void fused_write_units(fused *f);

#endif
