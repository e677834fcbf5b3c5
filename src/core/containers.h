/* Growable arrays, sorting and searching, hash maps, arenas, and messages as bytes. */
#ifndef CORE_CONTAINERS_H
#define CORE_CONTAINERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

/* A growable array: a struct of these members under any name. */
#define ARRAY(type)                                                                                \
    struct {                                                                                       \
        type *data;                                                                                \
        size_t count, capacity;                                                                    \
    }

/* Reserve space for `more` further elements. False, with the error set, when out of memory. */
#define array_reserve(array, more)                                                                 \
    array_grow((void **)&(array)->data, &(array)->capacity, (array)->count, (more),                \
               sizeof *(array)->data)

/* Append a value. An expression: false when out of memory. */
#define array_push(array, ...)                                                                     \
    (array_reserve((array), 1) && ((array)->data[(array)->count++] = (__VA_ARGS__), true))

#define array_free(array)                                                                          \
    do {                                                                                           \
        free((array)->data);                                                                       \
        (array)->data = NULL;                                                                      \
        (array)->count = (array)->capacity = 0;                                                    \
    } while (0)

/* Allocate zeroed elements (one for a count of 0), for free(); `what` names them in the message.
 * NULL, with the error set, when out of memory. */
void *alloc_zeroed(size_t count, size_t elem_bytes, const char *what) __attribute__((malloc));

/* Compare two values, for qsort. */
#define COMPARE(a, b) (((a) > (b)) - ((a) < (b)))

/* Return from a comparison function if two values differ. */
#define RETURN_IF_UNEQUAL(a, b)                                                                    \
    do {                                                                                           \
        if ((a) != (b))                                                                            \
            return (a) < (b) ? -1 : 1;                                                             \
    } while (0)

/* Find by bisection the first `index` of [first, end), or `end`, at which `before`, an expression
 * of `index`, is false. It is true at all indices below that one. */
#define BISECT(index, first, end, before)                                                          \
    ({                                                                                             \
        size_t low_ = (first), high_ = (end);                                                      \
        while (low_ < high_) {                                                                     \
            size_t index = low_ + (high_ - low_) / 2;                                              \
            if (before)                                                                            \
                low_ = index + 1;                                                                  \
            else                                                                                   \
                high_ = index;                                                                     \
        }                                                                                          \
        low_;                                                                                      \
    })

/* Sort, also an empty array, by a comparison function of qsort. */
#define array_sort(array, compare)                                                                 \
    sort_elements((array)->data, (array)->count, sizeof *(array)->data, (compare))

void sort_elements(void *data, size_t count, size_t elem_bytes,
                   int (*compare)(const void *, const void *));
bool array_grow(void **data, size_t *capacity, size_t count, size_t more, size_t elem_bytes);

/* Memory from which many pieces are allocated, and which is freed at once. A zeroed arena is empty.
 * Each block is twice the size of the last one, up to a limit, so thousands of small arenas stay
 * small. */
typedef struct arena {
    struct arena_block *last;
    size_t used;  /* of the last block */
    size_t bytes; /* of all blocks */
} arena;

/* Allocate `bytes`, aligned for every C type. NULL, with the error set, when out of memory. */
void *arena_take(arena *from, size_t bytes);
/* Allocate `count` zeroed elements, or a copy of `bytes` bytes. */
void *arena_zeroed(arena *from, size_t count, size_t elem_bytes);
void *arena_copy(arena *from, const void *data, size_t bytes);
void arena_free(arena *all);

/* A hash map from byte strings to 64-bit values, usually indices into an array beside it. A zeroed
 * map is empty. Keys are not copied: they must outlive the map. */
typedef struct hash_map {
    struct map_entry *entries;
    size_t count, capacity; /* capacity is a power of two, or 0 */
} hash_map;

/* Set the key's value. False, with the error set, when out of memory. */
bool map_put(hash_map *table, const void *key, size_t key_bytes, uint64_t value);
/* Like map_put, with a copy of the key in the arena. */
bool map_put_copy(hash_map *table, arena *keys, const void *key, size_t key_bytes, uint64_t value);
bool map_get(const hash_map *table, const void *key, size_t key_bytes, uint64_t *value);
bool map_put_string(hash_map *table, const char *key, uint64_t value);
bool map_get_string(const hash_map *table, const char *key, uint64_t *value);
/* Return the bytes of memory that the map holds, without its keys. */
size_t map_memory(const hash_map *table);
void map_free(hash_map *table);

/* 64-bit XXH3. */
uint64_t hash_bytes(const void *data, size_t bytes, uint64_t seed);
uint64_t hash_string(const char *text, uint64_t seed);

/* Write values of a message one after another. A failed write (out of memory) stays in `failed`:
 * check it once, after the last write. */
typedef struct bytes_writer {
    unsigned char *data;
    size_t count, capacity;
    bool failed;
} bytes_writer;

void bytes_write(bytes_writer *writer, const void *data, size_t bytes);
void bytes_write_u32(bytes_writer *writer, uint32_t value);
void bytes_write_u64(bytes_writer *writer, uint64_t value);
/* Write the length, then the bytes. */
void bytes_write_blob(bytes_writer *writer, const void *data, size_t bytes);
void bytes_writer_free(bytes_writer *writer);

/* Read them back, every length checked. A read past the end returns zeros and sets `failed`, which
 * stays set. */
typedef struct bytes_reader {
    const unsigned char *data;
    size_t left;
    bool failed;
} bytes_reader;

bytes_reader bytes_reader_of(const void *data, size_t bytes);
void bytes_read(bytes_reader *reader, void *data, size_t bytes);
uint32_t bytes_read_u32(bytes_reader *reader);
uint64_t bytes_read_u64(bytes_reader *reader);
/* Return a pointer into the message; NULL, and 0 bytes, when the message is too short. */
const void *bytes_read_blob(bytes_reader *reader, size_t *bytes);

#endif
