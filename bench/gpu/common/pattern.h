/* Data that a GPU fills and checks itself, element by element. */
#ifndef BENCH_PATTERN_H
#define BENCH_PATTERN_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "common/many_layout.h"

#define PATTERN_POISON 0xA5

/* A part of an area, for one thread block. */
typedef struct pattern_piece {
    many_area area;
    uint64_t first, end; /* places, from run to run */
} pattern_piece;

#ifdef __cplusplus
extern "C" {
#endif

/* Give every element its value; the gaps between runs stay. */
cudaError_t pattern_fill(const pattern_piece *pieces, size_t count, cudaStream_t stream);
/* Add to `wrong` the number of elements with another value, and of places between runs that are no
 * longer poisoned. */
cudaError_t pattern_check(const pattern_piece *pieces, size_t count, uint64_t *wrong,
                          cudaStream_t stream);
/* Add to `wrong` the number of bytes that differ. */
cudaError_t pattern_compare(const void *a, const void *b, size_t bytes, uint64_t *wrong,
                            cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
