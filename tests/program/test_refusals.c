/* Programs that cannot be begun, and those whose errors only compile can detect. */
#include "program/passes.h"

/* The line of the wrong call. */
static int wrong_line;
#define WRONG(call) (wrong_line = __LINE__, (call))

static void check_compile_fails(banyan_program *program, const char *const parts[])
{
    banyan_plan *plan;
    CHECK_FAILS(banyan_program_compile(program, &plan), BANYAN_ERR_INVALID, parts[0]);
    for (int i = 1; parts[i]; i++)
        CHECK(strstr(banyan_last_error(), parts[i]), "\"%s\" is not in: %s", parts[i],
              banyan_last_error());
    banyan_program_destroy(program);
}

static void a_loop_needs_an_end(void **state)
{
    (void)state;
    char place[64];
    banyan_program *program = program_begin(1, 1, NULL);
    WRONG(banyan_program_loop_begin(program, 64, 1));
    snprintf(place, sizeof place, "test_refusals.c:%d has no end", wrong_line);
    check_compile_fails(program, (const char *const[]){place, NULL});
}

static void signals_without_waits_are_refused(void **state)
{
    (void)state;
    banyan_program *program = program_begin(3, 1, NULL);
    banyan_program_memory_channel *there = banyan_program_memory_channel_create(program, 2, 0);
    banyan_program_memory_channel *back = banyan_program_memory_channel_create(program, 0, 2);
    for (int i = 0; i < 3; i++)
        banyan_program_memory_signal(there, 0, BANYAN_SYNC_BOTH);
    banyan_program_memory_wait(back, 0, BANYAN_SYNC_BOTH);
    banyan_program_memory_wait_relaxed(back, 1, BANYAN_SYNC_BOTH);
    check_compile_fails(program, (const char *const[]){"program \"", "memory channels",
                                                       "rank 0 signals rank 2 3 times",
                                                       "rank 2 waits for it 2 times", NULL});
}

static void waits_without_signals_are_refused(void **state)
{
    (void)state;
    banyan_program *program = program_begin(2, 1, NULL);
    banyan_program_port_channel *there = banyan_program_port_channel_create(program, 1, 0);
    banyan_program_port_channel *back = banyan_program_port_channel_create(program, 0, 1);
    banyan_program_port_put_with_signal(there, OUT(1, 0, 1), IN(0, 0, 1), 0);
    banyan_program_port_put_with_signal_and_flush(there, OUT(1, 0, 1), IN(0, 0, 1), 0);
    banyan_program_loop_begin(program, 64, 1);
    for (int i = 0; i < 3; i++)
        banyan_program_port_wait(back, 0, BANYAN_SYNC_BOTH);
    banyan_program_loop_end(program);
    check_compile_fails(program,
                        (const char *const[]){"port channels", "rank 0 signals rank 1 2 times",
                                              "rank 1 waits for it 3 times", NULL});
}

static void types_of_channels_do_not_pair_with_each_other(void **state)
{
    (void)state;
    banyan_program *program = program_begin(2, 1, NULL);
    banyan_program_memory_signal(banyan_program_memory_channel_create(program, 1, 0), 0,
                                 BANYAN_SYNC_BOTH);
    banyan_program_port_wait(banyan_program_port_channel_create(program, 0, 1), 0,
                             BANYAN_SYNC_BOTH);
    check_compile_fails(program, (const char *const[]){"rank 0 signals rank 1", NULL});
}

static void a_channel_without_another_end_is_refused(void **state)
{
    (void)state;
    banyan_plan *plan;
    banyan_program *program = program_begin(2, 1, NULL);
    banyan_program_memory_channel *back = banyan_program_memory_channel_create(program, 0, 1);
    banyan_program_memory_channel_create(program, 1, 0);
    banyan_program_memory_channel *second = banyan_program_memory_channel_create(program, 1, 0);
    banyan_program_memory_signal(second, 0, BANYAN_SYNC_BOTH);
    banyan_program_memory_wait(back, 0, BANYAN_SYNC_BOTH);
    CHECK_FAILS(banyan_program_compile(program, &plan), BANYAN_ERR_FORMAT,
                "memory channel 1 of rank 0");
    banyan_program_destroy(program);
}

