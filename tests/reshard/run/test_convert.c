/* Casts between f32, f16 and bf16 give the nearest value, bit for bit, on dense and strided
 * data. */
#include "support/test.h"

#include "reshard/run/convert.h"
#include "support/float_reference.h"

enum { KINDS = 3 };

static DLDataType kind_dtype(int kind)
{
    const DLDataType dtypes[KINDS] = {BANYAN_F32, BANYAN_F16, BANYAN_BF16};
    return dtypes[kind];
}

static float_format kind_format(int kind)
{
    const float_format formats[KINDS] = {format_f32, format_f16, format_bf16};
    return formats[kind];
}

static uint32_t load(int kind, const void *memory, size_t i)
{
    uint32_t word;
    uint16_t half;
    if (kind == 0) {
        memcpy(&word, (const char *)memory + 4 * i, 4);
        return word;
    }
    memcpy(&half, (const char *)memory + 2 * i, 2);
    return half;
}

static void store(int kind, void *memory, size_t i, uint32_t bits)
{
    uint16_t half = (uint16_t)bits;
    if (kind == 0)
        memcpy((char *)memory + 4 * i, &bits, 4);
    else
        memcpy((char *)memory + 2 * i, &half, 2);
}

/* Cast `count` elements with both implementations, from and to odd addresses, and compare. */
static void check_run(int to, int from, const void *source, size_t count)
{
    size_t bytes = count * 4 + 1;
    char *misplaced = malloc(bytes), *fast = malloc(bytes), *portable = malloc(bytes);
    memcpy(misplaced + 1, source, count * banyan_dtype_bytes(kind_dtype(from)));
    memset(fast, 0xa5, bytes);
    memset(portable, 0x5a, bytes);
    convert_run(fast + 1, kind_dtype(to), misplaced + 1, kind_dtype(from), count);
    convert_run_portable(portable + 1, kind_dtype(to), misplaced + 1, kind_dtype(from), count);
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = load(from, source, i);
        uint32_t want = to == from ? bits : format_cast(kind_format(to), kind_format(from), bits);
        CHECK(load(to, fast + 1, i) == want, "%s %#x to %s: %#x, not %#x",
              banyan_dtype_name(kind_dtype(from)), bits, banyan_dtype_name(kind_dtype(to)),
              load(to, fast + 1, i), want);
        CHECK(load(to, portable + 1, i) == want, "portable, %s %#x to %s: %#x, not %#x",
              banyan_dtype_name(kind_dtype(from)), bits, banyan_dtype_name(kind_dtype(to)),
              load(to, portable + 1, i), want);
    }
    free(misplaced);
    free(fast);
    free(portable);
}

static void every_half_value_is_cast_to_the_nearest(void **state)
{
    (void)state;
    uint16_t *all = malloc(65536 * sizeof *all);
    for (uint32_t i = 0; i < 65536; i++)
        all[i] = (uint16_t)i;
    for (int to = 0; to < KINDS; to++) {
        check_run(to, 1, all, 65536);
        check_run(to, 2, all, 65536);
    }
    free(all);
}

/* Around each value of a half type, and each middle of two of them. */
static void f32_values_near_a_rounding_edge_go_to_the_right_side(void **state)
{
    (void)state;
    enum { AROUND = 5 };
    uint32_t *values = malloc((size_t)131072 * AROUND * sizeof *values);
    for (int to = 1; to < KINDS; to++) {
        size_t count = 0;
        for (uint32_t half = 0; half < 65536; half++) {
            uint32_t whole = format_cast(format_f32, kind_format(to), half);
            uint32_t step = UINT32_C(1) << (23 - kind_format(to).mantissa_bits - 1);
            for (uint32_t edge = 0; edge < 2; edge++) {
                for (uint32_t off = 0; off < AROUND; off++)
                    values[count++] = whole + edge * step + off - AROUND / 2;
            }
        }
        check_run(to, 0, values, count);
    }
    free(values);
}

static void random_f32_values_are_cast_to_the_nearest(void **state)
{
    (void)state;
    enum { COUNT = 1000003 };
    random_state random = random_from(random_seed());
    uint32_t *values = malloc(COUNT * sizeof *values);
    for (size_t i = 0; i < COUNT; i++)
        values[i] = (uint32_t)random_next(&random);
    /* A third of them in f16's range, where rounding occurs. */
    for (size_t i = 0; i < COUNT; i += 3)
        values[i] = (values[i] & 0x807fffff) | (uint32_t)random_between(&random, 100, 144) << 23;
    check_run(1, 0, values, COUNT);
    check_run(2, 0, values, COUNT);
    free(values);
}

