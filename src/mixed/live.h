/* The open contexts of this process, so that closing one twice is an error. */
#ifndef MIXED_LIVE_H
#define MIXED_LIVE_H

#include <banyan/mixed.h>

/* False, with the error set, if out of memory. Any thread. */
bool live_add(const banyan_mixed *mixed);
/* False: the context is not open. The pointer is not dereferenced. Any thread. */
bool live_remove(const banyan_mixed *mixed);

#endif
