#include "support/test.h"

#include "copy/strided.h"
#include "copy/strided_loops.h"

/* A tensor over memory of its own, somewhere inside a larger allocation of poison. */
typedef struct boxed {
    DLTensor tensor;
    int64_t shape[BANYAN_MAX_DIMS], strides[BANYAN_MAX_DIMS];
    unsigned char *memory;
    size_t memory_bytes, elem_bytes;
} boxed;

#define POISON 0xa5

static const size_t elem_sizes[] = {1, 2, 4, 8, 16, 3, 12};

static DLDataType dtype_of_bytes(size_t bytes)
{
    return (DLDataType){kDLUInt, 8, (uint16_t)bytes};
}

static uint64_t elements(const boxed *box)
{
    uint64_t count = 1;
    for (int i = 0; i < box->tensor.ndim; i++)
        count *= (uint64_t)box->shape[i];
    return count;
}

/* What the library must find out fast, found out one element at a time. */
static unsigned char *element_at(const boxed *box, uint64_t index)
{
    int64_t offset = 0;
    for (int i = box->tensor.ndim - 1; i >= 0; i--) {
        offset += (int64_t)(index % (uint64_t)box->shape[i]) * box->strides[i];
        index /= (uint64_t)box->shape[i];
    }
    return (unsigned char *)box->tensor.data + box->tensor.byte_offset +
           offset * (int64_t)box->elem_bytes;
}

/* Lay the dimensions out in random order, some backwards, some with gaps; of a source, some with
 * stride 0. */
static void choose_strides(random_state *random, boxed *box, bool repeats)
{
    int order[BANYAN_MAX_DIMS];
    for (int i = 0; i < box->tensor.ndim; i++) {
        int at = (int)random_between(random, 0, i);
        order[i] = order[at];
        order[at] = i;
    }
    if (random_between(random, 0, 2) == 0)
        for (int i = 0; i < box->tensor.ndim; i++)
            order[i] = box->tensor.ndim - 1 - i;
    int64_t stride = random_between(random, 0, 3) ? 1 : random_between(random, 1, 3), low = 0;
    int64_t high = 0;
    for (int i = 0; i < box->tensor.ndim; i++) {
        int d = order[i];
        bool backwards = random_between(random, 0, 5) == 0;
        box->strides[d] = backwards ? -stride : stride;
        if (repeats && random_between(random, 0, 7) == 0)
            box->strides[d] = 0;
        int64_t reach = box->shape[d] > 0 ? (box->shape[d] - 1) * box->strides[d] : 0;
        low += reach < 0 ? reach : 0;
        high += reach > 0 ? reach : 0;
        if (box->strides[d] != 0)
            stride *= box->shape[d] > 0 ? box->shape[d] : 1;
        if (random_between(random, 0, 3) == 0)
            stride += random_between(random, 1, 3);
    }
    size_t before = (size_t)random_between(random, 0, 40);
    box->memory_bytes = (size_t)(high - low + 1) * box->elem_bytes + before + 40;
    box->memory = malloc(box->memory_bytes);
    box->tensor.byte_offset = (uint64_t)random_between(random, 0, (int64_t)before);
    box->tensor.data =
        box->memory + before - box->tensor.byte_offset - low * (int64_t)box->elem_bytes;
}

static boxed box_make(random_state *random, size_t elem_bytes, int ndim, const int64_t *shape,
                      bool repeats)
{
    boxed box = {.elem_bytes = elem_bytes};
    box.tensor.device = (DLDevice){kDLCPU, 0};
    box.tensor.dtype = dtype_of_bytes(elem_bytes);
    box.tensor.ndim = ndim;
    if (ndim > 0)
        memcpy(box.shape, shape, (size_t)ndim * sizeof *shape);
    choose_strides(random, &box, repeats);
    return box;
}

/* The pointers into the struct are set where it lies in the end. */
static const DLTensor *box_tensor(boxed *box)
{
    box->tensor.shape = box->shape;
    box->tensor.strides = box->strides;
    return &box->tensor;
}

