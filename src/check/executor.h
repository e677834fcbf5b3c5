/* Faults that a plan has on another executor, whatever the message. */
#ifndef CHECK_EXECUTOR_H
#define CHECK_EXECUTOR_H

#include "check/findings.h"

/* Add a finding for each rule of MSCCL++'s executor that the plan violates. */
banyan_status executor_find_faults(const banyan_plan *plan, findings *found);

/* Append what the proof presumes of programs that run the plan there, each sentence after a space.
 */
void executor_describe_limits(const banyan_plan *plan, char *text, size_t bytes);

#endif
