/* Connect to a listening world for as long as the caller wants to. */
#ifndef WORLD_CONNECT_CONNECT_H
#define WORLD_CONNECT_CONNECT_H

#include <banyan/connect.h>

/* As banyan_world_connect, and end with TIMEOUT soon after rank 0's `is_over` returns true, which is
 * asked ten times a second. A world that is accepted just before has time to open. Long waits are not
 * logged. */
banyan_status connect_until_over(banyan_world *world, const char *address, const char *secret,
                                 const banyan_connect_options *options,
                                 bool (*is_over)(void *context), void *context,
                                 banyan_world **joined);

#endif
