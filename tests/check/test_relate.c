/* Findings name the lines of the program, and one mistake is reported once. */
#include <banyan/check.h>
#include <banyan/program.h>

#include "check/two_ranks.h"

enum { RANKS = 4 };

/* An all-gather whose ranks signal before they put. `puts` is the line of the puts. */
static banyan_plan *early_signals(int *puts)
{
    banyan_program_memory_channel *channels[RANKS][RANKS];
    banyan_collective collective = {.kind = BANYAN_ALLGATHER};
    banyan_program *p;
    banyan_plan *plan;
    CHECK_OK(banyan_program_create("early", &collective, RANKS, NULL, &p));
    for (int r = 0; r < RANKS; r++)
        for (int to = 0; to < RANKS; to++)
            channels[r][to] = to == r ? NULL : banyan_program_memory_channel_create(p, to, r);
    for (int r = 0; r < RANKS; r++) {
        banyan_chunk input = banyan_program_input(p, r, 0, 1);
        banyan_program_copy(p, r, banyan_program_output(p, r, (uint64_t)r, (uint64_t)r + 1), input,
                            BANYAN_TB(0));
        for (int to = 0; to < RANKS; to++)
            if (to != r)
                banyan_program_memory_signal(channels[r][to], 0, BANYAN_SYNC_BOTH);
        for (int from = 0; from < RANKS; from++)
            if (from != r)
                banyan_program_memory_wait(channels[r][from], 0, BANYAN_SYNC_BOTH);
        for (int to = 0; to < RANKS; to++) {
            banyan_chunk there = banyan_program_output(p, to, (uint64_t)r, (uint64_t)r + 1);
            *puts = __LINE__ + 2;
            if (to != r)
                banyan_program_memory_put(channels[r][to], there, input, BANYAN_TB(0));
        }
    }
    CHECK_OK(banyan_program_compile(p, &plan));
    banyan_program_destroy(p);
    return plan;
}

static banyan_plan *written_and_read(banyan_plan *plan)
{
    char *text, *again;
    size_t bytes;
    banyan_plan *read;
    CHECK_OK(banyan_plan_print(plan, &text, &bytes));
    CHECK_OK(banyan_plan_parse(text, bytes, "plan", &read));
    CHECK_OK(banyan_plan_print(read, &again, NULL));
    assert_string_equal(again, text);
    free(text);
    free(again);
    banyan_plan_destroy(plan);
    return read;
}

static banyan_check_report *checked(banyan_plan *plan)
{
    banyan_check_report *report;
    CHECK_OK(banyan_plan_check(plan, NULL, &report));
    banyan_plan_destroy(plan);
    return report;
}

static char *printed(const banyan_check_report *report)
{
    char *text;
    CHECK_OK(banyan_check_report_print(report, "plan", false, &text));
    return text;
}

static void operations_have_the_lines_of_their_program(void **state)
{
    (void)state;
    int puts;
    for (int read = 0; read < 2; read++) {
        banyan_plan *plan = early_signals(&puts);
        banyan_check_report *report = checked(read ? written_and_read(plan) : plan);
        const banyan_check_finding *race = finding_of(report, BANYAN_CHECK_RACE);
        size_t named = 0;
        for (size_t i = 0; i < race->place_count; i++) {
            const banyan_check_place *at = &race->places[i];
            CHECK((at->file != NULL) == (at->operation >= 0));
            if (!at->file)
                continue;
            named++;
            assert_int_equal(at->line, puts);
            assert_string_equal(at->file, __FILE__);
        }
        assert_int_equal(named, 1);
        char line[32], *text = printed(report);
        snprintf(line, sizeof line, "test_relate.c:%d) writes", puts);
        CHECK(strstr(race->message, line) && strstr(text, line), "%s", text);
        free(text);
        banyan_check_report_destroy(report);
    }
}

static void the_same_mistake_on_other_ranks_is_reported_once(void **state)
{
    (void)state;
    int puts;
    banyan_check_report *report = checked(early_signals(&puts));
    size_t first = SIZE_MAX, races = 0;
    for (size_t i = 0; i < banyan_check_report_count(report); i++) {
        const banyan_check_finding *one = banyan_check_report_finding(report, i);
        if (one->rule != BANYAN_CHECK_RACE)
            continue;
        first = races++ == 0 ? i : first;
        assert_int_equal(one->like, first);
        assert_int_equal(one->cause, i);
    }
    assert_int_equal(races, RANKS * (RANKS - 1));
    char *text = printed(report);
    CHECK(strstr(text, "\n   And 11 identical, at ranks 0 to 3.\n"), "%s", text);
    CHECK(!strstr(text, "\n1. race"), "%s", text);
    CHECK(strstr(text, "rank 0's output, bytes [4, 8) (chunk 1): "), "%s", text);
    free(text);
    banyan_check_report_destroy(report);
}

static void a_consequence_stands_under_its_cause(void **state)
{
    (void)state;
    two_ranks made = {
        .ops = {{EXCHANGE "," EXCHANGE "," MOVE("copy", LOCAL_CHUNK("i", 0), LOCAL_CHUNK("o", 0))},
                {EXCHANGE "," PUT(LOCAL_CHUNK("i", 0), REMOTE_CHUNK(0, 0)) "," EXCHANGE}},
        .expected = "[[[[0,0]]],[null]]"};
    banyan_check_report *report = report_of(&made);
    const banyan_check_finding *cause = finding_of(report, BANYAN_CHECK_INPUT_WRITTEN);
    const banyan_check_finding *result = finding_of(report, BANYAN_CHECK_RESULT);
    CHECK(banyan_check_report_finding(report, result->cause) == cause);
    char *text = printed(report);
    CHECK(strstr(text, ".\n   Probable consequence: 0. result: rank 0's output"), "%s", text);
    free(text);
    banyan_check_report_destroy(report);
}

