/* Text that grows. */
#ifndef CORE_TEXT_TEXT_H
#define CORE_TEXT_TEXT_H

#include "core/containers/bytes.h"

/* Append; like every write, what fails (no memory) sticks in `failed`. */
void text_add(bytes_writer *text, const char *more);
void text_print(bytes_writer *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Give the text, ended by a NUL and to be freed with free(), to the caller; `bytes` (or NULL)
 * counts it without the NUL. NO_MEMORY when a write failed. Either way the writer is empty
 * afterwards. */
banyan_status text_finish(bytes_writer *text, char **finished, size_t *bytes);

#endif
