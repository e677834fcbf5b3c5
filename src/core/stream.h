/* Stream arguments of public calls. */
#ifndef CORE_STREAM_H
#define CORE_STREAM_H

#include "core/error.h"

/* Refuse a stream on the host, where there are none. */
static inline banyan_status stream_check_none(const void *stream, int rank, const char *what)
{
    if (!stream)
        return BANYAN_OK;
    return error_set(BANYAN_ERR_INVALID, "rank %d: %s on the host takes no stream, and got %p",
                     rank, what, stream);
}

#endif
