#include "memory/pieces.h"

#include <string.h>

#include "memory/stream.h"

void pieces_copy(char *there, const banyan_iovec *pieces, size_t count, bool write, bool past_cache)
{
    for (size_t i = 0; i < count; i++) {
        char *remote = there + pieces[i].offset;
        char *to = write ? remote : pieces[i].local;
        const char *from = write ? pieces[i].local : remote;
        if (past_cache)
            stream_past_cache(to, from, pieces[i].bytes);
        else if (pieces[i].bytes > 0)
            memcpy(to, from, pieces[i].bytes);
    }
    if (past_cache)
        stream_fence();
}
