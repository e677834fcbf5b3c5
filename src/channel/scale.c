#include "channel/scale.h"

#include "channel/reduce_loops.h"

#define F32_BITS(x) (x)

/* One NaN for all, as in sums. */
static inline uint32_t scale_product(uint32_t bits, float factor)
{
    float product = f32_of_bits(bits) * factor;
    return bits_select(product != product, F32_INFINITY | F32_QUIET, f32_bits(product));
}

/* Each element depends only on the one at its own place, in `to` and `from` alike. */
#define DEFINE_SCALE(name, attributes, element_t, widen, narrow)                                   \
    attributes static void name(void *to, const void *from, size_t elems, float factor)            \
    {                                                                                              \
        element_t *results = to;                                                                   \
        const element_t *values = from;                                                            \
        WORDS_ARE_INDEPENDENT                                                                      \
        for (size_t i = 0; i < elems; i++)                                                         \
            results[i] = (element_t)narrow(scale_product(widen(values[i]), factor));               \
    }

#define DEFINE_SCALES(level, attributes)                                                           \
    DEFINE_SCALE(level##_f32, attributes, word_at, F32_BITS, F32_BITS)                             \
    DEFINE_SCALE(level##_f16, attributes, half_at, f32_of_f16, f16_of_f32)                         \
    DEFINE_SCALE(level##_bf16, attributes, half_at, f32_of_bf16, bf16_of_f32)                      \
    DEFINE_SCALE(level##_e4m3, attributes, byte_at, f32_of_e4m3, e4m3_of_f32)                      \
    DEFINE_SCALE(level##_e5m2, attributes, byte_at, f32_of_e5m2, e5m2_of_f32)

DEFINE_SCALES(baseline, )
#if defined(__x86_64__)
DEFINE_SCALES(avx2, AVX2)
DEFINE_SCALES(avx512, AVX512)
#endif

typedef void (*scale_fn)(void *to, const void *from, size_t elems, float factor);

#define SCALES_OF(level)                                                                           \
    {                                                                                              \
        level##_f32, level##_f16, level##_bf16, level##_e4m3, level##_e5m2                         \
    }

void scale_floats(void *to, const void *from, size_t elems, DLDataType dtype, float factor)
{
    static const DLDataType types[] = {BANYAN_F32, BANYAN_F16, BANYAN_BF16, BANYAN_F8_E4M3,
                                       BANYAN_F8_E5M2};
    static const scale_fn loops[CPU_LEVELS][sizeof types / sizeof *types] = {
        [CPU_BASELINE] = SCALES_OF(baseline),
#if defined(__x86_64__)
        [CPU_AVX2] = SCALES_OF(avx2),
        [CPU_AVX512] = SCALES_OF(avx512),
#endif
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (banyan_dtype_equal(types[i], dtype))
            loops[cpu_level_get()][i](to, from, elems, factor);
    }
}

/* Products are unsigned, so that they wrap around. */
#define DEFINE_SCALE_INTEGERS(name, element_t, value_t)                                            \
    static void name(element_t *to, const element_t *from, size_t elems, int64_t whole,            \
                     bool divides)                                                                 \
    {                                                                                              \
        WORDS_ARE_INDEPENDENT                                                                      \
        for (size_t i = 0; i < elems; i++) {                                                       \
            value_t value = (value_t)from[i];                                                      \
            to[i] = divides ? (element_t)((int64_t)value / whole)                                  \
                            : (element_t)((uint64_t)value * (uint64_t)whole);                      \
        }                                                                                          \
    }

DEFINE_SCALE_INTEGERS(scale_u8, byte_at, uint8_t)
DEFINE_SCALE_INTEGERS(scale_i32, word_at, int32_t)
DEFINE_SCALE_INTEGERS(scale_u32, word_at, uint32_t)
DEFINE_SCALE_INTEGERS(scale_i64, long_at, int64_t)

void scale_integers(void *to, const void *from, size_t elems, DLDataType dtype, int64_t whole,
                    bool divides)
{
    if (dtype.bits == 8)
        scale_u8(to, from, elems, whole, divides);
    else if (dtype.bits == 64)
        scale_i64(to, from, elems, whole, divides);
    else if (dtype.code == kDLInt)
        scale_i32(to, from, elems, whole, divides);
    else
        scale_u32(to, from, elems, whole, divides);
}
