/* What the ranks of a layout have saved: the index, and the files that it names, opened. */
#ifndef RESHARD_CHECKPOINT_SAVED_H
#define RESHARD_CHECKPOINT_SAVED_H

#include <banyan/checkpoint.h>

#include "reshard/checkpoint/index.h"

typedef struct saved_model {
    char *index_path;
    checkpoint_index index;
    banyan_checkpoint **files; /* of the index */
    size_t *sources;           /* of each piece: its local tensor in its file */
    size_t *piece_order;       /* by tensor */
    size_t *first_piece;       /* of each tensor, in that order; one more at the end */
} saved_model;

/* FORMAT when the index is malformed or contradicts the files; INVALID names a box of a tensor that
 * no file has. Close it in either case. */
banyan_status saved_model_open(const char *folder, saved_model *saved);
void saved_model_close(saved_model *saved);

/* The value map under which tensor `t` is kept; 0: none. */
uint32_t saved_model_map(const saved_model *saved, size_t t);

/* Copy the box of `piece`, which is one of tensor `t`, to its place in `local`. */
banyan_status saved_model_copy(const saved_model *saved, size_t t, const banyan_piece *piece,
                               const DLTensor *local);

/* Add what one file holds to a layout. */
void saved_model_add_layout(const saved_model *saved, size_t file, banyan_layout *layout);

#endif
