/* Timing one call in batches, which may take turns with those of other calls: what else a machine
 * does in a moment then slows all of them. */
#ifndef MIXED_TUNING_MEASURE_H
#define MIXED_TUNING_MEASURE_H

#include "mixed/mixed.h"

/* What is measured is set by who begins it; the tensors stay. */
typedef struct measurement {
    banyan_mixed *mixed;
    banyan_mixed_op op;
    banyan_mixed_mode mode;
    const DLTensor *input, *output;
    uint32_t times;    /* calls a batch */
    int batches;       /* that are worth their time */
    uint64_t least_ns; /* of a call, on the slowest rank, in the fastest batch so far */
} measurement;

/* Check the call, open what it needs, and find out how many make a batch. Collective. */
banyan_status measure_begin(measurement *of);
banyan_status measure_batch(measurement *of);

#endif
