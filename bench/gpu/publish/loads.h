/* Kernels for the benchmark of publications: changes of elements, and loads of a GPU. */
#ifndef BENCH_PUBLISH_LOADS_H
#define BENCH_PUBLISH_LOADS_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Fill elements of 16 bits with random bits. */
void loads_fill(uint16_t *elems, size_t count, uint64_t seed, cudaStream_t stream);
/* Change each element with a probability of `share`. */
void loads_change(uint16_t *elems, size_t count, double share, uint64_t seed, cudaStream_t stream);
/* Add, to `*sectors`, the number of groups of 16 bits of a map that are not 0: sectors of 32 bytes
 * of a bf16 tensor in which something has changed. */
void loads_count_sectors(const uint64_t *map, size_t words, unsigned long long *sectors,
                         cudaStream_t stream);

/* Rewrite each sector of 32 bytes that has a change in the map: the least that an exchange in place
 * has to do. Some bits are inverted. `count` is a multiple of 16. */
void loads_rewrite_sectors(uint16_t *elems, size_t count, const uint64_t *map, cudaStream_t stream);

#define LOADS_MATRIX 4096
/* c = a * b, matrices of LOADS_MATRIX rows and columns in bf16 (c in f32), by tensor cores. */
void loads_multiply(const void *a, const void *b, float *c, cudaStream_t stream);
/* Read memory once, as the decoding of tokens does with a model's weights. */
void loads_read(const void *from, size_t bytes, unsigned *never, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
