#include "publish/delta/changes.h"

#include <string.h>

#include "copy/strided/cursor.h"
#include "core/threads/cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Compare `words` times 64 elements, update `kept`, and write a word of bits for each 64. */
typedef void (*compare_fn)(const char *live, char *kept, uint64_t words, uint64_t *bits);

static uint64_t compare_some(const char *live, char *kept, size_t elem_bytes, uint64_t count)
{
    uint64_t bits = 0;
    if (memcmp(live, kept, count * elem_bytes) == 0)
        return 0;
    for (uint64_t i = 0; i < count; i++) {
        if (memcmp(live + i * elem_bytes, kept + i * elem_bytes, elem_bytes) != 0)
            bits |= UINT64_C(1) << i;
    }
    memcpy(kept, live, count * elem_bytes);
    return bits;
}

/* A loop over elements of one size, which compilers turn into vector instructions where they can.
 */
#define COMPARE_PLAINLY(type, name)                                                                \
    static void name(const char *live, char *kept, uint64_t words, uint64_t *bits)                 \
    {                                                                                              \
        for (uint64_t w = 0; w < words; w++) {                                                     \
            type new[CHANGES_BITS], old[CHANGES_BITS];                                             \
            uint64_t word = 0;                                                                     \
            memcpy(new, live + w * sizeof new, sizeof new);                                        \
            memcpy(old, kept + w * sizeof old, sizeof old);                                        \
            for (int i = 0; i < CHANGES_BITS; i++)                                                 \
                word |= (uint64_t)(new[i] != old[i]) << i;                                         \
            bits[w] = word;                                                                        \
            if (word)                                                                              \
                memcpy(kept + w * sizeof new, new, sizeof new);                                    \
        }                                                                                          \
    }

COMPARE_PLAINLY(uint8_t, compare_1)
COMPARE_PLAINLY(uint16_t, compare_2)
COMPARE_PLAINLY(uint32_t, compare_4)
COMPARE_PLAINLY(uint64_t, compare_8)

#if defined(__x86_64__)

/* Bits of 32 bytes' worth of elements that differ, one bit for each byte. */
__attribute__((target(CPU_AVX2_TARGET))) static inline uint32_t differ_avx2(__m256i equal)
{
    return ~(uint32_t)_mm256_movemask_epi8(equal);
}

/* Vectors of 32 bytes; a vector of `kept` is written where it differs. */
#define COMPARE_AVX2(name, elem_bytes, equal_fn, bits_fn)                                          \
    __attribute__((target(CPU_AVX2_TARGET))) static void name(const char *live, char *kept,        \
                                                              uint64_t words, uint64_t *bits)      \
    {                                                                                              \
        for (uint64_t w = 0; w < words; w++) {                                                     \
            uint64_t word = 0;                                                                     \
            for (int v = 0; v < 2 * (elem_bytes); v++) {                                           \
                const char *from = live + 32 * (2 * (elem_bytes)*w + (uint64_t)v);                 \
                char *to = kept + 32 * (2 * (elem_bytes)*w + (uint64_t)v);                         \
                __m256i new = _mm256_loadu_si256((const __m256i *)from);                           \
                __m256i equal = equal_fn(new, _mm256_loadu_si256((const __m256i *)to));            \
                uint32_t differ = differ_avx2(equal);                                              \
                if (differ)                                                                        \
                    _mm256_storeu_si256((__m256i *)to, new);                                       \
                word |= (uint64_t)bits_fn(equal) << (32 / (elem_bytes)*v);                         \
            }                                                                                      \
            bits[w] = word;                                                                        \
        }                                                                                          \
    }

__attribute__((target(CPU_AVX2_TARGET))) static inline uint32_t bits_avx2_1(__m256i equal)
{
    return differ_avx2(equal);
}

__attribute__((target(CPU_AVX2_TARGET))) static inline uint32_t bits_avx2_2(__m256i equal)
{
    __m128i bytes =
        _mm_packs_epi16(_mm256_castsi256_si128(equal), _mm256_extracti128_si256(equal, 1));
    return (uint16_t)~_mm_movemask_epi8(bytes);
}

__attribute__((target(CPU_AVX2_TARGET))) static inline uint32_t bits_avx2_4(__m256i equal)
{
    return (uint8_t)~_mm256_movemask_ps(_mm256_castsi256_ps(equal));
}

__attribute__((target(CPU_AVX2_TARGET))) static inline uint32_t bits_avx2_8(__m256i equal)
{
    return ~(uint32_t)_mm256_movemask_pd(_mm256_castsi256_pd(equal)) & 0xf;
}

COMPARE_AVX2(compare_avx2_1, 1, _mm256_cmpeq_epi8, bits_avx2_1)
COMPARE_AVX2(compare_avx2_2, 2, _mm256_cmpeq_epi16, bits_avx2_2)
COMPARE_AVX2(compare_avx2_4, 4, _mm256_cmpeq_epi32, bits_avx2_4)
COMPARE_AVX2(compare_avx2_8, 8, _mm256_cmpeq_epi64, bits_avx2_8)

/* Lines of 64 bytes. A masked store writes no line in which nothing differs, without a branch that
 * nobody could predict. */
