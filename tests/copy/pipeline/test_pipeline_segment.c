/* Every task is divided into as few segments as a slot permits, without a gap. */
#include "support/test.h"

#include <inttypes.h>

#include "copy/schedule/batch.h"

static void check_cut(uint64_t elems, uint64_t elem_bytes, uint64_t slot_bytes)
{
    pipeline_task task = {elems, elem_bytes};
    pipeline_segments segments = {0};
    assert_int_equal(pipeline_segment_cut(&task, 5, slot_bytes, &segments), BANYAN_OK);
    uint64_t most = slot_bytes / elem_bytes, next = 0;
    assert_int_equal(segments.count, (elems + most - 1) / most);
    for (size_t i = 0; i < segments.count; i++) {
        const pipeline_segment *segment = &segments.data[i];
        assert_int_equal(segment->task, 5);
        assert_int_equal(segment->first_elem, next);
        assert_in_range(segment->elem_count, 1, most);
        if (i + 1 < segments.count)
            assert_int_equal(segment->elem_count, most);
        next += segment->elem_count;
    }
    assert_int_equal(next, elems);
    array_free(&segments);
}

static void sizes_around_the_slot_are_cut_without_a_gap(void **state)
{
    (void)state;
    const uint64_t elem_bytes[] = {1, 2, 3, 4, 8, 12, 100};
    for (size_t e = 0; e < sizeof elem_bytes / sizeof *elem_bytes; e++) {
        for (uint64_t slot_bytes = elem_bytes[e]; slot_bytes < 400; slot_bytes += 7) {
            uint64_t most = slot_bytes / elem_bytes[e];
            const uint64_t elems[] = {0,  1,       most - 1, most, most + 1, 2 * most, 2 * most + 1,
                                      37, 5 * most};
            for (size_t i = 0; i < sizeof elems / sizeof *elems; i++)
                check_cut(elems[i], elem_bytes[e], slot_bytes);
        }
    }
    check_cut(1000003, 2, 4096);
    check_cut(65536, 4, 1 << 18);
    check_cut((UINT64_C(1) << 62) + 1, 1, UINT64_C(1) << 61);
}

static void an_element_larger_than_a_slot_is_refused_by_its_sizes(void **state)
{
    (void)state;
    pipeline_segments segments = {0};
    pipeline_task task = {3, 17};
    CHECK_FAILS(pipeline_segment_cut(&task, 0, 16, &segments), BANYAN_ERR_INVALID,
                "element of 17 bytes does not fit a slot of 16 bytes");
    assert_int_equal(segments.count, 0);
    task.elems = 0;
    assert_int_equal(pipeline_segment_cut(&task, 0, 16, &segments), BANYAN_OK);
    assert_int_equal(segments.count, 0);
}

static void a_split_keeps_a_fitting_part_and_passes_on_the_rest(void **state)
{
    (void)state;
    pipeline_segment segment = {.task = 3, .first_elem = 10, .elem_count = 7}, rest = {0};
    assert_false(pipeline_segment_split(&segment, 4, 3, &rest));
    assert_false(pipeline_segment_split(&segment, 4, 28, &rest));
    assert_int_equal(segment.elem_count, 7);
    assert_true(pipeline_segment_split(&segment, 4, 27, &rest));
    assert_int_equal(segment.first_elem, 10);
    assert_int_equal(segment.elem_count, 6);
    assert_int_equal(rest.task, 3);
    assert_int_equal(rest.first_elem, 16);
    assert_int_equal(rest.elem_count, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_around_the_slot_are_cut_without_a_gap),
        cmocka_unit_test(an_element_larger_than_a_slot_is_refused_by_its_sizes),
        cmocka_unit_test(a_split_keeps_a_fitting_part_and_passes_on_the_rest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
