/* The part of NVSHMEM's host interface that Banyan uses, found at run time, and the symmetric
 * memory that it provides to all ranks of a world. */
#ifndef CUDA_PIPELINE_NVSHMEM_H
#define CUDA_PIPELINE_NVSHMEM_H

#include <banyan/world.h>

#include "cuda/driver.h"

/* Layouts of NVSHMEM 3, version 1 of each struct, which all its releases accept. */
#define NVSHMEM_VERSION_OF(type) ((1 << 16) + (int)sizeof(type))

typedef struct nvshmem_id {
    int version;
    char inside[124];
} nvshmem_id;

typedef struct nvshmem_id_args {
    int version;
    nvshmem_id *id;
    int rank, ranks;
} nvshmem_id_args;

typedef struct nvshmem_attributes {
    int version;
    void *communicator;
    struct {
        int version;
        nvshmem_id_args id_args;
        char unused[96];
    } args;
} nvshmem_attributes;

_Static_assert(sizeof(nvshmem_id) == 128, "NVSHMEM's unique id");
_Static_assert(sizeof(nvshmem_attributes) == 144, "NVSHMEM's attributes");

#define NVSHMEM_WITH_ID (1u << 3)
#define NVSHMEM_SET 9
#define NVSHMEM_ADD 10
#define NVSHMEM_STATUS_READY 2 /* or a higher value */

#define NVSHMEM_FUNCTIONS(X)                                                                       \
    X(int, nvshmemx_get_uniqueid, (nvshmem_id *))                                                  \
    X(int, nvshmemx_set_attr_uniqueid_args,                                                        \
      (int rank, int ranks, const nvshmem_id *, nvshmem_attributes *))                             \
    X(int, nvshmemx_hostlib_init_attr, (unsigned flags, nvshmem_attributes *))                     \
    X(int, nvshmemx_init_status, (void))                                                           \
    X(int, nvshmem_my_pe, (void))                                                                  \
    X(int, nvshmem_n_pes, (void))                                                                  \
    X(void *, nvshmem_ptr, (const void *here, int pe))                                             \
    X(void *, nvshmem_malloc, (size_t bytes))                                                      \
    X(void, nvshmemx_putmem_signal_on_stream,                                                      \
      (void *to, const void *from, size_t bytes, uint64_t *word, uint64_t value, int how, int pe,  \
       CUstream))                                                                                  \
    X(void, nvshmemx_signal_op_on_stream,                                                          \
      (uint64_t * word, uint64_t value, int how, int pe, CUstream))

/* For NVSHMEM's device code. NULL: the library has none. */
#define NVSHMEM_DEVICE_FUNCTIONS(X)                                                                \
    X(void, nvshmemx_vendor_get_version_info, (int *major, int *minor, int *patch))                \
    X(int, nvshmemx_cumodule_init, (CUmodule))

#define NVSHMEM_MEMBER(result, name, arguments) result(*name) arguments;
typedef struct nvshmem_functions {
    NVSHMEM_FUNCTIONS(NVSHMEM_MEMBER)
    NVSHMEM_DEVICE_FUNCTIONS(NVSHMEM_MEMBER)
} nvshmem_functions;
#undef NVSHMEM_MEMBER

/* Symmetric memory, and the mapping of ranks: `pes` has NVSHMEM's number of each rank of the
 * world. */
typedef struct nvshmem_part {
    const nvshmem_functions *functions;
    char *local;
    int *pes;
    int block;
} nvshmem_part;

/* The way in which NVSHMEM starts in this process. */
typedef struct nvshmem_start {
    bool
        is_there; /* other code has initialized it, for the ranks of this world; else Banyan does */
    bool sets_ibgda,
        ibgda; /* NVSHMEM_IB_ENABLE_IBGDA, before Banyan initializes it, between machines */
} nvshmem_start;

/* Allocate at least `bytes` of symmetric memory; the first `zero_bytes` are zero on this rank. The
 * process loads and initializes NVSHMEM at the first call, over the world's control plane and
 * without multicast. NVSHMEM serves one set of ranks, each a process with its own device, until
 * they end. Returned memory is kept for later calls, since freeing it, and leaving NVSHMEM, wait
 * for all ranks. Collective; ranks agree on the status afterwards. UNSUPPORTED, with the missing
 * part. An NVSHMEM call that waits for a rank ends with the world, or at its timeout; NVSHMEM is
 * not used again after that. */
banyan_status nvshmem_take(banyan_world *world, int device, const nvshmem_start *start,
                           size_t bytes, size_t zero_bytes, nvshmem_part *part);
/* Local. Ignores a zeroed part. */
void nvshmem_give_back(nvshmem_part *part);

#endif
