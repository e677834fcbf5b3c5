/* Copy bytes to several places: switch channels in software, and puts to many peers. */
#ifndef CHANNEL_MULTI_COPY_H
#define CHANNEL_MULTI_COPY_H

#include <stddef.h>
#include <stdint.h>

typedef enum multi_copy_way {
    MULTI_COPY_PLAIN,
    MULTI_COPY_PAST_CACHE, /* nobody reads the destinations soon */
    MULTI_COPY_INTO_CACHE  /* readers follow, and the source is in no cache */
} multi_copy_way;

/* Copy to each destination and read the source from memory once. A destination may be the source
 * itself, and is then left alone; otherwise destinations must not overlap with the source or each
 * other. All copies are ordered before this thread's next writes. */
void multi_copy_bytes(void *const *destinations, uint32_t count, const void *source, size_t bytes,
                      multi_copy_way way);

#endif
