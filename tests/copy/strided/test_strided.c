#include "support/test.h"

#include "copy/boxed.h"
#include "copy/direct/moves.h"
#include "copy/strided/loops.h"
#include "copy/strided/loops.h"
#include "copy/strided/strided.h"

static void box_fill(boxed *box, random_state *random)
{
    for (size_t i = 0; i < box->memory_bytes; i++)
        box->memory[i] = (unsigned char)random_next(random);
}

/* Elements [first, first + count) equal those of `from` from `from_first` on, and nothing else
 * changed. */
static void check_copied(boxed *to, uint64_t first, boxed *from, uint64_t from_first,
                         uint64_t count)
{
    unsigned char *wanted = malloc(to->memory_bytes);
    memset(wanted, BOXED_POISON, to->memory_bytes);
    for (uint64_t i = 0; i < count; i++)
        memcpy(wanted + (boxed_element(to, first + i) - to->memory),
               boxed_element(from, from_first + i), to->elem_bytes);
    assert_memory_equal(wanted, to->memory, to->memory_bytes);
    free(wanted);
}

static void every_pair_of_views_copies_like_an_element_loop(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int trial = 0; trial < 3000; trial++) {
        size_t elem_bytes = boxed_elem_size(&random);
        int ndim, other_ndim;
        int64_t shape[BANYAN_MAX_DIMS], other_shape[BANYAN_MAX_DIMS];
        boxed_random_shape(&random, &ndim, shape, 20000);
        boxed to = boxed_make(&random, elem_bytes, ndim, shape, false);
        boxed_place(&to, NULL);
        uint64_t count = boxed_elements(&to);
        memcpy(other_shape, shape, sizeof shape);
        other_ndim = ndim;
        if (random_between(&random, 0, 1))
            boxed_reshape(&random, count, &other_ndim, other_shape);
        boxed from = boxed_make(&random, elem_bytes, other_ndim, other_shape, true);
        boxed_place(&from, NULL);
        box_fill(&from, &random);
        boxed_poison(&to);
        CHECK_OK(banyan_tensor_copy(boxed_tensor(&to), boxed_tensor(&from)));
        check_copied(&to, 0, &from, 0, count);

        strided_view to_view, from_view;
        CHECK_OK(strided_view_of(boxed_tensor(&to), &to_view));
        CHECK_OK(strided_view_of(boxed_tensor(&from), &from_view));
        uint64_t part = (uint64_t)random_between(&random, 0, (int64_t)count);
        uint64_t to_first = (uint64_t)random_between(&random, 0, (int64_t)(count - part));
        uint64_t from_first = (uint64_t)random_between(&random, 0, (int64_t)(count - part));
        if (random_between(&random, 0, 1))
            from_first = to_first;
        boxed_poison(&to);
        strided_copy(&to_view, to_first, &from_view, from_first, part);
        check_copied(&to, to_first, &from, from_first, part);
        boxed_free(&to);
        boxed_free(&from);
    }
}

static void any_range_packs_and_unpacks(void **state)
{
    (void)state;
    random_state random = random_from(random_seed() + 1);
    for (int trial = 0; trial < 3000; trial++) {
        size_t elem_bytes = boxed_elem_size(&random);
        int ndim;
        int64_t shape[BANYAN_MAX_DIMS];
        boxed_random_shape(&random, &ndim, shape, 20000);
        boxed from = boxed_make(&random, elem_bytes, ndim, shape, true);
        boxed_place(&from, NULL);
        boxed to = boxed_make(&random, elem_bytes, ndim, shape, false);
        boxed_place(&to, NULL);
        uint64_t count = boxed_elements(&from);
        uint64_t part = (uint64_t)random_between(&random, 0, (int64_t)count);
        uint64_t first = (uint64_t)random_between(&random, 0, (int64_t)(count - part));
        box_fill(&from, &random);
        boxed_poison(&to);
        strided_view to_view, from_view;
        CHECK_OK(strided_view_of(boxed_tensor(&to), &to_view));
        CHECK_OK(strided_view_of(boxed_tensor(&from), &from_view));
        unsigned char *dense = malloc(part * elem_bytes + 1);
        strided_caching caching = (strided_caching)(trial % 3);
        strided_pack_as(dense, &from_view, first, part, caching);
        strided_fence();
        for (uint64_t i = 0; i < part; i++)
            assert_memory_equal(dense + i * elem_bytes, boxed_element(&from, first + i),
                                elem_bytes);
        strided_unpack_as(&to_view, first, part, dense, caching);
        strided_fence();
        check_copied(&to, first, &from, first, part);
        free(dense);
        boxed_free(&to);
        boxed_free(&from);
    }
}