static void check_create_fails(banyan_collective collective, int ranks,
                               const banyan_program_options *options, const char *part)
{
    banyan_program *program = NULL;
    CHECK_FAILS(banyan_program_create("none", &collective, ranks, options, &program),
                BANYAN_ERR_INVALID, part);
    assert_null(program);
}

static void impossible_programs_are_refused(void **state)
{
    (void)state;
    banyan_collective all = {.kind = BANYAN_ALLREDUCE};
    check_create_fails(all, 0, NULL, "0 ranks");
    check_create_fails(all, BANYAN_MAX_RANKS + 1, NULL, "1048577 ranks");
    check_create_fails((banyan_collective){.kind = (banyan_collective_kind)77}, 2, NULL,
                       "collective 77");
    check_create_fails((banyan_collective){.kind = BANYAN_ALLREDUCE, .chunk_factor = -1}, 2, NULL,
                       "factor is -1");
    check_create_fails((banyan_collective){.kind = BANYAN_REDUCE, .root = 2}, 2, NULL, "root 2");
    banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
    options.size = 0;
    check_create_fails(all, 2, &options, "BANYAN_PROGRAM_OPTIONS_INIT");
    options = (banyan_program_options)BANYAN_PROGRAM_OPTIONS_INIT;
    options.instances = 0;
    check_create_fails(all, 2, &options, "0 instances");
    options.instances = 1;
    options.threads_per_block = 0;
    check_create_fails(all, 2, &options, "0 threads");
    options.threads_per_block = 32;
    options.buffer_alignment = 0;
    check_create_fails(all, 2, &options, "alignment");
    options.buffer_alignment = 16;
    options.protocol = (banyan_protocol)5;
    check_create_fails(all, 2, &options, "protocol 5");
    options.protocol = BANYAN_SIMPLE;
    options.min_message_bytes = 9;
    options.max_message_bytes = 8;
    check_create_fails(all, 2, &options, "9 bytes");
    banyan_program *program = NULL;
    banyan_plan *plan = NULL;
    CHECK_FAILS(banyan_program_create("none", NULL, 2, NULL, &program), BANYAN_ERR_INVALID,
                "has no collective");
    CHECK_FAILS(banyan_program_compile(NULL, &plan), BANYAN_ERR_INVALID, "no program");
    assert_null(program);
    assert_null(plan);
}

static void impossible_results_are_refused(void **state)
{
    (void)state;
    banyan_contribution from = {1, 3};
    banyan_expected_chunk expected = {0, 1, &from, 1};
    banyan_collective custom = {.kind = BANYAN_CUSTOM,
                                .input_chunks = 4,
                                .output_chunks = 2,
                                .expected = &expected,
                                .expected_count = 1};
    banyan_program *program;
    CHECK_OK(banyan_program_create("right", &custom, 2, NULL, &program));
    banyan_program_destroy(program);
    expected.chunk = 2;
    check_create_fails(custom, 2, NULL, "output chunk 2");
    expected.chunk = 1;
    from.chunk = 4;
    check_create_fails(custom, 2, NULL, "input chunk 4");
    from.chunk = 3;
    from.rank = 2;
    check_create_fails(custom, 2, NULL, "rank 2's input");
    from.rank = 1;
    banyan_expected_chunk twice[] = {expected, expected};
    custom.expected = twice;
    custom.expected_count = 2;
    check_create_fails(custom, 2, NULL, "rank 0's output chunk 1 is given twice");
    custom.kind = BANYAN_ALLREDUCE;
    check_create_fails(custom, 2, NULL, "allreduce has a result of its own");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_loop_needs_an_end),
        cmocka_unit_test(signals_without_waits_are_refused),
        cmocka_unit_test(waits_without_signals_are_refused),
        cmocka_unit_test(types_of_channels_do_not_pair_with_each_other),
        cmocka_unit_test(a_channel_without_another_end_is_refused),
        cmocka_unit_test(impossible_programs_are_refused),
        cmocka_unit_test(impossible_results_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
