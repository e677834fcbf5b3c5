#include "channel/reduce.h"

#include <string.h>

#include "core/cpu.h"
#include "core/float_bits.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

typedef uint8_t byte_at __attribute__((may_alias));
typedef uint16_t half_at __attribute__((aligned(1), may_alias));
typedef uint32_t word_at __attribute__((aligned(1), may_alias));
typedef uint64_t long_at __attribute__((aligned(1), may_alias));

/* Elements that are reduced at a time, in accumulators on the stack, before any of them is stored.
 * A constant number of iterations is what compilers vectorise at any optimisation level. */
#define TILE 64

/* ---- elements ---- */

/* What a sum becomes: its bits, with one NaN for all. */
static inline uint32_t sum_bits(float sum)
{
    uint32_t bits = f32_bits(sum);
    return bits_select(f32_is_nan(bits), F32_INFINITY | F32_QUIET, bits);
}

#define F32_OF(bits) f32_of_bits(bits)
#define BF16_OF(bits) f32_of_bits((uint32_t)(bits) << 16)
#define F16_OF(bits) f32_of_bits(f32_of_f16(bits))
#define E4M3_OF(bits) f32_of_bits(f32_of_e4m3(bits))
#define E5M2_OF(bits) f32_of_bits(f32_of_e5m2(bits))
#define F32_SUM(sum) sum_bits(sum)
#define BF16_SUM(sum) bf16_of_f32(sum_bits(sum))
#define F16_SUM(sum) f16_of_f32(sum_bits(sum))
#define E4M3_SUM(sum) e4m3_of_f32(sum_bits(sum))
#define E5M2_SUM(sum) e5m2_of_f32(sum_bits(sum))

/* Floats as integers that are ordered as they are: the bits of a negative one, but for its sign,
 * are flipped. A NaN becomes the key that wins: of all keys the least, which only a negative NaN
 * would have, or the greatest, which only a positive one would. */
#define DEFINE_KEYS(name, bits_t, key_t, infinity, nan)                                            \
    static inline key_t name##_key(bits_t bits, key_t winner)                                      \
    {                                                                                              \
        const bits_t rest = (bits_t)((bits_t) ~(bits_t)0 >> 1);                                    \
        bits_t negative = (key_t)bits < 0 ? rest : 0;                                              \
        bits_t is_nan = (bits_t)(bits & rest) > (infinity) ? (bits_t) ~(bits_t)0 : 0;              \
        return (key_t)(((bits_t)winner & is_nan) | ((bits ^ negative) & (bits_t)~is_nan));         \
    }                                                                                              \
                                                                                                   \
    static inline bits_t name##_of_key(key_t key)                                                  \
    {                                                                                              \
        const bits_t rest = (bits_t)((bits_t) ~(bits_t)0 >> 1);                                    \
        bits_t bits = (bits_t)key ^ (key < 0 ? rest : 0);                                          \
        bits_t is_nan = (bits_t)(bits & rest) > (infinity) ? (bits_t) ~(bits_t)0 : 0;              \
        return (bits_t)(((nan)&is_nan) | (bits & (bits_t)~is_nan));                                \
    }

DEFINE_KEYS(f32, uint32_t, int32_t, F32_INFINITY, F32_INFINITY | F32_QUIET)
DEFINE_KEYS(bf16, uint16_t, int16_t, 0x7f80, 0x7fc0)
DEFINE_KEYS(f16, uint16_t, int16_t, 0x7c00, 0x7e00)
DEFINE_KEYS(e4m3, uint8_t, int8_t, E4M3_LARGEST, E4M3_NAN)
DEFINE_KEYS(e5m2, uint8_t, int8_t, 0x7c, 0x7e)

