/* Layout files return the saved layouts, and refuse impossible ones. */
#include "support/random.h"
#include "support/test.h"
#include "support/text_file.h"

#include "reshard/layout/file.h"
#include "reshard/layout/layout.h"
#include "reshard/model/facts.h"

static banyan_layout *new_layout(void)
{
    banyan_layout *layout;
    CHECK_OK(banyan_layout_create(&layout));
    return layout;
}

static banyan_layout_file *load(const char *text)
{
    text_file at = text_file_of(text);
    banyan_layout_file *file;
    CHECK_OK(banyan_layout_file_load(at.path, &file));
    text_file_remove(&at);
    return file;
}

static void expect_equal_layouts(const banyan_layout *a, const banyan_layout *b)
{
    int at, bt;
    assert_int_equal(banyan_layout_tensor_count(a), banyan_layout_tensor_count(b));
    for (size_t i = 0; i < banyan_layout_tensor_count(a); i++) {
        const banyan_local_tensor *x = banyan_layout_tensor(a, i), *y = banyan_layout_tensor(b, i);
        assert_string_equal(x->name, y->name);
        assert_true(banyan_dtype_equal(x->dtype, y->dtype));
        assert_int_equal(x->ndim, y->ndim);
        assert_memory_equal(x->shape, y->shape, (size_t)x->ndim * sizeof x->shape[0]);
    }
    assert_int_equal(banyan_layout_piece_count(a), banyan_layout_piece_count(b));
    for (size_t i = 0; i < banyan_layout_piece_count(a); i++) {
        const banyan_piece *x = banyan_layout_piece(a, i), *y = banyan_layout_piece(b, i);
        int local = banyan_layout_tensor(a, (size_t)x->tensor)->ndim;
        assert_int_equal(x->tensor, y->tensor);
        assert_string_equal(x->name, y->name);
        assert_int_equal(!x->fallback_name, !y->fallback_name);
        if (x->fallback_name)
            assert_string_equal(x->fallback_name, y->fallback_name);
        assert_int_equal(x->ndim, y->ndim);
        assert_memory_equal(x->shape, y->shape, (size_t)x->ndim * sizeof x->shape[0]);
        assert_true(banyan_box_equal(&x->box, &y->box));
        assert_memory_equal(x->local_start, y->local_start, (size_t)local * sizeof(int64_t));
        assert_memory_equal(x->dim_map, y->dim_map, (size_t)x->ndim * sizeof(int));
        assert_int_equal(x->flags, y->flags);
        assert_memory_equal(&x->replicas, &y->replicas, sizeof x->replicas);
    }
    assert_int_equal(banyan_layout_padding_count(a), banyan_layout_padding_count(b));
    for (size_t i = 0; i < banyan_layout_padding_count(a); i++) {
        assert_true(
            banyan_box_equal(banyan_layout_padding(a, i, &at), banyan_layout_padding(b, i, &bt)));
        assert_int_equal(at, bt);
        const void *x = banyan_layout_padding_fill(a, i), *y = banyan_layout_padding_fill(b, i);
        assert_int_equal(!x, !y);
        if (x)
            assert_memory_equal(x, y,
                                banyan_dtype_bytes(banyan_layout_tensor(a, (size_t)at)->dtype));
    }
    const facts *known = layout_facts(a), *again = layout_facts(b);
    assert_int_equal(known->list.count, again->list.count);
    for (size_t i = 0; i < known->list.count; i++)
        assert_string_equal(known->list.data[i].text, facts_find(again, known->list.data[i].key));
    assert_int_equal(banyan_layout_left_alone_count(a), banyan_layout_left_alone_count(b));
    for (size_t i = 0; i < banyan_layout_left_alone_count(a); i++) {
        assert_true(banyan_box_equal(banyan_layout_left_alone(a, i, &at),
                                     banyan_layout_left_alone(b, i, &bt)));
        assert_int_equal(at, bt);
    }
}

