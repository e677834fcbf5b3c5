/* Plans that are adapted to MSCCL++'s executor: what changes, and what their files say. */
#include "plan/plan.h"
#include "support/test.h"

static banyan_plan *compile(const char *name, int ranks)
{
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    banyan_plan *plan;
    params.ranks = ranks;
    params.shift = 1;
    CHECK_OK(banyan_algorithm_compile(name, &params, &plan));
    return plan;
}

static banyan_plan *adapt(const char *name, int ranks)
{
    banyan_plan *plan = compile(name, ranks), *adapted;
    CHECK_OK(banyan_plan_adapt(plan, BANYAN_EXECUTOR_MSCCLPP, &adapted));
    banyan_plan_destroy(plan);
    CHECK(banyan_plan_describe(adapted).executor == BANYAN_EXECUTOR_MSCCLPP);
    return adapted;
}

static void must_be_sound_here_and_there(const banyan_plan *plan)
{
    banyan_check_options options = BANYAN_CHECK_OPTIONS_INIT;
    options.warnings = false;
    for (int executor = BANYAN_EXECUTOR_BANYAN; executor <= BANYAN_EXECUTOR_MSCCLPP; executor++) {
        banyan_check_report *report;
        char *text;
        options.executor = (banyan_plan_executor)executor;
        CHECK_OK(banyan_plan_check(plan, &options, &report));
        CHECK_OK(banyan_check_report_print(report, "adapted", false, &text));
        CHECK(banyan_check_report_is_sound(report), "%s", text);
        free(text);
        banyan_check_report_destroy(report);
    }
}

static void all_that_the_executor_can_do_is_sound_on_both(void **state)
{
    (void)state;
    banyan_algorithm_info info;
    int sound[9] = {0};
    for (size_t i = 0; banyan_algorithm_at(i, &info) == BANYAN_OK; i++) {
        for (int ranks = 2; ranks <= 8; ranks = ranks < 5 ? ranks + 1 : ranks * 2 - 2) {
            banyan_plan *plan = compile(info.name, ranks), *adapted;
            banyan_status status = banyan_plan_adapt(plan, BANYAN_EXECUTOR_MSCCLPP, &adapted);
            banyan_plan_destroy(plan);
            if (status != BANYAN_OK) {
                CHECK(status == BANYAN_ERR_UNSUPPORTED, "%s", banyan_last_error());
                CHECK(strstr(banyan_last_error(), "(glre) is unknown") ||
                          strstr(banyan_last_error(), "at most 64 are possible") ||
                          strstr(banyan_last_error(), "memory channels: at most 16 are possible"),
                      "%s", banyan_last_error());
                continue;
            }
            must_be_sound_here_and_there(adapted);
            banyan_plan_destroy(adapted);
            sound[ranks]++;
        }
    }
    CHECK(sound[2] == 73 && sound[3] == 73 && sound[4] == 73 && sound[5] == 73, "%d %d %d %d",
          sound[2], sound[3], sound[4], sound[5]);
    CHECK(sound[8] == 71, "%d", sound[8]);
}

static void a_file_read_again_is_the_same_plan(void **state)
{
    (void)state;
    static const char *const names[] = {"allgather_bruck", "allreduce_ports", "broadcast_direct"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        banyan_plan *plan = adapt(names[i], 4), *again;
        char *text, *difference;
        size_t bytes, differences;
        CHECK_OK(banyan_plan_print(plan, &text, &bytes));
        CHECK_OK(banyan_plan_parse(text, bytes, "again", &again));
        CHECK_OK(banyan_plan_diff(plan, again, 4, &difference, &differences));
        CHECK(differences == 0, "%s: %s", names[i], difference);
        free(difference);
        free(text);
        banyan_plan_destroy(again);
        banyan_plan_destroy(plan);
    }
}

static void places_of_gets_are_exchanged_in_the_file(void **state)
{
    (void)state;
    banyan_plan *plan = adapt("allgather_allpairs", 2);
    char *text;
    CHECK_OK(banyan_plan_print(plan, &text, NULL));
    /* Rank 1 gets scratch chunk 0 of rank 0 into output chunk 0, and rank 0 chunk 0 into 1. */
    CHECK(strstr(text,
                 "{\"name\": \"get\", \"src_buff\": [{\"buffer_id\": 0, \"index\": 1, \"size\": "
                 "1}], \"dst_buff\": [{\"type\": \"o\", \"index\": 0, \"size\": 1}]"),
          "%s", text);
    free(text);
    banyan_plan_destroy(plan);
}

