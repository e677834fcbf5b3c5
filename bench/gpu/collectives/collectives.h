/* Banyan's collectives beside NCCL's and a kernel by hand, in the same processes, in CUDA graphs,
 * taking turns. Sizes are bytes of the longer buffer, as nccl-tests count them. */
#ifndef BENCH_COLLECTIVES_H
#define BENCH_COLLECTIVES_H

#include <stdio.h>

#include "common/gpu.h"

/* All-reduce, all-gather, reduce-scatter, all-to-all. */
#define COLLECTIVES 4

/* Print a line per size; into `json`, an object's members, each behind a comma: NCCL's version and
 * the rows. False when two results differ. Collective. */
bool collectives_measure(const gpu *on, uint64_t least, uint64_t most,
                         const bool wanted[COLLECTIVES], FILE *json);

#endif
