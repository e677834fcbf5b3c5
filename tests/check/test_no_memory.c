/* A check that runs out of memory reports that, and never that a plan is sound. */
#include "check/two_ranks.h"
#include "support/lacking.h"

/* The n-th allocation fails; the last one is after all of the check's. */
static bool check_lacking(const banyan_plan *plan, bool sound, int n)
{
    banyan_check_report *report = NULL;
    lack.has_lacked = false;
    lack.n = n;
    lack.is_looking = true;
    banyan_status status = banyan_plan_check(plan, NULL, &report);
    lack.is_looking = false;
    if (lack.has_lacked) {
        CHECK(status == BANYAN_ERR_NO_MEMORY && !report, "allocation %d: %s", n,
              banyan_status_name(status));
        return true;
    }
    CHECK(status == BANYAN_OK && banyan_check_report_is_sound(report) == sound, "%d", n);
    banyan_check_report_destroy(report);
    return false;
}

static void check_lacking_each(const two_ranks *made, bool sound)
{
    banyan_plan *plan = plan_of(made);
    int n = 0;
    while (check_lacking(plan, sound, n))
        n++;
    CHECK(n > 0);
    banyan_plan_destroy(plan);
}

static void a_check_without_memory_fails(void **state)
{
    (void)state;
    const char *right =
        EXCHANGE_RELAXED "," PUT(LOCAL_CHUNK("i", 0), REMOTE_CHUNK(1, 0)) "," EXCHANGE;
    two_ranks sound = {.ops = {{right}, {right}}, .expected = "[[[[1,0]]],[[[0,0]]]]"};
    two_ranks race = {.ops = {{PUT(LOCAL_CHUNK("i", 0), REMOTE_CHUNK(1, 0))}, {NOP}}};
    two_ranks stuck = {.ops = {{WAIT}, {NOP}}};
    two_ranks dry = {.ops = {{SEMAPHORE("sem_acquire", 1)}, {NOP}}};
    check_lacking_each(&sound, true);
    check_lacking_each(&race, false);
    check_lacking_each(&stuck, false);
    check_lacking_each(&dry, false);
}

int main(void)
{
    if (!lack_is_possible())
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_check_without_memory_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