static const DLDataType dtypes[] = {{kDLBfloat, 16, 1},
                                    {kDLFloat, 16, 1},
                                    {kDLFloat, 32, 1},
                                    {kDLFloat, 64, 1},
                                    {BANYAN_DL_FLOAT8_E4M3FN, 8, 1},
                                    {BANYAN_DL_FLOAT8_E5M2, 8, 1},
                                    {BANYAN_DL_FLOAT8_E8M0FNU, 8, 1},
                                    {kDLInt, 8, 1},
                                    {kDLInt, 16, 1},
                                    {kDLInt, 32, 1},
                                    {kDLInt, 64, 1},
                                    {kDLUInt, 8, 1},
                                    {kDLUInt, 16, 1},
                                    {kDLUInt, 32, 1},
                                    {kDLUInt, 64, 1}};

/* Every feature of a layout, by chance: its rows hold a piece, padding, and a row left alone. */
static banyan_layout *random_layout(random_state *random, int rank)
{
    banyan_layout *layout = new_layout();
    int tensors = (int)random_between(random, 1, 6);
    layout_keep_fact(layout, "head_dim", random_next(random) % 2 ? "64" : "128");
    layout_keep_fact(layout, "model_type", "\"llama\"");
    for (int t = 0; t < tensors; t++) {
        char name[64], global[64];
        snprintf(name, sizeof name, "local.%d.\"\\é", t);
        snprintf(global, sizeof global, "global.%d", (int)random_between(random, 0, 9));
        DLDataType dtype = dtypes[random_between(random, 0, 14)];
        int64_t rows = (int64_t)random_between(random, 1, 9);
        bool transposed = random_next(random) % 2;
        int tensor =
            banyan_layout_add_tensor(layout, name, dtype, 3, (int64_t[]){2, rows + 3, rows + 3});
        banyan_piece piece = {.tensor = tensor,
                              .name = global,
                              .fallback_name = random_next(random) % 3 ? NULL : "other",
                              .ndim = 3,
                              .shape = {100, INT64_C(1) << 40, 9},
                              .box = {3, {7, (INT64_C(1) << 40) - rows, 8}, {rows, rows, 1}},
                              .local_start = {1, (int64_t)random_between(random, 0, 1), 0},
                              .dim_map = {transposed ? 2 : 1, transposed ? 1 : 2,
                                          random_next(random) % 2 ? 0 : BANYAN_NO_DIM}};
        bool is_small_float =
            dtype.bits <= 32 && (dtype.code == kDLFloat || dtype.code == kDLBfloat);
        if (random_next(random) % 4 == 0)
            piece.flags = BANYAN_PIECE_PERSISTENT_BUFFER;
        else if (is_small_float && random_next(random) % 2)
            piece.flags = BANYAN_PIECE_NEGATIVE_EXP;
        if (random_next(random) % 2)
            piece.replicas = (banyan_rank_set){rank, {1, 1, 2, 3}, {0, 0, 8, 16}};
        banyan_layout_add_piece(layout, &piece);
        uint64_t fill[2] = {random_next(random), random_next(random)};
        if (random_next(random) % 3 == 0)
            fill[0] = 0;
        banyan_box row = {3, {0, 0, 0}, {1, 1, rows}}, next = {3, {0, 1, 0}, {1, 1, rows}};
        banyan_layout_add_filled_padding(layout, tensor, &row, fill);
        banyan_layout_leave_alone(layout, tensor, &next);
    }
    CHECK_OK(banyan_layout_check(layout));
    return layout;
}

static void layouts_come_back_as_they_were_saved(void **state)
{
    (void)state;
    enum { RANKS = 12 };
    text_file at = text_file_of("");
    for (uint64_t seed = 1; seed <= 40; seed++) {
        random_state random = random_from(seed);
        banyan_layout *layouts[RANKS];
        banyan_layout_file *file, *again;
        CHECK_OK(banyan_layout_file_create(&file));
        for (int rank = 0; rank < RANKS; rank++) {
            layouts[rank] = random_layout(&random, rank);
            if (rank != 5)
                CHECK_OK(banyan_layout_file_add(file, RANKS - 1 - rank, layouts[rank]));
        }
        CHECK_OK(banyan_layout_file_save(file, at.path));
        CHECK_OK(banyan_layout_file_load(at.path, &again));
        assert_int_equal(banyan_layout_file_rank_count(again), RANKS);
        for (int rank = 0; rank < RANKS; rank++) {
            banyan_layout *found = new_layout();
            banyan_layout_add_file(found, again, RANKS - 1 - rank, 0);
            CHECK_OK(banyan_layout_check(found));
            if (rank == 5)
                assert_int_equal(banyan_layout_tensor_count(found), 0);
            else
                expect_equal_layouts(found, layouts[rank]);
            banyan_layout_destroy(found);
            banyan_layout_destroy(layouts[rank]);
        }
        banyan_layout_file_destroy(file);
        banyan_layout_file_destroy(again);
    }
    text_file_remove(&at);
}

