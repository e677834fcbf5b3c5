/* Macros that handle a returned status. They use only the public API, so modules can use them too.
 */
#ifndef CORE_STATUS_H
#define CORE_STATUS_H

#include <stdio.h>

#include <banyan/core.h>

/* Return the status of a failed call at once. For functions with nothing to undo. */
#define RETURN_IF_FAILED(call)                                                                     \
    do {                                                                                           \
        banyan_status return_status_ = (call);                                                     \
        if (return_status_ != BANYAN_OK)                                                           \
            return return_status_;                                                                 \
    } while (0)

/* A saved status and message: later calls may overwrite the last error. */
typedef struct error_kept {
    banyan_status status;
    char message[2048];
} error_kept;

static inline error_kept error_keep(banyan_status status)
{
    error_kept kept = {.status = status};
    if (status != BANYAN_OK)
        snprintf(kept.message, sizeof kept.message, "%s", banyan_last_error());
    return kept;
}

/* Set the saved error again and return it (`return error_again(&kept)`); BANYAN_OK when none was
 * saved. */
static inline banyan_status error_again(const error_kept *kept)
{
    return kept->status == BANYAN_OK ? BANYAN_OK
                                     : banyan_error_set(kept->status, "%s", kept->message);
}

#endif
