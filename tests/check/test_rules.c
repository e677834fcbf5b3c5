/* A small plan for each rule of the memory model, correct, and with one fault. */
#include "check/two_ranks.h"
#include "plan/plan.h"

#define IN_CHUNK LOCAL_CHUNK("i", 0)
#define OUT_CHUNK LOCAL_CHUNK("o", 0)
#define SCRATCH_CHUNK LOCAL_CHUNK("s", 0)
#define COPY_IN MOVE("copy", IN_CHUNK, SCRATCH_CHUNK)
#define COPY_OUT MOVE("copy", SCRATCH_CHUNK, OUT_CHUNK)
#define SWAPPED "[[[[1,0]]],[[[0,0]]]]"

#define PUT_TO_OUTPUT PUT(IN_CHUNK, REMOTE_CHUNK(1, 0))

static void two_ranks_that_wait_first_wait_for_ever(void **state)
{
    (void)state;
    const char *wrong = NOP "," WAIT "," NOP "," SIGNAL;
    two_ranks made = {.ops = {{wrong}, {wrong}}};
    banyan_check_report *report = report_of(&made);
    const banyan_check_finding *found = finding_of(report, BANYAN_CHECK_DEADLOCK);
    CHECK(found->place_count == 2 && found->places[0].rank == 0 &&
          found->places[0].operation == 1 && found->places[1].rank == 1 &&
          found->places[1].operation == 1);
    CHECK(strstr(found->message, "each other"), "%s", found->message);
    banyan_check_report_destroy(report);
}

static void a_wait_that_nobody_signals_is_reported(void **state)
{
    (void)state;
    two_ranks made = {.ops = {{WAIT}, {NOP}}};
    banyan_check_report *report = report_of(&made);
    const banyan_check_finding *found = finding_of(report, BANYAN_CHECK_DEADLOCK);
    CHECK(found->place_count == 1 && found->places[0].rank == 0);
    CHECK(strstr(found->message, "no thread block is left"), "%s", found->message);
    banyan_check_report_destroy(report);
}

static void a_semaphore_that_is_released_too_seldom_is_a_deadlock(void **state)
{
    (void)state;
    const char *takes = SEMAPHORE("sem_acquire", 0) "," SEMAPHORE("sem_acquire", 0);
    two_ranks made = {.ops = {{takes, SEMAPHORE("sem_release", 0)}, {NOP}}};
    must_break(&made, BANYAN_CHECK_DEADLOCK);
    made.ops[0][1] = SEMAPHORE("sem_release", 0) "," SEMAPHORE("sem_release", 0);
    must_be_sound(&made);
}

static void a_semaphore_that_runs_dry_after_many_runs_is_a_deadlock(void **state)
{
    (void)state;
    two_ranks made = {.ops = {{SEMAPHORE("sem_acquire", 1)}, {NOP}}};
    banyan_check_report *report = report_of(&made);
    CHECK(strstr(finding_of(report, BANYAN_CHECK_DEADLOCK)->message, "after 9 runs"), "%s",
          finding_of(report, BANYAN_CHECK_DEADLOCK)->message);
    banyan_check_report_destroy(report);
}

static void waits_that_leave_signals_over_order_nothing_in_the_end(void **state)
{
    (void)state;
    const char *right = EXCHANGE_RELAXED "," PUT_TO_OUTPUT "," EXCHANGE;
    const char *wrong = NOP "," RELAXED_SIGNAL "," EXCHANGE_RELAXED "," PUT_TO_OUTPUT "," EXCHANGE;
    two_ranks made = {.ops = {{right}, {right}}, .expected = SWAPPED};
    must_be_sound(&made);
    made.ops[0][0] = made.ops[1][0] = wrong;
    banyan_check_report *report = report_of(&made);
    CHECK(!banyan_check_report_is_sound(report));
    const banyan_check_finding *warning = finding_of(report, BANYAN_CHECK_IDLE_SYNC);
    CHECK(strstr(warning->message, "signalled 3 times a run, but waited on only 2 times"), "%s",
          warning->message);
    banyan_check_report_destroy(report);
}

