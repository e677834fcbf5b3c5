/* A trace of GPUs has the host's format: Chrome's JSON, with each operation and its times. */
#include <jansson.h>
#include <unistd.h>

#include "core/deadline.h"
#include "support/folder.h"
#include "support/gpu/gpu_stream.h"
#include "support/test.h"

#define RANKS 2
#define RUNS 5
#define BYTES 256
#define LATE_US 20000

/* Required accuracy of the comparison between the host's clock and a device's. */
#define CLOCK_US 200.0

static banyan_plan *meeting(void)
{
    banyan_plan *plan;
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    params.ranks = RANKS;
    CHECK_OK(banyan_algorithm_compile("allreduce_twoshot", &params, &plan));
    return plan;
}

struct traced {
    const char *path;
    uint64_t begin_ns;
};

/* Rank 0 begins each run late, so that the others wait for it. */
static void run_traced(banyan_world *world, void *context)
{
    const struct traced *traced = context;
    int rank = banyan_world_rank(world);
    banyan_executor_options options = BANYAN_EXECUTOR_OPTIONS_INIT;
    banyan_executor *executor;
    banyan_loaded_plan *loaded;
    void *buffer;
    DLDevice device = options.device = gpu_device_for(rank);
    CHECK_OK(banyan_executor_open(world, &options, &executor));
    void *stream = gpu_stream_create(device);
    CHECK_OK(gpu_memory()->alloc(device.device_id, 2 * BYTES, &buffer));
    gpu_fill(buffer, 0, 2 * BYTES);
    banyan_plan *plan = meeting();
    banyan_loaded_plan_options load = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    load.max_message_bytes = BYTES;
    CHECK_OK(banyan_loaded_plan_open(executor, plan, &load, &loaded));
    for (int run = -1; run < RUNS; run++) {
        if (run == 0)
            CHECK_OK(banyan_executor_trace_begin(executor)); /* the first run is not recorded */
        if (rank == 0)
            usleep(LATE_US);
        CHECK_OK(banyan_loaded_plan_run(loaded, buffer, (char *)buffer + BYTES, BYTES, BANYAN_F32,
                                        stream));
        gpu_stream_wait(device, stream);
    }
    CHECK_OK(banyan_executor_trace_write(executor, traced->path));
    CHECK_OK(
        banyan_loaded_plan_run(loaded, buffer, (char *)buffer + BYTES, BYTES, BANYAN_F32, stream));
    CHECK_OK(banyan_loaded_plan_close(loaded));
    gpu_stream_destroy(device, stream);
    gpu_memory()->free(device.device_id, buffer);
    banyan_plan_destroy(plan);
    banyan_executor_close(executor);
}

struct counts {
    int signals, waits;
    double waited_us;
};

static void check_event(const json_t *event, const struct traced *traced, struct counts *of)
{
    const char *name = json_string_value(json_object_get(event, "name"));
    const json_t *args = json_object_get(event, "args");
    double begin_us = json_number_value(json_object_get(event, "ts"));
    double took_us = json_number_value(json_object_get(event, "dur"));
    double waited_us = json_number_value(json_object_get(args, "waited_us"));
    assert_true(begin_us >= (double)traced->begin_ns / 1e3 - CLOCK_US);
    assert_true(begin_us + took_us <= (double)time_now_ns() / 1e3 + CLOCK_US);
    assert_true(took_us >= 0 && waited_us >= 0 && waited_us <= took_us + CLOCK_US);
    of->signals += strstr(name, "signal") != NULL;
    of->waits += strstr(name, "wait") != NULL;
    of->waited_us += waited_us;
}

static void a_trace_has_the_operations_of_all_gpus(void **state)
{
    char *path = folder_path(*state, "trace.json");
    struct traced traced = {.path = path, .begin_ns = time_now_ns()};
    ranks_run(RANKS, run_traced, &traced);
    struct counts counts[RANKS] = {0};
    json_error_t error;
    json_t *root = json_load_file(path, 0, &error), *event;
    if (!root)
        fail_msg("%s: line %d: %s", path, error.line, error.text);
    size_t i;
    json_array_foreach(json_object_get(root, "traceEvents"), i, event)
    {
        int rank = (int)json_integer_value(json_object_get(event, "pid"));
        assert_in_range(rank, 0, RANKS - 1);
        if (strcmp(json_string_value(json_object_get(event, "ph")), "X") == 0)
            check_event(event, &traced, &counts[rank]);
    }
    json_decref(root);
    free(path);
    for (int r = 0; r < RANKS; r++) {
        assert_true(counts[r].signals > 0 && counts[r].signals % RUNS == 0);
        assert_true(counts[r].waits > 0 && counts[r].waits % RUNS == 0);
    }
    assert_true(counts[1].waited_us > RUNS * LATE_US / 2);
}

int main(void)
{
    gpu_count();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_trace_has_the_operations_of_all_gpus, folder_setup,
                                        folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
