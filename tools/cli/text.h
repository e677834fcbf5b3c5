/* Numbers and sizes as people write and read them. */
#ifndef TOOLS_TEXT_H
#define TOOLS_TEXT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

#define TEXT_NUMBER_BYTES 32

/* "1.11 GiB", "512 B" */
const char *text_bytes(uint64_t bytes, char text[TEXT_NUMBER_BYTES]);
/* "36,945" */
const char *text_count(uint64_t count, char text[TEXT_NUMBER_BYTES]);
/* "0.123 s", "4.56 ms", "789 µs" */
const char *text_seconds(double seconds, char text[TEXT_NUMBER_BYTES]);

/* Return the columns of a text on a terminal; printf's widths count bytes. */
int text_columns(const char *text);

/* Pad the text on the left to `columns`. */
const char *text_right(const char *text, int columns, char padded[TEXT_NUMBER_BYTES]);

/* Print "<who>: <message>" on stderr, with control characters escaped. */
void text_print_error(const char *who, const char *format, va_list args);

/* Print "<who>: <the last error>" on stderr; returns 1. */
int text_fail(const char *who);

/* More than any memory. */
#define SIZES_MOST (UINT64_C(1) << 50)

/* Parse a number of bytes, such as "1000" or "64K"; K, M and G are powers of 1024. False for
 * anything else, and for more than SIZES_MOST. */
bool sizes_parse(const char *text, uint64_t *bytes);

/* Parse "LOW:HIGH" or one size. False when either is malformed, or LOW is 0 or above HIGH. */
bool sizes_parse_range(const char *text, uint64_t *low, uint64_t *high);

#endif
