#include "memory/stream.h"

#include <stdint.h>
#include <string.h>

/* Sanitizers know memcpy, but not what intrinsics touch. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STREAM_PLAIN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ||                         \
    __has_feature(memory_sanitizer)
#define STREAM_PLAIN 1
#endif
#endif
#if !defined(__x86_64__) && !defined(STREAM_PLAIN)
#define STREAM_PLAIN 1
#endif

#ifdef STREAM_PLAIN

void stream_past_cache(void *destination, const void *source, size_t bytes)
{
    memcpy(destination, source, bytes);
}

void stream_into_cache(void *destination, const void *source, size_t bytes)
{
    memcpy(destination, source, bytes);
}

void stream_fence(void) {}

#else

#include <immintrin.h>

/* Prefetchers stop at page ends. Walking eight pages abreast keeps memory busy across them: 15 to
 * 20 % faster than one page after the other. */
#define PAGE 4096
#define ABREAST 8
#define BLOCK (ABREAST * PAGE)
#define LINE 64
#define SHORT 512 /* not worth aligning */

static inline void line_store(char *to, const char *from)
{
    for (int i = 0; i < LINE; i += 16)
        _mm_store_si128((__m128i *)(to + i), _mm_loadu_si128((const __m128i *)(from + i)));
}

static inline void line_stream(char *to, const char *from)
{
    for (int i = 0; i < LINE; i += 16)
        _mm_stream_si128((__m128i *)(to + i), _mm_loadu_si128((const __m128i *)(from + i)));
}

static void block_store(char *to, const char *from)
{
    for (size_t i = 0; i < PAGE; i += 2 * LINE) {
        for (size_t page = 0; page < BLOCK; page += PAGE) {
            line_store(to + page + i, from + page + i);
            line_store(to + page + i + LINE, from + page + i + LINE);
        }
    }
}

static void block_stream(char *to, const char *from)
{
    for (size_t i = 0; i < PAGE; i += 2 * LINE) {
        for (size_t page = 0; page < BLOCK; page += PAGE) {
            line_stream(to + page + i, from + page + i);
            line_stream(to + page + i + LINE, from + page + i + LINE);
        }
    }
}

/* Whole lines in one instruction: 10 % faster for a copy through a slot in the cache. */
__attribute__((target("avx512f"))) static void block_store_wide(char *to, const char *from)
{
    for (size_t i = 0; i < PAGE; i += 2 * LINE) {
        for (size_t page = 0; page < BLOCK; page += PAGE) {
            __m512i a = _mm512_loadu_si512(from + page + i);
            __m512i b = _mm512_loadu_si512(from + page + i + LINE);
            _mm512_store_si512(to + page + i, a);
            _mm512_store_si512(to + page + i + LINE, b);
        }
    }
}

__attribute__((target("avx512f"))) static void block_stream_wide(char *to, const char *from)
{
    for (size_t i = 0; i < PAGE; i += 2 * LINE) {
        for (size_t page = 0; page < BLOCK; page += PAGE) {
            __m512i a = _mm512_loadu_si512(from + page + i);
            __m512i b = _mm512_loadu_si512(from + page + i + LINE);
            _mm512_stream_si512((__m512i *)(to + page + i), a);
            _mm512_stream_si512((__m512i *)(to + page + i + LINE), b);
        }
    }
}

/* Copies what lies before the first whole line of the destination; returns its size. */
static size_t copy_head(char *to, const char *from)
{
    size_t head = (size_t)(-(uintptr_t)to & (LINE - 1));
    memcpy(to, from, head);
    return head;
}

void stream_past_cache(void *destination, const void *source, size_t bytes)
{
    char *to = destination;
    const char *from = source;
    size_t i = 0;
    if (bytes >= SHORT) {
        bool wide = __builtin_cpu_supports("avx512f");
        for (i = copy_head(to, from); bytes - i >= BLOCK; i += BLOCK)
            (wide ? block_stream_wide : block_stream)(to + i, from + i);
        for (; bytes - i >= LINE; i += LINE)
            line_stream(to + i, from + i);
    }
    memcpy(to + i, from + i, bytes - i);
}

void stream_into_cache(void *destination, const void *source, size_t bytes)
{
    char *to = destination;
    const char *from = source;
    size_t i = 0;
    if (bytes >= BLOCK + LINE) {
        bool wide = __builtin_cpu_supports("avx512f");
        for (i = copy_head(to, from); bytes - i >= BLOCK; i += BLOCK)
            (wide ? block_store_wide : block_store)(to + i, from + i);
    }
    memcpy(to + i, from + i, bytes - i);
}

void stream_fence(void)
{
    _mm_sfence();
}

#endif
