/* The same bytes to several places: switch channels by software, and puts to many peers. */
#ifndef CHANNEL_SPREAD_H
#define CHANNEL_SPREAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* memcpy to each destination, with the source read from memory once. A destination may be the
 * source itself, and is then left alone; otherwise they must not overlap with it or each other.
 * `past_cache`: nobody reads the destinations soon, and they are parts of something large; what is
 * streamed comes before what this thread writes next. */
void spread_bytes(void *const *destinations, uint32_t count, const void *source, size_t bytes,
                  bool past_cache);

#endif
