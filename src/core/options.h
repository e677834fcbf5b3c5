/* Options structs of public calls: they begin with their size, so that they can grow. */
#ifndef CORE_OPTIONS_H
#define CORE_OPTIONS_H

#include <banyan/core.h>

/* Copy the caller's options over the defaults in `taken`, of `bytes`. Callers built with an older,
 * shorter struct leave the remaining members unchanged; `given` NULL leaves all. INVALID for size
 * 0, with `init`, the macro that sets the size. */
banyan_status options_take(const void *given, const char *init, void *taken, size_t bytes);

/* Return the member at `offset` of a caller's options; 0 if they are NULL or end before it. */
uint64_t options_read_u64(const void *given, size_t offset);

#endif
