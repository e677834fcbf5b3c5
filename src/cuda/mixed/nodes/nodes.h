/* Mixed collectives of several nodes: messages between nodes lie in NVSHMEM's symmetric memory,
 * those inside one in memory that its ranks map. */
#ifndef CUDA_MIXED_NODES_NODES_H
#define CUDA_MIXED_NODES_NODES_H

#include "cuda/mixed/nodes/kernel.h"
#include "cuda/mixed/nodes/proxy.h"
#include "cuda/mixed/nodes/puts.h"
#include "cuda/pipeline/nvshmem.h"
#include "mixed/engine.h"

/* ---- programs ---- */

/* Where things lie, alike on all ranks: two turns of flags by slot, then slots, and behind those
 * that are received into the ones that are staged. */
typedef struct nodes_layout {
    uint64_t slots_at, slot_bytes; /* within a turn */
    int received;                  /* slots */
} nodes_layout;

/* A call, or the part of it that one launch carries. */
typedef struct nodes_call {
    banyan_mixed_op op;
    banyan_mixed_mode mode;
    const char *input;
    char *output;
    uint64_t whole_bytes; /* from one data-parallel rank's rows to the next one's */
    uint64_t bytes;       /* of b rows, of this part */
} nodes_call;

/* Where a rank's slots begin, and how they are reached. */
typedef struct nodes_places {
    const banyan_mixed_grid *grid;
    int rank, ranks;
    char *own;                        /* symmetric memory of NVSHMEM's */
    char *mapped[MIXED_RANKS_MAX];    /* by rank; inside the node its part; NULL: not mapped */
    char *from_node, *from_elsewhere; /* this rank's memory that others write to */
    /* What stands by multicast for the parts of all ranks of the node, and for those of this rank's
     * tensor-parallel group there; NULL: there is none. */
    char *cast_node, *cast_tp;
    const int *pes; /* NVSHMEM's numbers of ranks that kernels put to; NULL: they post */
} nodes_places;

/* Bytes of the pieces that a call of so many bytes is moved in. */
uint64_t nodes_cell_bytes(const banyan_mixed_grid *grid, banyan_mixed_mode mode, uint64_t bytes);
/* And how many there are. */
int nodes_cells(const banyan_mixed_grid *grid, banyan_mixed_mode mode);
/* Slots that are received into; no more are staged. */
int nodes_slots(const banyan_mixed_grid *grid, banyan_mixed_mode mode);

/* The call's steps. UNSUPPORTED: there are too many. */
banyan_status nodes_build(const nodes_places *places, const nodes_layout *layout,
                          const nodes_call *call, nodes_args *args);

/* ---- engines ---- */

struct cuda_mixed;

/* How any rank reaches those of other nodes, alike on all ranks: what is not mapped is put. */
typedef enum nodes_by { NODES_BY_STORES, NODES_BY_PUTS, NODES_BY_PROXY } nodes_by;

typedef struct cuda_nodes {
    bool is_ready; /* NVSHMEM is there */
    nodes_by by;
    nodes_places places;
    nvshmem_part part;
    nodes_proxy *proxy;
    uint64_t turn_bytes, slots_at, slots_bytes; /* slots_bytes: of all slots of a turn */
    int slots;
} cuda_nodes;

/* Symmetric bytes of a rank, of either kind of memory. */
uint64_t nodes_room(const struct cuda_mixed *engine);
void nodes_size(struct cuda_mixed *engine);
banyan_status nodes_open(struct cuda_mixed *engine);
void nodes_close(struct cuda_mixed *engine);
/* When it failed on any rank all have the same error. Collective, of MIXED_RANKS_MAX at most. */
banyan_status nodes_agree(const struct cuda_mixed *engine, banyan_status status);
/* Where slots of other ranks are, and by what they are written to. Collective. */
banyan_status nodes_reach(struct cuda_mixed *engine);
/* Multicast apart. */
bool nodes_have(const struct cuda_mixed *engine, banyan_mixed_mode mode, char *reason,
                size_t reason_bytes);
banyan_status nodes_run(const struct cuda_mixed *engine, const mixed_call *call, CUstream stream);

#endif
