/* Copy bytes to several places: switch channels in software, and puts to many peers. */
#ifndef CHANNEL_SPREAD_H
#define CHANNEL_SPREAD_H

#include <stddef.h>
#include <stdint.h>

typedef enum spread_way {
    SPREAD_PLAIN,
    SPREAD_PAST_CACHE, /* nobody reads the destinations soon */
    SPREAD_INTO_CACHE  /* readers follow, and the source is in no cache */
} spread_way;

/* Copy to each destination and read the source from memory once. A destination may be the source
 * itself, and is then left alone; otherwise destinations must not overlap with the source or each
 * other. All copies are ordered before this thread's next writes. */
void spread_bytes(void *const *destinations, uint32_t count, const void *source, size_t bytes,
                  spread_way way);

#endif
