/* Ranges that overlap in any way: a range that contains the requested one is found if there is
 * one. */
#include "support/test.h"

#include "memory/space.h"

#define SPANS 300
#define UNIVERSE 2000

struct known {
    uintptr_t start, end;
    uint64_t id;
    bool present;
};

static void check_find(const spans *set, const struct known *known, random_state *random)
{
    uintptr_t start = (uintptr_t)random_between(random, 0, UNIVERSE);
    uintptr_t end = start + (uintptr_t)random_between(random, 0, 60);
    const span *found = spans_find(set, start, end);
    bool expected = false, valid = false;
    for (int i = 0; i < SPANS; i++) {
        bool holds = known[i].present && known[i].start <= start && known[i].end >= end;
        expected = expected || holds;
        valid = valid || (holds && found && found->id == known[i].id);
    }
    assert_int_equal(found != NULL, expected);
    assert_true(!expected || valid);
}

static void a_span_that_holds_a_range_is_found(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    struct known known[SPANS] = {0};
    spans set = {0};
    for (int step = 0; step < 20000; step++) {
        struct known *one = &known[random_between(&random, 0, SPANS - 1)];
        if (one->present) {
            spans_remove(&set, one->start, one->id);
            one->present = false;
        } else {
            int64_t longest = random_next(&random) % 4 == 0 ? UNIVERSE : 80;
            one->start = (uintptr_t)random_between(&random, 0, UNIVERSE);
            one->end = one->start + (uintptr_t)random_between(&random, 0, longest);
            one->id = (uint64_t)step + 1;
            one->present = true;
            assert_true(spans_add(&set, one->start, one->end, one->id));
        }
        check_find(&set, known, &random);
    }
    spans_free(&set);
    assert_null(spans_find(&set, 0, 0));
}

static int depth(const span *node)
{
    if (!node)
        return 0;
    int left = depth(node->left), right = depth(node->right);
    return 1 + (left > right ? left : right);
}

static void ascending_ranges_make_no_list(void **state)
{
    (void)state;
    spans set = {0};
    for (uintptr_t i = 0; i < 100000; i++)
        assert_true(spans_add(&set, i * 10, i * 10 + 10, i));
    assert_in_range(depth(set.root), 17, 80);
    assert_int_equal(spans_find(&set, 777770, 777780)->id, 77777);
    assert_null(spans_find(&set, 777771, 777781));
    spans_free(&set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_span_that_holds_a_range_is_found),
        cmocka_unit_test(ascending_ranges_make_no_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
