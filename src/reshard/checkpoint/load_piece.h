/* Pieces of a layout that a checkpoint fills. */
#ifndef RESHARD_CHECKPOINT_LOAD_PIECE_H
#define RESHARD_CHECKPOINT_LOAD_PIECE_H

#include "reshard/checkpoint/fetch.h"

/* Return the name of the tensor that fills a piece: its own, or its fallback. */
const char *load_piece_name(const banyan_checkpoint *checkpoint, const banyan_piece *piece);

/* Check a piece, and add the parts of files that fill it. Types may differ by a cast (NULL: they
 * may not). NOT_FOUND, or MISMATCH with both shapes or types. */
banyan_status load_piece_add(const banyan_checkpoint *checkpoint, const banyan_piece *piece,
                             const DLTensor *local, bool on_device,
                             const banyan_transform *transform, fetch_parts *parts);

/* Check a piece, and find out if a transform other than a cast fills it. */
banyan_status load_piece_is_transformed(const banyan_checkpoint *checkpoint,
                                        const banyan_piece *piece, const DLTensor *local,
                                        const banyan_transform *transform, bool *is_transformed);

/* Fill such a piece in host memory, through a copy of it in the checkpoint's type. Without `moves`,
 * only ask the transform if it can. */
banyan_status load_piece_transform(const banyan_checkpoint *checkpoint, const banyan_piece *piece,
                                   const DLTensor *local, const char *local_name,
                                   const banyan_transform *transform, bool moves, int thread_count);

#endif
