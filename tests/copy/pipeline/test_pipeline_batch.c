/* Batches contain every element once, nothing overlaps, and their number is close to the
 * minimum. */
#include "support/test.h"

#include <inttypes.h>

#include "copy/schedule/batch.h"

static uint64_t align_up(uint64_t bytes)
{
    return (bytes + PIPELINE_SLOT_ALIGN - 1) / PIPELINE_SLOT_ALIGN * PIPELINE_SLOT_ALIGN;
}

/* Return the documented bound; 0 if the slot is too small for it. */
static uint64_t most_batches(const pipeline_task *tasks, size_t count, uint64_t slot_bytes)
{
    uint64_t sum = 0, largest = 1;
    for (size_t i = 0; i < count; i++) {
        sum += align_up(tasks[i].elems * tasks[i].elem_bytes);
        if (tasks[i].elem_bytes > largest)
            largest = tasks[i].elem_bytes;
    }
    if (slot_bytes <= largest + PIPELINE_SLOT_ALIGN - 1)
        return 0;
    uint64_t full = slot_bytes - largest - (PIPELINE_SLOT_ALIGN - 1);
    return (sum + full - 1) / full + count / (PIPELINE_BATCH_TASKS - 1);
}

static void check_slot(const pipeline_batches *batches, const pipeline_batch *batch,
                       const pipeline_task *tasks, uint64_t slot_bytes)
{
    assert_in_range(batch->segment_count, 1, PIPELINE_BATCH_TASKS);
    uint64_t end = 0;
    for (size_t k = 0; k < batch->segment_count; k++) {
        const pipeline_segment *segment = &batches->segments.data[batch->first_segment + k];
        assert_int_equal(segment->slot_offset % PIPELINE_SLOT_ALIGN, 0);
        assert_true(segment->slot_offset >= end);
        end = segment->slot_offset + segment->elem_count * tasks[segment->task].elem_bytes;
    }
    assert_int_equal(batch->bytes, end);
    assert_true(end <= slot_bytes);
}

static void check_pack(const pipeline_task *tasks, size_t count, uint64_t slot_bytes,
                       pipeline_batches *batches)
{
    assert_int_equal(pipeline_batch_pack(tasks, count, slot_bytes, batches), BANYAN_OK);
    uint64_t *next = calloc(count + 1, sizeof *next);
    size_t segments = 0;
    for (size_t b = 0; b < batches->list.count; b++) {
        const pipeline_batch *batch = &batches->list.data[b];
        assert_int_equal(batch->first_segment, segments);
        check_slot(batches, batch, tasks, slot_bytes);
        segments += batch->segment_count;
    }
    assert_int_equal(segments, batches->segments.count);
    for (size_t i = 0; i < segments; i++) {
        const pipeline_segment *segment = &batches->segments.data[i];
        assert_true(segment->task < count);
        assert_int_equal(segment->first_elem, next[segment->task]);
        next[segment->task] += segment->elem_count;
    }
    for (size_t i = 0; i < count; i++)
        assert_int_equal(next[i], tasks[i].elems);
    uint64_t most = most_batches(tasks, count, slot_bytes);
    if (most > 0 || count == 0)
        assert_true(batches->list.count <= most);
    free(next);
}

static void pack_and_check(const pipeline_task *tasks, size_t count, uint64_t slot_bytes)
{
    pipeline_batches batches = {0};
    check_pack(tasks, count, slot_bytes, &batches);
    pipeline_batches_free(&batches);
}

static void random_tasks_are_packed_whole_and_tight(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int round = 0; round < 300; round++) {
        size_t count = (size_t)random_between(&random, 0, 400);
        uint64_t slot_bytes = (uint64_t)random_between(&random, 16, 5000);
        uint64_t largest = (uint64_t)random_between(&random, 1, 8000);
        pipeline_task *tasks = calloc(count + 1, sizeof *tasks);
        for (size_t i = 0; i < count; i++) {
            tasks[i].elem_bytes = (uint64_t)random_between(&random, 1, 16);
            tasks[i].elems =
                (uint64_t)random_between(&random, 0, (int64_t)(largest / tasks[i].elem_bytes));
        }
        pack_and_check(tasks, count, slot_bytes);
        free(tasks);
    }
}

