/* Every element of a destination is filled, or is declared to be left alone. */
#include "reshard/sides.h"
#include "support/folder.h"
#include "support/ranks.h"

#include "reshard/layout/layout.h"

enum { ROWS = 8, COLUMNS = 6 };

/* Rows `first` to `last` of "w" at row `at` of a local tensor of `rows`. */
static int add_rows(banyan_layout *layout, const char *local, int64_t rows, int64_t first,
                    int64_t last, int64_t at)
{
    int tensor = banyan_layout_add_tensor(layout, local, BANYAN_F32, 2, (int64_t[]){rows, COLUMNS});
    banyan_layout_add_piece(layout, &(banyan_piece){.tensor = tensor,
                                                    .name = "w",
                                                    .ndim = 2,
                                                    .shape = {ROWS, COLUMNS},
                                                    .box = {2, {first, 0}, {last - first, COLUMNS}},
                                                    .local_start = {at, 0},
                                                    .dim_map = {0, 1}});
    return tensor;
}

static banyan_layout *new_layout(void)
{
    banyan_layout *layout;
    CHECK_OK(banyan_layout_create(&layout));
    return layout;
}

static banyan_box rows_box(int64_t first, int64_t count)
{
    return (banyan_box){2, {first, 0}, {count, COLUMNS}};
}

static void a_row_that_no_piece_covers_is_named(void **state)
{
    (void)state;
    banyan_layout *layout = new_layout();
    int tensor = add_rows(layout, "local.w", ROWS, 0, ROWS - 1, 0);
    CHECK_OK(banyan_layout_check(layout));
    CHECK_OK(banyan_layout_check_as(layout, BANYAN_SOURCE));
    CHECK_FAILS(banyan_layout_check_as(layout, BANYAN_DESTINATION), BANYAN_ERR_INVALID,
                "local tensor \"local.w\" of a destination: [7:8, 0:6] belongs to no piece");
    banyan_box half = {2, {7, 0}, {1, 3}}, rest = {2, {7, 3}, {1, 3}};
    banyan_layout_add_padding(layout, tensor, &half);
    CHECK_FAILS(banyan_layout_check_as(layout, BANYAN_DESTINATION), BANYAN_ERR_INVALID,
                "[7:8, 3:6] belongs to no piece");
    banyan_layout_leave_alone(layout, tensor, &rest);
    CHECK_OK(banyan_layout_check_as(layout, BANYAN_DESTINATION));
    banyan_layout_leave_alone(layout, tensor, &rest);
    CHECK_FAILS(banyan_layout_check(layout), BANYAN_ERR_INVALID,
                "[7:8, 3:6] of \"(left alone)\" and [7:8, 3:6] of \"(left alone)\" overlap");
    banyan_layout_destroy(layout);
}

static void the_rest_of_tensors_becomes_padding_from_the_first_one_on(void **state)
{
    (void)state;
    banyan_layout *layout = new_layout();
    for (int i = 0; i < 3; i++)
        add_rows(layout, (const char *[]){"a", "b", "c"}[i], ROWS, 0, ROWS - 1 - i, 0);
    layout_pad_rest(layout, 1);
    assert_int_equal(banyan_layout_padding_count(layout), 2);
    for (int i = 1; i < 3; i++) {
        int tensor;
        banyan_box rest = rows_box(ROWS - 1 - i, 1 + i);
        const banyan_box *box = banyan_layout_padding(layout, (size_t)i - 1, &tensor);
        assert_true(tensor == i && banyan_box_equal(box, &rest));
    }
    CHECK_FAILS(banyan_layout_check_as(layout, BANYAN_DESTINATION), BANYAN_ERR_INVALID,
                "\"a\" of a destination: [7:8, 0:6] belongs to no piece");
    banyan_layout_destroy(layout);
}

static void a_tensor_without_a_piece_is_named(void **state)
{
    (void)state;
    banyan_layout *layout = new_layout();
    add_rows(layout, "local.w", ROWS, 0, ROWS, 0);
    banyan_layout_add_tensor(layout, "nothing", BANYAN_F32, 1, (int64_t[]){0});
    CHECK_OK(banyan_layout_check_as(layout, BANYAN_DESTINATION));
    int scalar = banyan_layout_add_tensor(layout, "step", BANYAN_F32, 0, NULL);
    CHECK_FAILS(banyan_layout_check_as(layout, BANYAN_DESTINATION), BANYAN_ERR_INVALID,
                "local tensor \"step\" of a destination has no piece");
    banyan_layout_leave_alone(layout, scalar, &(banyan_box){0});
    CHECK_OK(banyan_layout_check_as(layout, BANYAN_DESTINATION));
    banyan_layout_destroy(layout);
}

