/* BANYAN_CHECK_CALLS=1: compare every call on all ranks before anything moves. */
#ifndef MIXED_CHECK_CALLS_H
#define MIXED_CHECK_CALLS_H

#include "mixed/mixed.h"

/* Determine whether calls are compared, from rank 0's environment. Collective. */
banyan_status check_calls_begin(banyan_mixed *mixed);

/* Check that all ranks make this call. `checked` is the result of a rank's check of its own
 * arguments; all ranks receive its error. MISMATCH, with the difference in the message.
 * Collective. */
banyan_status check_call_of_all(banyan_mixed *mixed, const mixed_call *mine, banyan_status checked);

#endif
