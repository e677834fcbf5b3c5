/* Proofs of the plans that tests make: with an unsound plan, a test could not distinguish the
 * executor's faults from its own. */
#ifndef TESTS_SUPPORT_PROOF_H
#define TESTS_SUPPORT_PROOF_H

#include <banyan/check.h>

/* True if the plan is sound, in all its size classes and for any number of runs. */
bool proof_holds(const banyan_plan *plan);

/* Fail with the checker's findings, unless the proof holds and nothing was left undecided. The
 * message calls the plan `name`. */
void proof_demand(const banyan_plan *plan, const char *name);

#endif
