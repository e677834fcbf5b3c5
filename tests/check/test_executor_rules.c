/* Plans that are sound here and not on MSCCL++'s executor, one for each rule. */
#include "check/two_ranks.h"
#include "plan/plan.h"

#define IN LOCAL_CHUNK("i", 0)
#define OUT LOCAL_CHUNK("o", 0)
#define SLOT LOCAL_CHUNK("s", 0)
#define THEIR_SLOT REMOTE_CHUNK(2, 0)
#define SWAPPED "[[[[1,0]]],[[[0,0]]]]"
/* Both ranks begin, put into the other's slot, and signal. */
#define SEND EXCHANGE_RELAXED "," PUT(IN, THEIR_SLOT) "," EXCHANGE

static banyan_check_report *executor_report(const banyan_plan *plan)
{
    banyan_check_options options = BANYAN_CHECK_OPTIONS_INIT;
    banyan_check_report *report;
    options.executor = BANYAN_EXECUTOR_MSCCLPP;
    options.warnings = false;
    CHECK_OK(banyan_plan_check(plan, &options, &report));
    return report;
}

/* The plan breaks a rule of the executor; a finding has this text. */
static void plan_must_break(banyan_plan *plan, const char *part)
{
    banyan_check_report *report = executor_report(plan);
    bool found = false;
    for (size_t i = 0; i < banyan_check_report_count(report); i++) {
        const banyan_check_finding *one = banyan_check_report_finding(report, i);
        found |= one->rule == BANYAN_CHECK_EXECUTOR && strstr(one->message, part);
    }
    char *text;
    CHECK_OK(banyan_check_report_print(report, "small", false, &text));
    CHECK(found, "\"%s\" is not among:\n%s", part, text);
    free(text);
    banyan_check_report_destroy(report);
    banyan_plan_destroy(plan);
}

static void must_break_there(const char *ops, const char *part)
{
    two_ranks made = {.ops = {{ops}, {ops}}};
    plan_must_break(plan_of(&made), part);
}

static void plan_must_be_sound(banyan_plan *plan, const char *limit)
{
    banyan_check_report *report = executor_report(plan);
    char *text;
    CHECK_OK(banyan_check_report_print(report, "small", false, &text));
    CHECK(banyan_check_report_is_sound(report), "%s", text);
    CHECK(strstr(banyan_check_report_limits(report), limit), "\"%s\" is not in: %s", limit,
          banyan_check_report_limits(report));
    free(text);
    banyan_check_report_destroy(report);
    banyan_plan_destroy(plan);
}

static void a_plan_within_the_rules_is_sound_for_whole_chunks(void **state)
{
    (void)state;
    const char *ops = SEND "," MOVE("copy", SLOT, OUT);
    two_ranks made = {.ops = {{ops}, {ops}}, .expected = SWAPPED};
    banyan_check_options options = BANYAN_CHECK_OPTIONS_INIT;
    banyan_check_report *report;
    uint64_t message = 24;
    banyan_plan *plan = plan_of(&made);
    options.executor = BANYAN_EXECUTOR_MSCCLPP;
    options.message_bytes = &message;
    options.message_count = 1;
    CHECK_FAILS(banyan_plan_check(plan, &options, &report), BANYAN_ERR_INVALID,
                "runs no message of 24 bytes: it must divide into 1 chunks of multiples of 16 "
                "bytes");
    message = 48;
    CHECK_OK(banyan_plan_check(plan, &options, &report));
    CHECK(banyan_check_report_is_sound(report));
    banyan_check_report_destroy(report);
    plan_must_be_sound(plan, "Messages of more than 2147483632 bytes");
}

static void an_unknown_executor_is_refused(void **state)
{
    (void)state;
    two_ranks made = {.ops = {{SEND}, {SEND}}};
    banyan_check_options options = BANYAN_CHECK_OPTIONS_INIT;
    banyan_check_report *report;
    banyan_plan_executor executor;
    banyan_plan *plan = plan_of(&made);
    options.executor = (banyan_plan_executor)7;
    CHECK_FAILS(banyan_plan_check(plan, &options, &report), BANYAN_ERR_INVALID, "executor 7");
    CHECK_FAILS(banyan_plan_executor_parse("nccl", &executor), BANYAN_ERR_NOT_FOUND, "\"nccl\"");
    banyan_plan_destroy(plan);
}

static void data_in_double_scratch_must_not_cross_a_channel(void **state)
{
    (void)state;
    const char *ops = PUT(IN, THEIR_SLOT) "," EXCHANGE "," MOVE("copy", SLOT, OUT);
    two_ranks made = {.ops = {{ops}, {ops}}, .expected = SWAPPED, .double_scratch = true};
    banyan_plan *plan = plan_of(&made);
    banyan_check_report *report;
    CHECK_OK(banyan_plan_check(plan, NULL, &report));
    CHECK(banyan_check_report_is_sound(report));
    banyan_check_report_destroy(report);
    plan_must_break(plan, "rank 0, thread block 0, operation 0 (put) moves data through a channel "
                          "and double scratch");
}

