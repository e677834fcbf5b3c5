#include "channel/packet.h"

#include <stdbool.h>
#include <string.h>

#include "core/threads/cpu.h"
#include "core/threads/sanitizer.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* The flag is the upper half of a packet. */
typedef uint64_t packet_at __attribute__((may_alias));

static inline void packet_store(void *packet, uint64_t value)
{
    __atomic_store_n((packet_at *)packet, value, __ATOMIC_RELAXED);
}

static inline uint64_t packet_load(const void *packet)
{
    return __atomic_load_n((const packet_at *)packet, __ATOMIC_RELAXED);
}

static void write_each(char *packets, const char *data, size_t bytes, uint64_t flag)
{
    for (; bytes > 0; packets += PACKET_BYTES) {
        size_t some = bytes < PACKET_DATA_BYTES ? bytes : PACKET_DATA_BYTES;
        uint32_t word = 0;
        if (some == PACKET_DATA_BYTES)
            memcpy(&word, data, PACKET_DATA_BYTES);
        else
            memcpy(&word, data, some);
        packet_store(packets, flag << 32 | word);
        data += some;
        bytes -= some;
    }
}

static size_t read_each(char *data, const char *packets, size_t bytes, uint64_t flag)
{
    size_t done = 0;
    for (; done < bytes; packets += PACKET_BYTES) {
        uint64_t packet = packet_load(packets);
        if (packet >> 32 != flag)
            break;
        uint32_t word = (uint32_t)packet;
        size_t some = bytes - done < PACKET_DATA_BYTES ? bytes - done : PACKET_DATA_BYTES;
        if (some == PACKET_DATA_BYTES)
            memcpy(data + done, &word, PACKET_DATA_BYTES);
        else
            memcpy(data + done, &word, some);
        done += some;
    }
    return done;
}

static size_t forward_each(char *to, uint64_t to_flag, const char *from, size_t bytes,
                           uint64_t flag)
{
    size_t done = 0;
    for (; done < bytes; to += PACKET_BYTES, from += PACKET_BYTES) {
        uint64_t packet = packet_load(from);
        if (packet >> 32 != flag)
            break;
        packet_store(to, to_flag << 32 | (uint32_t)packet);
        done += bytes - done < PACKET_DATA_BYTES ? bytes - done : PACKET_DATA_BYTES;
    }
    return done;
}

/* These processors never split the 8 aligned bytes of a lane. aarch64's manual guarantees it for
 * vector registers with aligned elements. x86-64 processors split a vector access only at the end
 * of a cache line or into halves of at least 16 bytes. The vectors are volatile so that the
 * compiler accesses each once: flag and data come from one read. The thread sanitizer needs to see
 * atomics. */
#if (defined(__x86_64__) || defined(__aarch64__)) && !defined(SANITIZER_THREAD)
#define PACKETS_IN_VECTORS 1
#endif

#ifdef PACKETS_IN_VECTORS

/* Data bytes from which vectors are worthwhile, and from which the widest ones are: two steps of
 * each. */
#define WORTHWHILE 32
#define WIDE_WORTHWHILE 256

/* Process whole steps, of four vectors of packets each, from the start of a run; each function
 * returns the number of packets. */
typedef struct packet_loops {
    size_t vector_bytes;
    size_t (*write)(char *packets, const char *data, size_t count, uint64_t flag);
    size_t (*read)(char *data, const char *packets, size_t count, uint64_t flag);
    size_t (*forward)(char *to, uint64_t to_flag, const char *from, size_t count, uint64_t flag);
} packet_loops;

/* Indices of 32-bit words for mixing two vectors. */
#define LOWER_4 0, 4, 1, 5
#define UPPER_4 2, 6, 3, 7
#define EVEN_4 0, 2, 4, 6
#define LOWER_8 0, 8, 1, 9, 2, 10, 3, 11
#define UPPER_8 4, 12, 5, 13, 6, 14, 7, 15
#define EVEN_8 0, 2, 4, 6, 8, 10, 12, 14
#define LOWER_16 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define UPPER_16 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#define EVEN_16 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30

/* True if any bit of a flag is set. */
static inline bool narrow_any_flag(uint64_t __attribute__((vector_size(16))) lanes)
{
    return (lanes[0] | lanes[1]) >> 32 != 0;
}