#define F32_LOW(bits) f32_key(bits, INT32_MIN)
#define F32_HIGH(bits) f32_key(bits, INT32_MAX)
#define BF16_LOW(bits) bf16_key(bits, INT16_MIN)
#define BF16_HIGH(bits) bf16_key(bits, INT16_MAX)
#define F16_LOW(bits) f16_key(bits, INT16_MIN)
#define F16_HIGH(bits) f16_key(bits, INT16_MAX)
#define E4M3_LOW(bits) e4m3_key(bits, INT8_MIN)
#define E4M3_HIGH(bits) e4m3_key(bits, INT8_MAX)
#define E5M2_LOW(bits) e5m2_key(bits, INT8_MIN)
#define E5M2_HIGH(bits) e5m2_key(bits, INT8_MAX)

#define SAME(x) (x)
#define PLUS(a, b) ((a) + (b))
#define LOWER(a, b) ((b) < (a) ? (b) : (a))
#define HIGHER(a, b) ((b) > (a) ? (b) : (a))

/* ---- loops ---- */

/* A source's tile; what is left of one, as a whole tile in `room`. */
static inline const void *tile_at(const void *source, size_t bytes_before, size_t bytes,
                                  size_t tile_bytes, void *room)
{
    const char *from = (const char *)source + bytes_before;
    if (bytes >= tile_bytes)
        return from;
    memset(room, 0, tile_bytes);
    memcpy(room, from, bytes);
    return room;
}

/* `widen` makes an accumulator of an element, `narrow` an element of an accumulator. */
#define DEFINE_REDUCE(name, attributes, element_t, accumulator_t, widen, combine, narrow)          \
    attributes static void name(void *destination, const void *const *sources, uint32_t count,     \
                                size_t elems)                                                      \
    {                                                                                              \
        element_t room[2][TILE];                                                                   \
        for (size_t i = 0; i < elems; i += TILE) {                                                 \
            size_t at = i * sizeof(element_t), bytes = (elems - i) * sizeof(element_t);            \
            accumulator_t sums[TILE];                                                              \
            const element_t *a = tile_at(sources[0], at, bytes, sizeof room[0], room[0]);          \
            if (count == 1) {                                                                      \
                for (int j = 0; j < TILE; j++)                                                     \
                    sums[j] = widen(a[j]);                                                         \
            } else {                                                                               \
                const element_t *b = tile_at(sources[1], at, bytes, sizeof room[1], room[1]);      \
                for (int j = 0; j < TILE; j++)                                                     \
                    sums[j] = combine(widen(a[j]), widen(b[j]));                                   \
            }                                                                                      \
            for (uint32_t k = 2; k < count; k++) {                                                 \
                const element_t *c = tile_at(sources[k], at, bytes, sizeof room[0], room[0]);      \
                for (int j = 0; j < TILE; j++)                                                     \
                    sums[j] = combine(sums[j], widen(c[j]));                                       \
            }                                                                                      \
            element_t *to = (element_t *)((char *)destination + at);                               \
            if (bytes >= sizeof room[0]) {                                                         \
                for (int j = 0; j < TILE; j++)                                                     \
                    to[j] = narrow(sums[j]);                                                       \
            } else {                                                                               \
                for (int j = 0; j < TILE; j++)                                                     \
                    room[0][j] = narrow(sums[j]);                                                  \
                memcpy(to, room[0], bytes);                                                        \
            }                                                                                      \
        }                                                                                          \
    }

