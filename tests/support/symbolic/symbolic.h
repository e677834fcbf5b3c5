/* Executes a plan with symbols in place of data: the input chunks in a chunk, by rank, and the
 * order in which they were added.
 *
 * Thread blocks and port proxies take turns at random, and ranks lag behind for a while; several
 * runs, with messages of several sizes, follow each other without a barrier. Vector clocks record
 * which accesses happen before others, so that a race is found in every schedule, not just in an
 * unlucky one. (The idea is that of dynamic race detectors: Lamport 1978, Flanagan and Freund
 * 2009.) Relaxed signals and packets order, but publish nothing besides the packet itself. */
#ifndef TESTS_SUPPORT_SYMBOLIC_H
#define TESTS_SUPPORT_SYMBOLIC_H

#include "plan/plan.h"

typedef struct symbolic_options {
    int runs;
    int units;      /* most units of a chunk: iterations of a loop over one chunk */
    uint64_t seed;  /* of the schedule */
    bool same_bits; /* all ranks must have added in one order */
} symbolic_options;

/* True if every output chunk of every run equals plan_expected_of, contains no bytes that no
 * operation wrote, no two accesses race, and all thread blocks end. Otherwise `problem` describes
 * the fault. Not supported: thread-block groups and barriers, packets through ports. */
bool symbolic_play(const banyan_plan *plan, const symbolic_options *options, char *problem,
                   size_t problem_bytes);

#endif
