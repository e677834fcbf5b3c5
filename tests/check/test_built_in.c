/* The built-in algorithms are sound. */
#include <time.h>

#include "core/threads/sanitizer.h"
#include "support/test.h"

/* Slow tests without a second thread are kept short. */
#ifdef SANITIZER_THREAD
#define RANKS_MOST 3
#define RANKS_LARGE 16
#else
#define RANKS_MOST 9
#ifdef SANITIZER_MEMORY
#define RANKS_LARGE 32
#else
#define RANKS_LARGE 64
#endif
#endif

static void check_plan(const char *name, const banyan_algorithm_params *params)
{
    banyan_check_options options = BANYAN_CHECK_OPTIONS_INIT;
    banyan_plan *plan;
    banyan_check_report *report;
    char *text;
    options.warnings = false;
    banyan_status status = banyan_algorithm_compile(name, params, &plan);
    if (status == BANYAN_ERR_INVALID && strstr(banyan_last_error(), "cannot work in place"))
        return;
    CHECK_OK(status);
    CHECK_OK(banyan_plan_check(plan, &options, &report));
    CHECK_OK(banyan_check_report_print(report, name, false, &text));
    CHECK(banyan_check_report_is_sound(report) && !banyan_check_report_limits(report)[0],
          "%d ranks, %s place: %s", params->ranks, params->in_place ? "in" : "not in", text);
    free(text);
    banyan_check_report_destroy(report);
    banyan_plan_destroy(plan);
}

static void all_algorithms_are_sound(bool in_place)
{
    banyan_algorithm_info info;
    for (size_t i = 0; banyan_algorithm_at(i, &info) == BANYAN_OK; i++) {
        for (int ranks = 2; ranks <= RANKS_MOST; ranks++) {
            banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
            params.ranks = ranks;
            params.shift = 1;
            params.root = ranks / 2;
            params.in_place = in_place;
            check_plan(info.name, &params);
        }
    }
}

static void algorithms_are_sound_out_of_place(void **state)
{
    (void)state;
    all_algorithms_are_sound(false);
}

static void algorithms_are_sound_in_place(void **state)
{
    (void)state;
    all_algorithms_are_sound(true);
}

static void hierarchical_algorithms_are_sound_over_nodes(void **state)
{
    (void)state;
    static const char *const names[] = {"allreduce_hierarchical", "allgather_hierarchical"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        for (int each = 2; each <= 4; each += 2) {
            banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
            params.ranks = 8;
            params.ranks_per_node = each;
            check_plan(names[i], &params);
        }
    }
}

/* A hundred thousand operations, fewer with sanitizers; a minute suffices on slow machines. */
static void an_all_to_all_of_many_ranks_is_checked_in_little_time_and_memory(void **state)
{
    (void)state;
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    banyan_check_options options = BANYAN_CHECK_OPTIONS_INIT;
    banyan_check_report *report;
    banyan_plan *plan;
    params.ranks = RANKS_LARGE;
    params.instances = 5;
    options.max_memory_bytes = UINT64_C(256) << 20;
    CHECK_OK(banyan_algorithm_compile("alltoall_pairwise", &params, &plan));
    CHECK(banyan_plan_describe(plan).operations > 24 * RANKS_LARGE * RANKS_LARGE);
    clock_t begin = clock();
    CHECK_OK(banyan_plan_check(plan, &options, &report));
    CHECK((clock() - begin) / CLOCKS_PER_SEC < 60);
    CHECK(banyan_check_report_is_sound(report));
    banyan_check_report_destroy(report);
    banyan_plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(algorithms_are_sound_out_of_place),
        cmocka_unit_test(algorithms_are_sound_in_place),
        cmocka_unit_test(hierarchical_algorithms_are_sound_over_nodes),
        cmocka_unit_test(an_all_to_all_of_many_ranks_is_checked_in_little_time_and_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