static void box_fill(boxed *box, random_state *random)
{
    for (size_t i = 0; i < box->memory_bytes; i++)
        box->memory[i] = (unsigned char)random_next(random);
}

static void box_poison(boxed *box)
{
    memset(box->memory, POISON, box->memory_bytes);
}

/* Elements [first, first + count) are those of `from` from `from_first` on, and nothing else
 * changed. */
static void check_copied(boxed *to, uint64_t first, boxed *from, uint64_t from_first,
                         uint64_t count)
{
    unsigned char *wanted = malloc(to->memory_bytes);
    memset(wanted, POISON, to->memory_bytes);
    for (uint64_t i = 0; i < count; i++)
        memcpy(wanted + (element_at(to, first + i) - to->memory), element_at(from, from_first + i),
               to->elem_bytes);
    assert_memory_equal(wanted, to->memory, to->memory_bytes);
    free(wanted);
}

static void random_shape(random_state *random, int *ndim, int64_t *shape, int64_t most)
{
    *ndim = (int)random_between(random, 0, BANYAN_MAX_DIMS);
    int64_t left = most;
    for (int i = 0; i < *ndim; i++) {
        int64_t extent = random_between(random, 1, 12);
        if (random_between(random, 0, 2) == 0)
            extent = random_between(random, 1, 150);
        shape[i] = extent <= left ? extent : 1;
        left /= shape[i];
    }
    if (*ndim > 0 && random_between(random, 0, 30) == 0)
        shape[random_between(random, 0, *ndim - 1)] = 0;
}

/* Another shape of equally many elements: the prime factors dealt out anew. */
static void reshaped(random_state *random, uint64_t count, int *ndim, int64_t *shape)
{
    *ndim = (int)random_between(random, 1, BANYAN_MAX_DIMS);
    for (int i = 0; i < *ndim; i++)
        shape[i] = 1;
    if (count == 0)
        shape[0] = 0;
    for (uint64_t factor = 2; count > 1; factor += count % factor != 0)
        if (count % factor == 0) {
            shape[random_between(random, 0, *ndim - 1)] *= (int64_t)factor;
            count /= factor;
        }
}

static void every_pair_of_views_copies_like_an_element_loop(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int trial = 0; trial < 6000; trial++) {
        size_t elem_bytes = elem_sizes[random_between(&random, 0, 6)];
        int ndim, other_ndim;
        int64_t shape[BANYAN_MAX_DIMS], other_shape[BANYAN_MAX_DIMS];
        random_shape(&random, &ndim, shape, 20000);
        boxed to = box_make(&random, elem_bytes, ndim, shape, false);
        uint64_t count = elements(&to);
        memcpy(other_shape, shape, sizeof shape);
        other_ndim = ndim;
        if (random_between(&random, 0, 1))
            reshaped(&random, count, &other_ndim, other_shape);
        boxed from = box_make(&random, elem_bytes, other_ndim, other_shape, true);
        box_fill(&from, &random);
        box_poison(&to);
        CHECK_OK(banyan_tensor_copy(box_tensor(&to), box_tensor(&from)));
        check_copied(&to, 0, &from, 0, count);

        strided_view to_view, from_view;
        CHECK_OK(strided_view_of(box_tensor(&to), &to_view));
        CHECK_OK(strided_view_of(box_tensor(&from), &from_view));
        uint64_t part = (uint64_t)random_between(&random, 0, (int64_t)count);
        uint64_t to_first = (uint64_t)random_between(&random, 0, (int64_t)(count - part));
        uint64_t from_first = (uint64_t)random_between(&random, 0, (int64_t)(count - part));
        if (random_between(&random, 0, 1))
            from_first = to_first;
        box_poison(&to);
        strided_copy(&to_view, to_first, &from_view, from_first, part);
        check_copied(&to, to_first, &from, from_first, part);
        free(to.memory);
        free(from.memory);
    }
}