/* Only rank 1 of 3 has a hole; all ranks get the error, and nothing is planned. */
static void plan_with_a_hole(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world);
    banyan_layout *source = new_layout(), *destination = new_layout();
    add_rows(source, "source", ROWS, 0, ROWS, 0);
    int tensor = add_rows(destination, "mine", ROWS, 0, rank == 1 ? ROWS - 1 : ROWS, 0);
    banyan_reshard_plan *plan = NULL;
    CHECK_FAILS(banyan_reshard_plan_create(source, destination, world, NULL, &plan),
                BANYAN_ERR_INVALID, "\"mine\" of a destination: [7:8, 0:6] belongs to no piece");
    CHECK(rank == 1 || strstr(banyan_last_error(), "rank 1: "), "%s", banyan_last_error());
    CHECK(!plan);
    banyan_box last = rows_box(ROWS - 1, 1);
    if (rank == 1)
        banyan_layout_leave_alone(destination, tensor, &last);
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    if (rank == 1)
        options.size = 0;
    CHECK_FAILS(banyan_reshard_plan_create(source, destination, world, &options, &plan),
                BANYAN_ERR_INVALID, "BANYAN_RESHARD_OPTIONS_INIT sets it");
    CHECK_OK(banyan_reshard_plan_create(source, destination, world, NULL, &plan));
    banyan_reshard_plan_destroy(plan);
    banyan_layout_destroy(source);
    banyan_layout_destroy(destination);
}

static void every_rank_reports_one_ranks_hole(void **state)
{
    (void)state;
    ranks_run(3, plan_with_a_hole, NULL);
}

/* The last row is left alone, and the one before it is minus infinity, in every run. */
static void run_around(banyan_world *world, void *context)
{
    banyan_layout *source = new_layout(), *destination = new_layout();
    const uint32_t infinity = 0xff800000;
    add_rows(source, "source", ROWS, 0, ROWS, 0);
    int tensor = add_rows(destination, "mine", ROWS + 2, 0, ROWS, 0);
    banyan_box filled = rows_box(ROWS, 1), alone = rows_box(ROWS + 1, 1);
    banyan_layout_add_filled_padding(destination, tensor, &filled, &infinity);
    banyan_layout_leave_alone(destination, tensor, &alone);
    banyan_reshard_plan *plan;
    CHECK_OK(banyan_reshard_plan_create(source, destination, world, NULL, &plan));
    banyan_copy_service *service = open_service(world, context);
    banyan_tensors *from, *to;
    CHECK_OK(banyan_tensors_alloc(source, NULL, &from));
    CHECK_OK(banyan_tensors_alloc_planned(plan, NULL, &to));
    for (int pass = 1; pass <= 3; pass++) {
        filled_make(source, from, pass);
        filled_poison(to);
        CHECK_OK(banyan_reshard_execute(plan, from, to, service, world, NULL, NULL));
        const uint32_t *row =
            (const uint32_t *)banyan_tensors_get(to, 0)->data + (size_t)ROWS * COLUMNS;
        for (int c = 0; c < COLUMNS; c++) {
            CHECK(row[c] == infinity);
            CHECK(row[COLUMNS + c] == 0xa5a5a5a5);
        }
        filled_check(destination, to, pass, false);
    }
    banyan_copy_service_close(service);
    banyan_reshard_plan_destroy(plan);
    banyan_tensors_destroy(from);
    banyan_tensors_destroy(to);
    banyan_layout_destroy(source);
    banyan_layout_destroy(destination);
}

static void runs_fill_padding_and_leave_the_rest_alone(void **state)
{
    (void)state;
    char services[][16] = {"direct", "pipeline", "mailbox"};
    for (int i = 0; i < 3; i++)
        ranks_run(2, run_around, services[i]);
}

/* A value of another type than the tensor's. */
static void fill_a_buffer(banyan_world *world, void *context)
{
    (void)context;
    banyan_layout *source = new_layout(), *destination = new_layout();
    banyan_piece piece = {
        .name = "w", .ndim = 1, .shape = {4}, .box = {1, {0}, {4}}, .dim_map = {0}};
    piece.tensor = banyan_layout_add_tensor(source, "w", BANYAN_F32, 1, (int64_t[]){4});
    banyan_layout_add_piece(source, &piece);
    piece.flags = BANYAN_PIECE_PERSISTENT_BUFFER;
    piece.tensor = banyan_layout_add_tensor(destination, "mean", BANYAN_BF16, 1, (int64_t[]){5});
    banyan_layout_add_piece(destination, &piece);
    const uint16_t one = 0x3f80;
    banyan_layout_add_filled_padding(destination, piece.tensor, &(banyan_box){1, {4}, {1}}, &one);
    banyan_reshard_plan *plan;
    CHECK_FAILS(banyan_reshard_plan_create(source, destination, world, NULL, &plan),
                BANYAN_ERR_INVALID,
                "\"mean\" takes the type of its source, F32, and has padding that is filled with "
                "a value of BF16");
    banyan_layout_destroy(source);
    banyan_layout_destroy(destination);
}

