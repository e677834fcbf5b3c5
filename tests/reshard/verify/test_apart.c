/* No two tensors of a destination share memory, unless they are tied. */
#include "support/folder.h"
#include "support/test.h"

enum { ROWS = 6, COLUMNS = 5, MEMORY = 200 };

/* Two local tensors of a destination, 6 × 5 float32, in one memory. */
typedef struct two_tensors {
    const char *names[2];
    const char *fallback; /* of the second; NULL: none */
    size_t second_at;     /* elements; the first is at 0 */
    int64_t row_stride;
    const char *fails; /* part of the message; NULL: both are filled */
} two_tensors;

static const two_tensors cases[] = {
    {.names = {"a", "b"},
     .row_stride = COLUMNS,
     .fails = "destination tensors \"first\" and \"second\" share memory, from "},
    {.names = {"a", "b"},
     .second_at = 3 * COLUMNS,
     .row_stride = COLUMNS,
     .fails = "filled with [0:6, 0:5] of \"a\" and with [0:6, 0:5] of \"b\""},
    {.names = {"a", "a"}, .second_at = 1, .row_stride = COLUMNS, .fails = "share memory"},
    {.names = {"a", "b"}, .second_at = ROWS * COLUMNS, .row_stride = COLUMNS},
    /* Between each other's rows. */
    {.names = {"a", "b"}, .second_at = COLUMNS, .row_stride = 2 * COLUMNS},
    {.names = {"a", "a"}, .row_stride = COLUMNS},
    {.names = {"a", "tied"}, .fallback = "a", .row_stride = COLUMNS},
    {.names = {"a", "b"},
     .fallback = "a",
     .row_stride = COLUMNS,
     .fails = "filled with [0:6, 0:5] of \"a\" and with [0:6, 0:5] of \"b\""},
};

static void add_tensor(banyan_layout *layout, const char *local, const char *global,
                       const char *fallback)
{
    banyan_piece piece = {.name = global,
                          .fallback_name = fallback,
                          .ndim = 2,
                          .shape = {ROWS, COLUMNS},
                          .box = {2, {0, 0}, {ROWS, COLUMNS}},
                          .dim_map = {0, 1}};
    piece.tensor = banyan_layout_add_tensor(layout, local, BANYAN_F32, 2, piece.shape);
    banyan_layout_add_piece(layout, &piece);
}

static banyan_layout *layout_of(const two_tensors *of)
{
    banyan_layout *layout;
    CHECK_OK(banyan_layout_create(&layout));
    add_tensor(layout, "first", of ? of->names[0] : "a", NULL);
    add_tensor(layout, "second", of ? of->names[1] : "b", of ? of->fallback : NULL);
    CHECK_OK(banyan_layout_check(layout));
    return layout;
}

static banyan_tensors *bind(const banyan_layout *layout, float *memory, size_t second_at,
                            int64_t row_stride)
{
    int64_t shape[] = {ROWS, COLUMNS}, strides[] = {row_stride, 1};
    DLTensor tensors[2];
    for (int t = 0; t < 2; t++)
        tensors[t] = (DLTensor){.data = memory + (t == 0 ? 0 : second_at),
                                .device = {kDLCPU, 0},
                                .ndim = 2,
                                .dtype = BANYAN_F32,
                                .shape = shape,
                                .strides = strides};
    banyan_tensors *set;
    CHECK_OK(banyan_tensors_create(layout, tensors, 2, &set));
    return set;
}

/* The element of global tensor "a" is its index, that of "b" 1000 more. */
static void fill_source(float *memory)
{
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        memory[i] = (float)i;
        memory[ROWS * COLUMNS + i] = (float)(1000 + i);
    }
}

static void check_filled(const two_tensors *of, const float *memory)
{
    for (int t = 0; t < 2; t++)
        for (int i = 0; i < ROWS * COLUMNS; i++) {
            size_t at = (size_t)(i / COLUMNS * of->row_stride + i % COLUMNS);
            float want = (float)(of->names[t][0] == 'b' ? 1000 + i : i);
            CHECK(memory[(t == 0 ? 0 : of->second_at) + at] == want, "tensor %d, element %d", t, i);
        }
}

static void check_refused(const two_tensors *of, banyan_status status, const float *memory)
{
    CHECK_FAILS(status, BANYAN_ERR_INVALID, of->fails);
    for (int i = 0; i < MEMORY; i++)
        CHECK(memory[i] == -1, "element %d has changed", i);
}

static void run_case(banyan_world *world, void *context)
{
    const two_tensors *of = context;
    float from[2 * ROWS * COLUMNS], to[MEMORY];
    fill_source(from);
    for (int i = 0; i < MEMORY; i++)
        to[i] = -1;
    banyan_layout *source = layout_of(NULL), *destination = layout_of(of);
    banyan_tensors *sent = bind(source, from, ROWS * COLUMNS, COLUMNS);
    banyan_tensors *filled = bind(destination, to, of->second_at, of->row_stride);
    banyan_copy_service *service;
    banyan_reshard_plan *plan;
    CHECK_OK(banyan_copy_service_open(world, "direct", NULL, &service));
    CHECK_OK(banyan_reshard_plan_create(source, destination, world, NULL, &plan));
    banyan_status status = banyan_reshard_execute(plan, sent, filled, service, world, NULL, NULL);
    if (of->fails) {
        check_refused(of, status, to);
    } else {
        CHECK_OK(status);
        check_filled(of, to);
    }
    banyan_reshard_plan_destroy(plan);
    banyan_copy_service_close(service);
    banyan_tensors_destroy(sent);
    banyan_tensors_destroy(filled);
    banyan_layout_destroy(source);
    banyan_layout_destroy(destination);
}

static void a_run_fills_no_memory_twice(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        ranks_run(1, run_case, (void *)&cases[i]);
}

static void load_case(const two_tensors *of, const banyan_checkpoint *checkpoint)
{
    float to[MEMORY];
    for (int i = 0; i < MEMORY; i++)
        to[i] = -1;
    banyan_layout *layout = layout_of(of);
    banyan_tensors *filled = bind(layout, to, of->second_at, of->row_stride);
    banyan_status status = banyan_checkpoint_load(checkpoint, layout, filled, NULL);
    if (of->fails) {
        check_refused(of, status, to);
    } else {
        CHECK_OK(status);
        check_filled(of, to);
    }
    banyan_tensors_destroy(filled);
    banyan_layout_destroy(layout);
}

static void a_load_fills_no_memory_twice(void **state)
{
    static const char *const names[] = {"a", "b"};
    float from[2 * ROWS * COLUMNS];
    int64_t shape[] = {ROWS, COLUMNS};
    DLTensor tensors[2];
    char *path = folder_path(*state, "model.safetensors");
    banyan_checkpoint *checkpoint;
    fill_source(from);
    for (int t = 0; t < 2; t++)
        tensors[t] = (DLTensor){.data = from + t * ROWS * COLUMNS,
                                .device = {kDLCPU, 0},
                                .ndim = 2,
                                .dtype = BANYAN_F32,
                                .shape = shape};
    CHECK_OK(banyan_checkpoint_write(path, names, tensors, 2, NULL));
    CHECK_OK(banyan_checkpoint_open(path, &checkpoint));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        load_case(&cases[i], checkpoint);
    banyan_checkpoint_close(checkpoint);
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_fills_no_memory_twice),
        cmocka_unit_test_setup_teardown(a_load_fills_no_memory_twice, folder_setup,
                                        folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
