/* Plays a plan with symbols in place of data: which ranks' input chunks have gone into a chunk, and
 * in which order they were added.
 *
 * Thread blocks and port proxies take turns at random, and ranks lag behind for a while; several
 * runs, of messages of several sizes, follow each other without a barrier. Who may have seen what
 * is kept in vector clocks, so that a write or read that nothing orders is found in every schedule,
 * not just in an unlucky one. (The idea is that of dynamic race detectors: Lamport 1978, Flanagan
 * and Freund 2009.) Relaxed signals and packets order, but publish nothing besides the packet
 * itself. */
#ifndef TESTS_SUPPORT_SYMBOLIC_H
#define TESTS_SUPPORT_SYMBOLIC_H

#include "plan/plan.h"

typedef struct symbolic_options {
    int runs;
    int units;      /* of a chunk, at most: iterations of a loop over one chunk */
    uint64_t seed;  /* of the schedule */
    bool same_bits; /* all ranks must have added up in the same order */
} symbolic_options;

/* True when every output chunk of every run is what plan_expected_of says, nothing comes into it
 * that nobody wrote, no two accesses race, and all thread blocks end. Otherwise says what is wrong.
 * Not played: thread-block groups and barriers, packets through ports. */
bool symbolic_play(const banyan_plan *plan, const symbolic_options *options, char *problem,
                   size_t problem_bytes);

#endif