static banyan_layout *shard(int part)
{
    banyan_layout *layout = new_layout();
    int tensor = banyan_layout_add_tensor(layout, "w", BANYAN_F32, 1, (int64_t[]){4});
    banyan_layout_add_piece(layout,
                            &(banyan_piece){.tensor = tensor,
                                            .name = "w",
                                            .ndim = 1,
                                            .shape = {8},
                                            .box = {1, {4 * part}, {4}},
                                            .replicas = {part, {1, 1, 1, 3}, {0, 0, 0, 2}}});
    return layout;
}

static void equal_layouts_are_kept_once(void **state)
{
    (void)state;
    banyan_layout_file *file;
    CHECK_OK(banyan_layout_file_create(&file));
    for (int rank = 5; rank >= 0; rank--) {
        banyan_layout *layout = shard(rank % 2);
        CHECK_OK(banyan_layout_file_add(file, rank, layout));
        CHECK_FAILS(banyan_layout_file_add(file, rank, layout), BANYAN_ERR_INVALID,
                    "the file has a layout of rank");
        banyan_layout_destroy(layout);
    }
    size_t count;
    assert_int_equal(banyan_layout_file_group_count(file), 2);
    const int *ranks = banyan_layout_file_group_ranks(file, 0, &count);
    assert_int_equal(count, 3);
    assert_memory_equal(ranks, ((int[]){1, 3, 5}), 3 * sizeof(int));
    CHECK_OK(banyan_layout_file_check(file, BANYAN_DESTINATION));
    CHECK_OK(banyan_layout_file_check(file, BANYAN_SOURCE));

    banyan_layout *moved = new_layout();
    banyan_layout_add_file(moved, file, 3, 100);
    assert_int_equal(banyan_layout_piece(moved, 0)->replicas.first, 101);
    banyan_layout_destroy(moved);

    text_file at = text_file_of("");
    banyan_layout *layout = shard(1);
    banyan_layout_file *again;
    CHECK_OK(banyan_layout_file_save(file, at.path));
    CHECK_OK(banyan_layout_file_load(at.path, &again));
    CHECK_OK(banyan_layout_file_add(again, 7, layout));
    assert_int_equal(banyan_layout_file_group_count(again), 2);
    CHECK_FAILS(banyan_layout_file_check(again, BANYAN_SOURCE), BANYAN_ERR_INVALID,
                "rank 7 holds [4:8] of \"w\"");
    banyan_layout_destroy(layout);
    banyan_layout_file_destroy(again);
    banyan_layout_file_destroy(file);
    text_file_remove(&at);
}

#define HEAD "{\"format\": \"banyan.layout\", \"version\": 1, \"ranks\": ["
#define TENSOR(dtype, shape, rest)                                                                 \
    HEAD "{\"ranks\": [0], \"tensors\": [{\"name\": \"t\", \"dtype\": \"" dtype                    \
         "\", \"shape\": " shape ", " rest "}]}]}"
#define PIECE(rest) "\"pieces\": [{\"tensor\": \"w\", \"shape\": [8], " rest "}]"

