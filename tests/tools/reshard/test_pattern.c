#include "support/test.h"

#include "core/deadline.h"

#include "reshard/pattern.c"

#define NAME "model.weight"

/* A piece of a global tensor in a local one with padding around it and permuted dimensions. */
struct placed {
    banyan_piece piece;
    DLTensor tensor;
    int64_t shape[BANYAN_MAX_DIMS], strides[BANYAN_MAX_DIMS];
    size_t bytes;
};

static struct placed *random_piece(random_state *random)
{
    static const DLDataType types[] = {
        {kDLUInt, 8, 1}, {kDLBfloat, 16, 1}, {kDLFloat, 32, 1}, {kDLFloat, 64, 1}};
    struct placed *placed = calloc(1, sizeof *placed);
    banyan_piece *piece = &placed->piece;
    piece->name = NAME;
    piece->ndim = piece->box.ndim = (int)random_between(random, 0, 4);
    int order[BANYAN_MAX_DIMS];
    for (int d = 0; d < piece->ndim; d++) {
        piece->box.extent[d] = random_between(random, 1, 9);
        piece->box.start[d] = random_between(random, 0, 5);
        piece->shape[d] = piece->box.start[d] + piece->box.extent[d] + random_between(random, 0, 3);
        int other = (int)random_between(random, 0, d);
        order[d] = order[other];
        order[other] = d;
    }
    bool straight = random_between(random, 0, 1);
    for (int d = 0; d < piece->ndim; d++) {
        int k = piece->dim_map[d] = straight ? d : order[d];
        piece->local_start[k] = random_between(random, 0, 2);
        placed->shape[k] =
            piece->local_start[k] + piece->box.extent[d] + random_between(random, 0, 2);
    }
    int64_t step = 1;
    for (int k = piece->ndim - 1; k >= 0; k--) {
        placed->strides[k] = step;
        step *= placed->shape[k] + (straight ? 0 : random_between(random, 0, 1));
    }
    placed->tensor = (DLTensor){.device = {kDLCPU, 0},
                                .ndim = piece->ndim,
                                .dtype = types[random_between(random, 0, 3)],
                                .shape = placed->shape,
                                .strides = placed->strides};
    placed->bytes = (size_t)step * banyan_dtype_bytes(placed->tensor.dtype);
    placed->tensor.data = malloc(placed->bytes);
    memset(placed->tensor.data, 0x5a, placed->bytes);
    return placed;
}

static void placed_free(struct placed *placed)
{
    free(placed->tensor.data);
    free(placed);
}

/* Return an element of the box, its global index and its place in memory. */
static unsigned char *element(const struct placed *placed, uint64_t n, uint64_t *global)
{
    const banyan_piece *piece = &placed->piece;
    int64_t at = 0;
    uint64_t step = 1;
    *global = 0;
    for (int k = 0; k < piece->ndim; k++)
        at += piece->local_start[k] * placed->strides[k];
    for (int d = piece->ndim - 1; d >= 0; d--) {
        int64_t i = (int64_t)(n % (uint64_t)piece->box.extent[d]);
        n /= (uint64_t)piece->box.extent[d];
        at += i * placed->strides[piece->dim_map[d]];
        *global += (uint64_t)(piece->box.start[d] + i) * step;
        step *= (uint64_t)piece->shape[d];
    }
    return (unsigned char *)placed->tensor.data +
           at * (int64_t)banyan_dtype_bytes(placed->tensor.dtype);
}

static void every_element_depends_on_name_and_global_index_alone(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int trial = 0; trial < 3000; trial++) {
        struct placed *placed = random_piece(&random);
        size_t elem_bytes = banyan_dtype_bytes(placed->tensor.dtype);
        unsigned char *expected = malloc(placed->bytes);
        memset(expected, 0x5a, placed->bytes);
        for (uint64_t n = 0; n < banyan_box_elems(&placed->piece.box); n++) {
            uint64_t global;
            unsigned char *at = element(placed, n, &global);
            pattern_write_run(pattern_key_of(NAME), global * elem_bytes,
                              expected + (at - (unsigned char *)placed->tensor.data), elem_bytes);
        }
        pattern_fill(&placed->piece, &placed->tensor);
        assert_memory_equal(placed->tensor.data, expected, placed->bytes);
        pattern_result result = pattern_check(&placed->piece, &placed->tensor);
        assert_int_equal(result.elems, banyan_box_elems(&placed->piece.box));
        assert_int_equal(result.wrong, 0);
        free(expected);
        placed_free(placed);
    }
}

