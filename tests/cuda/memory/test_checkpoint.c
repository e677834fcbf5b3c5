/* Checkpoints are loaded into the memory of GPUs: rows and columns, casts, padding. */
#include "support/folder.h"
#include "support/gpu/gpu.h"
#include "support/ranks.h"
#include "support/test.h"

#define ROWS 300
#define COLUMNS 700
#define PAD 3

static float value_at(int row, int column)
{
    return (float)(row * 7 + column) / 4;
}

static void write_model(const char *path)
{
    int64_t shape[] = {ROWS, COLUMNS};
    float *values = malloc(sizeof(float) * ROWS * COLUMNS);
    for (int i = 0; i < ROWS * COLUMNS; i++)
        values[i] = value_at(i / COLUMNS, i % COLUMNS);
    DLTensor tensor = {
        .data = values, .device = BANYAN_HOST, .ndim = 2, .dtype = BANYAN_F32, .shape = shape};
    const char *name = "w";
    CHECK_OK(banyan_checkpoint_write(path, &name, &tensor, 1, NULL));
    free(values);
}

/* Half of the rows or columns, and PAD further ones of padding. */
static banyan_layout *half_layout(int dim, DLDataType dtype)
{
    int64_t shape[] = {ROWS, COLUMNS};
    banyan_box box = {.ndim = 2, .extent = {ROWS, COLUMNS}};
    banyan_layout *layout;
    CHECK_OK(banyan_layout_create(&layout));
    shape[dim] /= 2;
    box.extent[dim] = box.start[dim] = shape[dim];
    shape[dim] += PAD;
    banyan_layout_add_tensor(layout, "w", dtype, 2, shape);
    banyan_layout_add_piece(
        layout,
        &(banyan_piece){
            .name = "w", .ndim = 2, .shape = {ROWS, COLUMNS}, .box = box, .dim_map = {0, 1}});
    banyan_box padding = {.ndim = 2, .extent = {shape[0], shape[1]}};
    padding.start[dim] = shape[dim] - PAD;
    padding.extent[dim] = PAD;
    banyan_layout_add_padding(layout, 0, &padding);
    CHECK_OK(banyan_layout_status(layout));
    return layout;
}

static float float_at(const void *data, DLDataType dtype, size_t i)
{
    if (dtype.bits == 32)
        return ((const float *)data)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)data)[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void load_one(const banyan_checkpoint *checkpoint, int dim, DLDataType dtype)
{
    banyan_layout *layout = half_layout(dim, dtype);
    banyan_tensors *tensors;
    banyan_transform *cast;
    banyan_checkpoint_options options = BANYAN_CHECKPOINT_OPTIONS_INIT;
    CHECK_OK(banyan_cast_create(NULL, &cast));
    options.transform = cast;
    options.thread_count = 3;
    CHECK_OK(banyan_tensors_alloc_on(layout, NULL, gpu_device_for(0), &tensors));
    const DLTensor *tensor = banyan_tensors_get(tensors, 0);
    size_t elems = (size_t)(tensor->shape[0] * tensor->shape[1]);
    size_t bytes = elems * banyan_dtype_bytes(dtype);
    gpu_poison(tensor->data, bytes);
    CHECK_OK(banyan_checkpoint_load(checkpoint, layout, tensors, &options));
    CHECK(banyan_tensors_get_state(tensors) == BANYAN_TENSORS_WHOLE);
    void *got = gpu_read(tensor->data, bytes);
    for (int64_t row = 0; row < tensor->shape[0]; row++)
        for (int64_t column = 0; column < tensor->shape[1]; column++) {
            bool padded = (dim ? column : row) >= tensor->shape[dim] - PAD;
            float wanted =
                value_at((int)row + (dim ? 0 : ROWS / 2), (int)column + (dim ? COLUMNS / 2 : 0));
            float value = float_at(got, dtype, (size_t)(row * tensor->shape[1] + column));
            CHECK(padded ? value == 0 : value >= wanted - wanted / 256 && value <= wanted * 1.004F,
                  "[%ld, %ld]: %g, not %g", (long)row, (long)column, (double)value,
                  padded ? 0 : (double)wanted);
        }
    free(got);
    banyan_transform_destroy(cast);
    banyan_tensors_destroy(tensors);
    banyan_layout_destroy(layout);
}

static void load_many(banyan_world *world, void *context)
{
    banyan_checkpoint *checkpoint;
    (void)world;
    CHECK_OK(banyan_checkpoint_open(context, &checkpoint));
    for (int dim = 0; dim < 2; dim++) {
        load_one(checkpoint, dim, BANYAN_F32);
        load_one(checkpoint, dim, BANYAN_BF16);
    }
    banyan_checkpoint_close(checkpoint);
}

static void loads_fill_the_memory_of_gpus(void **state)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/model.safetensors", (const char *)*state);
    write_model(path);
    ranks_run(1, load_many, path);
}

int main(void)
{
    gpu_count();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(loads_fill_the_memory_of_gpus, folder_setup,
                                        folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
