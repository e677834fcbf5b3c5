#include "channel/reduce.h"

#include "channel/reduce_loops.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Sums and products of floats: in f32, rounded once. Those of F32, F16, BF16, F8_E4M3 and F8_E5M2,
 * in this order.
 */
enum { REDUCE_FLOATS = 5 };

/* Return a sum's bits, with one NaN for all. */
static inline uint32_t sum_bits(float sum)
{
    return bits_select(sum != sum, F32_INFINITY | F32_QUIET, f32_bits(sum));
}

#define DEFINE_SUM(name, bits_t, f32_of_name, name_of_f32)                                         \
    static inline float name##_wide(bits_t bits)                                                   \
    {                                                                                              \
        return f32_of_bits(f32_of_name(bits));                                                     \
    }                                                                                              \
                                                                                                   \
    static inline bits_t name##_narrow(float sum)                                                  \
    {                                                                                              \
        return name_of_f32(sum_bits(sum));                                                         \
    }

/* Convert without making NaN quiet or distinguishing NaNs: sum_bits handles them. */
static inline uint32_t f32_of_bf16_number(uint16_t half)
{
    return (uint32_t)half << 16;
}

static inline uint16_t bf16_of_f32_number(uint32_t bits)
{
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

DEFINE_SUM(f32, uint32_t, SAME, SAME)
DEFINE_SUM(f16, uint16_t, f32_of_f16, f16_of_f32)
DEFINE_SUM(bf16, uint16_t, f32_of_bf16_number, bf16_of_f32_number)
DEFINE_SUM(e4m3, uint8_t, f32_of_e4m3, e4m3_of_f32)
DEFINE_SUM(e5m2, uint8_t, f32_of_e5m2, e5m2_of_f32)

#if defined(__x86_64__)

/* Sums with the processor's own casts between f16 and f32. */
#define DEFINE_VECTOR_SUM(name, attributes, element_t, lanes, vector_t, load, store)               \
    attributes static void name(void *destination, const void *const *sources, uint32_t count,     \
                                size_t elems)                                                      \
    {                                                                                              \
        enum { VECTORS = 4 };                                                                      \
        element_t room[VECTORS * (lanes)];                                                         \
        size_t total = elems * sizeof(element_t);                                                  \
        for (size_t at = 0; at < total; at += sizeof room) {                                       \
            vector_t sums[VECTORS];                                                                \
            bool whole = total - at >= sizeof room;                                                \
            const element_t *from = tile_at(sources[0], at, total - at, sizeof room, room);        \
            UNROLLED                                                                               \
            for (int i = 0; i < VECTORS; i++)                                                      \
                sums[i] = load(from + i * (lanes));                                                \
            for (uint32_t k = 1; k < count; k++) {                                                 \
                from = tile_at(sources[k], at, total - at, sizeof room, room);                     \
                UNROLLED                                                                           \
                for (int i = 0; i < VECTORS; i++)                                                  \
                    sums[i] += load(from + i * (lanes));                                           \
            }                                                                                      \
            element_t *to = whole ? (element_t *)((char *)destination + at) : room;                \
            UNROLLED                                                                               \
            for (int i = 0; i < VECTORS; i++)                                                      \
                store(to + i * (lanes), sums[i]);                                                  \
            if (!whole)                                                                            \
                memcpy((char *)destination + at, room, total - at);                                \
        }                                                                                          \
    }

AVX2 static inline __m256 avx2_f16_load(const half_at *from)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i_u *)from));
}

AVX512 static inline __m512 avx512_f16_load(const half_at *from)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i_u *)from));
}

AVX2 static inline __m256 avx2_one_nan(__m256 sums)
{
    __m256 is_nan = _mm256_cmp_ps(sums, sums, _CMP_UNORD_Q);
    return _mm256_blendv_ps(sums, _mm256_set1_ps(__builtin_nanf("")), is_nan);
}