static void short_runs_touch_nothing_else(void **state)
{
    (void)state;
    uint16_t source[80];
    for (size_t i = 0; i < 80; i++)
        pattern_element("short", i, 2, &source[i]);
    for (size_t count = 0; count <= 80; count++) {
        uint32_t out[81];
        memset(out, 0xa5, sizeof out);
        convert_run(out, BANYAN_F32, source, BANYAN_BF16, count);
        for (size_t i = count; i <= 80; i++)
            assert_int_equal(out[i], 0xa5a5a5a5);
        uint16_t narrow[81];
        memset(narrow, 0xa5, sizeof narrow);
        convert_run(narrow, BANYAN_F16, source, BANYAN_BF16, count);
        for (size_t i = count; i <= 80; i++)
            assert_int_equal(narrow[i], 0xa5a5);
    }
}

/* A random 3-dimensional tensor in a larger allocation, some dimensions swapped. */
struct strided_tensor {
    DLTensor tensor;
    int64_t shape[3], strides[3];
    size_t memory_bytes;
};

static void make_strided(random_state *random, int kind, const int64_t *shape,
                         struct strided_tensor *made)
{
    int order[3] = {0, 1, 2};
    int a = (int)random_between(random, 0, 2), b = (int)random_between(random, 0, 2);
    int swapped = order[a];
    order[a] = order[b];
    order[b] = swapped;
    int64_t stride = 1;
    for (int k = 2; k >= 0; k--) {
        made->shape[order[k]] = shape[order[k]];
        made->strides[order[k]] = stride;
        stride *= shape[order[k]] + random_between(random, 0, 2);
    }
    made->memory_bytes = (size_t)stride * banyan_dtype_bytes(kind_dtype(kind));
    made->tensor = (DLTensor){.data = malloc(made->memory_bytes),
                              .device = {kDLCPU, 0},
                              .ndim = 3,
                              .dtype = kind_dtype(kind),
                              .shape = made->shape,
                              .strides = made->strides};
    memset(made->tensor.data, 0xa5, made->memory_bytes);
}

static size_t element_at(const struct strided_tensor *made, int64_t i, int64_t j, int64_t k)
{
    return (size_t)(i * made->strides[0] + j * made->strides[1] + k * made->strides[2]);
}

static void strided_tensors_are_cast_in_place(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int round = 0; round < 300; round++) {
        int to = (int)random_between(&random, 0, 2), from = (int)random_between(&random, 0, 2);
        int64_t shape[3];
        for (int d = 0; d < 3; d++)
            shape[d] = random_between(&random, 0, 20);
        struct strided_tensor source, destination;
        make_strided(&random, from, shape, &source);
        make_strided(&random, to, shape, &destination);
        char *want = malloc(destination.memory_bytes + 1);
        memset(want, 0xa5, destination.memory_bytes + 1);
        uint64_t n = 0;
        for (int64_t i = 0; i < shape[0]; i++) {
            for (int64_t j = 0; j < shape[1]; j++) {
                for (int64_t k = 0; k < shape[2]; k++, n++) {
                    uint32_t bits = 0;
                    pattern_element("strided", n, banyan_dtype_bytes(kind_dtype(from)), &bits);
                    store(from, source.tensor.data, element_at(&source, i, j, k), bits);
                    if (to != from)
                        bits = format_cast(kind_format(to), kind_format(from), bits);
                    store(to, want, element_at(&destination, i, j, k), bits);
                }
            }
        }
        CHECK_OK(convert_tensor(&destination.tensor, &source.tensor));
        assert_memory_equal(destination.tensor.data, want, destination.memory_bytes);
        free(want);
        free(source.tensor.data);
        free(destination.tensor.data);
    }
}

static void types_that_cannot_be_cast_are_refused(void **state)
{
    (void)state;
    int64_t four = 4, five = 5;
    uint32_t memory[8];
    DLTensor floats = {.data = memory, .device = {kDLCPU, 0}, .ndim = 1, .dtype = BANYAN_F32};
    DLTensor bytes = floats, longer = floats;
    floats.shape = bytes.shape = &four;
    longer.shape = &five;
    bytes.dtype = BANYAN_U8;
    CHECK_FAILS(convert_tensor(&floats, &bytes), BANYAN_ERR_INVALID, "U8 to F32");
    CHECK_FAILS(convert_tensor(&floats, &longer), BANYAN_ERR_MISMATCH, "5 elements into one of 4");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_half_value_is_cast_to_the_nearest),
        cmocka_unit_test(f32_values_near_a_rounding_edge_go_to_the_right_side),
        cmocka_unit_test(random_f32_values_are_cast_to_the_nearest),
        cmocka_unit_test(short_runs_touch_nothing_else),
        cmocka_unit_test(strided_tensors_are_cast_in_place),
        cmocka_unit_test(types_that_cannot_be_cast_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
