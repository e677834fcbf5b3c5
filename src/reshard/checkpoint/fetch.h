/* Read boxes of tensors from their files into their places, in file order, by several threads. */
#ifndef RESHARD_CHECKPOINT_FETCH_H
#define RESHARD_CHECKPOINT_FETCH_H

#include <banyan/checkpoint.h>

#include "core/containers.h"
#include "reshard/checkpoint/write.h"

/* A file that is mapped, and may be opened again. */
typedef struct checkpoint_file {
    const char *path;
    void *base;
    size_t bytes;
    uint64_t device, inode;
} checkpoint_file;

/* A box of a global tensor: its data in a file, and its place in a local tensor. The box has at
 * most CHECKPOINT_BUFFER_BYTES in the file's type. */
typedef struct fetch_part {
    const checkpoint_file *file;
    const DLTensor *data;     /* that has the box, in the file's mapping */
    const banyan_piece *from; /* piece of `data` with the box; NULL: `data` is the global tensor */
    const banyan_piece *to;   /* piece of `local` with the box */
    const DLTensor *local;
    bool on_device; /* `local` */
    banyan_box box;
    uint64_t offset; /* of the box in the file */
    uint32_t map;    /* value map; 0: none. Types may differ with a map or a cast */
} fetch_part;

typedef ARRAY(fetch_part) fetch_parts;

/* Add a box, cut into parts. `part` has everything but the offset. */
banyan_status fetch_add(fetch_parts *parts, const fetch_part *part);

/* Fill the places of all parts. `thread_count` 0: one thread for each processor of this process, at
 * most 8. Progress counts bytes of destinations, and is reported by the calling thread.
 * `*bytes_read` grows by the bytes that are read. FORMAT for a file that has changed since it was
 * opened. */
banyan_status fetch_run(fetch_parts *parts, int thread_count, progress_state *progress,
                        _Atomic uint64_t *bytes_read);

/* Copy dense host memory to a tensor on a device. */
banyan_status fetch_upload(const DLTensor *to, const void *dense);

#endif
