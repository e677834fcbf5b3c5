#include "core/containers/map.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "core/error.h"

struct map_entry {
    const void *key; /* NULL: free */
    size_t key_bytes;
    uint64_t hash;
    uint64_t value;
};

uint64_t hash_bytes(const void *data, size_t bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, bytes, seed);
}

uint64_t hash_string(const char *text, uint64_t seed)
{
    return hash_bytes(text, strlen(text), seed);
}

/* Return the entry of the key, or the free entry where it would go. Linear probing; the table
 * always has a free entry. */
static struct map_entry *containers_map_find(const map *table, const void *key, size_t key_bytes,
                                             uint64_t hash)
{
    size_t mask = table->capacity - 1;
    for (size_t i = hash & mask;; i = (i + 1) & mask) {
        struct map_entry *entry = &table->entries[i];
        if (!entry->key)
            return entry;
        if (entry->hash == hash && entry->key_bytes == key_bytes &&
            memcmp(entry->key, key, key_bytes) == 0)
            return entry;
    }
}

static bool containers_map_grow(map *old)
{
    map grown = {.count = old->count, .capacity = old->capacity ? old->capacity * 2 : 16};
    grown.entries = calloc(grown.capacity, sizeof *grown.entries);
    if (!grown.entries) {
        error_no_memory(grown.capacity * sizeof *grown.entries, "a hash map");
        return false;
    }
    for (size_t i = 0; i < old->capacity; i++) {
        const struct map_entry *entry = &old->entries[i];
        if (entry->key)
            *containers_map_find(&grown, entry->key, entry->key_bytes, entry->hash) = *entry;
    }
    free(old->entries);
    *old = grown;
    return true;
}

bool map_put(map *table, const void *key, size_t key_bytes, uint64_t value)
{
    if (table->count * 4 >= table->capacity * 3 && !containers_map_grow(table))
        return false;
    uint64_t hash = hash_bytes(key, key_bytes, 0);
    struct map_entry *entry = containers_map_find(table, key, key_bytes, hash);
    if (!entry->key) {
        *entry = (struct map_entry){.key = key, .key_bytes = key_bytes, .hash = hash};
        table->count++;
    }
    entry->value = value;
    return true;
}

bool map_get(const map *table, const void *key, size_t key_bytes, uint64_t *value)
{
    if (table->count == 0)
        return false;
    const struct map_entry *entry =
        containers_map_find(table, key, key_bytes, hash_bytes(key, key_bytes, 0));
    if (!entry->key)
        return false;
    *value = entry->value;
    return true;
}

bool map_put_copy(map *table, arena *keys, const void *key, size_t key_bytes, uint64_t value)
{
    void *kept = arena_copy(keys, key, key_bytes);
    return kept && map_put(table, kept, key_bytes, value);
}

bool map_put_string(map *table, const char *key, uint64_t value)
{
    return map_put(table, key, strlen(key), value);
}

bool map_get_string(const map *table, const char *key, uint64_t *value)
{
    return map_get(table, key, strlen(key), value);
}

size_t map_memory(const map *table)
{
    return table->capacity * sizeof *table->entries;
}

void map_free(map *table)
{
    free(table->entries);
    *table = (struct map){0};
}
