/* Which contexts of this process are open, so that closing one twice is an error. */
#ifndef MIXED_LIVE_H
#define MIXED_LIVE_H

#include <banyan/mixed.h>

/* False, with the error set, when memory ran out. Any thread. */
bool live_add(const banyan_mixed *mixed);
/* False: it is none of them. It is not looked into. Any thread. */
bool live_remove(const banyan_mixed *mixed);

#endif
