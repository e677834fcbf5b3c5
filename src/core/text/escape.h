/* Text from files and peers that comes to a terminal, which it must not command.
 *
 * Nothing else of Banyan is needed: the library and its command line are both built with this. */
#ifndef CORE_TEXT_ESCAPE_H
#define CORE_TEXT_ESCAPE_H

#include <stddef.h>

/* Escaped text is at most so many times as long. */
#define ESCAPE_GROWTH 4

/* Copy text with its control characters, line ends among them, as \xNN. It is cut to `bytes` with
 * its NUL, between characters that were escaped. Returns `escaped`. Text that was escaped once
 * stays as it is. */
const char *escape_controls(const char *text, char *escaped, size_t bytes);

#endif
