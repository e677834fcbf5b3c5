/* Text that grows. */
#ifndef CORE_TEXT_TEXT_H
#define CORE_TEXT_TEXT_H

#include "core/containers.h"

/* Append text. A failure (out of memory) stays in the writer's `failed`. */
void text_add(bytes_writer *text, const char *more);
void text_print(bytes_writer *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Hand over the text, ended by a NUL; you free it with free(). `bytes` (or NULL) counts without the
 * NUL. NO_MEMORY when a write failed. The writer is empty afterwards in both cases. */
banyan_status text_finish(bytes_writer *text, char **finished, size_t *bytes);

#endif
