/* Scaled elements equal the reference bit for bit, for every type, length, place and processor. */
#include "channel/scale.h"
#include "collective/scaled_check.h"
#include "support/levels.h"

#define MOST 300

static uint64_t scaled_bits(const char *at, int type)
{
    uint64_t bits = 0;
    memcpy(&bits, at, banyan_dtype_bytes(scaled_dtypes[type]));
    return bits;
}

/* The product of two f32 is exact in double arithmetic. */
static uint64_t expected_bits(const char *from, int type, float factor, int64_t whole, bool divides)
{
    char one[8] = {0};
    size_t bytes = banyan_dtype_bytes(scaled_dtypes[type]);
    uint64_t bits = scaled_bits(from, type);
    if (type < SCALED_I32) {
        static const uint64_t nans[] = {0x7fc00000, 0x7e00, 0x7fc0, 0x7f};
        double product = (double)(float)(scaled_get(from, type, 0) * (double)factor);
        if (isnan(product))
            return nans[type];
        scaled_put(one, type, 0, product);
    } else {
        int64_t value = type == SCALED_I32   ? (int32_t)bits
                        : type == SCALED_I64 ? (int64_t)bits
                                             : (int64_t)bits;
        uint64_t result = divides ? (uint64_t)(value / whole) : (uint64_t)value * (uint64_t)whole;
        memcpy(one, &result, bytes);
    }
    return scaled_bits(one, type);
}

static void scale(char *to, const char *from, size_t elems, int type, float factor, int64_t whole,
                  bool divides)
{
    if (type < SCALED_I32)
        scale_floats(to, from, elems, scaled_dtypes[type], factor);
    else
        scale_integers(to, from, elems, scaled_dtypes[type], whole, divides);
}

static void every_element_is_scaled_and_no_other(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int turn = 0; turn < 4000; turn++) {
        int type = (int)random_between(&random, 0, SCALED_TYPES - 1);
        size_t elems = (size_t)random_between(&random, 0, MOST);
        size_t elem = banyan_dtype_bytes(scaled_dtypes[type]);
        char from[MOST * 8 + 16], to[MOST * 8 + 16], before[sizeof from];
        for (size_t i = 0; i < sizeof from; i++)
            from[i] = (char)random_next(&random);
        memset(to, 0x5a, sizeof to);
        memcpy(before, from, sizeof from);
        int shift = (int)random_between(&random, 0, 7);
        bool in_place = random_between(&random, 0, 1), divides = random_between(&random, 0, 1);
        float factor = (float)random_between(&random, -1000, 1000) / 300;
        int64_t whole = random_between(&random, 1, 300);
        char *results = in_place ? from + shift : to + 3;
        scale(results, from + shift, elems, type, factor, whole, divides);
        for (size_t i = 0; i < elems; i++) {
            uint64_t right = expected_bits(before + shift + i * elem, type, factor, whole, divides);
            CHECK(scaled_bits(results + i * elem, type) == right, "%s, element %zu: %llx, not %llx",
                  banyan_dtype_name(scaled_dtypes[type]), i,
                  (unsigned long long)scaled_bits(results + i * elem, type),
                  (unsigned long long)right);
        }
        const char *behind = results + elems * elem;
        CHECK(*behind == (in_place ? before[shift + (int)(elems * elem)] : 0x5a), "behind");
    }
}

static int run(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_is_scaled_and_no_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
    return levels_run(run);
}
