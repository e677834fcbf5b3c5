/* Scales lie where tensor cores read them, and nowhere else. */
#include "support/test.h"

#include "reshard/transform/mxfp8_box.h"

/* Byte `at` of swizzled scales belongs to this matrix, row and block: the inverse of the layout. */
static void place_of_byte(int64_t at, int64_t tile_rows, int64_t tile_cols, int64_t *matrix,
                          int64_t *row, int64_t *block)
{
    int64_t tile = at / 512, in_tile = at % 512;
    *matrix = tile / (tile_rows * tile_cols);
    int64_t tile_row = tile / tile_cols % tile_rows, tile_col = tile % tile_cols;
    *row = tile_row * 128 + in_tile % 16 / 4 * 32 + in_tile / 16;
    *block = tile_col * 4 + in_tile % 4;
}

static uint8_t value_of(int64_t matrix, int64_t row, int64_t block)
{
    uint8_t value;
    pattern_element("scale", (uint64_t)((matrix * 1000 + row) * 1000 + block), 1, &value);
    return value | 1;
}

static void swizzled_scales_lie_in_tiles_with_zero_padding(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int round = 0; round < 40; round++) {
        int64_t shape[3] = {random_between(&random, 1, 3), random_between(&random, 1, 300),
                            random_between(&random, 1, 400)};
        int64_t size[3], blocks = (shape[2] + 31) / 32;
        int ndim;
        CHECK_OK(banyan_mxfp8_scales_shape(BANYAN_MXFP8_SWIZZLED, 3, shape, &ndim, size));
        int64_t tile_rows = (shape[1] + 127) / 128, tile_cols = (blocks + 3) / 4;
        assert_int_equal(ndim, 1);
        assert_int_equal(size[0], shape[0] * tile_rows * tile_cols * 512);

        uint8_t *memory = malloc((size_t)size[0]);
        memset(memory, 0xa5, (size_t)size[0]);
        DLTensor scales = {.data = memory, .ndim = 1, .dtype = BANYAN_U8, .shape = size};
        mxfp8_scales view;
        CHECK_OK(mxfp8_scales_of(BANYAN_MXFP8_SWIZZLED, "w", 3, shape, &scales, &view));
        mxfp8_scales_clear(&view);
        for (int64_t m = 0; m < shape[0]; m++) {
            for (int64_t r = 0; r < shape[1]; r++) {
                uint8_t row[16], again[16];
                int64_t index[3] = {m, r, 0}, cut = random_between(&random, 0, blocks);
                for (int64_t b = 0; b < blocks; b++)
                    row[b] = value_of(m, r, b);
                mxfp8_scales_write(&view, index, 0, cut, row);
                mxfp8_scales_write(&view, index, cut, blocks - cut, row + cut);
                mxfp8_scales_read(&view, index, 0, blocks, again);
                assert_memory_equal(row, again, (size_t)blocks);
            }
        }
        for (int64_t at = 0; at < size[0]; at++) {
            int64_t m, r, b;
            place_of_byte(at, tile_rows, tile_cols, &m, &r, &b);
            assert_int_equal(memory[at], r < shape[1] && b < blocks ? value_of(m, r, b) : 0);
        }
        free(memory);
    }
}

static void plain_scales_lie_row_by_row_under_any_strides(void **state)
{
    (void)state;
    int64_t shape[3] = {2, 3, 70}, size[3], strides[3] = {100, 1, 7};
    int ndim;
    CHECK_OK(banyan_mxfp8_scales_shape(BANYAN_MXFP8_PLAIN, 3, shape, &ndim, size));
    assert_int_equal(ndim, 3);
    assert_int_equal(size[2], 3);
    uint8_t memory[256], row[3];
    for (int strided = 0; strided < 2; strided++) {
        memset(memory, 0xa5, sizeof memory);
        DLTensor scales = {.data = memory,
                           .ndim = 3,
                           .dtype = BANYAN_F8_E8M0,
                           .shape = size,
                           .strides = strided ? strides : NULL};
        mxfp8_scales view;
        CHECK_OK(mxfp8_scales_of(BANYAN_MXFP8_PLAIN, "w", 3, shape, &scales, &view));
        mxfp8_scales_clear(&view);
        for (int64_t i = 0, zeros = 0; i < 256; i++) {
            zeros += memory[i] == 0;
            assert_true(memory[i] == 0 || memory[i] == 0xa5);
            assert_true(i < 255 || zeros == 18);
        }
        for (int64_t i = 0; i < 6; i++) {
            int64_t index[3] = {i / 3, i % 3, 0};
            for (int64_t b = 0; b < 3; b++)
                row[b] = value_of(i / 3, i % 3, b);
            mxfp8_scales_write(&view, index, 0, 3, row);
        }
        for (int64_t i = 0; i < 18; i++) {
            int64_t m = i / 9, r = i / 3 % 3, b = i % 3;
            assert_int_equal(memory[strided ? m * 100 + r + b * 7 : i], value_of(m, r, b));
        }
    }
}

