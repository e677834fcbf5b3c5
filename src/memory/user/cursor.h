/* Where a walk over pieces stands, for those that cut them anew. */
#ifndef MEMORY_USER_CURSOR_H
#define MEMORY_USER_CURSOR_H

#include <banyan/memory.h>

typedef struct cursor {
    const banyan_iovec *pieces;
    size_t count, index;
    size_t done; /* bytes of the current piece */
} cursor;

/* Go on by `bytes`, and past pieces of no bytes. */
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

/* What is left of the current piece, `most` bytes at most, as a piece of its own. */
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