static void a_slot_of_one_byte_takes_an_element_at_a_time(void **state)
{
    (void)state;
    const pipeline_task tasks[] = {{3, 1}, {0, 1}, {1, 1}};
    pipeline_batches batches = {0};
    check_pack(tasks, 3, 1, &batches);
    assert_int_equal(batches.list.count, 4);
    pipeline_batches_free(&batches);
}

static void tasks_just_over_half_a_slot_waste_none_of_it(void **state)
{
    (void)state;
    enum { TASKS = 100 };
    pipeline_task tasks[TASKS];
    for (int i = 0; i < TASKS; i++)
        tasks[i] = (pipeline_task){2080, 2};
    pipeline_batches batches = {0};
    check_pack(tasks, TASKS, 8192, &batches);
    /* ⌈416000 / 8192⌉; whole tasks only would take 100. */
    assert_int_equal(batches.list.count, 51);
    pipeline_batches_free(&batches);
}

static void a_batch_takes_10000_tasks_and_no_more(void **state)
{
    (void)state;
    enum { TASKS = 2 * PIPELINE_BATCH_TASKS + 1 };
    pipeline_task *tasks = calloc(TASKS, sizeof *tasks);
    for (int i = 0; i < TASKS; i++)
        tasks[i] = (pipeline_task){1, 4};
    pipeline_batches batches = {0};
    check_pack(tasks, TASKS, 1 << 20, &batches);
    assert_int_equal(batches.list.count, 3);
    assert_int_equal(batches.list.data[0].segment_count, PIPELINE_BATCH_TASKS);
    assert_int_equal(batches.list.data[2].segment_count, 1);
    pipeline_batches_free(&batches);
    free(tasks);
}

static void a_slot_is_filled_to_its_last_element(void **state)
{
    (void)state;
    enum { ELEM = 4 * PIPELINE_SLOT_ALIGN };
    const pipeline_task tasks[] = {{3, ELEM}, {1, ELEM}};
    pipeline_batches batches = {0};
    check_pack(tasks, 2, 4 * ELEM, &batches);
    assert_int_equal(batches.list.count, 1);
    pipeline_batches_free(&batches);
}

static void small_tasks_come_largest_first(void **state)
{
    (void)state;
    const pipeline_task tasks[] = {{10, 4}, {1000, 4}, {30, 4}, {30, 4}, {2048, 4}};
    pipeline_batches batches = {0};
    check_pack(tasks, 5, 8192, &batches);
    const size_t order[] = {4, 1, 2, 3, 0};
    assert_int_equal(batches.segments.count, 5);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(batches.segments.data[i].task, order[i]);
    assert_int_equal(batches.list.count, 2);
    pipeline_batches_free(&batches);
}

static void an_element_larger_than_a_slot_is_refused(void **state)
{
    (void)state;
    const pipeline_task tasks[] = {{10, 4}, {1, 32}};
    pipeline_batches batches = {0};
    CHECK_FAILS(pipeline_batch_pack(tasks, 2, 16, &batches), BANYAN_ERR_INVALID, "32 bytes");
    assert_null(batches.list.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_tasks_are_packed_whole_and_tight),
        cmocka_unit_test(a_slot_of_one_byte_takes_an_element_at_a_time),
        cmocka_unit_test(tasks_just_over_half_a_slot_waste_none_of_it),
        cmocka_unit_test(a_batch_takes_10000_tasks_and_no_more),
        cmocka_unit_test(a_slot_is_filled_to_its_last_element),
        cmocka_unit_test(small_tasks_come_largest_first),
        cmocka_unit_test(an_element_larger_than_a_slot_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
