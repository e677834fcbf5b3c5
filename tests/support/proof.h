/* Proofs of the plans that tests make: a test that runs a plan which is not sound cannot tell a
 * mistake of the executor from its own. */
#ifndef TESTS_SUPPORT_PROOF_H
#define TESTS_SUPPORT_PROOF_H

#include <banyan/check.h>

/* Is the plan sound, in all its size classes and for any number of runs? */
bool proof_holds(const banyan_plan *plan);

/* Fails with what the checker found, unless it holds and nothing was left undecided. The sentence
 * calls the plan `name`. */
void proof_demand(const banyan_plan *plan, const char *name);

#endif
