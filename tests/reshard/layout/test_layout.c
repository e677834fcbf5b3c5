/* The layout builder keeps its arguments, and refuses impossible ones. */
#include "support/test.h"

#include "core/deadline.h"
#include "reshard/layout/layout.h"

static banyan_layout *new_layout(void)
{
    banyan_layout *layout;
    CHECK_OK(banyan_layout_create(&layout));
    return layout;
}

/* A piece of a 2-D global tensor of 8 × 6 at the local place `row`, `column`. */
static banyan_piece piece_2d(int tensor, banyan_box box, int64_t row, int64_t column)
{
    return (banyan_piece){.tensor = tensor,
                          .name = "w",
                          .ndim = 2,
                          .shape = {8, 6},
                          .box = box,
                          .local_start = {row, column},
                          .dim_map = {0, 1}};
}

static void a_layout_returns_its_additions(void **state)
{
    (void)state;
    banyan_layout *layout = new_layout();
    char name[] = "local.w";
    int w = banyan_layout_add_tensor(layout, name, BANYAN_BF16, 2, (int64_t[]){5, 6});
    name[0] = '?';
    int s = banyan_layout_add_tensor(layout, "scalar", BANYAN_F32, 0, NULL);
    assert_int_equal(w, 0);
    assert_int_equal(s, 1);
    banyan_piece piece = piece_2d(w, (banyan_box){2, {4, 0}, {4, 6}}, 0, 0);
    piece.fallback_name = "other";
    banyan_layout_add_piece(layout, &piece);
    banyan_layout_add_piece(layout, &(banyan_piece){.tensor = s, .name = "scalar"});
    banyan_box empty = {2, {0, 0}, {0, 6}}, last = {2, {4, 0}, {1, 6}};
    piece.box = empty;
    banyan_layout_add_piece(layout, &piece);
    banyan_layout_add_padding(layout, w, &empty);
    banyan_layout_add_padding(layout, w, &last);
    CHECK_OK(banyan_layout_check(layout));

    assert_int_equal(banyan_layout_tensor_count(layout), 2);
    assert_string_equal(banyan_layout_tensor(layout, 0)->name, "local.w");
    assert_int_equal(banyan_layout_tensor(layout, 0)->shape[0], 5);
    assert_int_equal(banyan_layout_bytes(layout), 5 * 6 * 2 + 4);
    assert_int_equal(banyan_layout_piece_count(layout), 2);
    assert_string_equal(banyan_layout_piece(layout, 0)->fallback_name, "other");
    assert_null(banyan_layout_piece(layout, 1)->fallback_name);
    int tensor;
    assert_int_equal(banyan_layout_padding_count(layout), 1);
    assert_true(banyan_box_equal(banyan_layout_padding(layout, 0, &tensor), &last));
    assert_int_equal(tensor, w);
    banyan_layout_destroy(layout);
    banyan_layout_destroy(NULL);
}

/* Build with one mistake, continue after it, and expect its message. */
static void expect_error(void (*mistake)(banyan_layout *), const char *part)
{
    banyan_layout *layout = new_layout();
    assert_int_equal(banyan_layout_add_tensor(layout, "a", BANYAN_BF16, 2, (int64_t[]){8, 6}), 0);
    mistake(layout);
    banyan_layout_add_tensor(layout, "later", BANYAN_BF16, 1, (int64_t[]){-7});
    CHECK_FAILS(banyan_layout_check(layout), BANYAN_ERR_INVALID, part);
    banyan_layout_destroy(layout);
}

static void add_name_twice(banyan_layout *layout)
{
    assert_int_equal(banyan_layout_add_tensor(layout, "a", BANYAN_F32, 1, (int64_t[]){1}), -1);
}

static void add_no_name(banyan_layout *layout)
{
    banyan_layout_add_tensor(layout, NULL, BANYAN_F32, 1, (int64_t[]){2});
}