AVX512 static inline __m512 avx512_one_nan(__m512 sums)
{
    __mmask16 is_nan = _mm512_cmp_ps_mask(sums, sums, _CMP_UNORD_Q);
    return _mm512_mask_mov_ps(sums, is_nan, _mm512_set1_ps(__builtin_nanf("")));
}

AVX2 static inline void avx2_f16_store(half_at *to, __m256 sums)
{
    __m128i halves = _mm256_cvtps_ph(avx2_one_nan(sums), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128((__m128i_u *)to, halves);
}

AVX512 static inline void avx512_f16_store(half_at *to, __m512 sums)
{
    __m256i halves = _mm512_cvtps_ph(avx512_one_nan(sums), _MM_FROUND_TO_NEAREST_INT);
    _mm256_storeu_si256((__m256i_u *)to, halves);
}

/* 8-bit floats are rounded through f16. The conversion sets the last bit of the f16 if bits are
 * lost; then the second rounding gives the result of a single rounding. */
AVX2 static inline __m128i avx2_odd_halves(__m256 sums)
{
    __m128i halves = _mm256_cvtps_ph(sums, _MM_FROUND_TO_ZERO);
    __m256 lost = _mm256_cmp_ps(_mm256_cvtph_ps(halves), sums, _CMP_NEQ_OQ);
    __m128i ones = _mm_packs_epi32(_mm256_castsi256_si128(_mm256_castps_si256(lost)),
                                   _mm256_extracti128_si256(_mm256_castps_si256(lost), 1));
    return _mm_or_si128(halves, _mm_and_si128(ones, _mm_set1_epi16(1)));
}

AVX512 static inline __m256i avx512_odd_halves(__m512 sums)
{
    __m256i halves = _mm512_cvtps_ph(sums, _MM_FROUND_TO_ZERO);
    __mmask16 lost = _mm512_cmp_ps_mask(_mm512_cvtph_ps(halves), sums, _CMP_NEQ_OQ);
    return _mm256_or_si256(halves, _mm256_maskz_set1_epi16(lost, 1));
}

/* e5m2 is the upper half of an f16. */
AVX2 static inline __m256 avx2_e5m2_load(const byte_at *from)
{
    __m128i bytes = _mm_loadl_epi64((const __m128i_u *)from);
    return _mm256_cvtph_ps(_mm_unpacklo_epi8(_mm_setzero_si128(), bytes));
}

AVX512 static inline __m512 avx512_e5m2_load(const byte_at *from)
{
    __m128i bytes = _mm_loadu_si128((const __m128i_u *)from);
    return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8));
}

AVX2 static inline void avx2_e5m2_store(byte_at *to, __m256 sums)
{
    __m128i halves = avx2_odd_halves(avx2_one_nan(sums));
    __m128i even = _mm_and_si128(_mm_srli_epi16(halves, 8), _mm_set1_epi16(1));
    halves = _mm_add_epi16(_mm_add_epi16(halves, _mm_set1_epi16(0x7f)), even);
    halves = _mm_srli_epi16(halves, 8);
    _mm_storel_epi64((__m128i_u *)to, _mm_packus_epi16(halves, halves));
}

AVX512 static inline void avx512_e5m2_store(byte_at *to, __m512 sums)
{
    __m256i halves = avx512_odd_halves(avx512_one_nan(sums));
    __m256i even = _mm256_and_si256(_mm256_srli_epi16(halves, 8), _mm256_set1_epi16(1));
    halves = _mm256_add_epi16(_mm256_add_epi16(halves, _mm256_set1_epi16(0x7f)), even);
    _mm_storeu_si128((__m128i_u *)to, _mm256_cvtepi16_epi8(_mm256_srli_epi16(halves, 8)));
}

