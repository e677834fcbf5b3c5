/* Requests: work on its own thread. */
#ifndef CORE_REQUEST_H
#define CORE_REQUEST_H

#include <banyan/core.h>

/* Run `work(context)` on its own thread. The waiter gets its status and its message. */
banyan_status request_start(banyan_status (*work)(void *context), void *context,
                            banyan_request **request);

#endif