/* The types, in the order of `reduce_type`, but for the sum of f16. */
#define DEFINE_LEVEL(level, attributes)                                                            \
    DEFINE_REDUCE(level##_f32_sum, attributes, word_at, float, F32_OF, PLUS, F32_SUM)              \
    DEFINE_REDUCE(level##_f32_min, attributes, word_at, int32_t, F32_LOW, LOWER, f32_of_key)       \
    DEFINE_REDUCE(level##_f32_max, attributes, word_at, int32_t, F32_HIGH, HIGHER, f32_of_key)     \
    DEFINE_REDUCE(level##_f16_min, attributes, half_at, int16_t, F16_LOW, LOWER, f16_of_key)       \
    DEFINE_REDUCE(level##_f16_max, attributes, half_at, int16_t, F16_HIGH, HIGHER, f16_of_key)     \
    DEFINE_REDUCE(level##_bf16_sum, attributes, half_at, float, BF16_OF, PLUS, BF16_SUM)           \
    DEFINE_REDUCE(level##_bf16_min, attributes, half_at, int16_t, BF16_LOW, LOWER, bf16_of_key)    \
    DEFINE_REDUCE(level##_bf16_max, attributes, half_at, int16_t, BF16_HIGH, HIGHER, bf16_of_key)  \
    DEFINE_REDUCE(level##_e4m3_sum, attributes, byte_at, float, E4M3_OF, PLUS, E4M3_SUM)           \
    DEFINE_REDUCE(level##_e4m3_min, attributes, byte_at, int8_t, E4M3_LOW, LOWER, e4m3_of_key)     \
    DEFINE_REDUCE(level##_e4m3_max, attributes, byte_at, int8_t, E4M3_HIGH, HIGHER, e4m3_of_key)   \
    DEFINE_REDUCE(level##_e5m2_sum, attributes, byte_at, float, E5M2_OF, PLUS, E5M2_SUM)           \
    DEFINE_REDUCE(level##_e5m2_min, attributes, byte_at, int8_t, E5M2_LOW, LOWER, e5m2_of_key)     \
    DEFINE_REDUCE(level##_e5m2_max, attributes, byte_at, int8_t, E5M2_HIGH, HIGHER, e5m2_of_key)   \
    DEFINE_REDUCE(level##_32_sum, attributes, word_at, uint32_t, SAME, PLUS, SAME)                 \
    DEFINE_REDUCE(level##_i32_min, attributes, word_at, int32_t, (int32_t), LOWER, (uint32_t))     \
    DEFINE_REDUCE(level##_i32_max, attributes, word_at, int32_t, (int32_t), HIGHER, (uint32_t))    \
    DEFINE_REDUCE(level##_u32_min, attributes, word_at, uint32_t, SAME, LOWER, SAME)               \
    DEFINE_REDUCE(level##_u32_max, attributes, word_at, uint32_t, SAME, HIGHER, SAME)              \
    DEFINE_REDUCE(level##_i64_sum, attributes, long_at, uint64_t, SAME, PLUS, SAME)                \
    DEFINE_REDUCE(level##_i64_min, attributes, long_at, int64_t, (int64_t), LOWER, (uint64_t))     \
    DEFINE_REDUCE(level##_i64_max, attributes, long_at, int64_t, (int64_t), HIGHER, (uint64_t))    \
    DEFINE_REDUCE(level##_u8_sum, attributes, byte_at, uint8_t, SAME, PLUS, SAME)                  \
    DEFINE_REDUCE(level##_u8_min, attributes, byte_at, uint8_t, SAME, LOWER, SAME)                 \
    DEFINE_REDUCE(level##_u8_max, attributes, byte_at, uint8_t, SAME, HIGHER, SAME)                \
    static const reduce_fn level##_table[REDUCE_TYPES][3] = {                                      \
        {level##_f32_sum, level##_f32_min, level##_f32_max},                                       \
        {level##_f16_sum, level##_f16_min, level##_f16_max},                                       \
        {level##_bf16_sum, level##_bf16_min, level##_bf16_max},                                    \
        {level##_e4m3_sum, level##_e4m3_min, level##_e4m3_max},                                    \
        {level##_e5m2_sum, level##_e5m2_min, level##_e5m2_max},                                    \
        {level##_32_sum, level##_i32_min, level##_i32_max},                                        \
        {level##_32_sum, level##_u32_min, level##_u32_max},                                        \
        {level##_i64_sum, level##_i64_min, level##_i64_max},                                       \
        {level##_u8_sum, level##_u8_min, level##_u8_max},                                          \
    };

/* ---- processors ---- */

static const DLDataType reduce_types[] = {
    BANYAN_F32, BANYAN_F16, BANYAN_BF16, BANYAN_F8_E4M3, BANYAN_F8_E5M2,
    BANYAN_I32, BANYAN_U32, BANYAN_I64,  BANYAN_U8,
};

enum { REDUCE_TYPES = sizeof reduce_types / sizeof reduce_types[0] };

DEFINE_REDUCE(baseline_f16_sum, , half_at, float, F16_OF, PLUS, F16_SUM)
DEFINE_LEVEL(baseline, )

#if defined(__x86_64__)

/* Sums of f16 with the processor's own casts, which round as ours do. */
#define DEFINE_F16_SUM(name, attributes, lanes, vector_t, load, store)                             \
    attributes static void name(void *destination, const void *const *sources, uint32_t count,     \
                                size_t elems)                                                      \
    {                                                                                              \
        half_at room[TILE];                                                                        \
        for (size_t i = 0; i < elems; i += TILE) {                                                 \
            size_t at = i * sizeof(half_at), bytes = (elems - i) * sizeof(half_at);                \
            vector_t sums[TILE / (lanes)];                                                         \
            const half_at *from = tile_at(sources[0], at, bytes, sizeof room, room);               \
            for (int j = 0; j < TILE / (lanes); j++)                                               \
                sums[j] = load(from + j * (lanes));                                                \
            for (uint32_t k = 1; k < count; k++) {                                                 \
                from = tile_at(sources[k], at, bytes, sizeof room, room);                          \
                for (int j = 0; j < TILE / (lanes); j++)                                           \
                    sums[j] += load(from + j * (lanes));                                           \
            }                                                                                      \
            half_at *to = bytes >= sizeof room ? (half_at *)((char *)destination + at) : room;     \
            for (int j = 0; j < TILE / (lanes); j++)                                               \
                store(to + j * (lanes), sums[j]);                                                  \
            if (to == room)                                                                        \
                memcpy((char *)destination + at, room, bytes);                                     \
        }                                                                                          \
    }

#define AVX2 __attribute__((target(CPU_AVX2_TARGET)))
#define AVX512 __attribute__((target(CPU_AVX512_TARGET)))

AVX2 static inline __m256 avx2_load(const half_at *from)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i_u *)from));
}

AVX2 static inline void avx2_store(half_at *to, __m256 sums)
{
    __m256 is_nan = _mm256_cmp_ps(sums, sums, _CMP_UNORD_Q);
    sums = _mm256_blendv_ps(sums, _mm256_set1_ps(__builtin_nanf("")), is_nan);
    _mm_storeu_si128((__m128i_u *)to, _mm256_cvtps_ph(sums, _MM_FROUND_TO_NEAREST_INT));
}

AVX512 static inline __m512 avx512_load(const half_at *from)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i_u *)from));
}

AVX512 static inline void avx512_store(half_at *to, __m512 sums)
{
    __mmask16 is_nan = _mm512_cmp_ps_mask(sums, sums, _CMP_UNORD_Q);
    sums = _mm512_mask_mov_ps(sums, is_nan, _mm512_set1_ps(__builtin_nanf("")));
    _mm256_storeu_si256((__m256i_u *)to, _mm512_cvtps_ph(sums, _MM_FROUND_TO_NEAREST_INT));
}

DEFINE_F16_SUM(avx2_f16_sum, AVX2, 8, __m256, avx2_load, avx2_store)
DEFINE_F16_SUM(avx512_f16_sum, AVX512, 16, __m512, avx512_load, avx512_store)
DEFINE_LEVEL(avx2, AVX2)
DEFINE_LEVEL(avx512, AVX512)

#endif

reduce_fn reduce_find(DLDataType dtype, banyan_reduce_op op)
{
    static const reduce_fn(*const tables[CPU_LEVELS])[3] = {
        [CPU_BASELINE] = baseline_table,
#if defined(__x86_64__)
        [CPU_AVX2] = avx2_table,
        [CPU_AVX512] = avx512_table,
#endif
    };
    for (int type = 0; type < REDUCE_TYPES; type++) {
        if (banyan_dtype_equal(reduce_types[type], dtype))
            return tables[cpu_level_get()][type][op];
    }
    return NULL;
}
