#include "core/containers.h"

#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include <banyan/core.h>

#include "core/error.h"

bool array_grow(void **data, size_t *capacity, size_t count, size_t more, size_t elem_bytes)
{
    if (more <= *capacity - count)
        return true;
    size_t wanted = *capacity < 8 ? 8 : *capacity + *capacity / 2;
    if (wanted < count + more)
        wanted = count + more;
    void *grown = wanted > SIZE_MAX / elem_bytes ? NULL : realloc(*data, wanted * elem_bytes);
    if (!grown) {
        error_no_memory(wanted * elem_bytes, "an array");
        return false;
    }
    *data = grown;
    *capacity = wanted;
    return true;
}

void *alloc_zeroed(size_t count, size_t elem_bytes, const char *what)
{
    void *made = calloc(count > 0 ? count : 1, elem_bytes);
    if (!made)
        error_no_memory(count * elem_bytes, what);
    return made;
}

void sort_elements(void *data, size_t count, size_t elem_bytes,
                   int (*compare)(const void *, const void *))
{
    if (count > 1)
        qsort(data, count, elem_bytes, compare);
}

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
static struct map_entry *containers_map_find(const hash_map *table, const void *key,
                                             size_t key_bytes, uint64_t hash)
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

static bool containers_map_grow(hash_map *old)
{
    hash_map grown = {.count = old->count, .capacity = old->capacity ? old->capacity * 2 : 16};
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

bool map_put(hash_map *table, const void *key, size_t key_bytes, uint64_t value)
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

bool map_get(const hash_map *table, const void *key, size_t key_bytes, uint64_t *value)
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

bool map_put_copy(hash_map *table, arena *keys, const void *key, size_t key_bytes, uint64_t value)
{
    void *kept = arena_copy(keys, key, key_bytes);
    return kept && map_put(table, kept, key_bytes, value);
}

bool map_put_string(hash_map *table, const char *key, uint64_t value)
{
    return map_put(table, key, strlen(key), value);
}

bool map_get_string(const hash_map *table, const char *key, uint64_t *value)
{
    return map_get(table, key, strlen(key), value);
}

size_t map_memory(const hash_map *table)
{
    return table->capacity * sizeof *table->entries;
}

void map_free(hash_map *table)
{
    free(table->entries);
    *table = (hash_map){0};
}

#define FIRST_BLOCK_BYTES 512
#define LARGEST_BLOCK_BYTES ((size_t)1 << 20)

struct arena_block {
    struct arena_block *before;
    size_t bytes; /* of data */
    alignas(max_align_t) unsigned char data[];
};

static bool arena_add_block(arena *to, size_t least)
{
    size_t bytes = to->last ? to->last->bytes * 2 : FIRST_BLOCK_BYTES;
    if (bytes > LARGEST_BLOCK_BYTES)
        bytes = LARGEST_BLOCK_BYTES;
    if (bytes < least)
        bytes = least;
    struct arena_block *block = malloc(sizeof *block + bytes);
    if (!block)
        return false;
    block->before = to->last;
    block->bytes = bytes;
    to->last = block;
    to->used = 0;
    to->bytes += sizeof *block + bytes;
    return true;
}

void *arena_take(arena *from, size_t bytes)
{
    size_t rounded = (bytes + alignof(max_align_t) - 1) & ~(alignof(max_align_t) - 1);
    bool fits = from->last && rounded <= from->last->bytes - from->used;
    if (rounded < bytes || rounded > SIZE_MAX / 2 || (!fits && !arena_add_block(from, rounded))) {
        error_no_memory(bytes, "an arena");
        return NULL;
    }
    void *taken = from->last->data + from->used;
    from->used += rounded;
    return taken;
}

void *arena_zeroed(arena *from, size_t count, size_t elem_bytes)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, elem_bytes, &bytes))
        bytes = SIZE_MAX;
    void *taken = arena_take(from, bytes);
    return taken ? memset(taken, 0, bytes) : NULL;
}

void *arena_copy(arena *from, const void *data, size_t bytes)
{
    void *taken = arena_take(from, bytes);
    return taken && bytes > 0 ? memcpy(taken, data, bytes) : taken;
}