static void any_range_packs_and_unpacks(void **state)
{
    (void)state;
    random_state random = random_from(random_seed() + 1);
    for (int trial = 0; trial < 3000; trial++) {
        size_t elem_bytes = elem_sizes[random_between(&random, 0, 6)];
        int ndim;
        int64_t shape[BANYAN_MAX_DIMS];
        random_shape(&random, &ndim, shape, 20000);
        boxed from = box_make(&random, elem_bytes, ndim, shape, true);
        boxed to = box_make(&random, elem_bytes, ndim, shape, false);
        uint64_t count = elements(&from);
        uint64_t part = (uint64_t)random_between(&random, 0, (int64_t)count);
        uint64_t first = (uint64_t)random_between(&random, 0, (int64_t)(count - part));
        box_fill(&from, &random);
        box_poison(&to);
        strided_view to_view, from_view;
        CHECK_OK(strided_view_of(box_tensor(&to), &to_view));
        CHECK_OK(strided_view_of(box_tensor(&from), &from_view));
        unsigned char *dense = malloc(part * elem_bytes + 1);
        strided_pack(dense, &from_view, first, part);
        for (uint64_t i = 0; i < part; i++)
            assert_memory_equal(dense + i * elem_bytes, element_at(&from, first + i), elem_bytes);
        strided_unpack(&to_view, first, part, dense);
        check_copied(&to, first, &from, first, part);
        free(dense);
        free(to.memory);
        free(from.memory);
    }
}

/* Large enough for tiles, whole lines and streaming, with ends that fit none of them. */
static void large_transposes_and_runs_arrive_whole(void **state)
{
    (void)state;
    random_state random = random_from(random_seed() + 2);
    for (int trial = 0; trial < 40; trial++) {
        size_t elem_bytes = elem_sizes[random_between(&random, 0, 6)];
        int64_t shape[] = {random_between(&random, 1, 3), random_between(&random, 60, 700),
                           random_between(&random, 60, 700)};
        boxed from = box_make(&random, elem_bytes, 3, shape, true);
        boxed to = box_make(&random, elem_bytes, 3, shape, false);
        box_fill(&from, &random);
        box_poison(&to);
        CHECK_OK(banyan_tensor_copy(box_tensor(&to), box_tensor(&from)));
        check_copied(&to, 0, &from, 0, elements(&to));
        free(to.memory);
        free(from.memory);
    }
}

static void a_view_spans_exactly_what_its_elements_touch(void **state)
{
    (void)state;
    random_state random = random_from(random_seed() + 3);
    for (int trial = 0; trial < 2000; trial++) {
        int ndim;
        int64_t shape[BANYAN_MAX_DIMS];
        random_shape(&random, &ndim, shape, 2000);
        boxed box = box_make(&random, elem_sizes[random_between(&random, 0, 6)], ndim, shape, true);
        unsigned char *low = NULL, *high = NULL;
        bool dense = true;
        for (uint64_t i = 0; i < elements(&box); i++) {
            unsigned char *at = element_at(&box, i);
            low = !low || at < low ? at : low;
            high = !high || at + box.elem_bytes > high ? at + box.elem_bytes : high;
            dense &= at == element_at(&box, 0) + i * box.elem_bytes;
        }
        strided_view view;
        CHECK_OK(strided_view_of(box_tensor(&box), &view));
        char *span;
        size_t bytes;
        strided_view_span(&view, &span, &bytes);
        assert_int_equal(bytes, high - low);
        if (bytes > 0)
            assert_ptr_equal(span, low);
        assert_int_equal(strided_view_is_dense(&view), dense);
        assert_int_equal(view.elems, elements(&box));
        free(box.memory);
    }
}

