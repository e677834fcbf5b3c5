/* safetensors files that are complete and on the disk, but have no name yet. */
#ifndef RESHARD_CHECKPOINT_WRITE_H
#define RESHARD_CHECKPOINT_WRITE_H

#include <banyan/checkpoint.h>

#include "core/files/new_file.h"
#include "reshard/checkpoint/safetensors.h"

/* What the caller hears of long work. */
typedef struct progress_state {
    const banyan_checkpoint_options *options;
    uint64_t done, total;
} progress_state;

void progress_add(progress_state *progress, uint64_t bytes);

/* The caller's options over the defaults. */
/* INVALID: their size is not set. */
banyan_status checkpoint_options_take(const banyan_checkpoint_options *options,
                                      banyan_checkpoint_options *taken);

/* Make a file in the file system of `folder` with these tensors in it. `what` is for errors. */
banyan_status checkpoint_write_tensors(const char *folder, const char *what,
                                       const char *const *tensor_names, const DLTensor *tensors,
                                       size_t count, progress_state *progress, new_file *file);

/* Buffers that data passes through. */
#define CHECKPOINT_BUFFER_BYTES ((size_t)8 << 20)

#endif
