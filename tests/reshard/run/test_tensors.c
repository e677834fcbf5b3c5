/* Tensor sets: accepted tensors, allocation, and checksums. */
#include "support/test.h"

#include <xxhash.h>

#include "reshard/run/memory.h"
#include "reshard/run/tensors.h"

static banyan_layout *two_tensors(void)
{
    banyan_layout *layout;
    CHECK_OK(banyan_layout_create(&layout));
    banyan_layout_add_tensor(layout, "matrix", BANYAN_BF16, 2, (int64_t[]){3, 5});
    banyan_layout_add_tensor(layout, "scalar", BANYAN_F32, 0, NULL);
    return layout;
}

static void a_bound_set_keeps_shapes_and_strides_of_its_own(void **state)
{
    (void)state;
    banyan_layout *layout = two_tensors();
    uint16_t matrix[64];
    float scalar[2] = {0};
    int64_t shape[2] = {3, 5}, strides[2] = {2, 7};
    DLTensor tensors[2] = {
        {.data = matrix,
         .device = {kDLCPU, 0},
         .ndim = 2,
         .dtype = BANYAN_BF16,
         .shape = shape,
         .strides = strides},
        {.data = scalar, .device = {kDLCPU, 0}, .ndim = 0, .dtype = BANYAN_F32, .byte_offset = 4},
    };
    banyan_tensors *set;
    CHECK_OK(banyan_tensors_create(layout, tensors, 2, &set));
    memset(shape, 0, sizeof shape);
    memset(strides, 0, sizeof strides);
    assert_int_equal(banyan_tensors_count(set), 2);
    const DLTensor *kept = banyan_tensors_get(set, 0);
    assert_int_equal(kept->shape[1], 5);
    assert_int_equal(kept->strides[0], 2);
    assert_int_equal(kept->strides[1], 7);
    assert_ptr_equal(kept->data, matrix);
    kept = banyan_tensors_get(set, 1);
    assert_ptr_equal((char *)kept->data + kept->byte_offset, &scalar[1]);
    assert_null(banyan_tensors_get(set, 2));
    assert_int_equal(banyan_tensors_get_state(set), BANYAN_TENSORS_EMPTY);
    assert_int_equal(banyan_tensors_version(set), 0);
    tensors_set_whole(set, 5);
    tensors_set_torn(set);
    assert_int_equal(banyan_tensors_get_state(set), BANYAN_TENSORS_TORN);
    assert_int_equal(banyan_tensors_version(set), 5);
    banyan_tensors_destroy(set);
    banyan_layout_destroy(layout);
}

