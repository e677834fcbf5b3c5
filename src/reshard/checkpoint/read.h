/* Internals of checkpoints. */
#ifndef RESHARD_CHECKPOINT_READ_H
#define RESHARD_CHECKPOINT_READ_H

#include <banyan/checkpoint.h>

#include "reshard/checkpoint/saved.h"

/* Open one safetensors file only, so that an index cannot lead to another index. */
banyan_status checkpoint_open_file(const char *path, banyan_checkpoint **checkpoint);

/* Return NULL if each tensor is contiguous. */
const saved_model *checkpoint_saved(const banyan_checkpoint *checkpoint);

#endif
