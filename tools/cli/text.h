/* Numbers formatted for people. */
#ifndef TOOLS_TEXT_H
#define TOOLS_TEXT_H

#include <stddef.h>
#include <stdint.h>

#define TEXT_NUMBER_BYTES 32

/* "1.11 GiB", "512 B" */
const char *text_bytes(uint64_t bytes, char text[TEXT_NUMBER_BYTES]);
/* "36,945" */
const char *text_count(uint64_t count, char text[TEXT_NUMBER_BYTES]);
/* "0.123 s", "4.56 ms", "789 µs" */
const char *text_seconds(double seconds, char text[TEXT_NUMBER_BYTES]);

/* Pad the text on the left to `columns` on a terminal; printf counts bytes. */
const char *text_right(const char *text, int columns, char padded[TEXT_NUMBER_BYTES]);

#endif