/* Large enough for tiles, whole lines and streaming, with ends that fit none of them. */
static void large_transposes_and_runs_arrive_whole(void **state)
{
    (void)state;
    random_state random = random_from(random_seed() + 2);
    for (int trial = 0; trial < 40; trial++) {
        size_t elem_bytes = boxed_elem_size(&random);
        int64_t shape[] = {random_between(&random, 1, 3), random_between(&random, 60, 700),
                           random_between(&random, 60, 700)};
        boxed from = boxed_make(&random, elem_bytes, 3, shape, true);
        boxed_place(&from, NULL);
        boxed to = boxed_make(&random, elem_bytes, 3, shape, false);
        boxed_place(&to, NULL);
        box_fill(&from, &random);
        boxed_poison(&to);
        CHECK_OK(banyan_tensor_copy(boxed_tensor(&to), boxed_tensor(&from)));
        check_copied(&to, 0, &from, 0, boxed_elements(&to));
        boxed_free(&to);
        boxed_free(&from);
    }
}

static void a_view_spans_exactly_the_bytes_of_its_elements(void **state)
{
    (void)state;
    random_state random = random_from(random_seed() + 3);
    for (int trial = 0; trial < 2000; trial++) {
        int ndim;
        int64_t shape[BANYAN_MAX_DIMS];
        boxed_random_shape(&random, &ndim, shape, 2000);
        boxed box = boxed_make(&random, boxed_elem_size(&random), ndim, shape, true);
        boxed_place(&box, NULL);
        unsigned char *low = NULL, *high = NULL;
        bool dense = true;
        for (uint64_t i = 0; i < boxed_elements(&box); i++) {
            unsigned char *at = boxed_element(&box, i);
            low = !low || at < low ? at : low;
            high = !high || at + box.elem_bytes > high ? at + box.elem_bytes : high;
            dense &= at == boxed_element(&box, 0) + i * box.elem_bytes;
        }
        strided_view view;
        CHECK_OK(strided_view_of(boxed_tensor(&box), &view));
        char *span;
        size_t bytes;
        strided_view_span(&view, &span, &bytes);
        assert_int_equal(bytes, high - low);
        if (bytes > 0)
            assert_ptr_equal(span, low);
        assert_int_equal(strided_view_is_dense(&view), dense);
        assert_int_equal(view.elems, boxed_elements(&box));
        boxed_free(&box);
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

static void malformed_tensors_are_refused_by_name(void **state)
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

/* Boxes, one after another, contain a range's elements in their order. */
static void boxes_hold_a_range(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int trial = 0; trial < 2000; trial++) {
        int ndim;
        int64_t shape[BANYAN_MAX_DIMS];
        boxed_random_shape(&random, &ndim, shape, 3000);
        boxed whole = boxed_make(&random, boxed_elem_size(&random), ndim, shape, true);
        boxed_place(&whole, NULL);
        box_fill(&whole, &random);
        strided_view view, boxes[STRIDED_BOXES_MAX];
        CHECK_OK(strided_view_of(boxed_tensor(&whole), &view));
        uint64_t first = (uint64_t)random_between(&random, 0, (int64_t)view.elems);
        uint64_t count = (uint64_t)random_between(&random, 0, (int64_t)(view.elems - first));
        int found = strided_view_boxes(&view, first, count, boxes);
        assert_in_range(found, count > 0, STRIDED_BOXES_MAX);
        uint64_t next = first;
        for (int i = 0; i < found; i++) {
            unsigned char *dense = malloc(boxes[i].elems * view.elem_bytes);
            strided_pack(dense, &boxes[i], 0, boxes[i].elems);
            for (uint64_t k = 0; k < boxes[i].elems; k++, next++)
                assert_memory_equal(dense + k * view.elem_bytes, boxed_element(&whole, next),
                                    view.elem_bytes);
            free(dense);
        }
        assert_int_equal(next, first + count);
        boxed_free(&whole);
    }
}

/* Count the bytes of `to` that are not poison; poison it again. */
static size_t count_written(boxed *to)
{
    size_t count = 0;
    for (size_t i = 0; i < to->memory_bytes; i++)
        count += to->memory[i] != BOXED_POISON;
    boxed_poison(to);
    return count;
}

/* Two ranks share the chunks of a task: each takes those that the other has not. */
static void chunks_move_every_byte_in_one_of_them(void **state)
{
    (void)state;
    random_state random = random_from(random_seed() + 3);
    size_t most = 0;
    for (int trial = 0; trial < 40; trial++) {
        size_t elem_bytes = boxed_elem_size(&random), written = 0;
        int ndim, other_ndim;
        int64_t shape[BANYAN_MAX_DIMS], other_shape[BANYAN_MAX_DIMS];
        boxed_random_shape(&random, &ndim, shape, 300000);
        boxed to = boxed_make(&random, elem_bytes, ndim, shape, false);
        boxed_place(&to, NULL);
        memcpy(other_shape, shape, sizeof shape);
        other_ndim = ndim;
        if (random_between(&random, 0, 1))
            boxed_reshape(&random, boxed_elements(&to), &other_ndim, other_shape);
        boxed from = boxed_make(&random, elem_bytes, other_ndim, other_shape, true);
        boxed_place(&from, NULL);
        memset(from.memory, BOXED_POISON ^ 0xff, from.memory_bytes);
        boxed_poison(&to);
        strided_view to_view, from_view;
        direct_moves moves = {0};
        CHECK_OK(strided_view_of(boxed_tensor(&to), &to_view));
        CHECK_OK(strided_view_of(boxed_tensor(&from), &from_view));
        CHECK_OK(direct_moves_add(&moves, &to_view, &from_view));
        CHECK_OK(direct_moves_finish(&moves));
        for (size_t chunk = 0; chunk < moves.chunk_ends.count; chunk++) {
            direct_moves_run_chunk(&moves, chunk, chunk % 2);
            strided_fence();
            written += count_written(&to);
        }
        assert_int_equal(written, boxed_elements(&to) * elem_bytes);
        most = moves.chunk_ends.count > most ? moves.chunk_ends.count : most;
        direct_moves_free(&moves);
        boxed_free(&to);
        boxed_free(&from);
    }
    assert_true(most > 2);
}

enum { ROWS = 3, BLOCKS = 3, VALUE_BYTES = sizeof(float) };

/* Derive the move of blocks from one of bytes: for every block, or scale, the first byte of its
 * values. Rows are apart in the values. */
static void move_blocks(int64_t rows, int64_t blocks, bool scales)
{
    int64_t each = scales ? 1 : STRIDED_BLOCK;
    int64_t value_shape[] = {rows, blocks * STRIDED_BLOCK}, shape[] = {rows, blocks * each};
    int64_t pitches[] = {(BLOCKS + 1) * STRIDED_BLOCK, 1};
    unsigned char values[ROWS][BLOCKS + 1][STRIDED_BLOCK * VALUE_BYTES];
    unsigned char made[ROWS * BLOCKS * STRIDED_BLOCK];
    DLTensor from = {.data = values,
                     .device = BANYAN_HOST,
                     .ndim = 2,
                     .dtype = BANYAN_F32,
                     .shape = value_shape,
                     .strides = pitches};
    DLTensor to = {
        .data = made, .device = BANYAN_HOST, .ndim = 2, .dtype = {kDLUInt, 8, 1}, .shape = shape};
    for (int row = 0; row < ROWS; row++)
        for (int block = 0; block <= BLOCKS; block++)
            memset(values[row][block], row << 4 | block, sizeof values[row][block]);
    memset(made, BOXED_POISON, sizeof made);
    strided_view to_view, from_view;
    direct_moves moves = {0};
    CHECK_OK(strided_view_of(&to, &to_view));
    CHECK_OK(strided_view_of(&from, &from_view));
    to_view.format = scales ? STRIDED_SCALES_OCP : STRIDED_E4M3_OCP;
    from_view.format = STRIDED_F32;
    CHECK_OK(direct_moves_add_whole(&moves, &to_view, &from_view));
    const direct_move *move = &moves.list.data[0];
    assert_int_equal(moves.list.count, 1);
    assert_int_equal(move->from_step, VALUE_BYTES);
    assert_int_equal(move->to_step, scales ? 0 : 1);
    assert_true(!move->walk && move->to_format == to_view.format);
    strided_move_run(&move->move, false);
    for (int64_t k = 0; k < (int64_t)sizeof made; k++) {
        int64_t block = k / each;
        int wanted = (int)(block / blocks << 4 | block % blocks);
        CHECK(made[k] == (block < rows * blocks ? wanted : BOXED_POISON), "%d by %d %s: byte %d",
              (int)rows, (int)blocks, scales ? "scales" : "blocks", (int)k);
    }
    direct_moves_free(&moves);
}

static void blocks_move_each_to_their_place(void **state)
{
    (void)state;
    for (int64_t rows = 1; rows <= ROWS; rows++) {
        for (int64_t blocks = 1; blocks <= BLOCKS; blocks++) {
            move_blocks(rows, blocks, false);
            move_blocks(rows, blocks, true);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(boxes_hold_a_range),
        cmocka_unit_test(every_pair_of_views_copies_like_an_element_loop),
        cmocka_unit_test(any_range_packs_and_unpacks),
        cmocka_unit_test(large_transposes_and_runs_arrive_whole),
        cmocka_unit_test(a_view_spans_exactly_the_bytes_of_its_elements),
        cmocka_unit_test(a_plan_walks_in_the_longest_runs_there_are),
        cmocka_unit_test(malformed_tensors_are_refused_by_name),
        cmocka_unit_test(chunks_move_every_byte_in_one_of_them),
        cmocka_unit_test(blocks_move_each_to_their_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