static void every_spoilt_byte_is_found(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int trial = 0; trial < 3000; trial++) {
        struct placed *placed = random_piece(&random);
        size_t elem_bytes = banyan_dtype_bytes(placed->tensor.dtype);
        pattern_fill(&placed->piece, &placed->tensor);
        uint64_t elems = banyan_box_elems(&placed->piece.box), global;
        uint64_t n = random_next(&random) % elems;
        unsigned char *at = element(placed, n, &global);
        at[random_next(&random) % elem_bytes] ^= (unsigned char)random_between(&random, 1, 255);
        pattern_result result = pattern_check(&placed->piece, &placed->tensor);
        assert_int_equal(result.wrong, 1);
        assert_int_equal(result.first_wrong, global);
        placed_free(placed);
    }
}

static void neighbours_and_tensors_differ(void **state)
{
    (void)state;
    enum { ELEMS = 1 << 16 };
    uint16_t *a = malloc(ELEMS * 2), *b = malloc(ELEMS * 2);
    pattern_write_run(pattern_key_of("a"), 0, (unsigned char *)a, ELEMS * 2);
    pattern_write_run(pattern_key_of("b"), 0, (unsigned char *)b, ELEMS * 2);
    int same_neighbour = 0, same_tensor = 0, not_finite = 0;
    for (int i = 0; i + 1 < ELEMS; i++) {
        same_neighbour += a[i] == a[i + 1];
        same_tensor += a[i] == b[i];
        not_finite += (a[i] & 0x7f80) == 0x7f80;
    }
    /* 15 bits are random, so two of 65,536 are equal by chance. */
    assert_in_range(same_neighbour, 0, 20);
    assert_in_range(same_tensor, 0, 20);
    assert_int_equal(not_finite, 0);
    free(a);
    free(b);
}

static void padding_must_be_zero(void **state)
{
    (void)state;
    uint16_t data[6][5] = {{0}};
    int64_t shape[] = {6, 5};
    DLTensor tensor = {
        .data = data, .device = {kDLCPU, 0}, .ndim = 2, .dtype = BANYAN_BF16, .shape = shape};
    banyan_box box = {.ndim = 2, .start = {4, 0}, .extent = {2, 5}};
    data[3][4] = 7;
    assert_int_equal(pattern_check_fill(&box, NULL, &tensor).wrong, 0);
    data[5][1] = 0x100;
    pattern_result result = pattern_check_fill(&box, NULL, &tensor);
    assert_int_equal(result.wrong, 1);
    assert_int_equal(result.first_wrong, 26);
    assert_int_equal(result.elems, 10);
    for (int i = 0; i < 10; i++)
        data[4 + i / 5][i % 5] = 0x3f80;
    const uint16_t one = 0x3f80, two = 0x4000;
    assert_int_equal(pattern_check_fill(&box, &one, &tensor).wrong, 0);
    assert_int_equal(pattern_check_fill(&box, &two, &tensor).wrong, 10);
}

static void large_tensors_are_filled_and_checked_at_the_speed_of_memory(void **state)
{
    (void)state;
    int64_t shape[] = {4096, 8192};
    size_t bytes = 4096 * 8192 * 2;
    DLTensor tensor = {.data = malloc(bytes),
                       .device = {kDLCPU, 0},
                       .ndim = 2,
                       .dtype = BANYAN_BF16,
                       .shape = shape};
    banyan_piece piece = {.name = NAME, .ndim = 2, .shape = {4096, 8192}, .dim_map = {0, 1}};
    piece.box = (banyan_box){.ndim = 2, .extent = {4096, 8192}};
    pattern_fill(&piece, &tensor);
    uint64_t start = time_now_ns();
    pattern_fill(&piece, &tensor);
    uint64_t filled = time_now_ns();
    assert_int_equal(pattern_check(&piece, &tensor).wrong, 0);
    uint64_t checked = time_now_ns();
    printf("fill %.1f GB/s, check %.1f GB/s\n", (double)bytes / (double)(filled - start),
           (double)bytes / (double)(checked - filled));
    free(tensor.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_depends_on_name_and_global_index_alone),
        cmocka_unit_test(every_spoilt_byte_is_found),
        cmocka_unit_test(neighbours_and_tensors_differ),
        cmocka_unit_test(padding_must_be_zero),
        cmocka_unit_test(large_tensors_are_filled_and_checked_at_the_speed_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
