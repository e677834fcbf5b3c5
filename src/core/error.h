/* Set the last error's message, and check arguments of public calls. */
#ifndef CORE_ERROR_H
#define CORE_ERROR_H

#include <banyan/core.h>

#include "core/status.h"

/* `return error_set(BANYAN_ERR_INVALID, "rank %d …", …)`. */
#define error_set banyan_error_set

/* Set BANYAN_ERR_SYSTEM with ": <errno's text>" appended. Reads errno before it calls anything. */
banyan_status error_set_errno(const char *format, ...) __attribute__((format(printf, 1, 2), cold));

banyan_status error_no_memory(size_t bytes, const char *what) __attribute__((cold));

/* Return NO_MEMORY if an allocation, which has set the message, gave NULL or false. */
#define RETURN_IF_NO_MEMORY(allocated)                                                             \
    do {                                                                                           \
        if (!(allocated))                                                                          \
            return BANYAN_ERR_NO_MEMORY;                                                           \
    } while (0)

/* Set INVALID: "banyan_comm_create: comm is NULL". */
banyan_status error_null(const char *call, const char *argument) __attribute__((cold));

/* Return an error from a public function if this argument is NULL; the message names it. */
#define RETURN_IF_NULL(argument)                                                                   \
    do {                                                                                           \
        if (!(argument))                                                                           \
            return error_null(__func__, #argument);                                                \
    } while (0)

/* Take an options struct, which begins with its size so that it can grow: copy the caller's over
 * the defaults in `taken`, of `bytes`. Callers built with an older, shorter struct leave the
 * remaining members unchanged; `given` NULL leaves all. INVALID for size 0, with `init`, the macro
 * that sets the size. */
banyan_status options_take(const void *given, const char *init, void *taken, size_t bytes);

/* Return the member at `offset` of a caller's options; 0 if they are NULL or end before it. */
uint64_t options_read_u64(const void *given, size_t offset);

/* Refuse a stream on the host, where there are none. */
static inline banyan_status stream_check_none(const void *stream, int rank, const char *what)
{
    if (!stream)
        return BANYAN_OK;
    return error_set(BANYAN_ERR_INVALID, "rank %d: %s on the host takes no stream, and got %p",
                     rank, what, stream);
}

#endif
