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

#endif
