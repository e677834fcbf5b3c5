/* What a plan cannot say of itself, and a run of it can: where its tensors lie. */
#ifndef RESHARD_VERIFY_RUN_H
#define RESHARD_VERIFY_RUN_H

#include "reshard/run/execute.h"

/* INVALID, naming tensors, boxes and addresses, when memory that this run of this rank writes is
 * also read by it as a source: nothing orders the two. A tensor that a local copy finds in its
 * place already is not written; what a transform takes over is left to it. Without shared memory n
 * log n in the local tensors. After the ends have their views. */
banyan_status check_run_overlaps(const execution *run);

/* INVALID when a wave takes more staging memory than the bound. After waves are dealt. */
banyan_status check_run_staging(const execution *run);

#endif
