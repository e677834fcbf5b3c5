/* Reductions equal the reference bit for bit, for every type, shape and processor. */
#include "support/test.h"

#include "channel/reduce.h"
#include "support/float_reference.h"
#include "support/levels.h"

#define MOST_SOURCES 9

typedef enum family { F32, F16, BF16, E4M3, E5M2, I32, U32, I64, U8, FAMILIES } family;

static const DLDataType dtypes[FAMILIES] = {
    BANYAN_F32, BANYAN_F16, BANYAN_BF16, BANYAN_F8_E4M3, BANYAN_F8_E5M2,
    BANYAN_I32, BANYAN_U32, BANYAN_I64,  BANYAN_U8,
};

static const char *const ops[] = {"sum", "min", "max", "prod"};

static float_format format_of(family type)
{
    return type == F32    ? format_f32
           : type == F16  ? format_f16
           : type == BF16 ? format_bf16
                          : format_e5m2;
}

static double decode(family type, uint64_t bits)
{
    return type == E4M3 ? e4m3_decode((uint8_t)bits)
                        : format_decode(format_of(type), (uint32_t)bits);
}

static uint64_t encode(family type, double value)
{
    static const uint64_t nans[] = {0x7fc00000, 0x7e00, 0x7fc0, 0x7f, 0x7e};
    if (isnan(value))
        return nans[type];
    return type == E4M3 ? e4m3_encode(value) : format_encode(format_of(type), value);
}

/* The sum of two f32 in double arithmetic is rounded to f32 like the exact sum; the product is
 * exact. */
static double combine_floats(banyan_reduce_op op, double a, double b)
{
    if (op == BANYAN_SUM)
        return (double)(float)(a + b);
    if (op == BANYAN_PROD)
        return (double)(float)(a * b);
    if (isnan(a) || isnan(b))
        return (double)NAN;
    bool a_is_less = a < b || (a == b && signbit(a) > signbit(b));
    return a_is_less == (op == BANYAN_MIN) ? a : b;
}

static uint64_t reduce_floats(family type, banyan_reduce_op op, const uint64_t *bits, int count)
{
    double result = decode(type, bits[0]);
    for (int i = 1; i < count; i++)
        result = combine_floats(op, result, decode(type, bits[i]));
    return encode(type, result);
}

static uint64_t reduce_integers(family type, banyan_reduce_op op, const uint64_t *bits, int count)
{
    size_t bytes = banyan_dtype_bytes(dtypes[type]);
    uint64_t result = bits[0];
    for (int i = 1; i < count; i++) {
        bool is_less = type == I64   ? (int64_t)bits[i] < (int64_t)result
                       : type == I32 ? (int32_t)bits[i] < (int32_t)result
                                     : bits[i] < result;
        if (op == BANYAN_SUM || op == BANYAN_PROD)
            result = (op == BANYAN_SUM ? result + bits[i] : result * bits[i]) &
                     (bytes == 8 ? UINT64_MAX : (UINT64_C(1) << 8 * bytes) - 1);
        else if (bits[i] != result && is_less == (op == BANYAN_MIN))
            result = bits[i];
    }
    return result;
}

static uint64_t reduce_by_the_book(family type, banyan_reduce_op op, const uint64_t *bits,
                                   int count)
{
    return type <= E5M2 ? reduce_floats(type, op, bits, count)
                        : reduce_integers(type, op, bits, count);
}

static uint64_t load(family type, const char *memory, size_t i)
{
    size_t bytes = banyan_dtype_bytes(dtypes[type]);
    uint64_t bits = 0;
    memcpy(&bits, memory + i * bytes, bytes);
    return bits;
}

static void check_elements(family type, banyan_reduce_op op, const char *got,
                           const char *const *sources, int count, size_t elems)
{
    for (size_t i = 0; i < elems; i++) {
        uint64_t bits[MOST_SOURCES] = {0};
        for (int k = 0; k < count; k++)
            bits[k] = load(type, sources[k], i);
        uint64_t want = reduce_by_the_book(type, op, bits, count);
        CHECK(load(type, got, i) == want,
              "%s %s of %d, element %zu of %zu (%#llx, %#llx, …): %#llx, not %#llx",
              banyan_dtype_name(dtypes[type]), ops[op], count, i, elems,
              (unsigned long long)bits[0], (unsigned long long)bits[count > 1],
              (unsigned long long)load(type, got, i), (unsigned long long)want);
    }
}

static void check_pair(family type, const void *a, const void *b, size_t elems)
{
    const void *sources[2] = {a, b};
    char *got = malloc(elems * 8);
    for (banyan_reduce_op op = BANYAN_SUM; op <= BANYAN_PROD; op++) {
        memset(got, 0x5a, elems * 8);
        reduce_find(dtypes[type], op)(got, sources, 2, elems);
        check_elements(type, op, got, (const char *const *)sources, 2, elems);
    }
    free(got);
}

static void every_pair_of_8_bits_is_reduced_right(void **state)
{
    (void)state;
    uint8_t *a = malloc(65536), *b = malloc(65536);
    for (size_t i = 0; i < 65536; i++) {
        a[i] = (uint8_t)i;
        b[i] = (uint8_t)(i >> 8);
    }
    check_pair(E4M3, a, b, 65536);
    check_pair(E5M2, a, b, 65536);
    check_pair(U8, a, b, 65536);
    free(a);
    free(b);
}

