/* Checks that a plan alone does not allow, but a run of it does: where its tensors lie. */
#ifndef RESHARD_VERIFY_RUN_H
#define RESHARD_VERIFY_RUN_H

#include "copy/strided/strided.h"
#include "reshard/run/execute.h"

/* INVALID, naming tensors, boxes and addresses, when this rank's run writes memory that it also
 * reads as a source: nothing orders the two. A tensor that a local copy finds in its place already
 * is not written; a transform is responsible for the memory that it takes over. Without shared
 * memory n log n in the local tensors. Call it when the ends have their views. */
banyan_status check_run_overlaps(const execution *run);

/* INVALID when a wave takes more staging memory than the bound. Call it when ends are assigned to
 * waves. */
banyan_status check_run_staging(const execution *run);

/* True if the views share a byte. Exact for any strides. */
bool check_views_overlap(const strided_view *a, const strided_view *b);

#endif
