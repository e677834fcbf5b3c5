/* Escape text from files and peers, so that it cannot control a terminal.
 *
 * This file depends on nothing else of Banyan: the library and the command line are both built with
 * it. */
#ifndef CORE_TEXT_ESCAPE_H
#define CORE_TEXT_ESCAPE_H

#include <stddef.h>

/* Escaped text is at most this many times as long. */
#define ESCAPE_GROWTH 4

/* Copy text and replace its control characters, line ends included, by \xNN. The result is
 * truncated to `bytes`, NUL included, never inside an escape sequence. Returns `escaped`. Escaping
 * a second time changes nothing. */
const char *escape_controls(const char *text, char *escaped, size_t bytes);

#endif