static void every_half_is_reduced_right_with_others(void **state)
{
    (void)state;
    static const uint16_t others[] = {0,      0x8000, 1,      0x8001, 0x3ff,  0x7f,   0x80,
                                      0x3c00, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7c01, 0x7e00,
                                      0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7f81, 0xffff};
    enum { OTHERS = sizeof others / sizeof others[0], RANDOM = 8 };
    random_state random = random_from(random_seed());
    uint16_t *all = malloc(131072), *b = malloc(131072);
    for (size_t i = 0; i < 65536; i++)
        all[i] = (uint16_t)i;
    for (int other = 0; other < OTHERS + RANDOM; other++) {
        for (size_t i = 0; i < 65536; i++)
            b[i] = other < OTHERS ? others[other] : (uint16_t)random_next(&random);
        check_pair(F16, all, b, 65536);
        check_pair(BF16, all, b, 65536);
    }
    free(all);
    free(b);
}

/* Sums that cancel, ties, and values of similar size are rare among random bits. */
static uint32_t word_near(uint32_t word, random_state *random)
{
    uint32_t change = (uint32_t)random_between(random, -3, 3);
    switch (random_between(random, 0, 3)) {
    case 0:
        return word ^ 0x80000000;
    case 1:
        return (word ^ 0x80000000) + change;
    case 2:
        return word + (change << 23);
    default:
        return word + (change << random_between(random, 0, 28));
    }
}

static void words_and_longs_are_reduced_right(void **state)
{
    (void)state;
    static const uint32_t specials[] = {0,          0x80000000, 1,          0x80000001, 0x7fffff,
                                        0x800000,   0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000,
                                        0x7f800001, 0xffc00000, 0x7fffffff, 0xffffffff, 0x3f800000,
                                        0xbf800000, 0x33800000, 0x34000000};
    enum { SPECIALS = sizeof specials / sizeof specials[0], ELEMS = 200000 };
    random_state random = random_from(random_seed());
    uint32_t *a = malloc(4 * ELEMS), *b = malloc(4 * ELEMS);
    for (size_t i = 0; i < ELEMS; i++) {
        a[i] = i < SPECIALS * SPECIALS ? specials[i / SPECIALS] : (uint32_t)random_next(&random);
        b[i] = i < SPECIALS * SPECIALS ? specials[i % SPECIALS]
               : i % 2 == 0            ? (uint32_t)random_next(&random)
                                       : word_near(a[i], &random);
    }
    check_pair(F32, a, b, ELEMS);
    check_pair(I32, a, b, ELEMS);
    check_pair(U32, a, b, ELEMS);
    check_pair(I64, a, b, ELEMS / 2);
    free(a);
    free(b);
}

#define MOST_ELEMS 400
#define MARGIN 64
#define ROOM (MOST_ELEMS * 8 + 2 * MARGIN)

/* Sources at any address, one of which may be the destination; nothing beside it changes. */
static void check_shape(family type, banyan_reduce_op op, int count, size_t elems,
                        random_state *random)
{
    static char memory[MOST_SOURCES + 1][ROOM], before[MOST_SOURCES + 1][ROOM];
    size_t bytes = elems * banyan_dtype_bytes(dtypes[type]), offsets[MOST_SOURCES + 1];
    const void *sources[MOST_SOURCES];
    const char *originals[MOST_SOURCES];
    for (int k = 0; k <= count; k++) {
        for (size_t i = 0; i < ROOM; i++)
            memory[k][i] = (char)random_next(random);
        offsets[k] = (size_t)random_between(random, 0, MARGIN);
    }
    memcpy(before, memory, sizeof memory);
    for (int k = 0; k < count; k++) {
        sources[k] = memory[k] + offsets[k];
        originals[k] = before[k] + offsets[k];
    }
    int place = (int)random_between(random, 0, count);
    char *destination = memory[place] + offsets[place];
    reduce_find(dtypes[type], op)(destination, sources, (uint32_t)count, elems);
    check_elements(type, op, destination, originals, count, elems);
    memcpy(destination, before[place] + offsets[place], bytes);
    CHECK(memcmp(memory, before, sizeof memory) == 0, "%s %s of %d, %zu elements, to %d",
          banyan_dtype_name(dtypes[type]), ops[op], count, elems, place);
}

static void any_count_length_and_address_will_do(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (family type = 0; type < FAMILIES; type++) {
        for (banyan_reduce_op op = BANYAN_SUM; op <= BANYAN_PROD; op++) {
            for (int i = 0; i < 150; i++)
                check_shape(type, op, (int)random_between(&random, 1, MOST_SOURCES),
                            i < 140 ? (size_t)i : (size_t)random_between(&random, 140, MOST_ELEMS),
                            &random);
        }
    }
}

static void a_source_may_come_several_times(void **state)
{
    (void)state;
    float x[3] = {1.5F, -2, 1e30F}, result[3];
    const void *sources[3] = {x, x, x};
    reduce_find(BANYAN_F32, BANYAN_SUM)(result, sources, 3, 3);
    for (int i = 0; i < 3; i++)
        CHECK(result[i] == x[i] + x[i] + x[i], "%g", (double)result[i]);
}

static void other_types_are_not_known(void **state)
{
    (void)state;
    const DLDataType others[] = {BANYAN_F8_E8M0,    {kDLFloat, 64, 1}, {kDLInt, 8, 1},
                                 {kDLFloat, 32, 2}, {kDLUInt, 64, 1},  {kDLInt, 64, 2}};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        CHECK(!reduce_find(others[i], BANYAN_SUM), "%s", banyan_dtype_name(others[i]));
}

static int run_all(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_of_8_bits_is_reduced_right),
        cmocka_unit_test(every_half_is_reduced_right_with_others),
        cmocka_unit_test(words_and_longs_are_reduced_right),
        cmocka_unit_test(any_count_length_and_address_will_do),
        cmocka_unit_test(a_source_may_come_several_times),
        cmocka_unit_test(other_types_are_not_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
    return levels_run(run_all);
}
