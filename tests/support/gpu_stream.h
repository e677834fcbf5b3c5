/* Streams and graphs of the GPUs of gpu.h, for ranks: what a caller of Banyan has of its own. */
#ifndef TESTS_SUPPORT_GPU_STREAM_H
#define TESTS_SUPPORT_GPU_STREAM_H

#include "support/gpu.h"

/* Not ordered with the default stream. */
void *gpu_stream_create(DLDevice device);
void gpu_stream_destroy(DLDevice device, void *stream);
/* Until all that is queued is done. */
void gpu_stream_wait(DLDevice device, void *stream);

/* Queued; on the device's own memory. */
void gpu_stream_copy(DLDevice device, void *stream, void *to, const void *from, size_t bytes);
void gpu_stream_fill(DLDevice device, void *stream, void *to, uint8_t value, size_t bytes);
/* Work that takes some milliseconds before what is queued next. `scratch` is `bytes` long. */
void gpu_stream_delay(DLDevice device, void *stream, void *scratch, size_t bytes);

/* What is queued between the two becomes a graph. */
void gpu_capture_begin(DLDevice device, void *stream);
void *gpu_capture_end(DLDevice device, void *stream);
void gpu_graph_launch(DLDevice device, void *graph, void *stream);
void gpu_graph_destroy(DLDevice device, void *graph);

#endif
