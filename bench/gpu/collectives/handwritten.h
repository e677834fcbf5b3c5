/* An all-reduce written as a kernel, with the algorithm of Banyan's plans for small messages: the
 * difference of their times is the cost of interpreting a plan. */
#ifndef BENCH_HANDWRITTEN_H
#define BENCH_HANDWRITTEN_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HANDWRITTEN_RANKS 8

typedef struct handwritten_args {
    const uint4 *in;
    uint4 *out;
    size_t words;                      /* of 16 bytes */
    uint4 *scratch[HANDWRITTEN_RANKS]; /* every rank's: two halves of ranks × most_words × 2 */
    size_t most_words;
    uint32_t *run; /* zeroed; the kernel counts on */
    int rank, ranks;
} handwritten_args;

/* Sum in bf16: every rank pushes its data as packets to all, and adds up the packets that it
 * receives. */
cudaError_t handwritten_allreduce(const handwritten_args *args, int blocks, int threads,
                                  cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
