/* Changes of tensors in a device's memory: the table that a module provides.
 *
 * Streams (stream.h) are the same bytes as on the host. They travel through host memory, where they
 * are checked; no kernel waits for a peer. Work in the background has a stream of the least
 * priority and few thread blocks, since the device's owner trains or serves meanwhile. Calls return
 * when their work is complete, except `swap` in the foreground. Any thread; each call enters the
 * device itself. */
#ifndef PUBLISH_DELTA_DEVICE_H
#define PUBLISH_DELTA_DEVICE_H

#include "publish/delta/stream.h"

/* A tensor to compare with its copy. */
struct delta_compare {
    strided_view live;
    void *kept;       /* dense, aligned to 16 bytes; in the device's memory, or in host_alloc's */
    uint64_t *map;    /* changes_words(live.elems) words of such memory, of any contents */
    uint64_t changed; /* set: the number of elements that differ */
};

/* Blocks [first, first + count) of a box, at most DELTA_PART_BLOCKS, and where their stream
 * begins in the output. */
struct delta_piece {
    size_t box;
    uint64_t first, count, at;
};

/* Blocks of a box that have been received and checked. */
struct delta_part {
    size_t box;
    uint64_t first, count; /* at most DELTA_PART_BLOCKS */
    void *stream;          /* in the device's memory */
    const uint64_t *ends;  /* of each block, from the stream's start (delta_check) */
};

typedef struct delta_device_ops {
    size_t size;
    const char *name;

    banyan_status (*open)(int device, void **engine);
    void (*close)(void *engine);

    /* Allocate host memory that the device reads and writes at the same address. */
    banyan_status (*host_alloc)(void *engine, size_t bytes, void **memory);
    void (*host_free)(void *engine, void *memory);

    /* Compare tensors as changes_find does, after the work that `stream` has. All of the map is
     * written. In the foreground: the caller waits for it. INVALID while the stream is captured. */
    banyan_status (*find)(void *engine, struct delta_compare *tensors, size_t count, void *stream);

    /* Set the bits of `into` that `from` has: `words` words of the device's memory each. */
    banyan_status (*merge)(void *engine, uint64_t *into, const uint64_t *from, uint64_t words);

    /* Begin to write boxes: kept copies and maps lie where `find` accepts them. `*block_bytes`
     * receives the bytes of each block, box after box, and lives until pack_close; NULL if all
     * boxes are sent whole. In the background. */
    banyan_status (*pack_open)(void *engine, const delta_source *boxes, size_t count,
                               void **packing, const uint64_t **block_bytes);
    /* Write pieces, which together have `bytes` bytes, to memory of host_alloc. */
    banyan_status (*pack)(void *packing, const struct delta_piece *pieces, size_t count, void *to,
                          size_t bytes);
    void (*pack_close)(void *packing);

    /* Copy elements [first, first + count) of a view to host memory. In the background. */
    banyan_status (*gather)(void *engine, const strided_view *from, uint64_t first, uint64_t count,
                            void *to);

    /* Prepare the exchange of parts, in this order. */
    banyan_status (*stage)(void *engine, const strided_view *boxes, size_t box_count,
                           const struct delta_part *parts, size_t count, void **staged);
    void (*unstage)(void *engine, void *staged);
    /* Exchange parts [first, first + count), no two of which share elements, with elements that lie
     * `shift` bytes behind those of the boxes: queue it in `stream`, or, in the background,
     * complete it. */
    banyan_status (*swap)(void *staged, size_t first, size_t count, ptrdiff_t shift,
                          bool background, void *stream);
    /* Wait for the work that `stream` has. */
    banyan_status (*wait)(void *engine, void *stream);
} delta_device_ops;

#endif
