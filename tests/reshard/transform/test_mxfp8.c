/* MXFP8 equals the reference bit for bit, for every bf16 value and every kind of block. */
#include "support/test.h"

#include "reshard/mxfp8_reference.h"
#include "reshard/transform/mxfp8.h"
#include "support/float_reference.h"

static uint32_t load(DLDataType dtype, const void *memory, size_t i)
{
    uint32_t word;
    uint16_t half;
    if (banyan_dtype_bytes(dtype) == 4) {
        memcpy(&word, (const char *)memory + 4 * i, 4);
        return word;
    }
    memcpy(&half, (const char *)memory + 2 * i, 2);
    return half;
}

static float_format format_of(DLDataType dtype)
{
    if (banyan_dtype_equal(dtype, BANYAN_F32))
        return format_f32;
    return banyan_dtype_equal(dtype, BANYAN_F16) ? format_f16 : format_bf16;
}

typedef void (*quantize_fn)(banyan_mxfp8_rule, const void *, DLDataType, int64_t, uint8_t *,
                            uint8_t *);

static void check_blocks(quantize_fn quantize, banyan_mxfp8_rule rule, const void *values,
                         DLDataType dtype, int64_t count)
{
    int64_t blocks = mxfp8_blocks(count);
    uint8_t *elements = malloc((size_t)count + 1), *scales = malloc((size_t)blocks + 1);
    memset(elements, 0xa5, (size_t)count + 1);
    memset(scales, 0xa5, (size_t)blocks + 1);
    quantize(rule, values, dtype, count, elements, scales);
    assert_int_equal(elements[count], 0xa5);
    assert_int_equal(scales[blocks], 0xa5);
    for (int64_t b = 0; b < blocks; b++) {
        int some = count - b * 32 < 32 ? (int)(count - b * 32) : 32;
        double block[32];
        for (int i = 0; i < some; i++)
            block[i] = format_decode(format_of(dtype), load(dtype, values, (size_t)(b * 32 + i)));
        uint8_t want[32], scale;
        mxfp8_reference_block(rule, block, some, want, &scale);
        CHECK(scales[b] == scale, "rule %d, block %lld: scale %d, not %d", rule, (long long)b,
              scales[b], scale);
        for (int i = 0; i < some; i++) {
            /* A NaN's sign is lost in the conversion through double. */
            uint8_t mask = isnan(block[i]) ? 0x7f : 0xff;
            CHECK((elements[b * 32 + i] & mask) == (want[i] & mask),
                  "rule %d, block %lld, scale %d, %a: %#x, not %#x", rule, (long long)b, scale,
                  block[i], elements[b * 32 + i], want[i]);
        }
    }
    free(elements);
    free(scales);
}

static void check_all(const void *values, DLDataType dtype, int64_t count)
{
    for (int rule = 0; rule < 2; rule++) {
        check_blocks(mxfp8_quantize, rule, values, dtype, count);
        check_blocks(mxfp8_quantize_portable, rule, values, dtype, count);
    }
}

/* Neighbours in value, which share an exponent. */
static void every_bf16_value_among_its_neighbours(void **state)
{
    (void)state;
    uint16_t *values = malloc(65536 * 2);
    for (uint32_t i = 0; i < 65536; i++)
        values[i] = (uint16_t)i;
    check_all(values, BANYAN_BF16, 65536);
    free(values);
}

/* Each value with zeros, and each below a larger one that sets the scale. */
static void every_bf16_value_in_a_block_that_another_scales(void **state)
{
    (void)state;
    enum { COPIES = 31 };
    uint16_t *values = calloc(65536 / 8 * 32, 2);
    for (int above = 0; above < COPIES; above++) {
        /* Eight values of one binade a block, and one `above` octaves over them. */
        for (uint32_t b = 0; b < 8192; b++) {
            uint16_t *block = values + (size_t)b * 32;
            memset(block, 0, 64);
            for (uint32_t i = 0; i < 8; i++)
                block[i * 3] = (uint16_t)(b * 8 + i);
            uint32_t largest = (b * 8 & 0x7f80) + ((uint32_t)above << 7) + (b * 37 & 0x7f);
            if (above > 0)
                block[31] = (uint16_t)(largest > 0x7f7f ? 0x7f7f : largest);
        }
        check_blocks(mxfp8_quantize, above % 2, values, BANYAN_BF16, 65536 / 8 * 32);
    }
    free(values);
}

static void every_bf16_value_with_nan_and_infinity_around(void **state)
{
    (void)state;
    uint16_t *values = malloc(65536 * 2);
    for (uint32_t i = 0; i < 65536; i++)
        values[i] = (uint16_t)(i * 2053);
    check_all(values, BANYAN_BF16, 65536);
    free(values);
}

static void random_blocks_of_every_source_type(void **state)
{
    (void)state;
    enum { COUNT = 40000 };
    const DLDataType dtypes[] = {BANYAN_F32, BANYAN_F16, BANYAN_BF16};
    random_state random = random_from(random_seed());
    uint32_t *words = malloc(COUNT * sizeof *words);
    uint16_t *halves = malloc(COUNT * sizeof *halves);
    for (int kind = 0; kind < 3; kind++) {
        float_format format = format_of(dtypes[kind]);
        int top = (1 << format.exponent_bits) - 1, exponent = 0;
        for (int i = 0; i < COUNT; i++) {
            if (i % 32 == 0)
                exponent = (int)random_between(&random, 0, top);
            int e = exponent - (int)random_between(&random, 0, 20);
            uint32_t mantissa = (uint32_t)random_next(&random) & ((1U << format.mantissa_bits) - 1);
            uint32_t bits = (uint32_t)(e < 0 ? 0 : e) << format.mantissa_bits | mantissa;
            bits |= (uint32_t)(random_next(&random) & 1)
                    << (format.exponent_bits + format.mantissa_bits);
            words[i] = bits;
            halves[i] = (uint16_t)bits;
        }
        check_all(kind == 0 ? (void *)words : (void *)halves, dtypes[kind], COUNT - 7);
    }
    free(words);
    free(halves);
}

