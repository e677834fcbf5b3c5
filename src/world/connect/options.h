/* Options of connections, and the frame of a call that rank 0 leads. */
#ifndef WORLD_CONNECT_OPTIONS_H
#define WORLD_CONNECT_OPTIONS_H

#include <banyan/connect.h>

#include "core/error.h"
#include "world/connect/message.h"
#include "world/control.h"

/* Take the options of a call (NULL: the defaults), with a timeout of joined worlds in place of 0.
 */
static inline banyan_status connect_take_options(const banyan_world *world,
                                                 const banyan_connect_options *given,
                                                 banyan_connect_options *taken)
{
    *taken = (banyan_connect_options)BANYAN_CONNECT_OPTIONS_INIT;
    RETURN_IF_FAILED(options_take(given, "BANYAN_CONNECT_OPTIONS_INIT", taken, sizeof *taken));
    taken->name = taken->name ? taken->name : "";
    if (strlen(taken->name) >= CONNECT_NAME_BYTES)
        return error_set(BANYAN_ERR_INVALID, "the name of a connection has %zu bytes, %d at most",
                         strlen(taken->name), CONNECT_NAME_BYTES - 1);
    if (taken->timeout_ns == 0)
        taken->timeout_ns = banyan_world_timeout_ns(world);
    if (taken->timeout_ns > BANYAN_FOREVER_NS)
        taken->timeout_ns = BANYAN_FOREVER_NS;
    return BANYAN_OK;
}

#endif
