/* Helpers for the built-in algorithms: the program that is being written, and the operations that
 * all of them share.
 *
 * Scratch has one layout on all ranks. Rank = node × ranks_per_node + local rank. A mesh is a set
 * of memory channels, or port channels between nodes, one in each direction between any two ranks,
 * created on first use. Waits on one mesh never consume signals of another,
 * so steps whose signals must not be confused use different meshes. Functions without a thread
 * block argument use thread block 0. docs/algorithms.md explains why consecutive runs need no
 * barrier. */
#ifndef COLLECTIVE_ALGORITHMS_ALGORITHM_H
#define COLLECTIVE_ALGORITHMS_ALGORITHM_H

/* Leave places (BANYAN_NO_PLACES) out: users of the plans have no use for lines of this file. */
#define BANYAN_NO_PLACES
#include <banyan/collective.h>

#include "core/containers.h"

#define ALGORITHM_MESHES 4

/* Pipelines: the number of units that a rank's filling thread block may be ahead of its emptying
 * one, and the number of units that each reused scratch chunk then holds. */
#define PIPELINE_AHEAD 2
#define PIPELINE_UNITS (2 * PIPELINE_AHEAD)

typedef struct algorithm {
    banyan_program *program;
    int ranks, ranks_per_node;
    banyan_collective_kind collective;
    bool in_place, split;
    int root, shift; /* shift: in [0, ranks) */
    banyan_reduce_op op;
    uint64_t input_chunks; /* of each rank */
    uint64_t unit_bytes;
    uint64_t scratch_chunks; /* allocated so far, on each rank */
    banyan_program_memory_channel *
        *meshes[ALGORITHM_MESHES]; /* [from × ranks + to]; NULL: not created yet */
    banyan_program_port_channel **links[ALGORITHM_MESHES]; /* meshes between nodes */
    banyan_program_port_channel **ports;                   /* as for meshes */
    banyan_chunk *parts;                                   /* room for two chunks for each rank */
    int *everyone;                                         /* 0, 1, … */
} algorithm;

/* Allocate the channels and lists for a->ranks ranks from `memory`. */
banyan_status algorithm_take_tables(algorithm *a, arena *memory);

static inline int algorithm_rank(const algorithm *a, int rank)
{
    return (int)(((int64_t)rank % a->ranks + a->ranks) % a->ranks);
}