static void blocks_of_zeros_infinities_nan_and_subnormals(void **state)
{
    (void)state;
    enum { POSITIVE = 0x7f80, NEGATIVE = 0xff80, QUIET = 0x7fc0, SIGNALLING = 0xff81 };
    uint16_t block[32] = {0};
    uint8_t elements[32], scale;
    block[3] = 0x8000;
    mxfp8_quantize(BANYAN_MXFP8_ROUND_UP, block, BANYAN_BF16, 32, elements, &scale);
    assert_int_equal(scale, 0);
    assert_int_equal(elements[0], 0);
    assert_int_equal(elements[3], 0x80);

    block[0] = QUIET;
    block[1] = SIGNALLING;
    block[2] = 0x3f80;
    mxfp8_quantize(BANYAN_MXFP8_OCP, block, BANYAN_BF16, 32, elements, &scale);
    assert_int_equal(scale, 127 - 8);
    assert_int_equal(elements[0], 0x7f);
    assert_int_equal(elements[1], 0xff);
    assert_int_equal(elements[2], 0x78); /* 256 */

    block[0] = POSITIVE;
    block[1] = NEGATIVE;
    mxfp8_quantize(BANYAN_MXFP8_ROUND_UP, block, BANYAN_BF16, 32, elements, &scale);
    assert_int_equal(scale, 254);
    assert_int_equal(elements[0], 0x7e);
    assert_int_equal(elements[1], 0xfe);
    assert_int_equal(elements[2], 0);
    uint16_t back[32];
    mxfp8_dequantize(elements, &scale, 32, back, BANYAN_BF16);
    assert_int_equal(back[0], POSITIVE);
    assert_int_equal(back[1], NEGATIVE);

    /* The smallest subnormal, 2^-133, is 2^-6 of the smallest scale. */
    memset(block, 0, sizeof block);
    block[0] = 1;
    mxfp8_quantize(BANYAN_MXFP8_ROUND_UP, block, BANYAN_BF16, 32, elements, &scale);
    assert_int_equal(scale, 0);
    assert_int_equal(elements[0], 0x08);
    mxfp8_dequantize(elements, &scale, 32, back, BANYAN_BF16);
    assert_int_equal(back[0], 1);
}

static void every_element_under_every_scale_reads_back_exactly(void **state)
{
    (void)state;
    const DLDataType dtypes[] = {BANYAN_F32, BANYAN_F16, BANYAN_BF16};
    uint8_t elements[256];
    /* Sorted by magnitude, so that most blocks hold no NaN. */
    for (int i = 0; i < 256; i++)
        elements[i] = (uint8_t)i;
    for (int kind = 0; kind < 3; kind++) {
        for (int scale = 0; scale < 256; scale++) {
            uint8_t scales[8];
            memset(scales, scale, sizeof scales);
            char fast[256 * 4], portable[256 * 4];
            mxfp8_dequantize(elements, scales, 256, fast, dtypes[kind]);
            mxfp8_dequantize_portable(elements, scales, 256, portable, dtypes[kind]);
            for (size_t i = 0; i < 256; i++) {
                float_format format = format_of(dtypes[kind]);
                uint32_t got = load(dtypes[kind], fast, i);
                assert_int_equal(got, load(dtypes[kind], portable, i));
                if (scale == 255 || (i & 0x7f) == 0x7f) {
                    CHECK(isnan(format_decode(format, got)), "element %zu, scale %d", i, scale);
                    continue;
                }
                uint32_t want =
                    format_encode(format, mxfp8_reference_value((uint8_t)i, (uint8_t)scale));
                CHECK(got == want, "element %zu, scale %d: %#x, not %#x", i, scale, got, want);
            }
        }
    }
}

/* Values that MXFP8 represents survive the conversion there and back; the scale may become
 * smaller. */
static void values_that_were_quantized_once_do_not_change_again(void **state)
{
    (void)state;
    enum { COUNT = 4096 };
    random_state random = random_from(random_seed());
    uint16_t values[COUNT], once[COUNT], twice[COUNT];
    uint8_t elements[COUNT], scales[COUNT / 32];
    for (int i = 0; i < COUNT; i++)
        values[i] = (uint16_t)random_between(&random, 0x3000, 0x4000);
    for (int rule = 0; rule < 2; rule++) {
        mxfp8_quantize(rule, values, BANYAN_BF16, COUNT, elements, scales);
        mxfp8_dequantize(elements, scales, COUNT, once, BANYAN_BF16);
        mxfp8_quantize(rule, once, BANYAN_BF16, COUNT, elements, scales);
        mxfp8_dequantize(elements, scales, COUNT, twice, BANYAN_BF16);
        assert_memory_equal(once, twice, sizeof once);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_bf16_value_among_its_neighbours),
        cmocka_unit_test(every_bf16_value_in_a_block_that_another_scales),
        cmocka_unit_test(every_bf16_value_with_nan_and_infinity_around),
        cmocka_unit_test(random_blocks_of_every_source_type),
        cmocka_unit_test(blocks_of_zeros_infinities_nan_and_subnormals),
        cmocka_unit_test(every_element_under_every_scale_reads_back_exactly),
        cmocka_unit_test(values_that_were_quantized_once_do_not_change_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
