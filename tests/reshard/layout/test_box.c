/* Boxes: intersecting and cutting agree with counting elements. */
#include "support/test.h"

#include "core/deadline.h"
#include "reshard/layout/box.h"

/* A box somewhere in a cube of `side`, sometimes empty. */
static banyan_box random_box(random_state *random, int ndim, int64_t side)
{
    banyan_box box = {.ndim = ndim};
    for (int d = 0; d < ndim; d++) {
        box.start[d] = random_between(random, 0, side - 1);
        box.extent[d] = random_between(random, 0, side - box.start[d]);
    }
    return box;
}

static bool contains(const banyan_box *box, const int64_t *point)
{
    for (int d = 0; d < box->ndim; d++) {
        if (point[d] < box->start[d] || point[d] >= box->start[d] + box->extent[d])
            return false;
    }
    return true;
}

/* Next point of the cube; false after the last. */
static bool step(int64_t *point, int ndim, int64_t side)
{
    for (int d = ndim - 1; d >= 0; d--) {
        if (++point[d] < side)
            return true;
        point[d] = 0;
    }
    return false;
}

static void intersection_and_difference_hold_the_right_elements(void **state)
{
    (void)state;
    enum { SIDE = 5 };
    random_state random = random_from(random_seed());
    for (int round = 0; round < 3000; round++) {
        int ndim = (int)random_between(&random, 0, 4);
        banyan_box a = random_box(&random, ndim, SIDE), b = random_box(&random, ndim, SIDE);
        banyan_box both, rest[2 * BANYAN_MAX_DIMS];
        bool intersects = banyan_box_intersect(&a, &b, &both);
        int parts = banyan_box_subtract(&a, &b, rest);
        uint64_t in_both = 0, in_a = 0;
        int64_t point[4] = {0};
        do {
            bool at_a = contains(&a, point), at_b = contains(&b, point);
            in_a += at_a;
            in_both += at_a && at_b;
            assert_int_equal(intersects && contains(&both, point), at_a && at_b);
            int held = 0;
            for (int i = 0; i < parts; i++)
                held += contains(&rest[i], point);
            assert_int_equal(held, at_a && !at_b);
        } while (step(point, ndim, SIDE));
        assert_int_equal(banyan_box_elems(&a), in_a);
        assert_int_equal(intersects, in_both > 0);
        if (intersects)
            assert_int_equal(banyan_box_elems(&both), in_both);
        assert_true(parts <= 2 * ndim || ndim == 0);
        assert_true(banyan_box_equal(&a, &a));
    }
}

static void a_failed_intersection_leaves_the_result_alone(void **state)
{
    (void)state;
    banyan_box a = {2, {0, 0}, {4, 4}}, b = {2, {4, 0}, {4, 4}}, out = {2, {7, 8}, {9, 10}};
    banyan_box before = out;
    assert_false(banyan_box_intersect(&a, &b, &out));
    assert_true(banyan_box_equal(&out, &before));
    b.ndim = 1;
    assert_false(banyan_box_intersect(&a, &b, &out));
    assert_false(banyan_box_equal(&a, &b));
}

static void a_box_reads_like_a_slice(void **state)
{
    (void)state;
    char text[64];
    banyan_box box = {2, {0, 16}, {48, 16}}, scalar = {0};
    assert_string_equal(banyan_box_format(&box, text, sizeof text), "[0:48, 16:32]");
    assert_string_equal(banyan_box_format(&scalar, text, sizeof text), "[]");
    assert_string_equal(banyan_box_format(&box, text, 8), "[0:48, ");
    assert_string_equal(banyan_box_format(&box, text, 6), "[0:48");
}

static bool any_overlap(const banyan_box *boxes, size_t count)
{
    banyan_box both;
    for (size_t i = 0; i < count; i++) {
        for (size_t k = i + 1; k < count; k++) {
            if (banyan_box_intersect(&boxes[i], &boxes[k], &both))
                return true;
        }
    }
    return false;
}

