/* Reduction loops, instantiated for an element type, an operation and a processor level. */
#ifndef CHANNEL_REDUCE_LOOPS_H
#define CHANNEL_REDUCE_LOOPS_H

#include <string.h>

#include "core/threads/cpu.h"
#include "core/types/float_bits.h"

typedef uint8_t byte_at __attribute__((may_alias));
typedef uint16_t half_at __attribute__((aligned(1), may_alias));
typedef uint32_t word_at __attribute__((aligned(1), may_alias));
typedef uint64_t long_at __attribute__((aligned(1), may_alias));

/* Words that are reduced before any of them is stored. Compilers optimize a constant number of
 * iterations best. */
#define TILE 64

/* The destination may be a source, but each word depends only on the words at its own place. */
#if defined(__clang__)
#define WORDS_ARE_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define WORDS_ARE_INDEPENDENT _Pragma("GCC ivdep")
#define UNROLLED _Pragma("GCC unroll 4")
#endif

#define SAME(x) (x)
#define PLUS(a, b) ((a) + (b))
#define TIMES(a, b) ((a) * (b))

/* Return a source's tile; a partial tile is copied to `room` as a whole tile. */
static inline const void *tile_at(const void *source, size_t at, size_t bytes, size_t tile_bytes,
                                  void *room)
{
    const char *from = (const char *)source + at;
    if (bytes >= tile_bytes)
        return from;
    memset(room, 0, tile_bytes);
    memcpy(room, from, bytes);
    return room;
}

/* `widen` converts an element to an accumulator, `narrow` an accumulator to an element. A word
 * holds one or more elements: small elements that are accumulated in f32 stay in their lanes, so
 * nothing is scattered or gathered. Two sources need no accumulators in memory. */
#define DEFINE_REDUCE(name, attributes, word_t, parts, accumulator_t, widen, combine, narrow)      \
    attributes static inline accumulator_t name##_part(word_t word, int k)                         \
    {                                                                                              \
        return widen(word >> k * (int)(8 * sizeof(word_t) / (parts)));                             \
    }                                                                                              \
                                                                                                   \
    attributes static inline word_t name##_placed(accumulator_t sum, int k)                        \
    {                                                                                              \
        return (word_t)((word_t)narrow(sum) << k * (int)(8 * sizeof(word_t) / (parts)));           \
    }                                                                                              \
                                                                                                   \
    attributes static inline void name##_pair(word_t *to, const word_t *a, const word_t *b)        \
    {                                                                                              \
        WORDS_ARE_INDEPENDENT                                                                      \
        for (int i = 0; i < TILE; i++) {                                                           \
            word_t word = 0;                                                                       \
            UNROLLED                                                                               \
            for (int k = 0; k < (parts); k++)                                                      \
                word |= name##_placed(combine(name##_part(a[i], k), name##_part(b[i], k)), k);     \
            to[i] = word;                                                                          \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    attributes static void name(void *destination, const void *const *sources, uint32_t count,     \
                                size_t elems)                                                      \
    {                                                                                              \
        word_t rooms[3][TILE];                                                                     \
        accumulator_t sums[parts][TILE];                                                           \
        size_t total = elems * sizeof(word_t) / (parts);                                           \
        for (size_t at = 0; at < total; at += sizeof rooms[0]) {                                   \
            size_t bytes = total - at;                                                             \
            bool whole = bytes >= sizeof rooms[0];                                                 \
            word_t *to = whole ? (word_t *)((char *)destination + at) : rooms[2];                  \
            const word_t *a = tile_at(sources[0], at, bytes, sizeof rooms[0], rooms[0]);           \
            if (count == 2) {                                                                      \
                name##_pair(to, a, tile_at(sources[1], at, bytes, sizeof rooms[0], rooms[1]));     \
            } else {                                                                               \
                for (int i = 0; i < TILE; i++) {                                                   \
                    UNROLLED                                                                       \
                    for (int k = 0; k < (parts); k++)                                              \
                        sums[k][i] = name##_part(a[i], k);                                         \
                }                                                                                  \
                for (uint32_t j = 1; j < count; j++) {                                             \
                    a = tile_at(sources[j], at, bytes, sizeof rooms[0], rooms[0]);                 \
                    for (int i = 0; i < TILE; i++) {                                               \
                        UNROLLED                                                                   \
                        for (int k = 0; k < (parts); k++)                                          \
                            sums[k][i] = combine(sums[k][i], name##_part(a[i], k));                \
                    }                                                                              \
                }                                                                                  \
                for (int i = 0; i < TILE; i++) {                                                   \
                    word_t word = 0;                                                               \
                    UNROLLED                                                                       \
                    for (int k = 0; k < (parts); k++)                                              \
                        word |= name##_placed(sums[k][i], k);                                      \
                    to[i] = word;                                                                  \
                }                                                                                  \
            }                                                                                      \
            if (!whole)                                                                            \
                memcpy((char *)destination + at, to, bytes);                                       \
        }                                                                                          \
    }

/* Attributes of the functions for a level. */
#define AVX2 __attribute__((target(CPU_AVX2_TARGET)))
#define AVX512 __attribute__((target(CPU_AVX512_TARGET)))

#endif
