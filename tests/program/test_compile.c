/* The work of compile as a whole: its passes, each of which can be disabled, and the plan's
 * header. */
#include "program/passes.h"

#include <time.h>

enum { MOST_PASSES = 8 };

typedef struct pass_log {
    const char *names[MOST_PASSES];
    uint64_t operations[MOST_PASSES];
    int count;
} pass_log;

static void log_pass(void *context, const char *pass, const banyan_plan *plan)
{
    pass_log *log = context;
    CHECK(log->count < MOST_PASSES, "pass %s is one too many", pass);
    log->names[log->count] = pass;
    log->operations[log->count++] = banyan_plan_describe(plan).operations;
}

/* Work for every pass: on rank 0, with its counterpart on rank 1. */
static void write(banyan_program *program)
{
    banyan_program_port_channel *to = banyan_program_port_channel_create(program, 1, 0);
    banyan_program_port_channel *from = banyan_program_port_channel_create(program, 0, 1);
    banyan_program_port_put(to, OUT(1, 0, 1), IN(0, 0, 1), 0);
    banyan_program_port_signal(to, 0, BANYAN_SYNC_BEFORE);
    banyan_program_port_flush(to, 0, BANYAN_SYNC_NONE);
    banyan_program_copy(program, 0, IN(0, 0, 1), IN(0, 1, 2), BANYAN_TB(0));
    banyan_program_copy(program, 0, OUT(0, 1, 2), IN(0, 0, 1), BANYAN_TB(0));
    banyan_program_port_wait(from, 0, BANYAN_SYNC_AFTER);
}

static banyan_plan *compile_with(banyan_program_options options, pass_log *log)
{
    banyan_plan *plan;
    options.dump = log_pass;
    options.dump_context = log;
    banyan_program *program = program_begin(2, 2, &options);
    write(program);
    CHECK_OK(banyan_program_compile(program, &plan));
    banyan_program_destroy(program);
    return plan;
}

static void check_log(const pass_log *log, const char *const *names, const uint64_t *operations,
                      int count)
{
    CHECK(log->count == count, "%d passes", log->count);
    for (int i = 0; i < count; i++) {
        CHECK(strcmp(log->names[i], names[i]) == 0, "pass %d is %s", i, log->names[i]);
        CHECK(log->operations[i] == operations[i], "%" PRIu64 " operations after %s",
              log->operations[i], log->names[i]);
    }
}

static void every_pass_is_dumped(void **state)
{
    (void)state;
    banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
    options.fuse_more = true;
    options.instances = 2;
    pass_log log = {0};
    banyan_plan *plan = compile_with(options, &log);
    const char *const names[] = {"program",      "more", "fuse",     "sync",
                                 "dependencies", "idle", "instances"};
    const uint64_t operations[] = {6, 4, 4, 6, 8, 6, 12};
    check_log(&log, names, operations, 7);
    check_block(plan, 0, 1,
                "pwsf port i[1] -> o[1]@1 by channel 1 to 1\nnop\ncopy i[3] -> i[1]\nnop\n"
                "copy i[1] -> o[3]");
    banyan_plan_destroy(plan);
}

static void passes_that_are_off_do_nothing(void **state)
{
    (void)state;
    banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
    options.fuse = false;
    options.requested_sync = false;
    options.auto_sync = false;
    pass_log log = {0};
    banyan_plan *plan = compile_with(options, &log);
    check_log(&log, (const char *const[]){"program"}, (const uint64_t[]){6}, 1);
    check_block(plan, 0, 0,
                "put port i[0] -> o[0]@1 by channel 0 to 1\nsignal port channel 0 to 1\n"
                "flush port channel 0 to 1\ncopy i[1] -> i[0]\ncopy i[0] -> o[1]");
    banyan_plan_destroy(plan);
}

static void each_pass_can_be_switched_off(void **state)
{
    (void)state;
    banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
    pass_log without_fusion = {0}, without_requests = {0}, without_dependencies = {0};
    options.fuse = false;
    banyan_plan_destroy(compile_with(options, &without_fusion));
    check_log(&without_fusion, (const char *const[]){"program", "sync", "dependencies"},
              (const uint64_t[]){6, 8, 9}, 3);
    options.fuse = true;
    options.requested_sync = false;
    banyan_plan_destroy(compile_with(options, &without_requests));
    check_log(&without_requests, (const char *const[]){"program", "fuse", "dependencies"},
              (const uint64_t[]){6, 6, 8}, 3);
    options.requested_sync = true;
    options.auto_sync = false;
    banyan_plan_destroy(compile_with(options, &without_dependencies));
    check_log(&without_dependencies, (const char *const[]){"program", "fuse", "sync"},
              (const uint64_t[]){6, 6, 8}, 3);
}