static void a_barrier_behind_a_semaphore_of_its_member_is_a_deadlock(void **state)
{
    (void)state;
    two_ranks made = {
        .ops = {{SEMAPHORE("sem_acquire", 0) "," BARRIER, BARRIER "," SEMAPHORE("sem_release", 0)},
                {NOP}}};
    must_break(&made, BANYAN_CHECK_DEADLOCK);
    made.ops[0][1] = SEMAPHORE("sem_release", 0) "," BARRIER;
    must_be_sound(&made);
}

static void packets_that_nobody_writes_are_waited_for_in_vain(void **state)
{
    (void)state;
    two_ranks made = {.ops = {{MOVE("upkt", SCRATCH_CHUNK, OUT_CHUNK)}, {NOP}}};
    must_break(&made, BANYAN_CHECK_DEADLOCK);
}

static void two_operations_without_a_nop_between_them_race(void **state)
{
    (void)state;
    two_ranks made = {.ops = {{COPY_IN "," COPY_OUT}, {NOP}}};
    banyan_check_report *report = report_of(&made);
    const banyan_check_finding *found = finding_of(report, BANYAN_CHECK_RACE);
    CHECK(!found->caller_only && !found->relaxed_only && found->place_count == 2);
    CHECK(strstr(found->message, "a nop would order them"), "%s", found->message);
    banyan_check_report_destroy(report);
    made.ops[0][0] = COPY_IN "," NOP "," COPY_OUT;
    must_be_sound(&made);
}

static void two_thread_blocks_need_a_barrier_or_a_semaphore(void **state)
{
    (void)state;
    two_ranks made = {.ops = {{COPY_IN, COPY_OUT}, {NOP}}};
    must_break(&made, BANYAN_CHECK_RACE);
    made.ops[0][0] = COPY_IN "," BARRIER;
    made.ops[0][1] = BARRIER "," COPY_OUT;
    must_be_sound(&made);
    made.ops[0][0] = COPY_IN "," NOP "," SEMAPHORE("sem_release", 0);
    made.ops[0][1] = SEMAPHORE("sem_acquire", 0) "," NOP "," COPY_OUT;
    must_be_sound(&made);
    made.ops[0][1] = SEMAPHORE("sem_acquire", 0) "," COPY_OUT;
    must_break(&made, BANYAN_CHECK_RACE);
}

static void an_acquire_is_after_a_release_only_if_it_could_not_do_without(void **state)
{
    (void)state;
    const char *first = COPY_IN "," NOP "," SEMAPHORE("sem_release", 0);
    const char *second = SEMAPHORE("sem_release", 0);
    const char *both =
        SEMAPHORE("sem_acquire", 0) "," SEMAPHORE("sem_acquire", 0) "," NOP "," COPY_OUT;
    const char *one =
        SEMAPHORE("sem_acquire", 0) "," NOP "," COPY_OUT "," NOP "," SEMAPHORE("sem_acquire", 0);
    two_ranks made = {.ops = {{first, second, both}, {NOP}}};
    must_be_sound(&made);
    made.ops[0][2] = one;
    must_break(&made, BANYAN_CHECK_RACE);
    banyan_check_report *report = report_of(&made);
    CHECK(strstr(banyan_check_report_limits(report), "share channels or semaphores"));
    banyan_check_report_destroy(report);
}

static void credits_that_are_there_at_first_order_nothing(void **state)
{
    (void)state;
    two_ranks made = {.ops = {{COPY_IN "," NOP "," SEMAPHORE("sem_release", 1),
                               SEMAPHORE("sem_acquire", 1) "," NOP "," COPY_OUT},
                              {NOP}}};
    must_break(&made, BANYAN_CHECK_RACE);
}

static void a_reduction_in_place_is_no_race_with_itself(void **state)
{
    (void)state;
    const char *sum = MOVE("re", SCRATCH_CHUNK "," IN_CHUNK, SCRATCH_CHUNK);
    char ops[512];
    snprintf(ops, sizeof ops, "%s,%s,%s,%s,%s", COPY_IN, NOP, sum, NOP, COPY_OUT);
    two_ranks made = {.ops = {{ops}, {NOP}}};
    must_be_sound(&made);
}