void arena_free(arena *all)
{
    while (all->last) {
        struct arena_block *before = all->last->before;
        free(all->last);
        all->last = before;
    }
    *all = (arena){0};
}

void bytes_write(bytes_writer *writer, const void *data, size_t bytes)
{
    if (writer->failed || !array_reserve(writer, bytes)) {
        writer->failed = true;
        return;
    }
    if (bytes > 0)
        memcpy(writer->data + writer->count, data, bytes);
    writer->count += bytes;
}

void bytes_write_u32(bytes_writer *writer, uint32_t value)
{
    bytes_write(writer, &value, sizeof value);
}

void bytes_write_u64(bytes_writer *writer, uint64_t value)
{
    bytes_write(writer, &value, sizeof value);
}

void bytes_write_blob(bytes_writer *writer, const void *data, size_t bytes)
{
    bytes_write_u64(writer, bytes);
    bytes_write(writer, data, bytes);
}

void bytes_writer_free(bytes_writer *writer)
{
    array_free(writer);
    writer->failed = false;
}

bytes_reader bytes_reader_of(const void *data, size_t bytes)
{
    return (bytes_reader){.data = data, .left = bytes};
}

static const unsigned char *containers_bytes_take(bytes_reader *reader, size_t bytes)
{
    if (reader->failed || bytes > reader->left) {
        reader->failed = true;
        return NULL;
    }
    const unsigned char *at = reader->data;
    reader->data += bytes;
    reader->left -= bytes;
    return at;
}

void bytes_read(bytes_reader *reader, void *data, size_t bytes)
{
    const unsigned char *at = containers_bytes_take(reader, bytes);
    if (at && bytes > 0)
        memcpy(data, at, bytes);
    else if (!at)
        memset(data, 0, bytes);
}

uint32_t bytes_read_u32(bytes_reader *reader)
{
    uint32_t value;
    bytes_read(reader, &value, sizeof value);
    return value;
}

uint64_t bytes_read_u64(bytes_reader *reader)
{
    uint64_t value;
    bytes_read(reader, &value, sizeof value);
    return value;
}

const void *bytes_read_blob(bytes_reader *reader, size_t *bytes)
{
    uint64_t length = bytes_read_u64(reader);
    const void *at = length <= reader->left ? containers_bytes_take(reader, (size_t)length)
                                            : containers_bytes_take(reader, SIZE_MAX);
    *bytes = at ? (size_t)length : 0;
    return at;
}

banyan_rank_set banyan_rank_set_one(int rank)
{
    banyan_rank_set set = {.first = rank};
    for (int k = 0; k < BANYAN_RANK_SET_LEVELS; k++)
        set.count[k] = 1;
    return set;
}

int64_t banyan_rank_set_size(const banyan_rank_set *set)
{
    int64_t size = 1;
    for (int k = 0; k < BANYAN_RANK_SET_LEVELS; k++)
        size *= set->count[k];
    return size;
}

int banyan_rank_set_at(const banyan_rank_set *set, int64_t index)
{
    int64_t rank = set->first;
    for (int k = BANYAN_RANK_SET_LEVELS - 1; k >= 0; k--) {
        rank += index % set->count[k] * set->stride[k];
        index /= set->count[k];
    }
    return (int)rank;
}

/* Levels need not nest by size: a slow level may have the smaller stride. So each index of a level
 * is tried. The recursion is at most BANYAN_RANK_SET_LEVELS deep, and the last level is solved by
 * division. */
static int64_t find_below(const banyan_rank_set *set, int level, int64_t distance, int64_t index)
{
    int64_t count = set->count[level], stride = set->stride[level];
    if (level == BANYAN_RANK_SET_LEVELS - 1) {
        if (count <= 1)
            return count == 1 && distance == 0 ? index : -1;
        if (stride == 0 || distance % stride != 0 || distance / stride < 0 ||
            distance / stride >= count)
            return -1;
        return index * count + distance / stride;
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t found = find_below(set, level + 1, distance - i * stride, index * count + i);
        if (found >= 0)
            return found;
    }
    return -1;
}

int64_t banyan_rank_set_find(const banyan_rank_set *set, int rank)
{
    return find_below(set, 0, (int64_t)rank - set->first, 0);
}
