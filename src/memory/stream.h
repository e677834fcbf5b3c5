/* Copying data, and more of it than the caches hold.
 *
 * Plain memcpy reads every destination line before it writes it, until a single call is larger than
 * most of the last-level cache. A transfer that is cut into smaller calls knows better that it will
 * not come back to its destination soon. */
#ifndef MEMORY_STREAM_H
#define MEMORY_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Should pieces of a transfer of `bytes` in all go past the caches? */
bool stream_is_worthwhile(size_t bytes);

/* stream_copy of what is longer than STREAM_SHORT_BYTES. */
void stream_copy_long(void *destination, const void *source, size_t bytes);
#define STREAM_SHORT_BYTES 2048 /* glibc takes vectors */

/* memcpy of data, as fast wherever it lies and however long it is. */
static inline void stream_copy(void *destination, const void *source, size_t bytes)
{
    if (bytes > STREAM_SHORT_BYTES)
        stream_copy_long(destination, source, bytes);
    else if (bytes > 0)
        memcpy(destination, source, bytes);
}

/* memcpy whose destination is not wanted in a cache. Its stores are ordered only by stream_fence,
 * which must come before anybody is told. */
void stream_past_cache(void *destination, const void *source, size_t bytes);

/* The same for `rows` rows of `bytes` each, whose starts lie a pitch apart. */
void stream_rows_past_cache(void *destination, ptrdiff_t destination_pitch, const void *source,
                            ptrdiff_t source_pitch, size_t rows, size_t bytes);

/* memcpy from memory that is not in a cache to a buffer that stays in one. */
void stream_into_cache(void *destination, const void *source, size_t bytes);

/* The same for rows. */
void stream_rows_into_cache(void *destination, ptrdiff_t destination_pitch, const void *source,
                            ptrdiff_t source_pitch, size_t rows, size_t bytes);

/* All stream_past_cache of this thread come before what it writes next. */
void stream_fence(void);

#endif
