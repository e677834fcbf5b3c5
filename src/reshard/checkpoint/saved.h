/* A layout that ranks have saved: the index, and its files, opened. */
#ifndef RESHARD_CHECKPOINT_SAVED_H
#define RESHARD_CHECKPOINT_SAVED_H

#include <banyan/checkpoint.h>

#include "reshard/checkpoint/fetch.h"
#include "reshard/checkpoint/index.h"

typedef struct saved_model {
    char *index_path;
    checkpoint_index index;
    banyan_checkpoint **files; /* of the index */
    size_t *sources;           /* for each piece: the index of its local tensor in its file */
    size_t *piece_order;       /* by tensor */
    size_t *first_piece;       /* for each tensor, in that order; one more entry at the end */
} saved_model;

/* Open a saved folder. FORMAT when the index is malformed or contradicts the files; INVALID names a
 * box of a tensor that no file has. Close it in either case. */
banyan_status saved_model_open(const char *folder, saved_model *saved);
void saved_model_close(saved_model *saved);

/* Return the value map under which tensor `t` is kept; 0: none. */
uint32_t saved_model_map(const saved_model *saved, size_t t);

/* Add the parts that fill `part->box` of tensor `t`, without file and data, from the saved files.
 */
banyan_status saved_model_add_parts(const saved_model *saved, size_t t, const fetch_part *part,
                                    fetch_parts *parts);

/* Add the contents of one file to a layout. */
void saved_model_add_layout(const saved_model *saved, size_t file, banyan_layout *layout);

/* Open one safetensors file only, so that an index cannot lead to another index. */
banyan_status checkpoint_open_file(const char *path, banyan_checkpoint **checkpoint);

/* Return the file of a tensor of a checkpoint that is not a saved folder. */
const checkpoint_file *checkpoint_file_of(const banyan_checkpoint *checkpoint, size_t i);
/* Return the count of the bytes that loads have read. */
_Atomic uint64_t *checkpoint_bytes_read(const banyan_checkpoint *checkpoint);

/* Return NULL if each tensor is contiguous. */
const saved_model *checkpoint_saved(const banyan_checkpoint *checkpoint);

#endif