static void flushes_have_as_many_destinations_as_channels_in_the_file(void **state)
{
    (void)state;
    static const char flush[] =
        "{\"name\": \"flush\", \"dst_buff\": [{\"type\": \"i\", \"index\": 0, "
        "\"size\": 0}, {\"type\": \"i\", \"index\": 0, \"size\": 0}], "
        "\"channel_ids\": [0, 1]";
    banyan_plan *plan = adapt("allgather_ports", 3), *read;
    char *text;
    CHECK_OK(banyan_plan_print(plan, &text, NULL));
    char *at = strstr(text, flush);
    CHECK(at, "%s", text);
    /* One destination less. */
    char *first = strstr(at, "[{") + 1, *second = strstr(first, ", {") + 2;
    memmove(first, second, strlen(second) + 1);
    CHECK_FAILS(banyan_plan_parse(text, strlen(text), "short", &read), BANYAN_ERR_FORMAT,
                "has a flush of 2 channels with 1 destinations");
    free(text);
    banyan_plan_destroy(plan);
}

static void an_unknown_executor_in_a_file_is_refused(void **state)
{
    (void)state;
    banyan_plan *plan = adapt("sendrecv_direct", 2), *read;
    char *text;
    CHECK_OK(banyan_plan_print(plan, &text, NULL));
    char *at = strstr(text, "\"executor\": \"mscclpp\"");
    CHECK(at);
    at[13] = 'M';
    CHECK_FAILS(banyan_plan_parse(text, strlen(text), "file", &read), BANYAN_ERR_FORMAT,
                "banyan.executor is \"Mscclpp\": banyan and mscclpp are possible");
    free(text);
    banyan_plan_destroy(plan);
}

static void refusals_name_the_operation_and_the_reason(void **state)
{
    (void)state;
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    banyan_plan *plan = compile("reducescatter_switch", 3), *adapted = NULL;
    CHECK_FAILS(banyan_plan_adapt(plan, BANYAN_EXECUTOR_MSCCLPP, &adapted), BANYAN_ERR_UNSUPPORTED,
                "plan reducescatter_switch cannot run on MSCCL++'s executor: rank 0, thread block "
                "0, operation 8 (glre) is unknown to the executor");
    CHECK(adapted == NULL);
    banyan_plan_destroy(plan);
    params.ranks = 3;
    params.op = BANYAN_MAX;
    CHECK_OK(banyan_algorithm_compile("allreduce_twoshot", &params, &plan));
    CHECK_FAILS(banyan_plan_adapt(plan, BANYAN_EXECUTOR_MSCCLPP, &adapted), BANYAN_ERR_UNSUPPORTED,
                "reduces by max: the executor always adds");
    CHECK_FAILS(banyan_plan_adapt(plan, (banyan_plan_executor)9, &adapted), BANYAN_ERR_INVALID,
                "9 is no executor");
    CHECK_OK(banyan_plan_adapt(plan, BANYAN_EXECUTOR_BANYAN, &adapted));
    banyan_plan_destroy(adapted);
    banyan_plan_destroy(plan);
}

/* 32 bits hold the offsets in every buffer. */
static void the_longest_message_is_bounded(void **state)
{
    (void)state;
    banyan_plan *plan = adapt("allreduce_oneshot", 4);
    banyan_plan_info info = banyan_plan_describe(plan);
    uint64_t scratch = plan->ranks[0].chunks[PLAN_SCRATCH];
    CHECK(scratch == 16 && info.max_message_bytes == UINT32_MAX / 16 / 16 * 16 * 4);
    CHECK(!info.double_scratch && !info.reuse_resources);
    banyan_plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_that_the_executor_can_do_is_sound_on_both),
        cmocka_unit_test(a_file_read_again_is_the_same_plan),
        cmocka_unit_test(places_of_gets_are_exchanged_in_the_file),
        cmocka_unit_test(flushes_have_as_many_destinations_as_channels_in_the_file),
        cmocka_unit_test(an_unknown_executor_in_a_file_is_refused),
        cmocka_unit_test(refusals_name_the_operation_and_the_reason),
        cmocka_unit_test(the_longest_message_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