/* Fields that users may omit, and values of padding as users write them. */
static void a_short_file_has_the_expected_layout(void **state)
{
    (void)state;
    banyan_layout_file *file = load(TENSOR(
        "BF16", "[8]",
        PIECE(
            "\"start\": [2], \"extent\": [2]") ", \"padding\": [{\"start\": [2], \"extent\": [1], "
                                               "\"fill\": \"-inf\"}, {\"start\": [3], "
                                               "\"extent\": [1], \"fill\": 1.5}, {\"start\": [4],"
                                               "\"extent\": [1], \"fill\": \"0x7fc1\"}, "
                                               "{\"start\": [5], \"extent\": [1]}], "
                                               "\"left_alone\": [{\"start\": [6], \"extent\":"
                                               "[2]}]"));
    CHECK_OK(banyan_layout_file_check(file, BANYAN_DESTINATION));
    const banyan_layout *layout = banyan_layout_file_group_layout(file, 0);
    const banyan_piece *piece = banyan_layout_piece(layout, 0);
    assert_int_equal(piece->local_start[0], 0);
    assert_int_equal(piece->dim_map[0], 0);
    assert_int_equal(banyan_rank_set_size(&piece->replicas), 0);
    const uint16_t fills[] = {0xff80, 0x3fc0, 0x7fc1};
    for (size_t i = 0; i < 3; i++)
        assert_memory_equal(banyan_layout_padding_fill(layout, i), &fills[i], 2);
    assert_null(banyan_layout_padding_fill(layout, 3));
    assert_int_equal(banyan_layout_left_alone_count(layout), 1);
    banyan_layout_file_destroy(file);
}

static void expect_refusal(const char *text, const char *part)
{
    text_file at = text_file_of(text);
    banyan_layout_file *file;
    CHECK_FAILS(banyan_layout_file_load(at.path, &file), BANYAN_ERR_FORMAT, part);
    CHECK_FAILS(banyan_layout_file_load(at.path, &file), BANYAN_ERR_FORMAT, at.path);
    text_file_remove(&at);
}

static void mistakes_are_reported_with_their_place(void **state)
{
    (void)state;
    expect_refusal("{\"format\": \"banyan.layout\",\n \"version\": 1,\n oh}", ":3:");
    expect_refusal("[]", "the document is not an object");
    expect_refusal("{\"format\": \"banyan.layouts\", \"version\": 1, \"ranks\": []}",
                   "has format \"banyan.layouts\", not \"banyan.layout\"");
    expect_refusal("{\"format\": \"banyan.layout\", \"version\": 2, \"ranks\": []}",
                   "version is 2");
    expect_refusal("{\"gpus\": []}", "seems to be a plan, where a layout file is expected");
    expect_refusal(HEAD "{\"ranks\": [0, 1, 0], \"tensors\": []}]}",
                   "ranks[0].ranks[2] is rank 0 a second time");
    expect_refusal(HEAD "{\"ranks\": [1048576], \"tensors\": []}]}",
                   "ranks[0].ranks[0] is not a rank");
    expect_refusal(HEAD "{\"ranks\": [0, \"1\"], \"tensors\": []}]}",
                   "ranks[0].ranks[1] is not a rank");
    expect_refusal(HEAD "{\"ranks\": [0]}]}", "ranks[0] has no \"tensors\"");
    expect_refusal(TENSOR("BF17", "[8]", "\"pieces\": []"), "has unknown type \"BF17\"");
    expect_refusal(TENSOR("BF16", "[-1]", "\"pieces\": []"), "ranks[0].tensors[0].shape[0] is -1");
    expect_refusal(TENSOR("BF16", "[8]", "\"pieces\": [], \"paddings\": []"),
                   "ranks[0].tensors[0] has \"paddings\", which a layout file does not have there");
    expect_refusal(TENSOR("BF16", "[8]", PIECE("\"start\": [2], \"extent\": [9]")),
                   "ranks[0].tensors[0].pieces[0] is wrong: piece [2:11] of \"w\" does not lie in "
                   "its shape [8]");
    expect_refusal(TENSOR("BF16", "[8]", PIECE("\"start\": [2], \"extent\": [2, 2]")),
                   "pieces[0].extent has 2 entries, and must have 1");
    expect_refusal(
        TENSOR("BF16", "[8]", PIECE("\"start\": [2], \"extent\": [2], \"dim_map\": [1]")),
        "its dimension 0 maps to dimension 1 of \"t\"");
    expect_refusal(
        TENSOR("BF16", "[8]", PIECE("\"start\": [2], \"extent\": [2], \"dim_map\": [-1]")),
        "its dimension 0 maps to none of \"t\", and the box has 2 elements along it, not 1");
    expect_refusal(
        TENSOR("BF16", "[8]", PIECE("\"start\": [2], \"extent\": [1], \"dim_map\": [-2]")),
        "pieces[0].dim_map[0] is -2");
    expect_refusal(TENSOR("BF16", "[8]",
                          PIECE("\"start\": [2], \"extent\": [2], \"replicas\": {\"first\": 0, "
                                "\"count\": [1, 1, 1, 2], \"stride\": [0, 0, 0, -1]}")),
                   "replicas is not a set of ranks");
    expect_refusal(TENSOR("I8", "[8]",
                          "\"pieces\": [], \"padding\": [{\"start\": [0], \"extent\": [8], "
                          "\"fill\": 128}]"),
                   "padding[0].fill is 128, a value that I8 does not have");
    expect_refusal(TENSOR("F8_E4M3", "[8]",
                          "\"pieces\": [], \"padding\": [{\"start\": [0], \"extent\": [8], "
                          "\"fill\": \"inf\"}]"),
                   "a value that F8_E4M3 does not have");
    expect_refusal(TENSOR("F16", "[8]",
                          "\"pieces\": [], \"padding\": [{\"start\": [0], \"extent\": [8], "
                          "\"fill\": 70000}]"),
                   "a value that F16 does not have");
    expect_refusal(TENSOR("F32", "[8]",
                          "\"pieces\": [], \"padding\": [{\"start\": [0], \"extent\": [8], "
                          "\"fill\": \"0x7fc\"}]"),
                   "an element has 4 bytes");
    expect_refusal(HEAD "{\"ranks\": [0], \"tensors\": [{\"name\": \"a\\u001b[2J\", \"dtype\": "
                        "\"F32\", \"shape\": [], \"pieces\": []}]}]}",
                   "has a name with the control character 0x1b");
}

