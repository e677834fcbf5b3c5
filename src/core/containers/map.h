/* A hash map from byte strings to 64-bit values, usually indices into an array beside it. */
#ifndef CORE_CONTAINERS_MAP_H
#define CORE_CONTAINERS_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/containers/arena.h"

/* A zeroed map is empty. Keys are not copied: they must outlive the map. */
typedef struct map {
    struct map_entry *entries;
    size_t count, capacity; /* capacity is a power of two, or 0 */
} map;

/* Set the key's value. False, with the error set, when out of memory. */
bool map_put(map *table, const void *key, size_t key_bytes, uint64_t value);
/* Like map_put, with a copy of the key in the arena. */
bool map_put_copy(map *table, arena *keys, const void *key, size_t key_bytes, uint64_t value);
bool map_get(const map *table, const void *key, size_t key_bytes, uint64_t *value);
bool map_put_string(map *table, const char *key, uint64_t value);
bool map_get_string(const map *table, const char *key, uint64_t *value);
/* Return the bytes of memory that the map holds, without its keys. */
size_t map_memory(const map *table);
void map_free(map *table);

/* 64-bit XXH3. */
uint64_t hash_bytes(const void *data, size_t bytes, uint64_t seed);
uint64_t hash_string(const char *text, uint64_t seed);

#endif