static void a_tensor_that_is_not_the_layouts_is_refused(void **state)
{
    (void)state;
    banyan_layout *layout = two_tensors();
    uint16_t data[64];
    int64_t shape[2] = {3, 5};
    DLTensor good[2] = {
        {.data = data, .device = {kDLCPU, 0}, .ndim = 2, .dtype = BANYAN_BF16, .shape = shape},
        {.data = data, .device = {kDLCPU, 0}, .ndim = 0, .dtype = BANYAN_F32},
    };
    banyan_tensors *set = NULL;
    CHECK_FAILS(banyan_tensors_create(layout, good, 1, &set), BANYAN_ERR_INVALID,
                "1 tensors for a layout of 2");
    CHECK_FAILS(banyan_tensors_create(NULL, good, 2, &set), BANYAN_ERR_INVALID, "needs a layout");
    const struct {
        DLTensor tensor;
        const char *message;
    } bad[] = {
        {{.data = data, .ndim = 2, .dtype = BANYAN_BF16, .shape = (int64_t[]){5, 3}},
         "\"matrix\" has shape [5, 3], its layout says [3, 5]"},
        {{.data = data, .ndim = 1, .dtype = BANYAN_BF16, .shape = (int64_t[]){15}}, "[15]"},
        {{.data = data, .ndim = 40, .dtype = BANYAN_BF16, .shape = shape}, "has shape ?"},
        {{.data = data, .ndim = 2, .dtype = BANYAN_BF16}, "has shape ?"},
        {{.data = data, .ndim = 2, .dtype = BANYAN_F16, .shape = shape},
         "\"matrix\" has type F16, its layout says BF16"},
        {{.data = NULL, .ndim = 2, .dtype = BANYAN_BF16, .shape = shape}, "\"matrix\": "},
        {{.data = data, .device = {kDLMetal, 0}, .ndim = 2, .dtype = BANYAN_BF16, .shape = shape},
         "lies on device type 8"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        DLTensor tensors[2] = {bad[i].tensor, good[1]};
        if (tensors[0].device.device_type == 0)
            tensors[0].device = good[0].device;
        CHECK_FAILS(banyan_tensors_create(layout, tensors, 2, &set), BANYAN_ERR_INVALID,
                    bad[i].message);
    }
    assert_null(set);
    CHECK_OK(banyan_tensors_create(layout, good, 2, &set));
    banyan_tensors_destroy(set);
    banyan_tensors_destroy(NULL);
    banyan_layout_destroy(layout);
}

static void check_allocated(const banyan_tensors *set)
{
    CHECK(banyan_tensors_count(set) == 2);
    const DLTensor *matrix = banyan_tensors_get(set, 0), *scalar = banyan_tensors_get(set, 1);
    CHECK((uintptr_t)matrix->data % 256 == 0 && (uintptr_t)scalar->data % 256 == 0);
    CHECK((char *)scalar->data - (char *)matrix->data == 256);
    CHECK(matrix->strides[0] == 5 && matrix->strides[1] == 1);
    for (int i = 0; i < 15; i++)
        CHECK(((uint16_t *)matrix->data)[i] == 0);
    memset(matrix->data, 1, 30);
    memset(scalar->data, 2, 4);
}

static void alloc_in_world(banyan_world *world, void *context)
{
    (void)context;
    banyan_layout *layout = two_tensors();
    int rank = banyan_world_rank(world);
    banyan_tensors *set;
    /* One rank holds nothing. */
    CHECK_OK(banyan_tensors_alloc(rank == 1 ? NULL : layout, world, &set));
    if (rank == 1) {
        CHECK(banyan_tensors_count(set) == 0);
    } else {
        check_allocated(set);
        banyan_memory_handle handle;
        CHECK_OK(banyan_memory_find(world, banyan_tensors_get(set, 1)->data, 4, &handle));
        CHECK(handle.kind == BANYAN_MEMORY_SYMMETRIC);
    }
    banyan_tensors_destroy(set);
    if (rank == 1)
        banyan_layout_add_tensor(layout, "bad", BANYAN_BF16, 1, (int64_t[]){-1});
    set = NULL;
    CHECK_FAILS(banyan_tensors_alloc(layout, world, &set), BANYAN_ERR_INVALID, "\"bad\"");
    CHECK(!set);
    banyan_layout_destroy(layout);
}

static void allocated_tensors_are_dense_aligned_and_zero(void **state)
{
    (void)state;
    banyan_layout *layout = two_tensors();
    banyan_tensors *set;
    CHECK_OK(banyan_tensors_alloc(layout, NULL, &set));
    check_allocated(set);
    banyan_tensors_destroy(set);
    CHECK_OK(banyan_tensors_alloc(NULL, NULL, &set));
    assert_int_equal(banyan_tensors_count(set), 0);
    banyan_tensors_destroy(set);
    banyan_layout_destroy(layout);
    ranks_run(3, alloc_in_world, NULL);
}

static void more_memory_than_the_machine_has_is_refused(void **state)
{
    (void)state;
    banyan_layout *layout;
    banyan_tensors *tensors;
    CHECK_OK(banyan_layout_create(&layout));
    const int64_t shape[1] = {INT64_C(1) << 44};
    banyan_layout_add_tensor(layout, "w", BANYAN_U8, 1, shape);
    CHECK_FAILS(banyan_tensors_alloc(layout, NULL, &tensors), BANYAN_ERR_NO_MEMORY,
                "17592186044416 bytes of memory for tensors were asked for");
    banyan_layout_destroy(layout);
}

static void a_checksum_is_that_of_the_elements_in_order(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int round = 0; round < 200; round++) {
        int64_t shape[3], strides[3], stride = 1;
        uint64_t elems = 1;
        for (int d = 0; d < 3; d++) {
            shape[d] = random_between(&random, 0, round % 10 == 0 ? 60 : 9);
            strides[d] = stride;
            stride *= shape[d] + random_between(&random, 0, 2);
            elems *= (uint64_t)shape[d];
        }
        uint32_t *memory = malloc(((size_t)stride + 1) * sizeof *memory);
        uint32_t *dense = malloc((elems + 1) * sizeof *dense);
        for (int64_t i = 0; i <= stride; i++)
            memory[i] = (uint32_t)random_next(&random);
        size_t at = 0;
        for (int64_t i = 0; i < shape[0]; i++)
            for (int64_t j = 0; j < shape[1]; j++)
                for (int64_t k = 0; k < shape[2]; k++)
                    dense[at++] = memory[i * strides[0] + j * strides[1] + k * strides[2]];
        DLTensor tensor = {.data = memory,
                           .device = {kDLCPU, 0},
                           .ndim = 3,
                           .dtype = {kDLFloat, 32, 1},
                           .shape = shape,
                           .strides = strides};
        strided_view view;
        CHECK_OK(strided_view_of(&tensor, &view));
        uint64_t sum;
        CHECK_OK(checksum_view(&view, &sum));
        assert_true(sum == XXH3_64bits(dense, elems * sizeof *dense));
        free(memory);
        free(dense);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bound_set_keeps_shapes_and_strides_of_its_own),
        cmocka_unit_test(a_tensor_that_is_not_the_layouts_is_refused),
        cmocka_unit_test(allocated_tensors_are_dense_aligned_and_zero),
        cmocka_unit_test(more_memory_than_the_machine_has_is_refused),
        cmocka_unit_test(a_checksum_is_that_of_the_elements_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
