/* Options from callers: structs that begin with their size, so that they can grow. */
#ifndef CORE_OPTIONS_H
#define CORE_OPTIONS_H

#include <banyan/core.h>

/* Over the defaults in `taken`, of `bytes`. Callers that were built with an older, shorter struct
 * leave the rest as it is; `given` NULL leaves all. INVALID for size 0: `init` is the macro that
 * sets it. */
banyan_status options_take(const void *given, const char *init, void *taken, size_t bytes);

/* The member at `offset` of a caller's options; 0 where they are NULL or end before it. */
uint64_t options_read_u64(const void *given, size_t offset);

#endif
