/* An engine for the changes of tensors on one device, for the files of this folder. */
#ifndef CUDA_PUBLISH_ENGINE_H
#define CUDA_PUBLISH_ENGINE_H

#include <pthread.h>

#include "cuda/driver.h"
#include "cuda/publish/kernel.h"
#include "publish/delta/device.h"

/* A kernel, and the most thread blocks of a launch: in the foreground as many as the device holds
 * at once. */
typedef struct changes_kernel {
    CUfunction function;
    unsigned blocks, background_blocks;
    unsigned warp_bytes; /* of shared memory, for each warp */
} changes_kernel;

typedef struct changes_engine {
    int device;
    unsigned threads; /* of a thread block */
    changes_kernel find, merge, measure, pack, gather, swap[CHANGES_KINDS];
    CUstream background;
    /* Pinned memory for the sizes of blocks, which no fetch uses: pinning takes longer than
     * filling. */
    pthread_mutex_t lock;
    void *spare;
    size_t spare_bytes;
} changes_engine;

/* View the elements of a strided view. */
changes_view changes_view_elements(const strided_view *view);

/* Create a stream of the least priority, which the default stream does not wait for. The device is
 * entered. */
banyan_status changes_stream(int device, CUstream *stream);

/* Launch a kernel for `warps` warps of work, on at most `blocks` thread blocks. The device is
 * entered. */
banyan_status changes_launch(const changes_engine *engine, const changes_kernel *kernel,
                             unsigned blocks, uint64_t warps, void *args, CUstream stream);

/* Take pinned memory of at least `*bytes` bytes, and give it back. `*bytes` is what it has. */
banyan_status changes_take_pinned(changes_engine *engine, size_t *bytes, void **memory);
void changes_give_pinned(changes_engine *engine, size_t bytes, void *memory);

/* INVALID while the stream is captured. The device is entered. */
banyan_status changes_check_capture(int device, CUstream stream);

/* Allocate device memory with a copy of `bytes` bytes; NULL for none. */
banyan_status changes_upload(int device, const void *from, size_t bytes, void **address);

/* Functions of the table. */
banyan_status changes_open(int device, void **engine);
void changes_close(void *engine);
banyan_status changes_host_alloc(void *engine, size_t bytes, void **memory);
void changes_host_free(void *engine, void *memory);
banyan_status changes_wait(void *engine, void *stream);
banyan_status changes_find(void *engine, struct delta_compare *tensors, size_t count, void *stream);
banyan_status changes_merge_maps(void *engine, uint64_t *into, const uint64_t *from,
                                 uint64_t words);
banyan_status changes_pack_open(void *engine, const delta_source *boxes, size_t count,
                                void **packing, const uint64_t **block_bytes);
banyan_status changes_pack(void *packing, const struct delta_piece *pieces, size_t count, void *to,
                           size_t bytes);
void changes_pack_close(void *packing);
banyan_status changes_gather(void *engine, const strided_view *from, uint64_t first, uint64_t count,
                             void *to);
banyan_status changes_stage(void *engine, const strided_view *boxes, size_t box_count,
                            const struct delta_part *parts, size_t count, void **staged);
void changes_unstage(void *engine, void *staged);
banyan_status changes_swap(void *staged, size_t first, size_t count, ptrdiff_t shift,
                           bool background, void *stream);

#endif
