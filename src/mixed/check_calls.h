/* BANYAN_CHECK_CALLS=1: every call is compared before anything moves. */
#ifndef MIXED_CHECK_CALLS_H
#define MIXED_CHECK_CALLS_H

#include "mixed/mixed.h"

/* Are calls to be compared? Rank 0's environment says it. Collective. */
banyan_status check_calls_begin(banyan_mixed *mixed);

/* Do all ranks make this call? `checked` is what each has found of its own arguments, of which all
 * hear. MISMATCH says what differs. Collective. */
banyan_status check_call_of_all(banyan_mixed *mixed, const mixed_call *mine, banyan_status checked);

#endif
