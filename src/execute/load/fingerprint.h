/* Telling plans apart. */
#ifndef EXECUTE_LOAD_FINGERPRINT_H
#define EXECUTE_LOAD_FINGERPRINT_H

#include "plan/plan.h"

/* Of everything that a run follows: equal for equal plans, on every machine of the same byte order.
 * Names and tags do not count. */
uint64_t plan_fingerprint(const banyan_plan *plan);

#endif
