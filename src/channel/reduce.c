#include "channel/reduce_loops.h"

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
    reduce_fn lowest[TYPES], highest[TYPES];
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
    static const reduce_table level##_table = {                                                    \
        {level##_32_sum, level##_32_sum, level##_64_sum, level##_8_sum},                           \
        {level##_f32_min, level##_f16_min, level##_bf16_min, level##_e4m3_min, level##_e5m2_min,   \
         level##_i32_min, level##_u32_min, level##_i64_min, level##_u8_min},                       \
        {level##_f32_max, level##_f16_max, level##_bf16_max, level##_e4m3_max, level##_e5m2_max,   \
         level##_i32_max, level##_u32_max, level##_i64_max, level##_u8_max},                       \
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
        return reduce_float_sums[level][type];
    if (op == BANYAN_SUM)
        return table->integer_sums[type - REDUCE_FLOATS];
    return op == BANYAN_MIN ? table->lowest[type] : table->highest[type];
}

reduce_fn reduce_find(DLDataType dtype, banyan_reduce_op op)
{
    for (int type = 0; type < TYPES; type++) {
        if (banyan_dtype_equal(types[type], dtype))
            return find_at(cpu_level_get(), type, op);
    }
    return NULL;
}