static void scales_of_vectors_and_scalars_have_a_place(void **state)
{
    (void)state;
    int64_t length = 33, size[1];
    int ndim;
    CHECK_OK(banyan_mxfp8_scales_shape(BANYAN_MXFP8_PLAIN, 1, &length, &ndim, size));
    assert_int_equal(size[0], 2);
    CHECK_OK(banyan_mxfp8_scales_shape(BANYAN_MXFP8_SWIZZLED, 1, &length, &ndim, size));
    assert_int_equal(size[0], 512);
    CHECK_OK(banyan_mxfp8_scales_shape(BANYAN_MXFP8_PLAIN, 0, NULL, &ndim, size));
    assert_int_equal(ndim, 0);
    uint8_t byte = 0, value = 9;
    DLTensor scales = {.data = &byte, .ndim = 0, .dtype = BANYAN_U8};
    mxfp8_scales view;
    CHECK_OK(mxfp8_scales_of(BANYAN_MXFP8_PLAIN, "w", 0, NULL, &scales, &view));
    mxfp8_scales_write(&view, NULL, 0, 1, &value);
    assert_int_equal(byte, 9);
}

static void scales_that_do_not_fit_are_refused_by_name(void **state)
{
    (void)state;
    int64_t shape[2] = {4, 64}, size[2] = {4, 3}, stride = 2, ndim_1 = 512;
    uint8_t memory[1024];
    mxfp8_scales view;
    DLTensor scales = {.data = memory, .ndim = 2, .dtype = BANYAN_U8, .shape = size};
    CHECK_FAILS(mxfp8_scales_of(BANYAN_MXFP8_PLAIN, "w", 2, shape, &scales, &view),
                BANYAN_ERR_INVALID, "scales of w, of shape [4, 64], have shape [4, 3]");
    scales.dtype = BANYAN_F32;
    CHECK_FAILS(mxfp8_scales_of(BANYAN_MXFP8_PLAIN, "w", 2, shape, &scales, &view),
                BANYAN_ERR_INVALID, "F32");
    DLTensor flat = {
        .data = memory, .ndim = 1, .dtype = BANYAN_U8, .shape = &ndim_1, .strides = &stride};
    CHECK_FAILS(mxfp8_scales_of(BANYAN_MXFP8_SWIZZLED, "w", 2, shape, &flat, &view),
                BANYAN_ERR_INVALID, "not dense");
    int64_t huge[3] = {INT64_MAX / 4, INT64_MAX / 4, 64}, out[3];
    int ndim;
    CHECK_FAILS(banyan_mxfp8_scales_shape(BANYAN_MXFP8_SWIZZLED, 3, huge, &ndim, out),
                BANYAN_ERR_INVALID, "2^63");
    CHECK_FAILS(banyan_mxfp8_scales_shape(BANYAN_MXFP8_PLAIN, 3, huge, &ndim, out),
                BANYAN_ERR_INVALID, "2^63");
    huge[0] = -1;
    CHECK_FAILS(banyan_mxfp8_scales_shape(BANYAN_MXFP8_PLAIN, 3, huge, &ndim, out),
                BANYAN_ERR_INVALID, "-1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(swizzled_scales_lie_in_tiles_with_zero_padding),
        cmocka_unit_test(plain_scales_lie_row_by_row_under_any_strides),
        cmocka_unit_test(scales_of_vectors_and_scalars_have_a_place),
        cmocka_unit_test(scales_that_do_not_fit_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