static void a_put_has_to_be_waited_for(void **state)
{
    (void)state;
    const char *right = EXCHANGE_RELAXED "," PUT_TO_OUTPUT "," EXCHANGE;
    two_ranks made = {.ops = {{right}, {right}}, .expected = SWAPPED};
    must_be_sound(&made);
    const char *wrong = EXCHANGE_RELAXED "," PUT_TO_OUTPUT;
    made.ops[1][0] = made.ops[0][0] = wrong;
    banyan_check_report *report = report_of(&made);
    CHECK(finding_of(report, BANYAN_CHECK_RACE)->caller_only);
    banyan_check_report_destroy(report);
}

static void a_relaxed_signal_does_not_publish_writes(void **state)
{
    (void)state;
    const char *wrong = EXCHANGE_RELAXED "," PUT_TO_OUTPUT "," EXCHANGE_RELAXED;
    two_ranks made = {.ops = {{wrong}, {wrong}}, .expected = SWAPPED};
    banyan_check_report *report = report_of(&made);
    const banyan_check_finding *found = finding_of(report, BANYAN_CHECK_RACE);
    CHECK(found->caller_only && found->relaxed_only, "%s", found->message);
    banyan_check_report_destroy(report);
}

static void a_relaxed_signal_orders_reads(void **state)
{
    (void)state;
    const char *right = EXCHANGE_RELAXED
        "," MOVE_BY("get", "memory", REMOTE_CHUNK(0, 0), OUT_CHUNK) "," EXCHANGE_RELAXED;
    two_ranks made = {.ops = {{right}, {right}}, .expected = SWAPPED};
    must_be_sound(&made);
}

static void a_signal_needs_a_nop_before_it_to_cover_all_threads(void **state)
{
    (void)state;
    const char *wrong = EXCHANGE_RELAXED "," PUT_TO_OUTPUT "," SIGNAL "," WAIT "," NOP;
    two_ranks made = {.ops = {{wrong}, {wrong}}, .expected = SWAPPED};
    must_break(&made, BANYAN_CHECK_RACE);
}

static void without_an_opening_wait_the_next_run_collides(void **state)
{
    (void)state;
    const char *wrong = PUT_TO_OUTPUT "," EXCHANGE;
    two_ranks made = {.ops = {{wrong}, {wrong}}, .expected = SWAPPED};
    banyan_check_report *report = report_of(&made);
    const banyan_check_finding *found = finding_of(report, BANYAN_CHECK_REUSE);
    CHECK(found->caller_only && found->places[0].run != found->places[1].run, "%s", found->message);
    CHECK(strstr(found->message, "would have to wait for"), "%s", found->message);
    banyan_check_report_destroy(report);
}

#define PACKETS_ACROSS                                                                             \
    MOVE_BY("ppkt", "memory", IN_CHUNK, REMOTE_CHUNK(2, 0))                                        \
    "," MOVE("upkt", SCRATCH_CHUNK, OUT_CHUNK)

static void packets_need_two_halves_of_scratch(void **state)
{
    (void)state;
    two_ranks made = {
        .ops = {{PACKETS_ACROSS}, {PACKETS_ACROSS}}, .expected = SWAPPED, .double_scratch = true};
    must_be_sound(&made);
    made.double_scratch = false;
    must_break(&made, BANYAN_CHECK_REUSE);
}

static void packets_that_answer_packets_free_their_room(void **state)
{
    (void)state;
    const char *asks = MOVE_BY("ppkt", "memory", IN_CHUNK,
                               REMOTE_CHUNK(2, 0)) "," MOVE("upkt", LOCAL_CHUNK("s", 1), OUT_CHUNK);
    const char *answers =
        MOVE_BY("respkt", "memory", IN_CHUNK "," SCRATCH_CHUNK, OUT_CHUNK "," REMOTE_CHUNK(2, 1));
    const char *sums = "[[[[0,0],[1,0]]],[[[0,0],[1,0]]]]";
    two_ranks made = {.ops = {{asks}, {answers}}, .expected = sums};
    must_be_sound(&made);
}

#define PORT_PUT(name) MOVE_BY(name, "port", IN_CHUNK, REMOTE_CHUNK(1, 0))

#define PORT_END "," ON("wait", "port") "," NOP

