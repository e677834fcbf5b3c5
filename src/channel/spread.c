#include "channel/spread.h"

#include <string.h>

#include "memory/stream.h"

/* Stays in the first-level cache while it is copied repeatedly; a good size for streaming stores.
 */
#define BLOCK ((size_t)32 << 10)

static void spread_copy_block(char *to, const char *from, size_t bytes, spread_way way)
{
    if (to == from)
        return;
    if (way == SPREAD_PAST_CACHE)
        stream_past_cache(to, from, bytes);
    else if (way == SPREAD_INTO_CACHE)
        stream_into_cache(to, from, bytes);
    else
        stream_copy(to, from, bytes);
}

void spread_bytes(void *const *destinations, uint32_t count, const void *source, size_t bytes,
                  spread_way way)
{
    const char *from = source;
    size_t block = count > 1 ? BLOCK : bytes;
    for (size_t at = 0; at < bytes; at += block) {
        size_t some = bytes - at < block ? bytes - at : block;
        for (uint32_t i = 0; i < count; i++)
            spread_copy_block((char *)destinations[i] + at, from + at, some, way);
    }
    if (way == SPREAD_PAST_CACHE)
        stream_fence();
}