#if defined(__x86_64__)

#define AVX2 __attribute__((target(CPU_AVX2_TARGET)))
#define AVX512 __attribute__((target(CPU_AVX512_TARGET)))

AVX2 static inline bool avx2_any_flag(uint64_t __attribute__((vector_size(32))) lanes)
{
    __m256i flags = _mm256_set1_epi64x((int64_t)(UINT64_MAX << 32));
    return !_mm256_testz_si256((__m256i)lanes, flags);
}

AVX512 static inline bool avx512_any_flag(uint64_t __attribute__((vector_size(64))) lanes)
{
    return _mm512_test_epi32_mask((__m512i)lanes, (__m512i)lanes) & 0xaaaa;
}

#endif

#define DEFINE_LOOPS(name, attributes, words)                                                      \
    enum { name##_step = 2 * (words) };                                                            \
    typedef uint64_t name##_lanes __attribute__((vector_size(4 * (words))));                       \
    typedef uint32_t name##_words __attribute__((vector_size(4 * (words))));                       \
    typedef name##_lanes name##_packets __attribute__((aligned(8), may_alias));                    \
    typedef name##_words name##_data __attribute__((aligned(1), may_alias));                       \
    typedef struct name##_quad {                                                                   \
        name##_lanes a, b, c, d;                                                                   \
    } name##_quad;                                                                                 \
                                                                                                   \
    attributes static inline void name##_store(char *packets, const name##_quad *q)                \
    {                                                                                              \
        volatile name##_packets *to = (volatile name##_packets *)packets;                          \
        to[0] = q->a;                                                                              \
        to[1] = q->b;                                                                              \
        to[2] = q->c;                                                                              \
        to[3] = q->d;                                                                              \
    }                                                                                              \
                                                                                                   \
    /* True if all packets have arrived. */                                                        \
    attributes static inline bool name##_load(name##_quad *q, const char *packets, uint64_t flag)  \
    {                                                                                              \
        const volatile name##_packets *from = (const volatile name##_packets *)packets;            \
        *q = (name##_quad){from[0], from[1], from[2], from[3]};                                    \
        uint64_t expected = flag << 32;                                                            \
        name##_lanes others =                                                                      \
            (q->a ^ expected) | (q->b ^ expected) | (q->c ^ expected) | (q->d ^ expected);         \
        return !name##_any_flag(others);                                                           \
    }                                                                                              \
                                                                                                   \
    attributes static size_t name##_write(char *packets, const char *data, size_t count,           \
                                          uint64_t flag)                                           \
    {                                                                                              \
        const name##_words flags = (name##_words){0} + (uint32_t)flag;                             \
        size_t i = 0;                                                                              \
        for (; count - i >= name##_step; i += name##_step) {                                       \
            const name##_data *from = (const name##_data *)(data + i * PACKET_DATA_BYTES);         \
            name##_words u = from[0], v = from[1];                                                 \
            name##_quad q = {                                                                      \
                (name##_lanes)__builtin_shufflevector(u, flags, LOWER_##words),                    \
                (name##_lanes)__builtin_shufflevector(u, flags, UPPER_##words),                    \
                (name##_lanes)__builtin_shufflevector(v, flags, LOWER_##words),                    \
                (name##_lanes)__builtin_shufflevector(v, flags, UPPER_##words),                    \
            };                                                                                     \
            name##_store(packets + i * PACKET_BYTES, &q);                                          \
        }                                                                                          \
        return i;                                                                                  \
    }                                                                                              \
                                                                                                   \
    attributes static size_t name##_read(char *data, const char *packets, size_t count,            \
                                         uint64_t flag)                                            \
    {                                                                                              \
        name##_quad q;                                                                             \
        size_t i = 0;                                                                              \
        for (; count - i >= name##_step; i += name##_step) {                                       \
            name##_data *to = (name##_data *)(data + i * PACKET_DATA_BYTES);                       \
            if (!name##_load(&q, packets + i * PACKET_BYTES, flag))                                \
                break;                                                                             \
            to[0] = __builtin_shufflevector((name##_words)q.a, (name##_words)q.b, EVEN_##words);   \
            to[1] = __builtin_shufflevector((name##_words)q.c, (name##_words)q.d, EVEN_##words);   \
        }                                                                                          \
        return i;                                                                                  \
    }                                                                                              \
                                                                                                   \
    attributes static size_t name##_forward(char *to, uint64_t to_flag, const char *from,          \
                                            size_t count, uint64_t flag)                           \
    {                                                                                              \
        const uint64_t change = (flag ^ to_flag) << 32;                                            \
        name##_quad q;                                                                             \
        size_t i = 0;                                                                              \
        for (; count - i >= name##_step; i += name##_step) {                                       \
            if (!name##_load(&q, from + i * PACKET_BYTES, flag))                                   \
                break;                                                                             \
            q = (name##_quad){q.a ^ change, q.b ^ change, q.c ^ change, q.d ^ change};             \
            name##_store(to + i * PACKET_BYTES, &q);                                               \
        }                                                                                          \
        return i;                                                                                  \
    }                                                                                              \
                                                                                                   \
    static const packet_loops name##_loops = {4 * (words), name##_write, name##_read,              \
                                              name##_forward};

DEFINE_LOOPS(narrow, , 4)
#if defined(__x86_64__)
DEFINE_LOOPS(avx2, AVX2, 8)
DEFINE_LOOPS(avx512, AVX512, 16)
#endif

static const packet_loops *loops_for(size_t bytes)
{
#if defined(__x86_64__)
    static const packet_loops *const by_level[] = {
        [CPU_BASELINE] = &narrow_loops, [CPU_AVX2] = &avx2_loops, [CPU_AVX512] = &avx512_loops};
    return bytes < WIDE_WORTHWHILE ? &narrow_loops : by_level[cpu_level_get()];
#else
    (void)bytes;
    return &narrow_loops;
#endif
}

/* Return the data bytes before the first packet that starts a vector. */
static size_t bytes_before(const packet_loops *loops, const void *packets)
{
    return (-(uintptr_t)packets & (loops->vector_bytes - 1)) / PACKET_BYTES * PACKET_DATA_BYTES;
}

#endif

void packets_write(void *packets, const void *data, size_t bytes, uint32_t flag)
{
    char *to = packets;
    const char *from = data;
    size_t done = 0;
#ifdef PACKETS_IN_VECTORS
    if (bytes >= WORTHWHILE) {
        const packet_loops *loops = loops_for(bytes);
        done = bytes_before(loops, to);
        write_each(to, from, done, flag);
        done += PACKET_DATA_BYTES *
                loops->write(to + 2 * done, from + done, (bytes - done) / PACKET_DATA_BYTES, flag);
    }
#endif
    write_each(to + 2 * done, from + done, bytes - done, flag);
}

size_t packets_read(void *data, const void *packets, size_t bytes, uint32_t flag)
{
    char *to = data;
    const char *from = packets;
    size_t done = 0;
#ifdef PACKETS_IN_VECTORS
    if (bytes >= WORTHWHILE) {
        const packet_loops *loops = loops_for(bytes);
        size_t before = bytes_before(loops, from);
        done = read_each(to, from, before, flag);
        if (done < before)
            return done;
        done += PACKET_DATA_BYTES *
                loops->read(to + done, from + 2 * done, (bytes - done) / PACKET_DATA_BYTES, flag);
    }
#endif
    return done + read_each(to + done, from + 2 * done, bytes - done, flag);
}

size_t packets_forward(void *to, uint32_t to_flag, const void *from, size_t bytes, uint32_t flag)
{
    char *out = to;
    const char *in = from;
    size_t done = 0;
#ifdef PACKETS_IN_VECTORS
    if (bytes >= WORTHWHILE) {
        const packet_loops *loops = loops_for(bytes);
        size_t before = bytes_before(loops, in);
        done = forward_each(out, to_flag, in, before, flag);
        if (done < before)
            return done;
        done += PACKET_DATA_BYTES * loops->forward(out + 2 * done, to_flag, in + 2 * done,
                                                   (bytes - done) / PACKET_DATA_BYTES, flag);
    }
#endif
    return done + forward_each(out + 2 * done, to_flag, in + 2 * done, bytes - done, flag);
}
