/* The tensors of a destination lie apart in memory. */
#ifndef RESHARD_VERIFY_APART_H
#define RESHARD_VERIFY_APART_H

#include <banyan/reshard.h>

/* INVALID, naming tensors, boxes and addresses, when two tensors of a destination share memory, and
 * a run would fill it twice. Tied tensors may: both hold the same box of the same global tensor, in
 * one place. `filling`: the global tensor that fills each piece of the layout, by its own name or
 * its fallback; NULL: the piece is not filled. Without shared memory n log n in the local tensors.
 */
banyan_status check_tensors_apart(const banyan_layout *layout, const banyan_tensors *set,
                                  const char *const *filling);

#endif
