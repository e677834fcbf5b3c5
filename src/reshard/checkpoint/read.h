/* Checkpoints inside Banyan. */
#ifndef RESHARD_CHECKPOINT_READ_H
#define RESHARD_CHECKPOINT_READ_H

#include <banyan/checkpoint.h>

#include "reshard/checkpoint/saved.h"

/* One safetensors file, and nothing else: what an index names cannot lead to another index. */
banyan_status checkpoint_open_file(const char *path, banyan_checkpoint **checkpoint);

/* NULL for tensors that lie in one piece each. */
const saved_model *checkpoint_saved(const banyan_checkpoint *checkpoint);

#endif