static void a_program_is_not_changed_by_compiling(void **state)
{
    (void)state;
    banyan_plan *first, *second;
    banyan_program *program = program_begin(2, 2, NULL);
    write(program);
    CHECK_OK(banyan_program_compile(program, &first));
    CHECK_OK(banyan_program_compile(program, &second));
    check_same(first, second);
    banyan_program_copy(program, 1, OUT(1, 1, 2), IN(1, 0, 1), BANYAN_TB(3));
    banyan_plan_destroy(second);
    CHECK_OK(banyan_program_compile(program, &second));
    assert_int_equal(second->ranks[0].block_count, 1);
    assert_int_equal(second->ranks[1].block_count, 4);
    check_block(second, 1, 3, "copy i[0] -> o[1]");
    banyan_plan_destroy(first);
    banyan_plan_destroy(second);
    banyan_program_destroy(program);
}

static void a_plan_outlives_its_program(void **state)
{
    (void)state;
    char name[] = "ephemeral", key[] = "machine", value[] = "h200";
    banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
    options.protocol = BANYAN_LL;
    options.reuse_resources = true;
    options.reused_scratch_bytes = 1 << 20;
    options.threads_per_block = 256;
    options.double_scratch = true;
    options.buffer_alignment = 64;
    options.min_message_bytes = 1;
    options.max_message_bytes = 4096;
    banyan_collective broadcast = {.kind = BANYAN_BROADCAST, .chunk_factor = 2, .root = 1};
    banyan_program *program;
    banyan_plan *plan;
    CHECK_OK(banyan_program_create(name, &broadcast, 2, &options, &program));
    banyan_program_tag(program, key, "other");
    banyan_program_tag(program, key, value);
    banyan_program_tag(program, "author", NULL);
    CHECK_OK(banyan_program_compile(program, &plan));
    memset(name, 'x', sizeof name - 1);
    memset(value, 'x', sizeof value - 1);
    banyan_program_destroy(program);
    banyan_plan_info info = banyan_plan_describe(plan);
    assert_string_equal(info.name, "ephemeral");
    assert_string_equal(info.collective_name, "broadcast");
    assert_int_equal(info.root, 1);
    assert_int_equal(info.protocol, BANYAN_LL);
    assert_true(info.reuse_resources && info.double_scratch && !info.in_place);
    assert_int_equal(plan->reused_scratch_bytes, 1 << 20);
    assert_int_equal(info.threads_per_block, 256);
    assert_int_equal(info.buffer_alignment, 64);
    assert_int_equal(info.max_message_bytes, 4096);
    assert_string_equal(banyan_plan_tag(plan, "machine"), "h200");
    assert_string_equal(banyan_plan_tag(plan, "author"), "");
    assert_null(banyan_plan_tag_key(plan, 2));
    banyan_plan_destroy(plan);
}

typedef struct buffer_case {
    banyan_collective_kind kind;
    uint64_t input, output;
} buffer_case;

