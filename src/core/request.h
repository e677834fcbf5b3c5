/* Requests: work on a thread of its own. */
#ifndef CORE_REQUEST_H
#define CORE_REQUEST_H

#include <banyan/core.h>

/* Run `work(context)` on a thread of its own. Its sentence follows its status to the waiter. */
banyan_status request_start(banyan_status (*work)(void *context), void *context,
                            banyan_request **request);

#endif
