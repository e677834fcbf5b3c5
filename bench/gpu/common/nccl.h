/* NCCL, found at run time, as the reference. */
#ifndef BENCH_NCCL_H
#define BENCH_NCCL_H

#include "common/gpu.h"

typedef struct nccl nccl;

/* Open NCCL. NULL, with the reason printed by rank 0, if it is missing. Collective. */
nccl *nccl_open(const gpu *on);
void nccl_close(nccl *old);

/* "2.28.9" */
const char *nccl_version(const nccl *of);

/* bf16 sums; counts are elements, as in banyan/collective.h. */
void nccl_allreduce(nccl *of, const void *in, void *out, size_t count, cudaStream_t stream);
void nccl_allgather(nccl *of, const void *in, void *out, size_t count, cudaStream_t stream);
void nccl_reducescatter(nccl *of, const void *in, void *out, size_t count, cudaStream_t stream);
void nccl_alltoall(nccl *of, const void *in, void *out, size_t count, cudaStream_t stream);
/* Send one to the next rank and receive one from the rank before, at once. */
void nccl_shift(nccl *of, const void *in, void *out, size_t count, cudaStream_t stream);

#endif