static void a_get_to_another_chunk_reads_the_wrong_one(void **state)
{
    (void)state;
    const char *ops = MOVE("copy", IN, LOCAL_CHUNK("s", 1)) "," EXCHANGE "," MOVE_BY(
        "get", "memory", REMOTE_CHUNK(2, 1), OUT) "," EXCHANGE;
    must_break_there(ops, "gets chunk 1 into chunk 0: the executor exchanges the two places");
}

#define PORT_PUTS                                                                                  \
    "{\"name\":\"put\",\"channel_type\":\"port\",\"channel_ids\":[0,0],\"src_buff\":[" IN "," IN   \
    "],\"dst_buff\":[" REMOTE_CHUNK(2, 0) "," REMOTE_CHUNK(2, 1) "]}"

static void posts_of_several_threads_need_a_nop_before_a_signal(void **state)
{
    (void)state;
    const char *without =
        EXCHANGE_RELAXED "," PORT_PUTS "," ON("signal", "port") "," ON("wait", "port") "," NOP;
    const char *with = EXCHANGE_RELAXED "," PORT_PUTS "," NOP
                                        "," ON("signal", "port") "," ON("wait", "port") "," NOP;
    must_break_there(without, "operation 5 (signal) posts to port channel 0 with thread 0, and "
                              "another thread has posted to it since the last nop");
    two_ranks made = {.ops = {{with}, {with}}};
    banyan_plan *plan = plan_of(&made);
    banyan_check_report *report = executor_report(plan);
    banyan_plan_destroy(plan);
    for (size_t i = 0; i < banyan_check_report_count(report); i++)
        CHECK(banyan_check_report_finding(report, i)->rule != BANYAN_CHECK_EXECUTOR);
    banyan_check_report_destroy(report);
}

static void a_flush_does_nothing(void **state)
{
    (void)state;
    const char *ops = EXCHANGE_RELAXED "," MOVE_BY("pws", "port", IN, REMOTE_CHUNK(1, 0)) "," ON(
        "flush", "port") "," ON("wait", "port") "," NOP;
    two_ranks made = {.ops = {{ops}, {ops}}, .expected = SWAPPED};
    must_be_sound(&made);
    banyan_plan *plan = plan_of(&made), *adapted;
    banyan_check_report *report = executor_report(plan);
    finding_of(report, BANYAN_CHECK_REUSE);
    CHECK(strstr(banyan_check_report_limits(report), "2 flushes, which do nothing"));
    banyan_check_report_destroy(report);
    CHECK_OK(banyan_plan_adapt(plan, BANYAN_EXECUTOR_MSCCLPP, &adapted));
    plan_must_be_sound(adapted, "must begin where their allocations begin");
    banyan_plan_destroy(plan);
}

static void packets_need_their_protocol_and_scratch_of_their_own(void **state)
{
    (void)state;
    const char *packets = MOVE("cpkt", IN, SLOT) "," MOVE("upkt", SLOT, OUT);
    const char *mixed = MOVE("cpkt", IN, SLOT) "," MOVE("upkt", SLOT, OUT) "," NOP "," MOVE(
        "copy", IN, LOCAL_CHUNK("s", 1));
    must_break_there(packets, "has packets, and its protocol is Simple");
    must_break_there(mixed, "has packets in scratch chunks up to 1 and other data from chunk 1 on");
}

static void packets_cannot_be_put_by_a_port(void **state)
{
    (void)state;
    must_break_there(MOVE_BY("ppkt", "port", IN, THEIR_SLOT) "," MOVE("upkt", SLOT, OUT),
                     "puts packets by a port channel");
}

static void reductions_always_add(void **state)
{
    (void)state;
    must_break_there("{\"name\":\"re\",\"reduce_op\":\"max\",\"src_buff\":[" IN "," IN
                     "],\"dst_buff\":[" OUT "]}",
                     "reduces by max: the executor always adds");
}

static void puts_of_one_operation_begin_in_one_buffer(void **state)
{
    (void)state;
    must_break_there(EXCHANGE_RELAXED
                     ",{\"name\":\"put\",\"channel_type\":\"memory\",\"src_buff\":[" IN "," OUT
                     "],\"dst_buff\":[" REMOTE_CHUNK(2, 0) "," REMOTE_CHUNK(2, 1) "]}," EXCHANGE,
                     "puts from the input and from the output");
}

#define LOOP(ops)                                                                                  \
    "{\"name\":\"pipeline\",\"iter_context\":{\"unit_size\":32,\"num_chunks\":2},\"ops\":[" ops "]}"

