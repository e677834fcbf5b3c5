/* The same bytes to several places: switch channels by software, and puts to many peers. */
#ifndef CHANNEL_SPREAD_H
#define CHANNEL_SPREAD_H

#include <stddef.h>
#include <stdint.h>

typedef enum spread_way {
    SPREAD_PLAIN,
    SPREAD_PAST_CACHE, /* nobody reads the destinations soon */
    SPREAD_INTO_CACHE  /* somebody does, and the source is in no cache */
} spread_way;

/* memcpy to each destination, with the source read from memory once. A destination may be the
 * source itself, and is then left alone; otherwise they must not overlap with it or each other.
 * All is ordered before what this thread writes next. */
void spread_bytes(void *const *destinations, uint32_t count, const void *source, size_t bytes,
                  spread_way way);

#endif