static void a_missing_wait_is_the_cause_of_findings_out_of_order(void **state)
{
    (void)state;
    const char *ops = NOP "," RELAXED_SIGNAL "," EXCHANGE_RELAXED
                          "," PUT(LOCAL_CHUNK("i", 0), REMOTE_CHUNK(1, 0)) "," EXCHANGE;
    two_ranks made = {.ops = {{ops}, {ops}}, .expected = "[[[[1,0]]],[[[0,0]]]]"};
    banyan_check_report *report = report_of(&made);
    const banyan_check_finding *cause = finding_of(report, BANYAN_CHECK_IDLE_SYNC);
    CHECK(strstr(cause->message, "signalled 3 times a run, but waited on only 2 times"), "%s",
          cause->message);
    size_t consequences = 0;
    for (size_t i = 0; i < banyan_check_report_count(report); i++) {
        const banyan_check_finding *one = banyan_check_report_finding(report, i);
        if (banyan_check_rule_is_warning(one->rule))
            continue;
        consequences++;
        CHECK(banyan_check_report_finding(report, one->cause) == cause, "%s", one->message);
    }
    CHECK(consequences > 0);
    char *text = printed(report);
    CHECK(strstr(text, " of 1 kind, ") && strstr(text, "   Probable consequence: "), "%s", text);
    free(text);
    banyan_check_report_destroy(report);
}

/* A rank's operations with superfluous nops: the compiler's, and the author's. */
static banyan_check_report *two_copies(bool own_nop, int *nop)
{
    banyan_collective collective = {.kind = BANYAN_ALLREDUCE};
    banyan_program *p;
    banyan_plan *plan;
    int block = 0;
    CHECK_OK(banyan_program_create("copies", &collective, 1, NULL, &p));
    banyan_program_semaphore *semaphore = banyan_program_semaphore_create(p, 0, 1);
    banyan_program_semaphore_acquire(semaphore, 0, BANYAN_SYNC_BOTH);
    *nop = __LINE__ + 2;
    if (own_nop)
        banyan_program_barrier(p, 0, &block, 1);
    banyan_program_copy(p, 0, banyan_program_output(p, 0, 0, 1), banyan_program_input(p, 0, 0, 1),
                        BANYAN_TB(0));
    banyan_program_semaphore_release(semaphore, 0, BANYAN_SYNC_BOTH);
    CHECK_OK(banyan_program_compile(p, &plan));
    banyan_program_destroy(p);
    return checked(plan);
}

static void nops_of_the_compiler_are_no_warning(void **state)
{
    (void)state;
    int nop;
    for (int own = 0; own < 2; own++) {
        banyan_check_report *report = two_copies(own, &nop);
        const banyan_check_finding *nops = NULL;
        for (size_t i = 0; i < banyan_check_report_count(report); i++) {
            const banyan_check_finding *one = banyan_check_report_finding(report, i);
            if (one->rule == BANYAN_CHECK_IDLE_SYNC && strstr(one->message, "nop"))
                nops = one;
        }
        CHECK((nops != NULL) == own, "%s", nops ? nops->message : "none");
        if (nops) {
            assert_int_equal(nops->place_count, 1);
            assert_int_equal(nops->places[0].line, nop);
        }
        banyan_check_report_destroy(report);
    }
}

static void a_line_that_the_plan_does_not_have_is_refused(void **state)
{
    (void)state;
    const char *texts[][2] = {
        {"\"line\":2}", "\"lines\":[[\"a.c\",7]]"},
        {"\"line\":1}", "\"root\":0"},
        {"\"line\":1}", "\"lines\":[[\"a.c\",-1]]"},
        {"\"line\":1}", "\"lines\":[[7,7]]"},
        {"\"line\":1}", "\"lines\":[\"a.c:7\"]"},
        {"\"line\":-1}", "\"lines\":[[\"a.c\",7]]"},
        {"\"line\":1}", "\"lines\":[[\"a\\u001bc\",7]]"},
        {"\"line\":1}", "\"lines\":[[\"a.c\",7]]"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char text[1024];
        banyan_plan *plan;
        snprintf(text, sizeof text,
                 "{\"name\":\"n\",\"collective\":\"c\",\"protocol\":\"Simple\",\"inplace\":false,"
                 "\"reuse_resources\":false,\"use_double_scratch_buffer\":false,\"banyan\":{%s},"
                 "\"gpus\":[{\"id\":0,\"input_chunks\":1,\"output_chunks\":1,\"scratch_chunks\":0,"
                 "\"channels\":[],\"remote_buffers\":[],\"semaphores\":[],\"threadblocks\":[{"
                 "\"id\":0,\"ops\":[{\"name\":\"nop\",%s],\"channels\":[],"
                 "\"remote_buffer_refs\":[]}]}]}",
                 texts[i][1], texts[i][0]);
        bool right = i + 1 == sizeof texts / sizeof *texts;
        banyan_status status = banyan_plan_parse(text, strlen(text), "plan", &plan);
        CHECK(status == (right ? BANYAN_OK : BANYAN_ERR_FORMAT), "%zu: %s", i, banyan_last_error());
        if (right)
            banyan_plan_destroy(plan);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations_have_the_lines_of_their_program),
        cmocka_unit_test(the_same_mistake_on_other_ranks_is_reported_once),
        cmocka_unit_test(a_consequence_stands_under_its_cause),
        cmocka_unit_test(a_missing_wait_is_the_cause_of_findings_out_of_order),
        cmocka_unit_test(nops_of_the_compiler_are_no_warning),
        cmocka_unit_test(a_line_that_the_plan_does_not_have_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