/* An e4m3's exponent and mantissa, placed in an f16's, have 2^-8 of its value; so do the sums. */
AVX2 static inline __m256 avx2_e4m3_load(const byte_at *from)
{
    __m128i bytes = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i_u *)from));
    __m128i halves = _mm_andnot_si128(_mm_set1_epi16(0x4000), _mm_slli_epi16(bytes, 7));
    __m128i rest = _mm_or_si128(halves, _mm_set1_epi16(INT16_MIN));
    __m128i is_nan = _mm_cmpeq_epi16(rest, _mm_set1_epi16((int16_t)0xbf80));
    return _mm256_cvtph_ps(_mm_or_si128(halves, is_nan));
}

AVX512 static inline __m512 avx512_e4m3_load(const byte_at *from)
{
    __m256i bytes = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i_u *)from));
    __m256i halves = _mm256_andnot_si256(_mm256_set1_epi16(0x4000), _mm256_slli_epi16(bytes, 7));
    __m256i rest = _mm256_or_si256(halves, _mm256_set1_epi16(INT16_MIN));
    __mmask16 is_nan = _mm256_cmpeq_epi16_mask(rest, _mm256_set1_epi16((int16_t)0xbf80));
    return _mm512_cvtph_ps(_mm256_mask_mov_epi16(halves, is_nan, _mm256_set1_epi16(-1)));
}

/* f16's NaN and infinity are above every e4m3 value, too. */
AVX2 static inline void avx2_e4m3_store(byte_at *to, __m256 sums)
{
    __m128i halves = avx2_odd_halves(avx2_one_nan(sums));
    __m128i sign = _mm_and_si128(_mm_srli_epi16(halves, 8), _mm_set1_epi16(0x80));
    __m128i rest = _mm_and_si128(halves, _mm_set1_epi16(INT16_MAX));
    __m128i is_nan = _mm_cmpgt_epi16(rest, _mm_set1_epi16(0x7c00));
    __m128i even = _mm_and_si128(_mm_srli_epi16(rest, 7), _mm_set1_epi16(1));
    rest = _mm_add_epi16(_mm_add_epi16(rest, _mm_set1_epi16(0x3f)), even);
    rest = _mm_min_epi16(_mm_srli_epi16(rest, 7), _mm_set1_epi16(E4M3_LARGEST));
    rest = _mm_sub_epi16(rest, is_nan);
    rest = _mm_or_si128(rest, sign);
    _mm_storel_epi64((__m128i_u *)to, _mm_packus_epi16(rest, rest));
}

AVX512 static inline void avx512_e4m3_store(byte_at *to, __m512 sums)
{
    __m256i halves = avx512_odd_halves(avx512_one_nan(sums));
    __m256i sign = _mm256_and_si256(_mm256_srli_epi16(halves, 8), _mm256_set1_epi16(0x80));
    __m256i rest = _mm256_and_si256(halves, _mm256_set1_epi16(INT16_MAX));
    __mmask16 is_nan = _mm256_cmpgt_epi16_mask(rest, _mm256_set1_epi16(0x7c00));
    __m256i even = _mm256_and_si256(_mm256_srli_epi16(rest, 7), _mm256_set1_epi16(1));
    rest = _mm256_add_epi16(_mm256_add_epi16(rest, _mm256_set1_epi16(0x3f)), even);
    rest = _mm256_min_epi16(_mm256_srli_epi16(rest, 7), _mm256_set1_epi16(E4M3_LARGEST));
    rest = _mm256_mask_mov_epi16(rest, is_nan, _mm256_set1_epi16(E4M3_NAN));
    _mm_storeu_si128((__m128i_u *)to, _mm256_cvtepi16_epi8(_mm256_or_si256(rest, sign)));
}

#endif