static void a_port_reads_its_source_until_it_is_flushed(void **state)
{
    (void)state;
    const char *right[] = {
        EXCHANGE_RELAXED "," PORT_PUT("pwsf") PORT_END,
        EXCHANGE_RELAXED "," PORT_PUT("put") "," ON("signal", "port") "," ON("flush", "port")
            PORT_END,
        EXCHANGE_RELAXED "," PORT_PUT("put") "," ON("flush", "port") "," ON("signal", "port")
            PORT_END,
    };
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        two_ranks made = {.ops = {{right[i]}, {right[i]}}, .expected = SWAPPED};
        must_be_sound(&made);
    }
    const char *wrong = EXCHANGE_RELAXED "," PORT_PUT("pws") PORT_END;
    two_ranks made = {.ops = {{wrong}, {wrong}}, .expected = SWAPPED};
    must_break(&made, BANYAN_CHECK_REUSE);
}

static void a_put_lands_in_any_order_with_the_ports_other_puts(void **state)
{
    (void)state;
    const char *end = "," ON("signal", "port") "," ON("flush", "port") PORT_END;
    char same[1024], other[1024];
    snprintf(same, sizeof same, "%s,%s,%s%s", EXCHANGE_RELAXED, PORT_PUT("put"),
             MOVE_BY("put", "port", IN_CHUNK, REMOTE_CHUNK(2, 0)), end);
    snprintf(other, sizeof other, "%s,%s,%s,%s,%s%s", COPY_IN, EXCHANGE_RELAXED, PORT_PUT("put"),
             NOP, MOVE_BY("put", "port", LOCAL_CHUNK("s", 0), REMOTE_CHUNK(1, 0)), end);
    two_ranks made = {.ops = {{same}, {same}}, .expected = SWAPPED};
    must_be_sound(&made);
    made.ops[0][0] = made.ops[1][0] = other;
    must_break(&made, BANYAN_CHECK_RACE);
}

static void a_port_signal_before_the_put_does_not_order_it(void **state)
{
    (void)state;
    const char *wrong = EXCHANGE_RELAXED "," ON("signal", "port") "," PORT_PUT("put") "," ON(
        "flush", "port") "," ON("wait", "port") "," NOP;
    two_ranks made = {.ops = {{wrong}, {wrong}}, .expected = SWAPPED};
    must_break(&made, BANYAN_CHECK_RACE);
}

static void a_wrong_source_is_explained_by_its_history(void **state)
{
    (void)state;
    two_ranks made = {.ops = {{COPY_IN "," NOP "," COPY_OUT}, {COPY_IN "," NOP "," COPY_OUT}},
                      .expected = SWAPPED};
    banyan_check_report *report = report_of(&made);
    const banyan_check_finding *found = finding_of(report, BANYAN_CHECK_RESULT);
    CHECK(found->place_count == 2 && found->places[0].operation == 2 &&
              found->places[1].operation == 0,
          "%s", found->message);
    CHECK(strstr(found->message, "holds rank 0's byte 0") &&
              strstr(found->message, "should hold rank 1's byte 0"),
          "%s", found->message);
    banyan_check_report_destroy(report);
}

static void a_sum_counts_how_often_and_a_maximum_does_not(void **state)
{
    (void)state;
    const char *twice = MOVE("re", IN_CHUNK "," IN_CHUNK, OUT_CHUNK);
    char most[256];
    snprintf(most, sizeof most, "%.*s,\"reduce_op\":\"max\"}", (int)strlen(twice) - 1, twice);
    two_ranks made = {.ops = {{twice}, {NOP}}, .expected = "[[[[0,0]]],null]"};
    must_break(&made, BANYAN_CHECK_RESULT);
    made.ops[0][0] = most;
    must_be_sound(&made);
}

static void a_report_says_that_outputs_were_not_checked(void **state)
{
    (void)state;
    two_ranks made = {.ops = {{COPY_IN "," NOP "," COPY_OUT}, {NOP}}};
    banyan_check_report *report = report_of(&made);
    CHECK(banyan_check_report_is_sound(report));
    assert_string_equal(banyan_check_report_limits(report), OUTPUTS_UNCHECKED);
    banyan_check_report_destroy(report);
    made.expected = "[[[[0,0]]],null]";
    report = report_of(&made);
    assert_string_equal(banyan_check_report_limits(report), "");
    banyan_check_report_destroy(report);
}

