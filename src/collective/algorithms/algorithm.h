/* What the built-in algorithms are written with: the program under way, and the few words that all
 * of them share.
 *
 * Scratch is laid out alike on all ranks. A mesh is a set of memory channels, one each way between
 * any two ranks, made as they are needed; waits on one mesh never consume another's signals, so
 * that every step that must be told apart has a mesh of its own. Thread block 0 is meant where none
 * is named. docs/algorithms.md has the argument why consecutive runs need no barrier. */
#ifndef COLLECTIVE_ALGORITHMS_ALGORITHM_H
#define COLLECTIVE_ALGORITHMS_ALGORITHM_H

/* A user of the plans has no use for these lines. */
#define BANYAN_NO_PLACES
#include <banyan/collective.h>

#include "core/containers/arena.h"

#define ALGORITHM_MESHES 4

/* Pipelines: how many units a rank's filling thread block may be ahead of its emptying one, and how
 * many units each reused scratch chunk then holds. */
#define PIPELINE_AHEAD 2
#define PIPELINE_UNITS (2 * PIPELINE_AHEAD)

typedef struct algorithm {
    banyan_program *program;
    int ranks, ranks_per_node;
    banyan_collective_kind collective;
    bool in_place, split;
    int root, shift; /* shift: in [0, ranks) */
    banyan_reduce_op op;
    uint64_t input_chunks; /* of a rank */
    uint64_t unit_bytes;
    uint64_t scratch_chunks; /* taken so far, of each rank */
    banyan_program_memory_channel *
        *meshes[ALGORITHM_MESHES];       /* [from × ranks + to]; NULL: not made yet */
    banyan_program_port_channel **ports; /* likewise */
    banyan_chunk *parts;                 /* room for twice a chunk a rank */
    int *everyone;                       /* 0, 1, … */
} algorithm;

/* Room for the channels and lists of a->ranks ranks, from `memory`. */
banyan_status algorithm_take_tables(algorithm *a, arena *memory);

static inline int algorithm_rank(const algorithm *a, int rank)
{
    return (int)(((int64_t)rank % a->ranks + a->ranks) % a->ranks);
}

/* All ranks but one, beginning with the next: so that not everybody turns to the same rank at once.
 */
#define EACH_PEER(a, rank, peer)                                                                   \
    for (int peer##_step = 1, peer = algorithm_rank((a), (rank) + 1); peer##_step < (a)->ranks;    \
         peer = algorithm_rank((a), (rank) + ++peer##_step))

/* Chunk `index` of a rank's buffer, and chunks [start, stop). */
banyan_chunk input_at(const algorithm *a, int rank, int index);
banyan_chunk input_range(const algorithm *a, int rank, int start, int stop);
banyan_chunk input_all(const algorithm *a, int rank);
banyan_chunk output_at(const algorithm *a, int rank, int index);
banyan_chunk output_range(const algorithm *a, int rank, int start, int stop);

/* So many more scratch chunks on every rank: the index of the first. */
uint64_t slots_take(algorithm *a, int count);
banyan_chunk slot_at(const algorithm *a, int rank, uint64_t index);
banyan_chunk slot_range(const algorithm *a, int rank, uint64_t start, int count);

/* ---- between ranks ---- */

/* `from` tells `to`, by its thread block; `at` waits for what `from` told it. */
void mesh_signal(algorithm *a, int mesh, int from, int to, int thread_block);
void mesh_wait(algorithm *a, int mesh, int at, int from, int thread_block);
/* "I am ready to be written": publishes nothing. */
void mesh_signal_relaxed(algorithm *a, int mesh, int from, int to, int thread_block);
void mesh_wait_relaxed(algorithm *a, int mesh, int at, int from, int thread_block);

/* The rank tells, or hears from, all others, beginning with the next one. */
void mesh_signal_all(algorithm *a, int mesh, int rank, int thread_block);
void mesh_wait_all(algorithm *a, int mesh, int rank, int thread_block);

/* It tells all others and hears from all. */
void mesh_meet(algorithm *a, int mesh, int rank, int thread_block);

/* From a rank's chunk into a peer's; from a peer's chunk into a rank's; and
 * destination = local ⊕ remote. Whose chunks they are says between whom. */
void remote_put(algorithm *a, banyan_chunk remote, banyan_chunk local, int thread_block);
void remote_get(algorithm *a, banyan_chunk local, banyan_chunk remote, int thread_block);
void remote_reduce(algorithm *a, banyan_chunk local, banyan_chunk remote, banyan_chunk destination,
                   int thread_block);
void remote_put_packets(algorithm *a, banyan_chunk remote, banyan_chunk local, int thread_block);

/* The port channel from one rank towards another. */
banyan_program_port_channel *port_between(algorithm *a, int from, int to);

/* ---- inside a rank ---- */

void local_copy(algorithm *a, banyan_chunk destination, banyan_chunk source, int thread_block);
/* destination = parts[0] ⊕ parts[1] ⊕ …, of a->parts, in this order. Parts in the order of ranks
 * give the same bits whoever adds them up. */
void local_reduce_parts(algorithm *a, int count, banyan_chunk destination, int thread_block);
/* destination = source ⊕ other */
void local_reduce(algorithm *a, banyan_chunk source, banyan_chunk other, banyan_chunk destination,
                  int thread_block);

/* The rank's own block where it belongs in the output (all-gather, all-to-all); nothing to do in
 * place. */
void local_keep(algorithm *a, banyan_chunk destination, banyan_chunk source, int thread_block);

/* ---- two phases ---- */

/* destination = the rank's own block of its input with what its peers put into its slots, of which
 * there is one a rank; in the order of ranks. */
void reduce_block_into(algorithm *a, int rank, uint64_t slots, banyan_chunk destination,
                       int thread_block);

/* The same into the output and to where all can have it, with word of it: the slot of the rank's
 * own number, from which they read; a single peer's is written at once, by the operation that
 * reduces. Then everybody gathers the others' blocks into the output. */
void reduce_block_for_all(algorithm *a, int rank, uint64_t slots, int mesh, int thread_block);
void gather_blocks(algorithm *a, int rank, uint64_t slots, int mesh, int thread_block);

/* ---- the algorithms ---- */

/* How an algorithm is set up, and who writes it. */
typedef struct algorithm_entry {
    banyan_algorithm_info info;
    void (*write)(algorithm *a);    /* for two ranks or more */
    int (*chunk_factor)(int ranks); /* NULL: 1 */
    banyan_protocol protocol;
    bool double_scratch;
    bool mixes_sizes; /* operations on the same chunks have different sizes */
    bool apart;       /* input and output must not share their memory */
    bool by_nodes;    /* ranks_per_node must divide the ranks */
    /* Pipelines reuse a ring of PIPELINE_UNITS units in each scratch chunk, of which a rank has
     * ring_per_rank × ranks + ring_once. 0 and 0: no pipeline. */
    int ring_per_rank, ring_once;
    uint64_t least_bytes; /* of what tuning tries it with */
} algorithm_entry;

int factor_ranks(int ranks);   /* a chunk a rank, where the collective has a single block */
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
void allgather_hierarchical(algorithm *a);
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