static void padding_of_a_buffer_is_filled_with_a_value_of_its_type(void **state)
{
    (void)state;
    ranks_run(2, fill_a_buffer, NULL);
}

/* The last of 33 rows, in MXFP8, is filled with one or left alone: its scales could not represent
 * it. */
static void quantize_around(banyan_world *world, void *context)
{
    const bool *left_alone = context;
    enum { HEIGHT = 32, WIDTH = 64 };
    banyan_layout *source = new_layout(), *destination = new_layout();
    banyan_piece piece = {.name = "w",
                          .ndim = 2,
                          .shape = {HEIGHT, WIDTH},
                          .box = {2, {0, 0}, {HEIGHT, WIDTH}},
                          .dim_map = {0, 1}};
    piece.tensor = banyan_layout_add_tensor(source, "w", BANYAN_BF16, 2, piece.shape);
    banyan_layout_add_piece(source, &piece);
    int64_t shape[] = {HEIGHT + 1, WIDTH};
    piece.tensor = banyan_layout_add_tensor(destination, "w", BANYAN_F8_E4M3, 2, shape);
    banyan_layout_add_piece(destination, &piece);
    const unsigned char one = 0x38;
    banyan_box last = {2, {HEIGHT, 0}, {1, WIDTH}};
    if (*left_alone)
        banyan_layout_leave_alone(destination, piece.tensor, &last);
    else
        banyan_layout_add_filled_padding(destination, piece.tensor, &last, &one);
    banyan_transform *transform;
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    banyan_reshard_plan *plan;
    banyan_tensors *from, *to;
    CHECK_OK(banyan_mxfp8_create(NULL, &transform));
    options.transform = transform;
    CHECK_OK(banyan_reshard_plan_create(source, destination, world, &options, &plan));
    CHECK_OK(banyan_tensors_alloc(source, NULL, &from));
    CHECK_OK(banyan_tensors_alloc(destination, NULL, &to));
    banyan_copy_service *service = open_service(world, "direct");
    CHECK_FAILS(
        banyan_reshard_execute(plan, from, to, service, world, transform, NULL), BANYAN_ERR_INVALID,
        *left_alone ? "\"w\" in MXFP8 has elements that are to be left alone"
                    : "\"w\" in MXFP8 has padding that is filled with a value other than zero");
    banyan_copy_service_close(service);
    banyan_reshard_plan_destroy(plan);
    banyan_transform_destroy(transform);
    banyan_tensors_destroy(from);
    banyan_tensors_destroy(to);
    banyan_layout_destroy(source);
    banyan_layout_destroy(destination);
}

static void scales_allow_padding_of_zeros_only(void **state)
{
    (void)state;
    bool left_alone[] = {false, true};
    ranks_run(2, quantize_around, &left_alone[0]);
    ranks_run(2, quantize_around, &left_alone[1]);
}

static void write_model(const char *path)
{
    static float w[ROWS * COLUMNS], head[ROWS * COLUMNS];
    static int64_t shape[] = {ROWS, COLUMNS};
    const char *names[] = {"model.norm.weight", "lm_head.weight"};
    DLTensor tensors[2] = {
        {.data = w, .device = BANYAN_HOST, .ndim = 2, .dtype = BANYAN_F32, .shape = shape},
        {.data = head, .device = BANYAN_HOST, .ndim = 2, .dtype = BANYAN_F32, .shape = shape}};
    for (int i = 0; i < ROWS * COLUMNS; i++)
        w[i] = (float)i;
    CHECK_OK(banyan_checkpoint_write(path, names, tensors, 2, NULL));
}

static void add_whole(banyan_layout *layout, const char *name, int64_t more_rows)
{
    int tensor = banyan_layout_add_tensor(layout, name, BANYAN_F32, 2,
                                          (int64_t[]){ROWS + more_rows, COLUMNS});
    banyan_layout_add_piece(layout, &(banyan_piece){.tensor = tensor,
                                                    .name = name,
                                                    .ndim = 2,
                                                    .shape = {ROWS, COLUMNS},
                                                    .box = rows_box(0, ROWS),
                                                    .dim_map = {0, 1}});
}