static void overlaps_are_found_exactly_when_there_are_any(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    int with = 0, without = 0;
    for (int round = 0; round < 4000; round++) {
        int ndim = (int)random_between(&random, 0, 3);
        size_t count = (size_t)random_between(&random, 0, 14);
        banyan_box boxes[14];
        for (size_t i = 0; i < count; i++) {
            boxes[i] = (banyan_box){.ndim = ndim};
            for (int d = 0; d < ndim; d++) {
                boxes[i].start[d] = random_between(&random, 0, 20);
                boxes[i].extent[d] = random_between(&random, 1, 4);
            }
        }
        bool found, expected = any_overlap(boxes, count);
        size_t a, b;
        CHECK_OK(boxes_find_overlap(boxes, count, &found, &a, &b));
        assert_int_equal(found, expected);
        if (found) {
            banyan_box both;
            assert_true(a < b && b < count);
            assert_true(banyan_box_intersect(&boxes[a], &boxes[b], &both));
        }
        with += expected;
        without += !expected;
    }
    assert_true(with > 100 && without > 100);
}

/* Cut a region by planes through it, until it has `count` parts. */
static size_t cut_up(random_state *random, banyan_box region, size_t count, banyan_box *out)
{
    int dim = (int)random_between(random, 0, region.ndim - 1);
    if (count == 1 || region.extent[dim] < 2) {
        out[0] = region;
        return 1;
    }
    int64_t below = random_between(random, 1, region.extent[dim] - 1);
    banyan_box left = region, right = region;
    left.extent[dim] = below;
    right.start[dim] += below;
    right.extent[dim] -= below;
    size_t made = cut_up(random, left, count / 2, out);
    return made + cut_up(random, right, count - count / 2, out + made);
}

static void forty_thousand_boxes_are_compared_in_near_linear_time(void **state)
{
    (void)state;
    enum { COUNT = 40000 };
    random_state random = random_from(random_seed());
    banyan_box *boxes = calloc(COUNT + 1, sizeof *boxes);
    for (int ndim = 1; ndim <= 3; ndim++) {
        banyan_box region = {.ndim = ndim, .extent = {1 << 24, 1 << 24, 1 << 24}};
        size_t count = cut_up(&random, region, COUNT, boxes), a, b;
        bool found;
        uint64_t start = time_now_ns();
        CHECK_OK(boxes_find_overlap(boxes, count, &found, &a, &b));
        uint64_t took = time_now_ns() - start;
        assert_false(found);
        /* Pair by pair these are 800 million comparisons, some 8 seconds. */
        assert_true(took < 2 * TEST_SLOWER * NS_PER_S);
        printf("%zu boxes of %d dimensions: %.1f ms\n", count, ndim, (double)took * 1e-6);

        boxes[count] = boxes[count / 3];
        CHECK_OK(boxes_find_overlap(boxes, count + 1, &found, &a, &b));
        assert_true(found);
        assert_int_equal(a, count / 3);
        assert_int_equal(b, count);
    }
    free(boxes);
}

static void sizes_that_no_memory_holds_are_refused(void **state)
{
    (void)state;
    uint64_t bytes;
    assert_true(shape_bytes(2, (int64_t[]){3, 5}, 4, &bytes));
    assert_int_equal(bytes, 60);
    assert_true(shape_bytes(2, (int64_t[]){0, 1 << 30}, 4, &bytes));
    assert_int_equal(bytes, 0);
    assert_false(shape_bytes(2, (int64_t[]){3, -5}, 4, &bytes));
    assert_false(shape_bytes(2, (int64_t[]){INT64_C(1) << 31, INT64_C(1) << 31}, 4, &bytes));
    /* An empty dimension does not hide the overflow of the others. */
    assert_false(shape_bytes(3, (int64_t[]){INT64_MAX, 0, INT64_MAX}, 2, &bytes));
    banyan_box far = {1, {INT64_MAX}, {INT64_MAX}};
    assert_false(box_fits(&far, 1, (int64_t[]){INT64_MAX}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(intersection_and_difference_hold_the_right_elements),
        cmocka_unit_test(a_failed_intersection_leaves_the_result_alone),
        cmocka_unit_test(a_box_reads_like_a_slice),
        cmocka_unit_test(overlaps_are_found_exactly_when_there_are_any),
        cmocka_unit_test(forty_thousand_boxes_are_compared_in_near_linear_time),
        cmocka_unit_test(sizes_that_no_memory_holds_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
