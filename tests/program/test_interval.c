/* Interval maps against a list of every single chunk. */
#include "program/compile/interval.h"
#include "support/test.h"

enum { CHUNKS = 48, STEPS = 400, MAPS = 100 };

typedef enum use { UNUSED, READ, WRITTEN } use;

static bool list_conflicts(const use *list, uint64_t start, uint64_t stop, bool write)
{
    for (uint64_t i = start; i < stop; i++) {
        if (list[i] == WRITTEN || (write && list[i] == READ))
            return true;
    }
    return false;
}

static void list_add(use *list, uint64_t start, uint64_t stop, bool written)
{
    for (uint64_t i = start; i < stop; i++) {
        if (written)
            list[i] = WRITTEN;
        else if (list[i] == UNUSED)
            list[i] = READ;
    }
}

/* Disjoint, ascending, not empty, and without mergeable neighbours. */
static void check_order(const interval_map *map)
{
    for (size_t i = 0; i < map->count; i++) {
        const interval *own = &map->data[i], *next = own + 1;
        CHECK(own->start < own->stop, "interval %zu is empty", i);
        if (i + 1 < map->count)
            CHECK(own->stop < next->start ||
                      (own->stop == next->start && own->written != next->written),
                  "intervals %zu and %zu", i, i + 1);
    }
}

static void check_step(interval_map *map, use *list, random_state *random)
{
    uint64_t start = (uint64_t)random_between(random, 0, CHUNKS);
    uint64_t stop = (uint64_t)random_between(random, (int64_t)start, CHUNKS);
    bool write = random_between(random, 0, 3) == 0;
    CHECK(interval_map_conflicts(map, start, stop, write) ==
              list_conflicts(list, start, stop, write),
          "[%d, %d)", (int)start, (int)stop);
    if (random_between(random, 0, 30) == 0) {
        interval_map_clear(map);
        memset(list, 0, CHUNKS * sizeof *list);
    } else {
        CHECK(interval_map_add(map, start, stop, write), "out of memory");
        list_add(list, start, stop, write);
    }
    check_order(map);
}

static void maps_answer_as_lists_do(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int i = 0; i < MAPS; i++) {
        interval_map map = {0};
        use list[CHUNKS] = {UNUSED};
        for (int step = 0; step < STEPS; step++)
            check_step(&map, list, &random);
        interval_map_free(&map);
    }
}

/* Adjacent writes form one interval, however long. */
static void neighbours_become_one(void **state)
{
    (void)state;
    interval_map map = {0};
    for (uint64_t i = 0; i < 1000; i++)
        CHECK(interval_map_add(&map, UINT64_MAX - 1000 + i, UINT64_MAX - 999 + i, true),
              "out of memory");
    assert_int_equal(map.count, 1);
    assert_true(interval_map_conflicts(&map, UINT64_MAX - 1, UINT64_MAX, false));
    assert_false(interval_map_conflicts(&map, 0, UINT64_MAX - 1000, true));
    interval_map_free(&map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(maps_answer_as_lists_do),
        cmocka_unit_test(neighbours_become_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