static void an_output_that_nobody_writes_is_found(void **state)
{
    (void)state;
    two_ranks made = {.ops = {{COPY_IN}, {NOP}}, .expected = "[[[[0,0]]],null]"};
    banyan_check_report *report = report_of(&made);
    CHECK(strstr(finding_of(report, BANYAN_CHECK_RESULT)->message, "no operation writes it"));
    banyan_check_report_destroy(report);
}

static void scratch_that_nobody_wrote_must_not_be_read(void **state)
{
    (void)state;
    two_ranks made = {.ops = {{COPY_OUT}, {NOP}}};
    must_break(&made, BANYAN_CHECK_UNINITIALISED);
}

static void an_input_is_left_alone_unless_the_plan_is_in_place(void **state)
{
    (void)state;
    const char *ops = COPY_IN "," NOP "," MOVE("re", IN_CHUNK "," SCRATCH_CHUNK, IN_CHUNK);
    two_ranks made = {.ops = {{ops}, {NOP}}};
    must_break(&made, BANYAN_CHECK_INPUT_WRITTEN);
    made.in_place = true;
    must_be_sound(&made);
}

static void sent_bytes_that_nobody_reads_are_a_warning(void **state)
{
    (void)state;
    const char *ops = EXCHANGE_RELAXED "," PUT(IN_CHUNK, REMOTE_CHUNK(2, 0)) "," EXCHANGE;
    two_ranks made = {.ops = {{ops}, {ops}}};
    must_be_sound(&made);
    banyan_check_report *report = report_of(&made);
    finding_of(report, BANYAN_CHECK_UNREAD);
    CHECK(
        strcmp(finding_of(report, BANYAN_CHECK_UNUSED)->message,
               "no operation uses 2 chunks of scratch of 2 ranks; the first is rank 0's chunk 1") ==
        0);
    CHECK(finding_of(report, BANYAN_CHECK_UNUSED)->place_count == 2);
    finding_of(report, BANYAN_CHECK_IDLE_SYNC);
    banyan_check_report_destroy(report);
}

static bool is_reported(const two_ranks *made, banyan_check_rule rule, const char *message)
{
    banyan_check_report *report = report_of(made);
    bool reported = false;
    CHECK(banyan_check_report_is_sound(report));
    for (size_t i = 0; i < banyan_check_report_count(report); i++) {
        const banyan_check_finding *one = banyan_check_report_finding(report, i);
        reported = reported || one->rule == rule;
        CHECK(one->rule != rule || strstr(one->message, message), "%s", one->message);
    }
    banyan_check_report_destroy(report);
    return reported;
}

static void a_link_that_carries_twice_the_bytes_of_another_is_a_warning(void **state)
{
    (void)state;
    const char *once = EXCHANGE_RELAXED "," PUT(IN_CHUNK, REMOTE_CHUNK(2, 0)) "," EXCHANGE;
    const char *twice = EXCHANGE_RELAXED
        "," PUT(IN_CHUNK, REMOTE_CHUNK(2, 0)) "," PUT(IN_CHUNK, REMOTE_CHUNK(2, 1)) "," EXCHANGE;
    two_ranks made = {.ops = {{once}, {once}}};
    CHECK(!is_reported(&made, BANYAN_CHECK_UNEVEN, ""));
    made.ops[1][0] = twice;
    CHECK(is_reported(&made, BANYAN_CHECK_UNEVEN,
                      "rank 1 sends 32 bytes to rank 0, but rank 0 only 16"));
    made.ops[0][0] = twice;
    CHECK(!is_reported(&made, BANYAN_CHECK_UNEVEN, ""));
}

static void findings_are_the_same_each_time(void **state)
{
    (void)state;
    two_ranks made = {.ops = {{PACKETS_ACROSS}, {PACKETS_ACROSS}}, .expected = SWAPPED};
    char *texts[2][2];
    for (int i = 0; i < 2; i++) {
        banyan_check_report *report = report_of(&made);
        CHECK_OK(banyan_check_report_print(report, "small", false, &texts[i][0]));
        CHECK_OK(banyan_check_report_print(report, "small", true, &texts[i][1]));
        banyan_check_report_destroy(report);
    }
    for (int kind = 0; kind < 2; kind++) {
        CHECK(strcmp(texts[0][kind], texts[1][kind]) == 0);
        CHECK(strstr(texts[0][kind], "reuse"));
        free(texts[0][kind]);
        free(texts[1][kind]);
    }
}