#define COMPARE_AVX512(name, elem_bytes, differ_fn, store_fn)                                      \
    __attribute__((target(CPU_AVX512_TARGET))) static void name(const char *live, char *kept,      \
                                                                uint64_t words, uint64_t *bits)    \
    {                                                                                              \
        for (uint64_t w = 0; w < words; w++) {                                                     \
            uint64_t word = 0;                                                                     \
            for (int v = 0; v < (elem_bytes); v++) {                                               \
                const char *from = live + 64 * ((elem_bytes)*w + (uint64_t)v);                     \
                char *to = kept + 64 * ((elem_bytes)*w + (uint64_t)v);                             \
                __m512i new = _mm512_loadu_si512(from);                                            \
                uint64_t differ = differ_fn(new, _mm512_loadu_si512(to));                          \
                store_fn(to, differ, new);                                                         \
                word |= differ << (64 / (elem_bytes)*v);                                           \
            }                                                                                      \
            bits[w] = word;                                                                        \
        }                                                                                          \
    }

COMPARE_AVX512(compare_avx512_1, 1, _mm512_cmpneq_epi8_mask, _mm512_mask_storeu_epi8)
COMPARE_AVX512(compare_avx512_2, 2, _mm512_cmpneq_epi16_mask, _mm512_mask_storeu_epi16)
COMPARE_AVX512(compare_avx512_4, 4, _mm512_cmpneq_epi32_mask, _mm512_mask_storeu_epi32)
COMPARE_AVX512(compare_avx512_8, 8, _mm512_cmpneq_epi64_mask, _mm512_mask_storeu_epi64)

#endif

/* The loop for elements of this size; NULL: there is none. */
static compare_fn compare_of(size_t elem_bytes)
{
    static const compare_fn plain[] = {compare_1, compare_2, compare_4, compare_8};
    size_t i = elem_bytes == 1 ? 0 : elem_bytes == 2 ? 1 : elem_bytes == 4 ? 2 : 3;
    if (elem_bytes != (size_t)1 << i)
        return NULL;
#if defined(__x86_64__)
    static const compare_fn avx2[] = {compare_avx2_1, compare_avx2_2, compare_avx2_4,
                                      compare_avx2_8};
    static const compare_fn avx512[] = {compare_avx512_1, compare_avx512_2, compare_avx512_4,
                                        compare_avx512_8};
    if (cpu_level_get() >= CPU_AVX512)
        return avx512[i];
    if (cpu_level_get() >= CPU_AVX2)
        return avx2[i];
#endif
    return plain[i];
}

/* Set bits of a map from element `at` on. */
static void put_bits(uint64_t *map, uint64_t at, uint64_t bits)
{
    uint64_t word = at / CHANGES_BITS, shift = at % CHANGES_BITS;
    map[word] |= bits << shift;
    if (shift > 0 && bits >> (CHANGES_BITS - shift))
        map[word + 1] |= bits >> (CHANGES_BITS - shift);
}

#define WORDS_AT_ONCE 64

/* Compare a run of contiguous elements, of which `at` is the first in the map. */
static uint64_t find_in_run(compare_fn compare, const char *live, char *kept, size_t elem_bytes,
                            uint64_t count, uint64_t *map, uint64_t at)
{
    uint64_t bits[WORDS_AT_ONCE], found = 0;
    while (compare && count >= CHANGES_BITS) {
        uint64_t words = count / CHANGES_BITS;
        words = words < WORDS_AT_ONCE ? words : WORDS_AT_ONCE;
        compare(live, kept, words, bits);
        for (uint64_t w = 0; w < words; w++, at += CHANGES_BITS) {
            if (bits[w])
                put_bits(map, at, bits[w]);
            found += (uint64_t)__builtin_popcountll(bits[w]);
        }
        uint64_t elems = words * CHANGES_BITS;
        live += elems * elem_bytes;
        kept += elems * elem_bytes;
        count -= elems;
    }
    while (count > 0) {
        uint64_t some = count < CHANGES_BITS ? count : CHANGES_BITS;
        uint64_t word = compare_some(live, kept, elem_bytes, some);
        put_bits(map, at, word);
        found += (uint64_t)__builtin_popcountll(word);
        live += some * elem_bytes;
        kept += some * elem_bytes;
        at += some;
        count -= some;
    }
    return found;
}

uint64_t changes_find_some(const strided_view *live, void *kept, uint64_t *map, uint64_t first,
                           uint64_t count)
{
    compare_fn compare = compare_of(live->elem_bytes);
    strided_cursor cursor = strided_cursor_at(live, first);
    uint64_t found = 0, end = first + count;
    for (uint64_t at = first, run; at < end; at += run) {
        run = strided_cursor_run(&cursor);
        run = run < end - at ? run : end - at;
        found += find_in_run(compare, cursor.at, (char *)kept + at * live->elem_bytes,
                             live->elem_bytes, run, map, at);
        strided_cursor_advance(&cursor, run);
    }
    return found;
}

uint64_t changes_find(const strided_view *live, void *kept, uint64_t *map)
{
    return changes_find_some(live, kept, map, 0, live->elems);
}

void changes_merge(uint64_t *into, const uint64_t *from, uint64_t words)
{
    for (uint64_t i = 0; i < words; i++)
        into[i] |= from[i];
}
