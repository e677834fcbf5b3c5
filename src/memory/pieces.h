/* Pieces of memory that both have an address in this process. */
#ifndef MEMORY_PIECES_H
#define MEMORY_PIECES_H

#include <banyan/memory.h>

/* Copy `count` pieces between their local places and `there` plus their offsets. `past_cache` as in
 * stream.h; the fence is included. */
void pieces_copy(char *there, const banyan_iovec *pieces, size_t count, bool write,
                 bool past_cache);

/* Does any of it lie on a device? Only then is the next to be called. */
bool pieces_touch_device(const char *there, const banyan_iovec *pieces, size_t count);
banyan_status pieces_copy_on_device(char *there, const banyan_iovec *pieces, size_t count,
                                    bool write);

#endif
