/* Times one call in batches, which may alternate with those of other calls, so that temporary load
 * slows all of them. */
#ifndef MIXED_TUNING_MEASURE_H
#define MIXED_TUNING_MEASURE_H

#include "mixed/mixed.h"

/* The caller sets the first fields; the tensors must remain valid. */
typedef struct measurement {
    banyan_mixed *mixed;
    banyan_mixed_op op;
    banyan_mixed_mode mode;
    const DLTensor *input, *output;
    uint32_t times;    /* calls in a batch */
    int batches;       /* batches that are worth their time */
    uint64_t least_ns; /* per call, on the slowest rank, in the fastest batch so far */
} measurement;

/* Check the call, open everything it needs, and determine the number of calls in a batch.
 * Collective. */
banyan_status measure_begin(measurement *of);
banyan_status measure_batch(measurement *of);

#endif
