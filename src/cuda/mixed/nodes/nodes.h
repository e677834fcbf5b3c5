/* Mixed collectives of several nodes. Messages between nodes lie in NVSHMEM's symmetric memory,
 * those inside a node in memory that its ranks map. */
#ifndef CUDA_MIXED_NODES_NODES_H
#define CUDA_MIXED_NODES_NODES_H

#include "cuda/mixed/nodes/kernel.h"
#include "cuda/pipeline/nvshmem.h"
#include "mixed/engine.h"

/* Return the mode with equal transfers without multicast. */
static inline banyan_mixed_mode mixed_unicast(banyan_mixed_mode mode)
{
    int apart = BANYAN_MIXED_ONE_SHOT_MULTICAST - BANYAN_MIXED_ONE_SHOT;
    return mode_is_multicast(mode) ? (banyan_mixed_mode)((int)mode - apart) : mode;
}

/* The layout of memory, equal on all ranks: two turns of flags by slot, then the receive slots of
 * the turns, then the staged slots. */
typedef struct nodes_layout {
    uint64_t slots_at, slot_bytes; /* within a turn */
    int received;                  /* number of receive slots */
} nodes_layout;

/* A call, or the part of it in one launch. */
typedef struct nodes_call {
    banyan_mixed_op op;
    banyan_mixed_mode mode;
    const char *input;
    char *output;
    uint64_t whole_bytes; /* distance between the rows of two data-parallel ranks */
    uint64_t bytes;       /* in b rows, for this part */
} nodes_call;

/* The start of each rank's slots, and how this rank reaches them. */
typedef struct nodes_places {
    const banyan_mixed_grid *grid;
    int rank, ranks;
    char *own;                     /* NVSHMEM's symmetric memory */
    char *mapped[MIXED_RANKS_MAX]; /* indexed by rank; inside the node its part; NULL: not mapped */
    char *from_node, *from_elsewhere; /* this rank's memory that others write to */
    /* Multicast addresses of the parts of all ranks on the node, and of this rank's
     * tensor-parallel group there; NULL: none. */
    char *cast_node, *cast_tp;
    const int *pes; /* NVSHMEM's numbers of the ranks that kernels put to; NULL: they post */
} nodes_places;

/* Return the size of the pieces in which a call of this many bytes is moved. */
uint64_t nodes_cell_bytes(const banyan_mixed_grid *grid, banyan_mixed_mode mode, uint64_t bytes);
/* Return their number. */
int nodes_cells(const banyan_mixed_grid *grid, banyan_mixed_mode mode);
/* Return the number of receive slots; there are at most as many staged ones. */
int nodes_slots(const banyan_mixed_grid *grid, banyan_mixed_mode mode);

/* Build the call's steps. UNSUPPORTED: there are too many. */
banyan_status nodes_build(const nodes_places *places, const nodes_layout *layout,
                          const nodes_call *call, nodes_args *args);

/* proxy.c: puts between nodes by NVSHMEM's host calls. Kernels post them, a thread makes them. */
typedef struct nodes_proxy nodes_proxy;

/* Start the proxy, with one queue for each rank of the world. A request puts `bytes` from `source`
 * to `destination`, a local address that stands for the peer's; then the peer's word `signal`
 * becomes `run`. The object of `part` must remain. Before returning, it makes one put to each
 * peer, of the word at `trial`, so that nothing is loaded later. The device's context is
 * entered. */
banyan_status nodes_proxy_start(int device, const nvshmem_part *part, int ranks, char *trial,
                                nodes_proxy **proxy);
/* Return the queues by rank, in device memory. */
banyan_port_queue *nodes_proxy_queues(const nodes_proxy *proxy);
/* End the proxy; posted requests are queued on return. Ignores NULL. */
void nodes_proxy_end(nodes_proxy *proxy);

struct cuda_mixed;

/* The way to ranks of other nodes, equal on all ranks: puts reach memory that is not mapped. */
typedef enum nodes_by { NODES_BY_STORES, NODES_BY_PUTS, NODES_BY_PROXY } nodes_by;

typedef struct cuda_nodes {
    bool is_ready; /* NVSHMEM is initialized */
    nodes_by by;
    nodes_places places;
    nvshmem_part part;
    nodes_proxy *proxy;
    uint64_t turn_bytes, slots_at, slots_bytes; /* slots_bytes: of all slots of a turn */
    int slots;
} cuda_nodes;

/* Return a rank's symmetric bytes, of either kind of memory. */
uint64_t nodes_room(const struct cuda_mixed *engine);
void nodes_size(struct cuda_mixed *engine);
banyan_status nodes_open(struct cuda_mixed *engine);
void nodes_close(struct cuda_mixed *engine);
/* If any rank failed, all return its error. Collective, over at most MIXED_RANKS_MAX ranks. */
banyan_status nodes_agree(const struct cuda_mixed *engine, banyan_status status);
/* Find the slots of other ranks, and how to write to them. Collective. */
banyan_status nodes_reach(struct cuda_mixed *engine);
/* Except for multicast. */
bool nodes_have(const struct cuda_mixed *engine, banyan_mixed_mode mode, char *reason,
                size_t reason_bytes);
banyan_status nodes_run(const struct cuda_mixed *engine, const mixed_call *call, CUstream stream);

#endif
