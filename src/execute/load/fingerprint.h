/* Fingerprints of plans, for comparison. */
#ifndef EXECUTE_LOAD_FINGERPRINT_H
#define EXECUTE_LOAD_FINGERPRINT_H

#include "plan/plan.h"

/* Hash everything that a run depends on. Equal plans have equal fingerprints on all machines of
 * one byte order. Names and tags do not count. */
uint64_t plan_fingerprint(const banyan_plan *plan);

#endif