#define DEFINE_SUMS(level, attributes)                                                             \
    DEFINE_REDUCE(level##_f32, attributes, word_at, 1, float, f32_wide, PLUS, f32_narrow)          \
    DEFINE_REDUCE(level##_bf16, attributes, word_at, 2, float, bf16_wide, PLUS, bf16_narrow)

DEFINE_SUMS(baseline, )
DEFINE_REDUCE(baseline_f16, , word_at, 2, float, f16_wide, PLUS, f16_narrow)
DEFINE_REDUCE(baseline_e4m3, , word_at, 4, float, e4m3_wide, PLUS, e4m3_narrow)
DEFINE_REDUCE(baseline_e5m2, , word_at, 4, float, e5m2_wide, PLUS, e5m2_narrow)

#if defined(__x86_64__)

DEFINE_SUMS(avx2, AVX2)
DEFINE_VECTOR_SUM(avx2_f16, AVX2, half_at, 8, __m256, avx2_f16_load, avx2_f16_store)
DEFINE_VECTOR_SUM(avx2_e4m3, AVX2, byte_at, 8, __m256, avx2_e4m3_load, avx2_e4m3_store)
DEFINE_VECTOR_SUM(avx2_e5m2, AVX2, byte_at, 8, __m256, avx2_e5m2_load, avx2_e5m2_store)

DEFINE_SUMS(avx512, AVX512)
DEFINE_VECTOR_SUM(avx512_f16, AVX512, half_at, 16, __m512, avx512_f16_load, avx512_f16_store)
DEFINE_VECTOR_SUM(avx512_e4m3, AVX512, byte_at, 16, __m512, avx512_e4m3_load, avx512_e4m3_store)
DEFINE_VECTOR_SUM(avx512_e5m2, AVX512, byte_at, 16, __m512, avx512_e5m2_load, avx512_e5m2_store)

#endif

static const reduce_fn float_sums[CPU_LEVELS][REDUCE_FLOATS] = {
    [CPU_BASELINE] = {baseline_f32, baseline_f16, baseline_bf16, baseline_e4m3, baseline_e5m2},
#if defined(__x86_64__)
    [CPU_AVX2] = {avx2_f32, avx2_f16, avx2_bf16, avx2_e4m3, avx2_e5m2},
    [CPU_AVX512] = {avx512_f32, avx512_f16, avx512_bf16, avx512_e4m3, avx512_e5m2},
#endif
};

/* Map floats to unsigned integers of the same order. Flipping all bits but the sign of the negative
 * ones gives ordered signed integers: from negative NaN over -infinity, -0, 0 and infinity to
 * positive NaN, after which the circle begins again. Counted from -infinity on, all NaN are at the
 * top, where they win a maximum; counted from behind infinity, they are at the bottom and win a
 * minimum. */
#define DEFINE_ORDER(name, bits_t, signed_t, infinity, nan)                                        \
    static inline bits_t name##_flipped(bits_t bits)                                               \
    {                                                                                              \
        const bits_t rest = (bits_t)((bits_t) ~(bits_t)0 >> 1);                                    \
        return (bits_t)(bits ^ ((signed_t)bits < 0 ? rest : 0));                                   \
    }                                                                                              \
                                                                                                   \
    static inline bits_t name##_key(bits_t bits, bits_t first)                                     \
    {                                                                                              \
        return (bits_t)(name##_flipped(bits) - first);                                             \
    }                                                                                              \
                                                                                                   \
    static inline bits_t name##_of_key(bits_t key, bits_t first)                                   \
    {                                                                                              \
        const bits_t rest = (bits_t)((bits_t) ~(bits_t)0 >> 1);                                    \
        bits_t bits = name##_flipped((bits_t)(key + first));                                       \
        return (bits_t)(bits & rest) > (infinity) ? (nan) : bits;                                  \
    }                                                                                              \
                                                                                                   \
    static inline bits_t name##_low(bits_t bits)                                                   \
    {                                                                                              \
        return name##_key(bits, (infinity) + 1);                                                   \
    }                                                                                              \
                                                                                                   \
    static inline bits_t name##_of_low(bits_t key)                                                 \
    {                                                                                              \
        return name##_of_key(key, (infinity) + 1);                                                 \
    }                                                                                              \
                                                                                                   \
    static inline bits_t name##_high(bits_t bits)                                                  \
    {                                                                                              \
        return name##_key(bits, (bits_t) ~(bits_t)(infinity));                                     \
    }                                                                                              \
                                                                                                   \
    static inline bits_t name##_of_high(bits_t key)                                                \
    {                                                                                              \
        return name##_of_key(key, (bits_t) ~(bits_t)(infinity));                                   \
    }

DEFINE_ORDER(f32, uint32_t, int32_t, F32_INFINITY, F32_INFINITY | F32_QUIET)
DEFINE_ORDER(f16, uint16_t, int16_t, 0x7c00, 0x7e00)
DEFINE_ORDER(bf16, uint16_t, int16_t, 0x7f80, 0x7fc0)
DEFINE_ORDER(e4m3, uint8_t, int8_t, E4M3_LARGEST, E4M3_NAN)
DEFINE_ORDER(e5m2, uint8_t, int8_t, 0x7c, 0x7e)

#define LOWER(a, b) ((b) < (a) ? (b) : (a))
#define HIGHER(a, b) ((b) > (a) ? (b) : (a))

static const DLDataType types[] = {
    BANYAN_F32, BANYAN_F16, BANYAN_BF16, BANYAN_F8_E4M3, BANYAN_F8_E5M2,
    BANYAN_I32, BANYAN_U32, BANYAN_I64,  BANYAN_U8,
};

enum { TYPES = sizeof types / sizeof types[0] };

typedef struct reduce_table {
    reduce_fn integer_sums[TYPES - REDUCE_FLOATS];
    reduce_fn lowest[TYPES], highest[TYPES], products[TYPES];
} reduce_table;

#define DEFINE_TABLE(level, attributes)                                                            \
    DEFINE_REDUCE(level##_f32_min, attributes, word_at, 1, uint32_t, f32_low, LOWER, f32_of_low)   \
    DEFINE_REDUCE(level##_f32_max, attributes, word_at, 1, uint32_t, f32_high, HIGHER,             \
                  f32_of_high)                                                                     \
    DEFINE_REDUCE(level##_f16_min, attributes, half_at, 1, uint16_t, f16_low, LOWER, f16_of_low)   \
    DEFINE_REDUCE(level##_f16_max, attributes, half_at, 1, uint16_t, f16_high, HIGHER,             \
                  f16_of_high)                                                                     \
    DEFINE_REDUCE(level##_bf16_min, attributes, half_at, 1, uint16_t, bf16_low, LOWER,             \
                  bf16_of_low)                                                                     \
    DEFINE_REDUCE(level##_bf16_max, attributes, half_at, 1, uint16_t, bf16_high, HIGHER,           \
                  bf16_of_high)                                                                    \
    DEFINE_REDUCE(level##_e4m3_min, attributes, byte_at, 1, uint8_t, e4m3_low, LOWER, e4m3_of_low) \
    DEFINE_REDUCE(level##_e4m3_max, attributes, byte_at, 1, uint8_t, e4m3_high, HIGHER,            \
                  e4m3_of_high)                                                                    \
    DEFINE_REDUCE(level##_e5m2_min, attributes, byte_at, 1, uint8_t, e5m2_low, LOWER, e5m2_of_low) \
    DEFINE_REDUCE(level##_e5m2_max, attributes, byte_at, 1, uint8_t, e5m2_high, HIGHER,            \
                  e5m2_of_high)                                                                    \
    DEFINE_REDUCE(level##_i32_min, attributes, word_at, 1, int32_t, (int32_t), LOWER, (uint32_t))  \
    DEFINE_REDUCE(level##_i32_max, attributes, word_at, 1, int32_t, (int32_t), HIGHER, (uint32_t)) \
    DEFINE_REDUCE(level##_32_sum, attributes, word_at, 1, uint32_t, SAME, PLUS, SAME)              \
    DEFINE_REDUCE(level##_u32_min, attributes, word_at, 1, uint32_t, SAME, LOWER, SAME)            \
    DEFINE_REDUCE(level##_u32_max, attributes, word_at, 1, uint32_t, SAME, HIGHER, SAME)           \
    DEFINE_REDUCE(level##_64_sum, attributes, long_at, 1, uint64_t, SAME, PLUS, SAME)              \
    DEFINE_REDUCE(level##_i64_min, attributes, long_at, 1, int64_t, (int64_t), LOWER, (uint64_t))  \
    DEFINE_REDUCE(level##_i64_max, attributes, long_at, 1, int64_t, (int64_t), HIGHER, (uint64_t)) \
    DEFINE_REDUCE(level##_8_sum, attributes, byte_at, 1, uint8_t, SAME, PLUS, SAME)                \
    DEFINE_REDUCE(level##_u8_min, attributes, byte_at, 1, uint8_t, SAME, LOWER, SAME)              \
    DEFINE_REDUCE(level##_u8_max, attributes, byte_at, 1, uint8_t, SAME, HIGHER, SAME)             \
    DEFINE_REDUCE(level##_f32_prod, attributes, word_at, 1, float, f32_wide, TIMES, f32_narrow)    \
    DEFINE_REDUCE(level##_f16_prod, attributes, word_at, 2, float, f16_wide, TIMES, f16_narrow)    \
    DEFINE_REDUCE(level##_bf16_prod, attributes, word_at, 2, float, bf16_wide, TIMES, bf16_narrow) \
    DEFINE_REDUCE(level##_e4m3_prod, attributes, word_at, 4, float, e4m3_wide, TIMES, e4m3_narrow) \
    DEFINE_REDUCE(level##_e5m2_prod, attributes, word_at, 4, float, e5m2_wide, TIMES, e5m2_narrow) \
    DEFINE_REDUCE(level##_32_prod, attributes, word_at, 1, uint32_t, SAME, TIMES, SAME)            \
    DEFINE_REDUCE(level##_64_prod, attributes, long_at, 1, uint64_t, SAME, TIMES, SAME)            \
    DEFINE_REDUCE(level##_8_prod, attributes, byte_at, 1, uint8_t, SAME, TIMES, SAME)              \
    static const reduce_table level##_table = {                                                    \
        {level##_32_sum, level##_32_sum, level##_64_sum, level##_8_sum},                           \
        {level##_f32_min, level##_f16_min, level##_bf16_min, level##_e4m3_min, level##_e5m2_min,   \
         level##_i32_min, level##_u32_min, level##_i64_min, level##_u8_min},                       \
        {level##_f32_max, level##_f16_max, level##_bf16_max, level##_e4m3_max, level##_e5m2_max,   \
         level##_i32_max, level##_u32_max, level##_i64_max, level##_u8_max},                       \
        {level##_f32_prod, level##_f16_prod, level##_bf16_prod, level##_e4m3_prod,                 \
         level##_e5m2_prod, level##_32_prod, level##_32_prod, level##_64_prod, level##_8_prod},    \
    };

DEFINE_TABLE(baseline, )
#if defined(__x86_64__)
DEFINE_TABLE(avx2, AVX2)
DEFINE_TABLE(avx512, AVX512)
#endif

static reduce_fn find_at(cpu_level level, int type, banyan_reduce_op op)
{
    static const reduce_table *const tables[CPU_LEVELS] = {
        [CPU_BASELINE] = &baseline_table,
#if defined(__x86_64__)
        [CPU_AVX2] = &avx2_table,
        [CPU_AVX512] = &avx512_table,
#endif
    };
    const reduce_table *table = tables[level];
    if (op == BANYAN_SUM && type < REDUCE_FLOATS)
        return float_sums[level][type];
    if (op == BANYAN_SUM)
        return table->integer_sums[type - REDUCE_FLOATS];
    return op == BANYAN_MIN   ? table->lowest[type]
           : op == BANYAN_MAX ? table->highest[type]
                              : table->products[type];
}

reduce_fn reduce_find(DLDataType dtype, banyan_reduce_op op)
{
    for (int type = 0; type < TYPES; type++) {
        if (banyan_dtype_equal(types[type], dtype))
            return find_at(cpu_level_get(), type, op);
    }
    return NULL;
}
