/* Holes between boxes are found, and only holes. */
#include "support/random.h"
#include "support/test.h"

#include "core/deadline.h"
#include "reshard/layout/box.h"

enum { MOST_BOXES = 12, SIDE = 6 };

static bool is_inside(const banyan_box *box, const int64_t *at)
{
    for (int d = 0; d < box->ndim; d++)
        if (at[d] < box->start[d] || at[d] >= box->start[d] + box->extent[d])
            return false;
    return true;
}

/* Look at every element. */
static uint64_t count_uncovered(const banyan_box *whole, const banyan_box *boxes, size_t count)
{
    uint64_t uncovered = 0, elems = banyan_box_elems(whole);
    for (uint64_t e = 0; e < elems; e++) {
        int64_t at[BANYAN_MAX_DIMS];
        uint64_t rest = e;
        for (int d = whole->ndim - 1; d >= 0; d--) {
            at[d] = whole->start[d] + (int64_t)(rest % (uint64_t)whole->extent[d]);
            rest /= (uint64_t)whole->extent[d];
        }
        bool covered = false;
        for (size_t i = 0; i < count; i++)
            covered = covered || is_inside(&boxes[i], at);
        uncovered += !covered;
    }
    return uncovered;
}

static banyan_box random_box(random_state *random, int ndim)
{
    banyan_box box = {.ndim = ndim};
    for (int d = 0; d < ndim; d++) {
        box.start[d] = (int64_t)random_between(random, 0, SIDE - 1);
        box.extent[d] = (int64_t)random_between(random, 1, SIDE);
    }
    return box;
}

/* Cut the whole repeatedly, then sometimes remove a part. */
static size_t random_tiling(random_state *random, const banyan_box *whole, banyan_box *boxes)
{
    size_t count = 1, most = random_between(random, 1, MOST_BOXES);
    boxes[0] = *whole;
    for (int tries = 0; tries < 40 && count < most && whole->ndim > 0; tries++) {
        banyan_box *of = &boxes[random_between(random, 0, count - 1)];
        int d = (int)random_between(random, 0, (uint64_t)whole->ndim - 1);
        if (of->extent[d] < 2)
            continue;
        int64_t cut = (int64_t)random_between(random, 1, (uint64_t)of->extent[d] - 1);
        banyan_box rest = *of;
        rest.start[d] += cut;
        rest.extent[d] -= cut;
        of->extent[d] = cut;
        boxes[count++] = rest;
    }
    if (random_next(random) % 2)
        boxes[random_between(random, 0, count - 1)] = boxes[count - 1], count--;
    return count;
}

static void expect_search(const banyan_box *whole, const banyan_box *boxes, size_t count)
{
    bool found;
    banyan_box hole;
    CHECK_OK(boxes_find_hole(whole, boxes, count, &found, &hole));
    uint64_t uncovered = count_uncovered(whole, boxes, count);
    assert_int_equal(found, uncovered > 0);
    if (!found)
        return;
    assert_true(banyan_box_elems(&hole) > 0);
    assert_int_equal(count_uncovered(&hole, boxes, count), banyan_box_elems(&hole));
    assert_int_equal(count_uncovered(&hole, whole, 1), 0);
}

static void random_boxes_are_searched_as_every_element_is(void **state)
{
    (void)state;
    random_state random = random_from(2026);
    for (int round = 0; round < 3000; round++) {
        int ndim = (int)random_between(&random, 0, 3);
        banyan_box whole = random_box(&random, ndim), boxes[MOST_BOXES + 1];
        size_t count = random_tiling(&random, &whole, boxes);
        if (round % 3 == 0)
            for (size_t i = 0; i < count; i++)
                boxes[i] = random_box(&random, ndim);
        expect_search(&whole, boxes, count);
    }
}

static void the_hole_is_the_row_that_is_missing(void **state)
{
    (void)state;
    banyan_box whole = {2, {0, 0}, {8, 6}}, piece = {2, {0, 0}, {7, 6}}, hole;
    bool found;
    CHECK_OK(boxes_find_hole(&whole, &piece, 1, &found, &hole));
    assert_true(found);
    assert_true(banyan_box_equal(&hole, &(banyan_box){2, {7, 0}, {1, 6}}));
}

/* Tiles of 200 × 200, one of which is missing; and whole rows that overlap. */
static void forty_thousand_boxes_are_searched_quickly(void **state)
{
    (void)state;
    enum { TILES = 200 };
    banyan_box *boxes = calloc(TILES * TILES, sizeof *boxes);
    banyan_box whole = {2, {0, 0}, {2 * TILES, 3 * TILES}}, hole;
    size_t count = 0;
    bool found;
    for (int row = 0; row < TILES; row++)
        for (int column = 0; column < TILES; column++)
            if (row != 77 || column != 123)
                boxes[count++] = (banyan_box){2, {2 * row, 3 * column}, {2, 3}};
    uint64_t start = time_now_ns();
    CHECK_OK(boxes_find_hole(&whole, boxes, count, &found, &hole));
    assert_true(found && banyan_box_equal(&hole, &(banyan_box){2, {154, 369}, {2, 3}}));
    for (size_t i = 0; i < count; i++)
        boxes[i] = (banyan_box){2, {(int64_t)(i % (2 * TILES)), 0}, {2, 3 * TILES}};
    CHECK_OK(boxes_find_hole(&whole, boxes, count, &found, &hole));
    assert_false(found);
    printf("twice %zu boxes: %.1f ms\n", count, (double)(time_now_ns() - start) * 1e-6);
    assert_true(time_now_ns() - start < 2 * TEST_SLOWER * NS_PER_S);
    free(boxes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_boxes_are_searched_as_every_element_is),
        cmocka_unit_test(the_hole_is_the_row_that_is_missing),
        cmocka_unit_test(forty_thousand_boxes_are_searched_quickly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
