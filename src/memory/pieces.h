/* Copies between pieces of memory that are both addressable in this process. */
#ifndef MEMORY_PIECES_H
#define MEMORY_PIECES_H

#include <banyan/memory.h>

/* Copy `count` pieces between their local addresses and `there` plus their offsets. `past_cache` as
 * in stream.h; includes the fence. */
void pieces_copy(char *there, const banyan_iovec *pieces, size_t count, bool write,
                 bool past_cache);

/* True if any of the pieces is on a device. Call the next function only then. */
bool pieces_touch_device(const char *there, const banyan_iovec *pieces, size_t count);
banyan_status pieces_copy_on_device(char *there, const banyan_iovec *pieces, size_t count,
                                    bool write);

/* A position in a list of pieces, for walks that cut the pieces differently. */
typedef struct cursor {
    const banyan_iovec *pieces;
    size_t count, index;
    size_t done; /* bytes of the current piece */
} cursor;

/* Advance by `bytes`, and past empty pieces. */
static inline void cursor_advance(cursor *at, size_t bytes)
{
    while (at->index < at->count && bytes >= at->pieces[at->index].bytes - at->done) {
        bytes -= at->pieces[at->index].bytes - at->done;
        at->index++;
        at->done = 0;
    }
    at->done += bytes;
}

static inline cursor cursor_at_start(const banyan_iovec *pieces, size_t count)
{
    cursor at = {.pieces = pieces, .count = count};
    cursor_advance(&at, 0);
    return at;
}

static inline bool cursor_at_end(const cursor *at)
{
    return at->index == at->count;
}

/* Return the rest of the current piece, at most `most` bytes, as a piece. */
static inline banyan_iovec cursor_piece(const cursor *at, size_t most)
{
    const banyan_iovec *piece = &at->pieces[at->index];
    size_t left = piece->bytes - at->done;
    return (banyan_iovec){
        .offset = piece->offset + at->done,
        .local = (char *)piece->local + at->done,
        .bytes = left < most ? left : most,
    };
}

#endif
