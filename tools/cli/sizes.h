/* Sizes as command lines write them: "1000", "64K", "1K:64M". */
#ifndef TOOLS_SIZES_H
#define TOOLS_SIZES_H

#include <stdbool.h>
#include <stdint.h>

/* More than any memory. */
#define SIZES_MOST (UINT64_C(1) << 50)

/* Parse a number of bytes; K, M and G are powers of 1024. False for anything else, and for more
 * than SIZES_MOST. */
bool sizes_parse(const char *text, uint64_t *bytes);

/* Parse "LOW:HIGH" or one size. False when either is malformed, or LOW is 0 or above HIGH. */
bool sizes_parse_range(const char *text, uint64_t *low, uint64_t *high);

#endif
