/* Inputs of `banyan run`, and the outputs that they must give. */
#ifndef TOOLS_RUN_DATA_H
#define TOOLS_RUN_DATA_H

#include <banyan/plan.h>

/* Every element is a value of its rank, its place and the turn, chosen so that its reductions are
 * exact in any order: integers of all values, which wrap around; floats that are small whole
 * numbers; any bits where elements are only moved. */
typedef struct run_data {
    DLDataType dtype;
    size_t elem_bytes;
    banyan_reduce_op op;
    bool said;    /* the plan defines its outputs */
    bool bits;    /* nothing is reduced */
    int64_t most; /* of a float's size */
    /* This many ranks have values in a turn, the others zeros: as many as can be added exactly. */
    int ranks, active;
} run_data;

/* INVALID: sums of the plan cannot be exact in this type. */
banyan_status run_data_make(const banyan_plan *plan, DLDataType dtype, run_data *made);

void run_data_fill(const run_data *data, int rank, unsigned turn, void *input, uint64_t elems);

typedef struct run_wrong {
    uint64_t count;
    uint64_t first, expected, found; /* the first one's index, and the bits of both */
} run_wrong;

/* Compare the parts of an output that the plan defines; adds to `wrong` and to `*checked`. */
void run_data_check(const run_data *data, unsigned turn, const banyan_plan_result *parts,
                    size_t count, const void *output, run_wrong *wrong, uint64_t *checked);

/* Format an element: "-3", "0.5", "0x1f2e". */
#define RUN_DATA_TEXT_BYTES 48
const char *run_data_text(const run_data *data, uint64_t bits, char text[RUN_DATA_TEXT_BYTES]);

#endif
