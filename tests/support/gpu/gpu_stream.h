/* Streams and graphs of the GPUs of gpu.h, for ranks: a caller's own objects. */
#ifndef TESTS_SUPPORT_GPU_STREAM_H
#define TESTS_SUPPORT_GPU_STREAM_H

#include "support/gpu/gpu.h"

/* Not ordered with the default stream. */
void *gpu_stream_create(DLDevice device);
void gpu_stream_destroy(DLDevice device, void *stream);
/* Wait until all queued work is done. */
void gpu_stream_wait(DLDevice device, void *stream);

/* Queue a copy within the device's memory. */
void gpu_stream_copy(DLDevice device, void *stream, void *to, const void *from, size_t bytes);
void gpu_stream_fill(DLDevice device, void *stream, void *to, uint8_t value, size_t bytes);
/* Queue work that delays later work by some milliseconds. `scratch` has `bytes` bytes. */
void gpu_stream_delay(DLDevice device, void *stream, void *scratch, size_t bytes);

/* Work queued between the two becomes a graph. */
void gpu_capture_begin(DLDevice device, void *stream);
void *gpu_capture_end(DLDevice device, void *stream);
void gpu_graph_launch(DLDevice device, void *graph, void *stream);
void gpu_graph_destroy(DLDevice device, void *graph);

#endif