static void collectives_have_their_buffers(void **state)
{
    (void)state;
    const buffer_case cases[] = {
        {BANYAN_ALLREDUCE, 12, 12}, {BANYAN_ALLGATHER, 3, 12}, {BANYAN_REDUCESCATTER, 12, 3},
        {BANYAN_ALLTOALL, 12, 12},  {BANYAN_SENDRECV, 3, 3},   {BANYAN_BROADCAST, 3, 3},
        {BANYAN_REDUCE, 3, 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        banyan_collective collective = {.kind = cases[i].kind, .chunk_factor = 3};
        banyan_program *program;
        banyan_plan *plan;
        CHECK_OK(banyan_program_create("sizes", &collective, 4, NULL, &program));
        banyan_chunk input = banyan_program_input(program, 3, 0, cases[i].input);
        banyan_chunk output = banyan_program_output(program, 3, 0, cases[i].output);
        assert_int_equal(input.size, cases[i].input);
        assert_int_equal(output.size, cases[i].output);
        CHECK_OK(banyan_program_compile(program, &plan));
        assert_int_equal(plan->ranks[2].chunks[PLAN_INPUT], cases[i].input);
        assert_int_equal(plan->ranks[2].chunks[PLAN_OUTPUT], cases[i].output);
        banyan_plan_destroy(plan);
        banyan_program_destroy(program);
    }
}

static void scratch_grows_as_it_is_taken(void **state)
{
    (void)state;
    banyan_program *program = program_begin(2, 4, NULL);
    banyan_chunk first = banyan_program_scratch(program, 1, 3),
                 second = banyan_program_scratch(program, 1, 2);
    banyan_chunk part = banyan_program_slice(program, second, 1, 2);
    assert_int_equal(first.index, 0);
    assert_int_equal(second.index, 3);
    assert_int_equal(part.index, 4);
    assert_int_equal(part.size, 1);
    assert_int_equal(part.rank, 1);
    banyan_plan *plan;
    CHECK_OK(banyan_program_compile(program, &plan));
    assert_int_equal(plan->ranks[0].chunks[PLAN_SCRATCH], 0);
    assert_int_equal(plan->ranks[1].chunks[PLAN_SCRATCH], 5);
    banyan_plan_destroy(plan);
    banyan_program_destroy(program);
}

/* A long run is joined in linear time and memory. */
static void ten_thousand_puts_are_one(void **state)
{
    (void)state;
    enum { PUTS = 10000 };
    banyan_program *program = program_begin(2, PUTS, NULL);
    banyan_program_memory_channel *channel = banyan_program_memory_channel_create(program, 1, 0);
    for (uint64_t i = 0; i < PUTS; i++)
        banyan_program_memory_put(channel, OUT(1, i, i + 1), IN(0, i, i + 1), BANYAN_TB(0));
    banyan_plan *plan;
    CHECK_OK(banyan_program_compile(program, &plan));
    assert_int_equal(plan->ranks[0].blocks[0].op_count, 1);
    assert_int_equal(plan->ranks[0].blocks[0].ops[0].source_count, PUTS);
    banyan_plan_destroy(plan);
    banyan_program_destroy(program);
}

/* Rank 0 signals ranks 1 to 3 this many times each, from one thread block; each waits once. */
static banyan_status compile_signals(const int *times)
{
    banyan_program *program = program_begin(4, 1, NULL);
    banyan_plan *plan = NULL;
    for (int r = 1; r < 4; r++) {
        banyan_program_memory_channel *to = banyan_program_memory_channel_create(program, r, 0);
        banyan_program_memory_channel *from = banyan_program_memory_channel_create(program, 0, r);
        for (int i = 0; i < times[r - 1]; i++)
            banyan_program_memory_signal(to, 0, BANYAN_SYNC_NONE);
        banyan_program_memory_wait(from, 0, BANYAN_SYNC_NONE);
    }
    banyan_status status = banyan_program_compile(program, &plan);
    banyan_plan_destroy(plan);
    banyan_program_destroy(program);
    return status;
}

static void signals_pair_up_between_the_same_two_ranks(void **state)
{
    (void)state;
    CHECK_OK(compile_signals((const int[]){1, 1, 1}));
    CHECK_FAILS(compile_signals((const int[]){1, 2, 0}), BANYAN_ERR_INVALID,
                "rank 0 signals rank 2 2 times, but rank 2 waits for it 1 times");
    CHECK_FAILS(compile_signals((const int[]){1, 1, 0}), BANYAN_ERR_INVALID,
                "rank 0 signals rank 3 0 times, but rank 3 waits for it 1 times");
}

/* Checking took ranks × ranks: more than half a minute. */
static void as_many_ranks_as_there_may_be_are_compiled_soon(void **state)
{
    (void)state;
    banyan_program *program = program_begin(BANYAN_MAX_RANKS, 1, NULL);
    banyan_plan *plan;
    struct timespec began, ended;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &began);
    CHECK_OK(banyan_program_compile(program, &plan));
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ended);
    CHECK(ended.tv_sec - began.tv_sec < 3 * TEST_SLOWER, "%ld s",
          (long)(ended.tv_sec - began.tv_sec));
    CHECK(banyan_plan_describe(plan).ranks == BANYAN_MAX_RANKS);
    banyan_plan_destroy(plan);
    banyan_program_destroy(program);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pass_is_dumped),
        cmocka_unit_test(passes_that_are_off_do_nothing),
        cmocka_unit_test(each_pass_can_be_switched_off),
        cmocka_unit_test(a_program_is_not_changed_by_compiling),
        cmocka_unit_test(a_plan_outlives_its_program),
        cmocka_unit_test(collectives_have_their_buffers),
        cmocka_unit_test(scratch_grows_as_it_is_taken),
        cmocka_unit_test(ten_thousand_puts_are_one),
        cmocka_unit_test(signals_pair_up_between_the_same_two_ranks),
        cmocka_unit_test(as_many_ranks_as_there_may_be_are_compiled_soon),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