static void plans_that_cannot_be_checked_are_refused(void **state)
{
    (void)state;
    two_ranks made = {.ops = {{COPY_IN}, {NOP}}};
    banyan_plan *plan = plan_of(&made);
    banyan_check_report *report = NULL;
    banyan_check_options options = BANYAN_CHECK_OPTIONS_INIT;
    options.max_findings = 0;
    CHECK_FAILS(banyan_plan_check(plan, &options, &report), BANYAN_ERR_INVALID, "0 findings");
    options.max_findings = 1;
    uint64_t size = 3;
    options.message_bytes = &size;
    options.message_count = 1;
    CHECK_FAILS(banyan_plan_check(plan, &options, &report), BANYAN_ERR_INVALID, "3 bytes");
    options.message_bytes = NULL;
    options.max_memory_bytes = 1;
    CHECK_FAILS(banyan_plan_check(plan, &options, &report), BANYAN_ERR_NO_MEMORY, "1 bytes");
    CHECK(!report);
    banyan_plan *large;
    CHECK_OK(plan_clone(plan, &large));
    large->ranks[0].chunks[PLAN_SCRATCH] = UINT64_C(1) << 40;
    CHECK_FAILS(banyan_plan_check(large, NULL, &report), BANYAN_ERR_UNSUPPORTED, "1099511627776");
    banyan_plan_destroy(large);
    banyan_plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_ranks_that_wait_first_wait_for_ever),
        cmocka_unit_test(a_wait_that_nobody_signals_is_reported),
        cmocka_unit_test(a_semaphore_that_is_released_too_seldom_is_a_deadlock),
        cmocka_unit_test(a_semaphore_that_runs_dry_after_many_runs_is_a_deadlock),
        cmocka_unit_test(waits_that_leave_signals_over_order_nothing_in_the_end),
        cmocka_unit_test(a_barrier_behind_a_semaphore_of_its_member_is_a_deadlock),
        cmocka_unit_test(packets_that_nobody_writes_are_waited_for_in_vain),
        cmocka_unit_test(two_operations_without_a_nop_between_them_race),
        cmocka_unit_test(two_thread_blocks_need_a_barrier_or_a_semaphore),
        cmocka_unit_test(an_acquire_is_after_a_release_only_if_it_could_not_do_without),
        cmocka_unit_test(credits_that_are_there_at_first_order_nothing),
        cmocka_unit_test(a_put_lands_in_any_order_with_the_ports_other_puts),
        cmocka_unit_test(a_reduction_in_place_is_no_race_with_itself),
        cmocka_unit_test(a_put_has_to_be_waited_for),
        cmocka_unit_test(a_relaxed_signal_does_not_publish_writes),
        cmocka_unit_test(a_relaxed_signal_orders_reads),
        cmocka_unit_test(a_signal_needs_a_nop_before_it_to_cover_all_threads),
        cmocka_unit_test(without_an_opening_wait_the_next_run_collides),
        cmocka_unit_test(packets_need_two_halves_of_scratch),
        cmocka_unit_test(packets_that_answer_packets_free_their_room),
        cmocka_unit_test(a_port_reads_its_source_until_it_is_flushed),
        cmocka_unit_test(a_port_signal_before_the_put_does_not_order_it),
        cmocka_unit_test(a_wrong_source_is_explained_by_its_history),
        cmocka_unit_test(a_sum_counts_how_often_and_a_maximum_does_not),
        cmocka_unit_test(a_report_says_that_outputs_were_not_checked),
        cmocka_unit_test(an_output_that_nobody_writes_is_found),
        cmocka_unit_test(scratch_that_nobody_wrote_must_not_be_read),
        cmocka_unit_test(an_input_is_left_alone_unless_the_plan_is_in_place),
        cmocka_unit_test(sent_bytes_that_nobody_reads_are_a_warning),
        cmocka_unit_test(a_link_that_carries_twice_the_bytes_of_another_is_a_warning),
        cmocka_unit_test(findings_are_the_same_each_time),
        cmocka_unit_test(plans_that_cannot_be_checked_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
