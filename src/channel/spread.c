#include "channel/spread.h"

#include <string.h>

#include "memory/stream.h"

/* Stays in the first-level cache while it is copied again and again; what streaming likes best. */
#define BLOCK ((size_t)32 << 10)

static void copy_block(char *to, const char *from, size_t bytes, bool stream)
{
    if (to == from)
        return;
    if (stream)
        stream_past_cache(to, from, bytes);
    else
        memcpy(to, from, bytes);
}

void spread_bytes(void *const *destinations, uint32_t count, const void *source, size_t bytes,
                  bool past_cache)
{
    const char *from = source;
    size_t block = count > 1 ? BLOCK : bytes;
    for (size_t at = 0; at < bytes; at += block) {
        size_t some = bytes - at < block ? bytes - at : block;
        for (uint32_t i = 0; i < count; i++)
            copy_block((char *)destinations[i] + at, from + at, some, past_cache);
    }
    if (past_cache)
        stream_fence();
}