static void loads_fill_padding_and_refuse_unaccounted_elements(void **state)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/model.safetensors", (const char *)*state);
    write_model(path);
    banyan_checkpoint *checkpoint;
    CHECK_OK(banyan_checkpoint_open(path, &checkpoint));
    banyan_layout *layout = new_layout();
    add_whole(layout, "model.norm.weight", 2);
    banyan_tensors *tensors;
    CHECK_OK(banyan_tensors_alloc(layout, NULL, &tensors));
    filled_poison(tensors);
    CHECK_FAILS(banyan_checkpoint_load(checkpoint, layout, tensors, NULL), BANYAN_ERR_INVALID,
                "[8:10, 0:6] belongs to no piece");
    const float one = 1, *loaded = banyan_tensors_get(tensors, 0)->data;
    uint32_t poison;
    memcpy(&poison, loaded, sizeof poison);
    CHECK(poison == 0xa5a5a5a5);
    banyan_box padding = rows_box(ROWS, 1), alone = rows_box(ROWS + 1, 1);
    banyan_layout_add_filled_padding(layout, 0, &padding, &one);
    banyan_layout_leave_alone(layout, 0, &alone);
    CHECK_OK(banyan_checkpoint_load(checkpoint, layout, tensors, NULL));
    for (int i = 0; i < ROWS * COLUMNS; i++)
        CHECK(loaded[i] == (float)i);
    for (int i = 0; i < COLUMNS; i++) {
        CHECK(loaded[ROWS * COLUMNS + i] == 1);
        memcpy(&poison, &loaded[(ROWS + 1) * COLUMNS + i], sizeof poison);
        CHECK(poison == 0xa5a5a5a5);
    }
    banyan_tensors_destroy(tensors);
    banyan_layout_destroy(layout);

    layout = new_layout();
    add_whole(layout, "model.nrom.weight", 0);
    add_whole(layout, "lm_head.wieght", 0);
    add_whole(layout, "like.nothing.else", 0);
    CHECK_OK(banyan_tensors_alloc(layout, NULL, &tensors));
    CHECK_FAILS(banyan_checkpoint_load(checkpoint, layout, tensors, NULL), BANYAN_ERR_NOT_FOUND,
                "It lacks 3 tensors of the layout: \"model.nrom.weight\" (it has "
                "\"model.norm.weight\"), \"lm_head.wieght\" (it has \"lm_head.weight\"), "
                "\"like.nothing.else\"");
    CHECK(strstr(banyan_last_error(), path), "%s", banyan_last_error());
    banyan_tensors_destroy(tensors);
    banyan_layout_destroy(layout);
    banyan_checkpoint_close(checkpoint);
}

/* Declared values that no memory can represent. */
static void fills_that_cannot_be_are_refused(void **state)
{
    (void)state;
    banyan_layout *layout = new_layout();
    unsigned char fill[32] = {0, 1};
    int wide =
        banyan_layout_add_tensor(layout, "wide", (DLDataType){kDLUInt, 8, 32}, 1, (int64_t[]){2});
    banyan_layout_add_filled_padding(layout, wide, &(banyan_box){1, {0}, {1}}, NULL);
    CHECK_OK(banyan_layout_check(layout));
    banyan_layout_add_filled_padding(layout, wide, &(banyan_box){1, {1}, {1}}, fill);
    CHECK_FAILS(banyan_layout_check(layout), BANYAN_ERR_INVALID,
                "\"wide\" is filled with an element of 32 bytes: at most 16");
    banyan_layout_destroy(layout);
    layout = new_layout();
    int tensor = banyan_layout_add_tensor(layout, "a", BANYAN_F32, 1, (int64_t[]){2});
    banyan_layout_leave_alone(layout, tensor, &(banyan_box){1, {1}, {2}});
    CHECK_FAILS(banyan_layout_check(layout), BANYAN_ERR_INVALID,
                "a box to leave alone [1:3] is not in local tensor \"a\" of shape [2]");
    banyan_layout_destroy(layout);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_that_no_piece_covers_is_named),
        cmocka_unit_test(the_rest_of_tensors_becomes_padding_from_the_first_one_on),
        cmocka_unit_test(a_tensor_without_a_piece_is_named),
        cmocka_unit_test(every_rank_reports_one_ranks_hole),
        cmocka_unit_test(runs_fill_padding_and_leave_the_rest_alone),
        cmocka_unit_test(padding_of_a_buffer_is_filled_with_a_value_of_its_type),
        cmocka_unit_test(fills_that_cannot_be_are_refused),
        cmocka_unit_test(scales_allow_padding_of_zeros_only),
        cmocka_unit_test_setup_teardown(loads_fill_padding_and_refuse_unaccounted_elements,
                                        folder_setup, folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
