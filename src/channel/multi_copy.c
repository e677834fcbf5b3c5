#include "channel/multi_copy.h"

#include <string.h>

#include "memory/stream.h"

/* Stays in the first-level cache while it is copied repeatedly; a good size for streaming stores.
 */
#define BLOCK ((size_t)32 << 10)

static void multi_copy_block(char *to, const char *from, size_t bytes, multi_copy_way way)
{
    if (to == from)
        return;
    if (way == MULTI_COPY_PAST_CACHE)
        stream_past_cache(to, from, bytes);
    else if (way == MULTI_COPY_INTO_CACHE)
        stream_into_cache(to, from, bytes);
    else
        stream_copy(to, from, bytes);
}

void multi_copy_bytes(void *const *destinations, uint32_t count, const void *source, size_t bytes,
                      multi_copy_way way)
{
    const char *from = source;
    size_t block = count > 1 ? BLOCK : bytes;
    for (size_t at = 0; at < bytes; at += block) {
        size_t some = bytes - at < block ? bytes - at : block;
        for (uint32_t i = 0; i < count; i++)
            multi_copy_block((char *)destinations[i] + at, from + at, some, way);
    }
    if (way == MULTI_COPY_PAST_CACHE)
        stream_fence();
}
