/* A small plan is checked in a short time, however long its loops are. */
#include "core/deadline.h"
#include "support/test.h"

#define COPY                                                                                       \
    "{\"name\": \"copy\", \"src_buff\": [{\"type\": \"i\", \"index\": 0, \"size\": 1}], "          \
    "\"dst_buff\": [{\"type\": \"o\", \"index\": 0, \"size\": 1}]}"
#define LOOP(id, unit, op)                                                                         \
    "{\"id\": " id ", \"channels\": [], \"ops\": [{\"name\": \"pipeline\", \"iter_context\": "     \
    "{\"unit_size\": " unit ", \"num_chunks\": 1}, \"ops\": [" op "]}]}"
#define PLAN(blocks)                                                                               \
    "{\"name\": \"units\", \"collective\": \"test\", \"protocol\": \"Simple\", \"inplace\": "      \
    "false, \"gpus\": [{\"id\": 0, \"input_chunks\": 1, \"output_chunks\": 1, "                    \
    "\"scratch_chunks\": 0, \"channels\": [], \"remote_buffers\": [], \"threadblocks\": "          \
    "[" blocks "]}], \"banyan\": {\"expected\": [[[[0, 0]]]], \"reduce_op\": \"min\"}}"

/* Sizes with up to three units of the second loop have 786,432 of the first. */
static const char two_units[] =
    PLAN(LOOP("0", "16", COPY) "," LOOP("1", "4194304", "{\"name\": \"nop\"}"));

static banyan_check_report *check(const char *text, uint64_t max_steps)
{
    banyan_check_options options = BANYAN_CHECK_OPTIONS_INIT;
    banyan_plan *plan;
    banyan_check_report *report;
    if (max_steps > 0)
        options.max_steps = max_steps;
    CHECK_OK(banyan_plan_parse(text, strlen(text), "text", &plan));
    CHECK_OK(banyan_plan_check(plan, &options, &report));
    CHECK(banyan_check_report_is_sound(report));
    banyan_plan_destroy(plan);
    return report;
}

static void loops_are_played_up_to_a_bound_that_is_reported(void **state)
{
    (void)state;
    uint64_t start = time_now_ns();
    banyan_check_report *report = check(two_units, 0);
    CHECK(strstr(banyan_check_report_limits(report),
                 "message sizes were not checked, since their loops have too many iterations: "
                 "1048576 steps of loops are played (max_steps, --max-steps)."),
          "%s", banyan_check_report_limits(report));
    CHECK(time_now_ns() - start < 20 * NS_PER_S);
    banyan_check_report_destroy(report);
}

static void a_plan_without_a_size_within_the_bound_is_refused(void **state)
{
    (void)state;
    banyan_check_options options = BANYAN_CHECK_OPTIONS_INIT;
    banyan_plan *plan;
    banyan_check_report *report;
    options.max_steps = 3;
    CHECK_OK(banyan_plan_parse(two_units, strlen(two_units), "text", &plan));
    CHECK_FAILS(banyan_plan_check(plan, &options, &report), BANYAN_ERR_UNSUPPORTED,
                "the loops of plan units make more than 3 steps with every size");
    banyan_plan_destroy(plan);
}

static void options_of_older_callers_are_taken(void **state)
{
    (void)state;
    banyan_check_options options = BANYAN_CHECK_OPTIONS_INIT;
    banyan_plan *plan;
    banyan_check_report *report;
    CHECK_OK(banyan_plan_parse(two_units, strlen(two_units), "text", &plan));
    options.max_steps = 3;
    options.size = offsetof(banyan_check_options, max_steps);
    CHECK_OK(banyan_plan_check(plan, &options, &report));
    banyan_check_report_destroy(report);
    options.size = 0;
    CHECK_FAILS(banyan_plan_check(plan, &options, &report), BANYAN_ERR_INVALID,
                "BANYAN_CHECK_OPTIONS_INIT sets it");
    banyan_plan_destroy(plan);
}

static void plans_that_cut_short_elements_say_so(void **state)
{
    (void)state;
    static const char copies[] = PLAN(LOOP("0", "6", COPY));
    static const char reduces[] =
        PLAN(LOOP("0", "6",
                  "{\"name\": \"re\", \"src_buff\": [{\"type\": \"i\", \"index\": 0, \"size\": 1}, "
                  "{\"type\": \"i\", \"index\": 0, \"size\": 1}], \"dst_buff\": [{\"type\": \"o\", "
                  "\"index\": 0, \"size\": 1}], \"reduce_op\": \"min\"}"));
    banyan_check_report *report = check(copies, 0);
    CHECK(!banyan_check_report_limits(report)[0], "%s", banyan_check_report_limits(report));
    banyan_check_report_destroy(report);
    report = check(reduces, 0);
    CHECK(strcmp(banyan_check_report_limits(report), "The plan was checked for elements of 2 "
                                                     "bytes: it cannot cut longer ones.") == 0,
          "%s", banyan_check_report_limits(report));
    banyan_check_report_destroy(report);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loops_are_played_up_to_a_bound_that_is_reported),
        cmocka_unit_test(a_plan_without_a_size_within_the_bound_is_refused),
        cmocka_unit_test(options_of_older_callers_are_taken),
        cmocka_unit_test(plans_that_cut_short_elements_say_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