static void a_plan_walks_in_the_longest_runs_there_are(void **state)
{
    (void)state;
    char a[4096], b[4096];
    int64_t shape[] = {4, 8, 16}, transposed[] = {1, 4, 32}, cut[] = {1024, 32, 1};
    DLTensor tensor = {.data = a,
                       .device = {kDLCPU, 0},
                       .ndim = 3,
                       .dtype = BANYAN_U8,
                       .shape = shape,
                       .strides = transposed};
    strided_view to, from;
    strided_grid grid;
    strided_loop loops[STRIDED_MAX_LOOPS];
    strided_move move;
    CHECK_OK(strided_view_of(&tensor, &to));
    tensor.data = b;
    CHECK_OK(strided_view_of(&tensor, &from));
    assert_true(strided_grid_of(&to, &from, &grid));
    strided_move_plan(&grid, to.data, from.data, loops, &move);
    assert_int_equal(move.count, 0);
    assert_int_equal(move.run_bytes, 4 * 8 * 16);

    tensor.strides = cut;
    CHECK_OK(strided_view_of(&tensor, &from));
    tensor.data = a;
    tensor.strides = NULL;
    CHECK_OK(strided_view_of(&tensor, &to));
    assert_true(strided_view_is_dense(&to));
    assert_true(strided_grid_of(&to, &from, &grid));
    strided_move_plan(&grid, to.data, from.data, loops, &move);
    assert_int_equal(move.count, 2);
    assert_int_equal(move.run_bytes, 16);
    assert_int_equal(strided_move_bytes(&move), 4 * 8 * 16);
}

static void what_cannot_be_a_tensor_is_refused_by_name(void **state)
{
    (void)state;
    char data[64];
    int64_t shape[9] = {2, 2, 1, 1, 1, 1, 1, 1, 1}, strides[] = {2, 1};
    DLTensor good = {.data = data,
                     .device = {kDLCPU, 0},
                     .ndim = 2,
                     .dtype = BANYAN_F32,
                     .shape = shape,
                     .strides = strides};
    strided_view view;
    DLTensor bad = good;
    bad.device.device_type = kDLCUDA;
    CHECK_FAILS(strided_view_of(&bad, &view), BANYAN_ERR_INVALID, "device type 2");
    bad = good;
    bad.ndim = 9;
    CHECK_FAILS(strided_view_of(&bad, &view), BANYAN_ERR_INVALID, "9 dimensions");
    bad = good;
    bad.data = NULL;
    CHECK_FAILS(strided_view_of(&bad, &view), BANYAN_ERR_INVALID, "4 elements has no data");
    bad = good;
    bad.shape = NULL;
    CHECK_FAILS(strided_view_of(&bad, &view), BANYAN_ERR_INVALID, "no shape");
    bad = good;
    bad.dtype.bits = 4;
    CHECK_FAILS(strided_view_of(&bad, &view), BANYAN_ERR_INVALID, "whole bytes");
    bad = good;
    int64_t negative[] = {2, -2}, huge[] = {INT64_MAX / 4, 4}, wide[] = {INT64_MAX / 4, 1};
    bad.shape = negative;
    CHECK_FAILS(strided_view_of(&bad, &view), BANYAN_ERR_INVALID, "extent 1 is -2");
    bad.shape = huge;
    CHECK_FAILS(strided_view_of(&bad, &view), BANYAN_ERR_INVALID, "63 bits");
    bad = good;
    bad.strides = wide;
    CHECK_FAILS(strided_view_of(&bad, &view), BANYAN_ERR_INVALID, "63 bits");
    wide[0] = INT64_MIN / 4;
    CHECK_FAILS(strided_view_of(&bad, &view), BANYAN_ERR_INVALID, "63 bits");

    DLTensor empty = good;
    int64_t nothing[] = {INT64_MAX, 0};
    empty.shape = nothing;
    empty.data = NULL;
    CHECK_OK(strided_view_of(&empty, &view));
    assert_int_equal(view.elems, 0);

    DLTensor fewer = good;
    fewer.ndim = 1;
    CHECK_FAILS(banyan_tensor_copy(&good, &fewer), BANYAN_ERR_MISMATCH, "4 elements of 4 bytes");
    fewer = good;
    fewer.dtype = BANYAN_BF16;
    CHECK_FAILS(banyan_tensor_copy(&good, &fewer), BANYAN_ERR_MISMATCH, "4 of 2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_of_views_copies_like_an_element_loop),
        cmocka_unit_test(any_range_packs_and_unpacks),
        cmocka_unit_test(large_transposes_and_runs_arrive_whole),
        cmocka_unit_test(a_view_spans_exactly_what_its_elements_touch),
        cmocka_unit_test(a_plan_walks_in_the_longest_runs_there_are),
        cmocka_unit_test(what_cannot_be_a_tensor_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
