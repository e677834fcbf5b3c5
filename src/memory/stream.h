/* Copy data, also more of it than the caches hold.
 *
 * Plain memcpy reads every destination line before it writes it, until a single call is larger than
 * most of the last-level cache. A transfer that consists of smaller calls knows that it will not
 * return to its destination soon. */
#ifndef MEMORY_STREAM_H
#define MEMORY_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* True if pieces of a transfer of `bytes` in total should bypass the caches. */
bool stream_is_worthwhile(size_t bytes);

/* stream_copy for more than STREAM_SHORT_BYTES. */
void stream_copy_long(void *destination, const void *source, size_t bytes);
#define STREAM_SHORT_BYTES 2048 /* glibc uses vectors up to here */

/* Copy like memcpy, equally fast for every alignment and length. */
static inline void stream_copy(void *destination, const void *source, size_t bytes)
{
    if (bytes > STREAM_SHORT_BYTES)
        stream_copy_long(destination, source, bytes);
    else if (bytes > 0)
        memcpy(destination, source, bytes);
}

/* Copy like memcpy, and leave the destination out of the caches. Only stream_fence orders these
 * stores: call it before you signal anyone. */
void stream_past_cache(void *destination, const void *source, size_t bytes);

/* Copy `rows` rows of `bytes` each, one pitch apart, past the caches. */
void stream_rows_past_cache(void *destination, ptrdiff_t destination_pitch, const void *source,
                            ptrdiff_t source_pitch, size_t rows, size_t bytes);

/* Copy like memcpy from uncached memory to a buffer that stays cached. */
void stream_into_cache(void *destination, const void *source, size_t bytes);

/* Copy rows into the cache. */
void stream_rows_into_cache(void *destination, ptrdiff_t destination_pitch, const void *source,
                            ptrdiff_t source_pitch, size_t rows, size_t bytes);

/* Order this thread's copies past the cache before its next writes. */
void stream_fence(void);

#endif
