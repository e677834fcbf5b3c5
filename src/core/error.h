/* Set the last error's message. */
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

#endif
