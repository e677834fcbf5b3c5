/* Loads of checkpoints: by several threads, from files that change, and without memory. */
#include "support/lacking.h"

#include "support/folder.h"

#define TENSORS 6
#define ROWS 700
#define COLUMNS 1100 /* six tensors of 3 MB, so that each one may be cut */

static float value_at(int tensor, int i)
{
    return (float)(tensor * 3 + i % 4093);
}

static void write_model(const char *path)
{
    int64_t shape[] = {ROWS, COLUMNS};
    float *values = malloc(sizeof(float) * ROWS * COLUMNS * TENSORS);
    DLTensor tensors[TENSORS];
    const char *names[TENSORS] = {"a", "b", "c", "d", "e", "f"};
    for (int t = 0; t < TENSORS; t++) {
        float *mine = values + (size_t)t * ROWS * COLUMNS;
        for (int i = 0; i < ROWS * COLUMNS; i++)
            mine[i] = value_at(t, i);
        tensors[t] = (DLTensor){
            .data = mine, .device = BANYAN_HOST, .ndim = 2, .dtype = BANYAN_F32, .shape = shape};
    }
    CHECK_OK(banyan_checkpoint_write(path, names, tensors, TENSORS, NULL));
    free(values);
}

/* The right half of every tensor, turned around in every second one, as bf16 in every third. */
static banyan_layout *half_layout(void)
{
    banyan_layout *layout;
    CHECK_OK(banyan_layout_create(&layout));
    for (int t = 0; t < TENSORS; t++) {
        char name[2] = {(char)('a' + t), 0};
        int64_t shape[2] = {ROWS, COLUMNS / 2}, turned[2] = {COLUMNS / 2, ROWS};
        banyan_layout_add_tensor(layout, name, t % 3 ? BANYAN_F32 : BANYAN_BF16, 2,
                                 t % 2 ? turned : shape);
        banyan_layout_add_piece(layout,
                                &(banyan_piece){.tensor = t,
                                                .name = name,
                                                .ndim = 2,
                                                .shape = {ROWS, COLUMNS},
                                                .box = {2, {0, COLUMNS / 2}, {ROWS, COLUMNS / 2}},
                                                .dim_map = {t % 2, 1 - t % 2}});
    }
    CHECK_OK(banyan_layout_status(layout));
    return layout;
}

static void check_tensor(const banyan_tensors *tensors, int t)
{
    const DLTensor *tensor = banyan_tensors_get(tensors, (size_t)t);
    for (int row = 0; row < ROWS; row++)
        for (int column = 0; column < COLUMNS / 2; column++) {
            int at = t % 2 ? column * ROWS + row : row * (COLUMNS / 2) + column;
            float wanted = value_at(t, row * COLUMNS + COLUMNS / 2 + column), found;
            uint32_t bits = t % 3 ? 0 : (uint32_t)((uint16_t *)tensor->data)[at] << 16;
            memcpy(&found, &bits, sizeof found);
            if (t % 3)
                found = ((float *)tensor->data)[at];
            float bound = t % 3 ? 0 : wanted / 256;
            CHECK(found >= wanted - bound && found <= wanted + bound, "%c [%d, %d]: %g, not %g",
                  'a' + t, row, column, (double)found, (double)wanted);
        }
}

typedef struct load_case {
    banyan_checkpoint *checkpoint;
    banyan_layout *layout;
    banyan_tensors *tensors;
    banyan_transform *cast;
    banyan_checkpoint_options options;
    char path[4096];
} load_case;

static load_case open_case(const char *folder)
{
    load_case made = {.options = BANYAN_CHECKPOINT_OPTIONS_INIT};
    snprintf(made.path, sizeof made.path, "%s/model.safetensors", folder);
    write_model(made.path);
    made.layout = half_layout();
    CHECK_OK(banyan_checkpoint_open(made.path, &made.checkpoint));
    CHECK_OK(banyan_tensors_alloc(made.layout, NULL, &made.tensors));
    CHECK_OK(banyan_cast_create(NULL, &made.cast));
    made.options.transform = made.cast;
    return made;
}

static banyan_status load(load_case *c)
{
    return banyan_checkpoint_load(c->checkpoint, c->layout, c->tensors, &c->options);
}

static void close_case(load_case *c)
{
    banyan_transform_destroy(c->cast);
    banyan_tensors_destroy(c->tensors);
    banyan_layout_destroy(c->layout);
    banyan_checkpoint_close(c->checkpoint);
}

static void several_threads_fill_what_one_does(void **state)
{
    load_case c = open_case(*state);
    for (int threads = 1; threads <= 9; threads += 4) {
        for (int t = 0; t < TENSORS; t++) {
            const DLTensor *tensor = banyan_tensors_get(c.tensors, (size_t)t);
            memset(tensor->data, 0xa5,
                   (size_t)(tensor->shape[0] * tensor->shape[1]) *
                       banyan_dtype_bytes(tensor->dtype));
        }
        c.options.thread_count = threads;
        uint64_t before = banyan_checkpoint_bytes_read(c.checkpoint);
        CHECK_OK(load(&c));
        /* Rows of 2,200 bytes lie 2,200 bytes apart: less than a page, so the gaps are read. */
        uint64_t read = banyan_checkpoint_bytes_read(c.checkpoint) - before;
        uint64_t whole = (uint64_t)TENSORS * ROWS * COLUMNS * sizeof(float);
        CHECK(read >= whole / 2 && read < whole, "%llu bytes", (unsigned long long)read);
        for (int t = 0; t < TENSORS; t++)
            check_tensor(c.tensors, t);
    }
    CHECK(banyan_tensors_version(c.tensors) == 3);
    close_case(&c);
}

static void a_file_that_was_replaced_is_refused(void **state)
{
    load_case c = open_case(*state);
    CHECK_OK(load(&c));
    write_model(c.path); /* another file under the name */
    CHECK_FAILS(load(&c), BANYAN_ERR_FORMAT, "has changed since it was opened");
    CHECK(banyan_tensors_get_state(c.tensors) == BANYAN_TENSORS_TORN);
    CHECK(unlink(c.path) == 0);
    CHECK_FAILS(load(&c), BANYAN_ERR_NOT_FOUND, c.path);
    close_case(&c);
}

static void every_allocation_that_fails_is_reported(void **state)
{
    load_case c = open_case(*state);
    c.options.thread_count = 1;
    int failed = 0;
    for (bool lacked = true; lacked; failed += lacked) {
        lack.n = failed;
        lack.has_lacked = false;
        lack.is_looking = true;
        banyan_status status = load(&c);
        lack.is_looking = false;
        lacked = lack.has_lacked;
        CHECK(status == (lacked ? BANYAN_ERR_NO_MEMORY : BANYAN_OK), "allocation %d: %s", failed,
              banyan_last_error());
        banyan_tensors_state now = banyan_tensors_get_state(c.tensors);
        CHECK(lacked ? now != BANYAN_TENSORS_WHOLE : now == BANYAN_TENSORS_WHOLE);
    }
    CHECK(failed > 5, "%d", failed);
    check_tensor(c.tensors, 0);
    close_case(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(several_threads_fill_what_one_does, folder_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(a_file_that_was_replaced_is_refused, folder_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(every_allocation_that_fails_is_reported, folder_setup,
                                        folder_teardown),
    };
    bool can_lack = lack_is_possible();
    return _cmocka_run_group_tests("fetch", tests, sizeof tests / sizeof *tests - !can_lack, NULL,
                                   NULL);
}