static void ranks_that_contradict_each_other_are_named(void **state)
{
    (void)state;
    banyan_layout_file *file =
        load(HEAD "{\"ranks\": [0], \"tensors\": [{\"name\": \"t\", \"dtype\": \"F32\", \"shape\": "
                  "[4], \"pieces\": [{\"tensor\": \"w\", \"shape\": [8], \"start\": [0], "
                  "\"extent\": [4]}]}]}, {\"ranks\": [3], \"tensors\": [{\"name\": \"t\", "
                  "\"dtype\": \"F32\", \"shape\": [4], \"pieces\": [{\"tensor\": \"w\", \"shape\": "
                  "[9], \"start\": [4], \"extent\": [4]}]}]}]}");
    CHECK_FAILS(banyan_layout_file_check(file, BANYAN_DESTINATION), BANYAN_ERR_MISMATCH,
                "tensor \"w\" has the shape [8] at rank 0 and [9] at rank 3");
    banyan_layout_file_destroy(file);
    file = load(TENSOR("F32", "[8]", PIECE("\"start\": [0], \"extent\": [7]")));
    CHECK_OK(banyan_layout_file_check(file, BANYAN_SOURCE));
    CHECK_FAILS(banyan_layout_file_check(file, BANYAN_DESTINATION), BANYAN_ERR_INVALID,
                "rank 0: local tensor \"t\" of a destination: [7:8] belongs to no piece");
    banyan_layout_file_destroy(file);
}

static void unwritable_layouts_are_refused(void **state)
{
    (void)state;
    banyan_layout_file *file;
    CHECK_OK(banyan_layout_file_create(&file));
    banyan_layout *layout = new_layout();
    banyan_layout_add_tensor(layout, "a\nb", BANYAN_F32, 0, NULL);
    CHECK_FAILS(banyan_layout_file_add(file, 0, layout), BANYAN_ERR_INVALID, "control characters");
    banyan_layout_destroy(layout);
    layout = new_layout();
    banyan_layout_add_tensor(layout, "a", (DLDataType){kDLFloat, 32, 2}, 0, NULL);
    CHECK_FAILS(banyan_layout_file_add(file, 0, layout), BANYAN_ERR_INVALID, "\"a\" cannot be");
    CHECK_FAILS(banyan_layout_file_add(file, -1, layout), BANYAN_ERR_INVALID, "rank -1");
    banyan_layout_destroy(layout);
    banyan_layout_file_destroy(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts_come_back_as_they_were_saved),
        cmocka_unit_test(equal_layouts_are_kept_once),
        cmocka_unit_test(a_short_file_has_the_expected_layout),
        cmocka_unit_test(mistakes_are_reported_with_their_place),
        cmocka_unit_test(ranks_that_contradict_each_other_are_named),
        cmocka_unit_test(unwritable_layouts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
