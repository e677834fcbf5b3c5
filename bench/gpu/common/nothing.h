/* A kernel that does nothing, to measure the cost of a launch. */
#ifndef BENCH_NOTHING_H
#define BENCH_NOTHING_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C"
#endif
    cudaError_t
    nothing_launch(cudaStream_t stream);

#endif
