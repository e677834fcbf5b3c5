/* State shared by the benchmark's ranks: a GPU, a stream, a clock. */
#ifndef BENCH_GPU_H
#define BENCH_GPU_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

#include <banyan/banyan.h>

typedef struct gpu {
    banyan_world *world;
    int rank, ranks, device;
    cudaStream_t stream;
} gpu;

/* End the rank with a message when a call has failed. */
void need(banyan_status status);
void cuda_need(cudaError_t result, const char *call);
#define CUDA(call) cuda_need((call), #call)

/* Open a GPU per rank, by local rank; the world comes from the environment. */
void gpu_open(gpu *made);
void gpu_close(gpu *old);

/* Queue the measured work. */
typedef void (*gpu_work)(void *context, cudaStream_t stream);

/* Return the time of one of it, in microseconds: the median of replays of a graph that has it
 * several times over, of the slowest rank. Collective. */
double gpu_time_us(const gpu *on, gpu_work work, void *context);

/* Return the time on this process's clock. */
double gpu_now_ms(void);
/* Return the largest value of all ranks. Collective. */
double gpu_slowest(const gpu *on, double mine);
/* Return the median; sorts the values. */
double gpu_median(double *values, size_t count);
/* Wait for the stream; after the limit, print what took too long and end the rank. */
void gpu_wait_within(const gpu *on, double limit_s, const char *what);

/* Random whole numbers below 32 in bf16, on the device: zeros run faster, and sums of these are
 * exact in any order. */
void gpu_fill(const gpu *on, void *memory, size_t bytes, unsigned seed);

/* True if the bytes are equal, compared on the device. Writes of other streams there must be
 * complete. */
bool gpu_equal(const void *a, const void *b, size_t bytes);

#endif
