/* Plans over several nodes. */
#ifndef EXECUTE_LOAD_NODES_H
#define EXECUTE_LOAD_NODES_H

#include "execute/executor.h"
#include "plan/plan.h"

/* Check that the plan's channels can join their ranks. UNSUPPORTED: a memory or switch channel
 * joins ranks of different nodes, or the transport does not reach the peer of a port channel. */
banyan_status nodes_check(const banyan_executor *executor, const banyan_plan *plan);

#endif