static void add_nine_dimensions(banyan_layout *layout)
{
    int64_t shape[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    assert_int_equal(banyan_layout_add_tensor(layout, "deep", BANYAN_F32, 9, shape), -1);
}

static void add_half_bytes(banyan_layout *layout)
{
    DLDataType four_bits = {kDLInt, 4, 1};
    assert_int_equal(banyan_layout_add_tensor(layout, "int4", four_bits, 1, (int64_t[]){2}), -1);
}

static void add_absurd_size(banyan_layout *layout)
{
    int64_t huge[2] = {INT64_C(1) << 40, INT64_C(1) << 40};
    assert_int_equal(banyan_layout_add_tensor(layout, "huge", BANYAN_F32, 2, huge), -1);
}

static void add_absurd_sum(banyan_layout *layout)
{
    int64_t large[1] = {INT64_C(1) << 61};
    assert_int_equal(banyan_layout_add_tensor(layout, "one", BANYAN_U8, 1, large), 1);
    large[0] = INT64_MAX;
    assert_int_equal(banyan_layout_add_tensor(layout, "sum", BANYAN_U8, 1, large), -1);
}

static void add_piece_elsewhere(banyan_layout *layout)
{
    banyan_piece piece = piece_2d(1, (banyan_box){2, {0, 0}, {1, 1}}, 0, 0);
    banyan_layout_add_piece(layout, &piece);
}

static void add_piece_out_of_global(banyan_layout *layout)
{
    banyan_piece piece = piece_2d(0, (banyan_box){2, {5, 0}, {4, 6}}, 0, 0);
    banyan_layout_add_piece(layout, &piece);
}

static void add_piece_out_of_local(banyan_layout *layout)
{
    banyan_piece piece = piece_2d(0, (banyan_box){2, {0, 0}, {4, 6}}, 5, 0);
    banyan_layout_add_piece(layout, &piece);
}

static void add_piece_far_out(banyan_layout *layout)
{
    banyan_piece piece = piece_2d(0, (banyan_box){2, {0, 0}, {4, 6}}, INT64_MAX, 0);
    banyan_layout_add_piece(layout, &piece);
}

static void add_piece_dims_collide(banyan_layout *layout)
{
    banyan_piece piece = piece_2d(0, (banyan_box){2, {0, 0}, {2, 2}}, 0, 0);
    piece.dim_map[0] = 1;
    banyan_layout_add_piece(layout, &piece);
}

static void add_piece_dim_missing(banyan_layout *layout)
{
    banyan_piece piece = piece_2d(0, (banyan_box){2, {0, 0}, {2, 2}}, 0, 0);
    piece.dim_map[1] = 2;
    banyan_layout_add_piece(layout, &piece);
}

static void add_piece_dim_dropped(banyan_layout *layout)
{
    banyan_piece piece = piece_2d(0, (banyan_box){2, {0, 0}, {2, 2}}, 0, 0);
    piece.dim_map[0] = BANYAN_NO_DIM;
    banyan_layout_add_piece(layout, &piece);
}

static void add_piece_of_other_rank(banyan_layout *layout)
{
    banyan_piece piece = piece_2d(0, (banyan_box){1, {0}, {2}}, 0, 0);
    banyan_layout_add_piece(layout, &piece);
}

static void add_overlapping_pieces(banyan_layout *layout)
{
    banyan_piece piece = piece_2d(0, (banyan_box){2, {0, 0}, {4, 6}}, 0, 0);
    banyan_layout_add_piece(layout, &piece);
    piece = piece_2d(0, (banyan_box){2, {4, 0}, {4, 6}}, 3, 0);
    banyan_layout_add_piece(layout, &piece);
}

static void add_overlapping_padding(banyan_layout *layout)
{
    banyan_piece piece = piece_2d(0, (banyan_box){2, {0, 0}, {4, 6}}, 0, 0);
    banyan_layout_add_piece(layout, &piece);
    banyan_layout_add_padding(layout, 0, &(banyan_box){2, {3, 5}, {5, 1}});
}

static void add_padding_outside(banyan_layout *layout)
{
    banyan_layout_add_padding(layout, 0, &(banyan_box){2, {7, 0}, {2, 6}});
}

static void add_padding_of_other_rank(banyan_layout *layout)
{
    banyan_layout_add_padding(layout, 0, &(banyan_box){1, {7}, {1}});
}

static void add_two_global_shapes(banyan_layout *layout)
{
    banyan_piece piece = piece_2d(0, (banyan_box){2, {0, 0}, {4, 6}}, 0, 0);
    banyan_layout_add_piece(layout, &piece);
    piece = piece_2d(0, (banyan_box){2, {4, 0}, {4, 6}}, 4, 0);
    piece.shape[0] = 9;
    banyan_layout_add_piece(layout, &piece);
}

static void the_first_mistake_is_reported_with_its_names_and_numbers(void **state)
{
    (void)state;
    expect_error(add_name_twice, "two local tensors have the name \"a\"");
    expect_error(add_no_name, "has no name");
    expect_error(add_nine_dimensions, "\"deep\" has 9 dimensions");
    expect_error(add_half_bytes, "\"int4\"");
    expect_error(add_absurd_size, "[1099511627776, 1099511627776]");
    expect_error(add_absurd_sum, "\"sum\": the layout would be larger than any memory");
    expect_error(add_piece_elsewhere, "a piece of \"w\" lies in local tensor 1 of 1");
    expect_error(add_piece_out_of_global, "piece [5:9, 0:6] of \"w\" does not lie in its shape [8");
    expect_error(add_piece_out_of_local, "its place [5:9, 0:6] is not in local tensor \"a\"");
    expect_error(add_piece_far_out, "is not in local tensor \"a\"");
    expect_error(add_piece_dims_collide, "two of its dimensions map to dimension 1 of \"a\"");
    expect_error(add_piece_dim_missing, "its dimension 1 maps to dimension 2 of \"a\"");
    expect_error(
        add_piece_dim_dropped,
        "its dimension 0 maps to none of \"a\", and the box has 2 elements along it, not 1");
    expect_error(add_piece_of_other_rank, "a box of 1 dimensions in a tensor of 2");
    expect_error(add_padding_outside, "padding [7:9, 0:6] is not in local tensor \"a\"");
    expect_error(add_padding_of_other_rank, "padding of 1 dimensions");
}

/* These mistakes show only in the check of the whole layout. */
static void expect_check_error(void (*mistake)(banyan_layout *), const char *part)
{
    banyan_layout *layout = new_layout();
    assert_int_equal(banyan_layout_add_tensor(layout, "a", BANYAN_BF16, 2, (int64_t[]){8, 6}), 0);
    mistake(layout);
    CHECK_FAILS(banyan_layout_check(layout), BANYAN_ERR_INVALID, part);
    banyan_layout_destroy(layout);
}

static void mistakes_of_the_whole_are_found_by_the_check(void **state)
{
    (void)state;
    expect_check_error(add_overlapping_pieces,
                       "\"a\": [0:4, 0:6] of \"w\" and [3:7, 0:6] of \"w\" overlap");
    expect_check_error(add_overlapping_padding, "[3:8, 5:6] of \"(padding)\" overlap");
    expect_check_error(add_two_global_shapes, "\"w\" has the shape [8, 6] in one piece and [9, 6]");
}

static void a_view_walks_the_piece_where_it_lies(void **state)
{
    (void)state;
    /* Global rows 2 to 5, columns 1 to 4, transposed into plane 1 of a local 2 × 4 × 6. */
    banyan_piece piece = {.name = "w",
                          .ndim = 2,
                          .shape = {8, 6},
                          .box = {2, {2, 1}, {3, 3}},
                          .local_start = {1, 1, 2},
                          .dim_map = {2, 1}};
    uint16_t memory[2][4][6];
    for (int i = 0; i < 48; i++)
        ((uint16_t *)memory)[i] = (uint16_t)i;
    DLTensor local = {.data = memory, .ndim = 3, .dtype = BANYAN_BF16};
    local.shape = (int64_t[]){2, 4, 6};
    banyan_box part = {2, {3, 2}, {2, 2}};
    int64_t shape[BANYAN_MAX_DIMS], strides[BANYAN_MAX_DIMS];
    DLTensor view;
    piece_view(&piece, &part, &local, shape, strides, &view);
    assert_int_equal(view.ndim, 2);
    const uint16_t *first = (const uint16_t *)((const char *)view.data + view.byte_offset);
    for (int row = 0; row < 2; row++) {
        for (int column = 0; column < 2; column++) {
            int global_row = 3 + row, global_column = 2 + column;
            assert_int_equal(first[row * strides[0] + column * strides[1]],
                             memory[1][1 + global_column - 1][2 + global_row - 2]);
        }
    }
    banyan_box place = piece_local_box(&piece, 3, &part);
    assert_true(banyan_box_equal(&place, &(banyan_box){3, {1, 2, 3}, {1, 2, 2}}));
}

static void a_view_of_a_piece_without_a_dimension_keeps_its_order(void **state)
{
    (void)state;
    /* Expert 3 of 5 matrices of 4 × 6, its rows 1 to 3, transposed into a local 6 × 4. */
    banyan_piece piece = {.name = "w",
                          .ndim = 3,
                          .shape = {5, 4, 6},
                          .box = {3, {3, 1, 0}, {1, 3, 6}},
                          .local_start = {0, 1},
                          .dim_map = {BANYAN_NO_DIM, 1, 0}};
    uint16_t memory[6][4];
    DLTensor local = {.data = memory, .ndim = 2, .dtype = BANYAN_BF16};
    local.shape = (int64_t[]){6, 4};
    banyan_box part = {3, {3, 2, 4}, {1, 2, 2}};
    int64_t shape[BANYAN_MAX_DIMS], strides[BANYAN_MAX_DIMS];
    DLTensor view;
    piece_view(&piece, &part, &local, shape, strides, &view);
    assert_int_equal(view.ndim, 3);
    assert_int_equal(shape[0], 1);
    assert_int_equal(shape[1], 2);
    assert_int_equal(shape[2], 2);
    assert_ptr_equal((char *)view.data + view.byte_offset, &memory[4][2]);
    assert_int_equal(strides[1], 1);
    assert_int_equal(strides[2], 4);
    banyan_box place = piece_local_box(&piece, 2, &part);
    assert_true(banyan_box_equal(&place, &(banyan_box){2, {4, 2}, {2, 2}}));
}

static void forty_thousand_pieces_build_and_check_quickly(void **state)
{
    (void)state;
    enum { TENSORS = 20000, STACKED = 20000 };
    char name[64];
    uint64_t start = time_now_ns();
    banyan_layout *layout = new_layout();
    for (int i = 0; i < TENSORS; i++) {
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.gate_proj.weight", i / 128,
                 i % 128);
        int tensor = banyan_layout_add_tensor(layout, name, BANYAN_BF16, 2, (int64_t[]){8, 6});
        banyan_piece piece = piece_2d(tensor, (banyan_box){2, {0, 0}, {8, 6}}, 0, 0);
        piece.name = name;
        banyan_layout_add_piece(layout, &piece);
    }
    int stack = banyan_layout_add_tensor(layout, "stacked", BANYAN_BF16, 3,
                                         (int64_t[]){STACKED / 2, 16, 6});
    for (int i = 0; i < STACKED; i++) {
        snprintf(name, sizeof name, "expert.%d", i);
        banyan_layout_add_piece(layout, &(banyan_piece){.tensor = stack,
                                                        .name = name,
                                                        .ndim = 2,
                                                        .shape = {8, 6},
                                                        .box = {2, {0, 0}, {8, 6}},
                                                        .local_start = {i / 2, i % 2 * 8, 0},
                                                        .dim_map = {1, 2}});
    }
    uint64_t built = time_now_ns();
    CHECK_OK(banyan_layout_check(layout));
    uint64_t checked = time_now_ns();
    CHECK_OK(banyan_layout_check_as(layout, BANYAN_DESTINATION));
    uint64_t took = time_now_ns() - start;
    printf("%d tensors, %zu pieces: built in %.1f ms, checked in %.1f ms, as a destination in %.1f "
           "ms\n",
           TENSORS + 1, banyan_layout_piece_count(layout), (double)(built - start) * 1e-6,
           (double)(checked - built) * 1e-6, (double)(start + took - checked) * 1e-6);
    assert_int_equal(banyan_layout_piece_count(layout), TENSORS + STACKED);
    assert_true(took < 3 * TEST_SLOWER * NS_PER_S);
    banyan_layout_destroy(layout);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_layout_returns_its_additions),
        cmocka_unit_test(the_first_mistake_is_reported_with_its_names_and_numbers),
        cmocka_unit_test(mistakes_of_the_whole_are_found_by_the_check),
        cmocka_unit_test(a_view_walks_the_piece_where_it_lies),
        cmocka_unit_test(a_view_of_a_piece_without_a_dimension_keeps_its_order),
        cmocka_unit_test(forty_thousand_pieces_build_and_check_quickly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
