/* A trace is Chrome's JSON, with each operation of every rank and its times. */
#include <jansson.h>

#include "support/folder.h"
#include "support/test.h"

#include "core/deadline.h"

#define RANKS 3
#define RUNS 4

/* Rank 0 lets the others wait, and every rank copies its data. */
static banyan_plan *late_plan(void)
{
    banyan_collective collective = {
        .kind = BANYAN_CUSTOM, .input_chunks = 1, .output_chunks = RANKS};
    banyan_program *program;
    banyan_plan *plan;
    CHECK_OK(banyan_program_create("late", &collective, RANKS, NULL, &program));
    for (int r = 1; r < RANKS; r++) {
        banyan_program_memory_channel *to = banyan_program_memory_channel_create(program, r, 0);
        banyan_program_memory_channel *from = banyan_program_memory_channel_create(program, 0, r);
        banyan_program_memory_signal(to, 0, BANYAN_SYNC_NONE);
        banyan_program_memory_wait(from, 0, BANYAN_SYNC_NONE);
        banyan_program_copy(program, r, banyan_program_output(program, r, 0, 1),
                            banyan_program_input(program, r, 0, 1), BANYAN_TB(1));
    }
    CHECK_OK(banyan_program_compile(program, &plan));
    banyan_program_destroy(program);
    return plan;
}

struct traced {
    const char *path;
    int workers;
    uint64_t begin_ns;
};

static void run_traced(banyan_world *world, void *context)
{
    const struct traced *traced = context;
    banyan_executor_options options = BANYAN_EXECUTOR_OPTIONS_INIT;
    banyan_executor *executor;
    banyan_loaded_plan *loaded;
    options.workers = traced->workers;
    CHECK_OK(banyan_executor_open(world, &options, &executor));
    banyan_plan *plan = late_plan();
    banyan_loaded_plan_options load = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    load.max_message_bytes = 64;
    CHECK_OK(banyan_loaded_plan_open(executor, plan, &load, &loaded));
    char input[64] = {1}, output[RANKS * 64];
    CHECK_OK(banyan_loaded_plan_run(loaded, input, output, 64, BANYAN_U8, NULL)); /* not recorded */
    CHECK_OK(banyan_executor_trace_begin(executor));
    for (int run = 0; run < RUNS; run++) {
        if (banyan_world_rank(world) == 0)
            usleep(20000);
        CHECK_OK(banyan_loaded_plan_run(loaded, input, output, 64, BANYAN_U8, NULL));
    }
    CHECK_OK(banyan_executor_trace_write(executor, traced->path));
    CHECK_OK(banyan_loaded_plan_run(loaded, input, output, 64, BANYAN_U8, NULL));
    CHECK_OK(banyan_loaded_plan_close(loaded));
    banyan_plan_destroy(plan);
    banyan_executor_close(executor);
}

struct counts {
    int signals, waits, copies;
    double waited_us;
};

static void check_event(const json_t *event, const struct traced *traced, struct counts *of)
{
    const char *name = json_string_value(json_object_get(event, "name"));
    const json_t *args = json_object_get(event, "args");
    double begin_us = json_number_value(json_object_get(event, "ts"));
    double took_us = json_number_value(json_object_get(event, "dur"));
    double waited_us = json_number_value(json_object_get(args, "waited_us"));
    assert_true(begin_us * 1e3 >= (double)traced->begin_ns - 1e3);
    assert_true((begin_us + took_us) * 1e3 <= (double)time_now_ns() + 1e3);
    assert_true(waited_us >= 0 && waited_us <= took_us + 1e-3);
    of->signals += strcmp(name, "signal") == 0;
    of->waits += strcmp(name, "wait") == 0;
    of->copies += strcmp(name, "copy") == 0;
    of->waited_us += waited_us;
    if (strcmp(name, "wait") == 0)
        assert_int_equal(json_integer_value(json_object_get(args, "peer")), 0);
}

static void check_trace(const struct traced *traced)
{
    struct counts counts[RANKS] = {0};
    int named = 0;
    json_error_t error;
    json_t *root = json_load_file(traced->path, 0, &error), *event;
    if (!root)
        fail_msg("%s: line %d: %s", traced->path, error.line, error.text);
    size_t i;
    json_array_foreach(json_object_get(root, "traceEvents"), i, event)
    {
        int rank = (int)json_integer_value(json_object_get(event, "pid"));
        assert_in_range(rank, 0, RANKS - 1);
        if (strcmp(json_string_value(json_object_get(event, "ph")), "M") == 0)
            named++;
        else
            check_event(event, traced, &counts[rank]);
    }
    json_decref(root);
    assert_int_equal(named, RANKS);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(counts[r].waits, r == 0 ? 0 : RUNS);
        assert_int_equal(counts[r].copies, r == 0 ? 0 : RUNS);
        /* Rank 0's sleep is mostly a wait of the others. */
        assert_true(r == 0 || counts[r].waited_us > RUNS * 20000 / 2);
    }
    assert_true(counts[0].signals > 0);
}

static void a_trace_has_every_operation(void **state)
{
    for (int workers = 1; workers <= 2; workers++) {
        char *path = folder_path(*state, workers == 1 ? "one.json" : "two.json");
        struct traced traced = {path, workers, time_now_ns()};
        ranks_run(RANKS, run_traced, &traced);
        check_trace(&traced);
        assert_int_equal(folder_entries(*state), workers);
        free(path);
    }
}

static void write_nowhere(banyan_world *world, void *context)
{
    (void)context;
    banyan_executor *executor;
    CHECK_OK(banyan_executor_open(world, NULL, &executor));
    CHECK_OK(banyan_executor_trace_begin(executor));
    CHECK_FAILS(banyan_executor_trace_write(executor, "/nonexistent/trace.json"),
                BANYAN_ERR_NOT_FOUND, "/nonexistent");
    CHECK_FAILS(banyan_executor_trace_write(executor, "/nonexistent/trace.json"),
                BANYAN_ERR_NOT_FOUND, "/nonexistent");
    banyan_executor_close(executor);
}

static void everybody_hears_that_a_trace_was_not_written(void **state)
{
    (void)state;
    ranks_run(2, write_nowhere, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_trace_has_every_operation, folder_setup, folder_teardown),
        cmocka_unit_test(everybody_hears_that_a_trace_was_not_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
