/* Plans of which every thread block does the same. */
#ifndef EXECUTE_ALIKE_H
#define EXECUTE_ALIKE_H

#include "plan/plan.h"

/* Do all thread blocks of all ranks have the same operations in the same order, but for where their
 * operands lie and whom their channels lead to? Then ranks may go through them in step. What they
 * put, and signal, through port channels they do in the same order of channels, too. */
bool plan_is_alike(const banyan_plan *plan);

#endif
