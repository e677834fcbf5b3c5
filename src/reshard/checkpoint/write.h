/* safetensors files that are complete and on the disk, but have no name yet. */
#ifndef RESHARD_CHECKPOINT_WRITE_H
#define RESHARD_CHECKPOINT_WRITE_H

#include <banyan/checkpoint.h>

#include "core/files/new_file.h"
#include "reshard/checkpoint/safetensors.h"

/* Progress of long work, as reported to the caller. */
typedef struct progress_state {
    const banyan_checkpoint_options *options;
    uint64_t done, total;
} progress_state;

void progress_add(progress_state *progress, uint64_t bytes);

/* Merge the caller's options with the defaults. */
/* INVALID: their size is not set. */
banyan_status checkpoint_options_take(const banyan_checkpoint_options *options,
                                      banyan_checkpoint_options *taken);

/* Write a file without a name, with these tensors, to the file system of `folder`. `what` is for
 * errors. */
banyan_status checkpoint_write_tensors(const char *folder, const char *what,
                                       const char *const *tensor_names, const DLTensor *tensors,
                                       size_t count, progress_state *progress, new_file *file);

/* Size of the buffers that data passes through. */
#define CHECKPOINT_BUFFER_BYTES ((size_t)8 << 20)

#endif