static void operations_of_a_loop_move_all_its_chunks_and_no_packets(void **state)
{
    (void)state;
    must_break_there(LOOP(MOVE("copy", IN, OUT)),
                     "operation 0.0 (copy) moves 1 chunks in a loop over 2");
    must_break_there(LOOP(MOVE("cpkt", IN, SLOT)), "has packets in a loop");
}

static void a_semaphore_has_one_acquiring_block(void **state)
{
    (void)state;
    two_ranks made = {.ops = {{SEMAPHORE("sem_acquire", 1), SEMAPHORE("sem_acquire", 1)}}};
    plan_must_break(plan_of(&made), "acquires semaphore 1, as thread block 0 does");
}

static void a_rank_without_blocks_or_chunks_is_refused(void **state)
{
    (void)state;
    two_ranks made = {.ops = {{NOP}}};
    plan_must_break(plan_of(&made), "rank 1 has no thread block");
    made.ops[1][0] = NOP;
    banyan_plan *plan = plan_of(&made);
    plan->ranks[1].chunks[PLAN_OUTPUT] = 0;
    plan_must_break(plan, "rank 1 has 1 input and 0 output chunks: the executor divides by both");
}

/* Repeat the block's first operation. */
static void repeat_op(banyan_plan *plan, plan_thread_block *block, uint32_t times)
{
    plan_op *ops = plan_take(plan, times, sizeof *ops);
    for (uint32_t i = 0; i < times; i++)
        ops[i] = block->ops[0];
    block->ops = ops;
    block->op_count = times;
}

static void arrays_of_fixed_length_bound_a_plan(void **state)
{
    (void)state;
    two_ranks made = {.ops = {{NOP}, {NOP}}};
    banyan_plan *plan = plan_of(&made);
    repeat_op(plan, &plan->ranks[1].blocks[0], 65);
    plan_must_break(plan, "rank 1, thread block 0 has 65 operations, with those in loops: at most "
                          "64 are possible");
    two_ranks signals = {.ops = {{SIGNAL}, {WAIT}}};
    plan = plan_of(&signals);
    for (int r = 0; r < 2; r++) {
        plan_op *op = &plan->ranks[r].blocks[0].ops[0];
        op->channels = plan_take(plan, 9, sizeof *op->channels);
        op->channel_count = 9;
    }
    plan_must_break(plan, "operation 0 (signal) has 9 channels: at most 8 are possible");
    plan = plan_of(&signals);
    plan->ranks[0].blocks[0].channels[PLAN_MEMORY] =
        plan_take(plan, 17, sizeof *plan->ranks[0].blocks[0].channels[PLAN_MEMORY]);
    plan->ranks[0].blocks[0].channel_count[PLAN_MEMORY] = 17;
    plan_must_break(plan, "has 17 memory channels: at most 16 are possible");
}

static void halves_of_scratch_must_begin_aligned(void **state)
{
    (void)state;
    const char *ops = MOVE("cpkt", IN, SLOT) "," MOVE("upkt", SLOT, OUT);
    two_ranks made = {.ops = {{ops}, {ops}}, .double_scratch = true};
    banyan_plan *plan = plan_of(&made);
    plan->protocol = BANYAN_LL;
    plan->ranks[0].chunks[PLAN_INPUT] = plan->ranks[0].chunks[PLAN_OUTPUT] = 3;
    plan_must_break(plan, "has double scratch and aligns to 16 bytes");
    plan = plan_of(&made);
    plan->buffer_alignment = 8;
    plan_must_break(plan, "aligns to 8 bytes");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_within_the_rules_is_sound_for_whole_chunks),
        cmocka_unit_test(an_unknown_executor_is_refused),
        cmocka_unit_test(data_in_double_scratch_must_not_cross_a_channel),
        cmocka_unit_test(a_get_to_another_chunk_reads_the_wrong_one),
        cmocka_unit_test(posts_of_several_threads_need_a_nop_before_a_signal),
        cmocka_unit_test(a_flush_does_nothing),
        cmocka_unit_test(packets_need_their_protocol_and_scratch_of_their_own),
        cmocka_unit_test(packets_cannot_be_put_by_a_port),
        cmocka_unit_test(reductions_always_add),
        cmocka_unit_test(puts_of_one_operation_begin_in_one_buffer),
        cmocka_unit_test(operations_of_a_loop_move_all_its_chunks_and_no_packets),
        cmocka_unit_test(a_semaphore_has_one_acquiring_block),
        cmocka_unit_test(a_rank_without_blocks_or_chunks_is_refused),
        cmocka_unit_test(arrays_of_fixed_length_bound_a_plan),
        cmocka_unit_test(halves_of_scratch_must_begin_aligned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