/* All ranks but one, beginning with the next, so that not all ranks access one rank at once. */
#define EACH_PEER(a, rank, peer)                                                                   \
    for (int peer##_step = 1, peer = algorithm_rank((a), (rank) + 1); peer##_step < (a)->ranks;    \
         peer = algorithm_rank((a), (rank) + ++peer##_step))

/* Chunk `index` of a rank's buffer, and chunks [start, stop). */
banyan_chunk input_at(const algorithm *a, int rank, int index);
banyan_chunk input_range(const algorithm *a, int rank, int start, int stop);
banyan_chunk input_all(const algorithm *a, int rank);
banyan_chunk output_at(const algorithm *a, int rank, int index);
banyan_chunk output_range(const algorithm *a, int rank, int start, int stop);

/* Allocate `count` more scratch chunks on every rank; returns the index of the first. */
uint64_t slots_take(algorithm *a, int count);
banyan_chunk slot_at(const algorithm *a, int rank, uint64_t index);
banyan_chunk slot_range(const algorithm *a, int rank, uint64_t start, int count);

/* signal: `from` signals `to`. wait: `at` waits for the signal of `from`. Both in the given thread
 * block. */
void mesh_signal(algorithm *a, int mesh, int from, int to, int thread_block);
void mesh_wait(algorithm *a, int mesh, int at, int from, int thread_block);
/* Report readiness to be written. Publishes nothing. */
void mesh_signal_relaxed(algorithm *a, int mesh, int from, int to, int thread_block);
void mesh_wait_relaxed(algorithm *a, int mesh, int at, int from, int thread_block);

/* Signal all other ranks, or wait for all, beginning with the next rank. */
void mesh_signal_all(algorithm *a, int mesh, int rank, int thread_block);
void mesh_wait_all(algorithm *a, int mesh, int rank, int thread_block);

/* Signal all other ranks, then wait for all. */
void mesh_barrier(algorithm *a, int mesh, int rank, int thread_block);

/* put: from a rank's chunk to a peer's. get: from a peer's chunk to a rank's. reduce: destination
 * = local ⊕ remote. The chunks determine the two ranks. */
void remote_put(algorithm *a, banyan_chunk remote, banyan_chunk local, int thread_block);
void remote_get(algorithm *a, banyan_chunk local, banyan_chunk remote, int thread_block);
void remote_reduce(algorithm *a, banyan_chunk local, banyan_chunk remote, banyan_chunk destination,
                   int thread_block);
void remote_put_packets(algorithm *a, banyan_chunk remote, banyan_chunk local, int thread_block);

/* The port channel from one rank towards another. */
banyan_program_port_channel *port_between(algorithm *a, int from, int to);
/* Put through it, and signal after the last chunk. */
void port_put_and_signal(algorithm *a, banyan_chunk remote, banyan_chunk local);

void local_copy(algorithm *a, banyan_chunk destination, banyan_chunk source, int thread_block);
/* destination = parts[0] ⊕ parts[1] ⊕ …, of a->parts, in this order. Parts in rank order give
 * equal bits on every rank. */
void local_reduce_parts(algorithm *a, int count, banyan_chunk destination, int thread_block);
/* destination = source ⊕ other */
void local_reduce(algorithm *a, banyan_chunk source, banyan_chunk other, banyan_chunk destination,
                  int thread_block);

/* Copy the rank's own block to its place in the output (all-gather, all-to-all). Does nothing in
 * place. */
void local_keep(algorithm *a, banyan_chunk destination, banyan_chunk source, int thread_block);

/* destination = the rank's own block of its input ⊕ the blocks that its peers put into its slots,
 * one slot for each rank, in rank order. */
void reduce_block_into(algorithm *a, int rank, uint64_t slots, banyan_chunk destination,
                       int thread_block);

/* reduce: like reduce_block_into, to the output and to the slot of the rank's own number, where
 * all peers read it, with a signal to them. A single peer's slot is written directly by the
 * reduction. gather: copy the other ranks' blocks into the output. */
void reduce_block_for_all(algorithm *a, int rank, uint64_t slots, int mesh, int thread_block);
void gather_blocks(algorithm *a, int rank, uint64_t slots, int mesh, int thread_block);

/* The parameters of an algorithm, and the function that writes its program. */
typedef struct algorithm_entry {
    banyan_algorithm_info info;
    void (*write)(algorithm *a);    /* for two ranks or more */
    int (*chunk_factor)(int ranks); /* NULL: the factor is 1 */
    banyan_protocol protocol;
    bool double_scratch;
    bool mixes_sizes;     /* operations on the same chunks have different sizes */
    bool apart;           /* input and output must not share their memory */
    const char *in_place; /* apart: for calls in place, if the tuning table has nothing else */
    bool over_nodes;      /* uses memory channels within nodes alone */
    bool by_nodes; /* the same, and is meant for several nodes; ranks_per_node divides the ranks */
    /* Pipelines reuse a ring of PIPELINE_UNITS units in each scratch chunk. A rank has
     * ring_per_rank × ranks + ring_once such chunks. 0 and 0: no pipeline. */
    int ring_per_rank, ring_once;
    uint64_t least_bytes; /* tuning tries it from this message size on */
} algorithm_entry;

int factor_ranks(int ranks);   /* one chunk for each rank, for collectives of a single block */
int factor_halving(int ranks); /* so that all-reduce's chunks divide by a power of two */

void allreduce_ring(algorithm *a);
void allreduce_ring_direct(algorithm *a);
void allgather_ring(algorithm *a);
void allgather_ring_direct(algorithm *a);
void reducescatter_ring(algorithm *a);

void allreduce_doubling(algorithm *a);
void allreduce_halving_doubling(algorithm *a);
void allgather_bruck(algorithm *a);
void reducescatter_halving(algorithm *a);

void allreduce_oneshot(algorithm *a);
void allreduce_twoshot(algorithm *a);
void allgather_allpairs(algorithm *a);
void reducescatter_allpairs(algorithm *a);
void alltoall_allpairs(algorithm *a);
void alltoall_pairwise(algorithm *a);
void broadcast_allpairs(algorithm *a);
void broadcast_scatter_allgather(algorithm *a);
void reduce_oneshot(algorithm *a);
void reduce_twoshot(algorithm *a);

void allreduce_pipelined(algorithm *a);
void allgather_pipelined(algorithm *a);
void reducescatter_pipelined(algorithm *a);
void alltoall_pipelined(algorithm *a);
void broadcast_pipelined(algorithm *a);
void reduce_pipelined(algorithm *a);
void sendrecv_pipelined(algorithm *a);

void allreduce_oneshot_direct(algorithm *a);
void allreduce_twoshot_direct(algorithm *a);
int factor_push(int ranks);
void allreduce_push_direct(algorithm *a);
void allreduce_push_parts_direct(algorithm *a);
void allgather_direct(algorithm *a);
void reducescatter_direct(algorithm *a);
void alltoall_direct(algorithm *a);
void broadcast_direct(algorithm *a);
void reduce_direct(algorithm *a);
void sendrecv_direct(algorithm *a);

void allreduce_packets(algorithm *a);
void allreduce_packets_twoshot(algorithm *a);
void allgather_packets(algorithm *a);
void reducescatter_packets(algorithm *a);
void alltoall_packets(algorithm *a);
void broadcast_packets(algorithm *a);
void reduce_packets(algorithm *a);
void sendrecv_packets(algorithm *a);

void allreduce_tree(algorithm *a);
void broadcast_tree(algorithm *a);
void reduce_tree(algorithm *a);

void allreduce_hierarchical(algorithm *a);
void allreduce_hierarchical_oneshot(algorithm *a);
void allreduce_hierarchical_leaders(algorithm *a);
void allgather_hierarchical(algorithm *a);
void allgather_hierarchical_leaders(algorithm *a);
void allgather_hierarchical_direct(algorithm *a);
void reducescatter_hierarchical(algorithm *a);
void alltoall_hierarchical(algorithm *a);
void alltoall_hierarchical_pairs(algorithm *a);
void alltoall_hierarchical_direct(algorithm *a);
void broadcast_hierarchical(algorithm *a);
void reduce_hierarchical(algorithm *a);
void sendrecv_hierarchical(algorithm *a);
void sendrecv_port(algorithm *a);

int factor_ports(int ranks);
void allreduce_ports(algorithm *a);
void allreduce_ports_scratch(algorithm *a);
void allgather_ports(algorithm *a);
void allgather_ports_scratch(algorithm *a);
void reducescatter_ports(algorithm *a);
void alltoall_ports(algorithm *a);
void alltoall_ports_scratch(algorithm *a);

void allreduce_switch(algorithm *a);
void allreduce_switch_direct(algorithm *a);
void allgather_switch(algorithm *a);
void allgather_switch_direct(algorithm *a);
void reducescatter_switch(algorithm *a);
void reducescatter_switch_direct(algorithm *a);
void broadcast_switch(algorithm *a);

#endif
