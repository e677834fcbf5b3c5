/* Results of a simulation of any plan: that it ends, the flows, and the cause of its end. */
#include "simulate/star.h"

#include <dirent.h>
#include <inttypes.h>
#include <math.h>

#include <banyan/program.h>

#include "core/deadline.h"
#include "core/text/json.h"
#include "support/folder.h"
#include "support/plans.h"

static const star usual = {.processors = 16,
                           .latency_ns = 300,
                           .bytes_per_s = 5e10,
                           .launch_ns = 2000,
                           .operation_ns = 50,
                           .sync_ns = 20,
                           .signal_ns = 200,
                           .request_ns = 1500,
                           .local = 4e10,
                           .load = 1e10,
                           .store = 2e10,
                           .packet = 1e10,
                           .reduce = 3e10,
                           .port = 4e10,
                           .memory = 1e12,
                           .multicast = true};

/* A rank's link carries in each direction the bytes that the plan moves from, or to, the rank. */
static void check_bytes(const banyan_plan *plan, const banyan_simulation *simulation,
                        uint64_t message)
{
    banyan_plan_stats stats;
    banyan_plan_info info = banyan_plan_describe(plan);
    CHECK_OK(banyan_plan_measure(plan, message, &stats));
    for (int r = 0; r < info.ranks; r++) {
        uint64_t out = 0, in = 0;
        for (size_t i = 0; i < stats.link_count; i++) {
            out += stats.links[i].source == r ? stats.links[i].bytes : 0;
            in += stats.links[i].destination == r ? stats.links[i].bytes : 0;
        }
        CHECK(star_bytes(simulation, r, true) == out, "%s, rank %d", info.name, r);
        CHECK(star_bytes(simulation, r, false) == in, "%s, rank %d", info.name, r);
    }
    free(stats.links);
}

/* From the start to the end without a gap. */
static void check_path(const banyan_simulation *simulation)
{
    banyan_simulation_step step;
    double at = 0;
    size_t count = 0;
    for (; banyan_simulation_path(simulation, count, &step); count++) {
        CHECK(step.began_s == at && step.ended_s >= step.began_s, "step %zu", count);
        at = step.ended_s;
        CHECK(step.what && (step.operation >= 0 || strcmp(step.what, "launch") == 0));
    }
    CHECK(count > 0);
    /* Bytes in flight when the last operation ends arrive within one way's latency. */
    CHECK(banyan_simulation_seconds(simulation) - at < 1e-6);
}

/* A multiple of the plan's units, odd in all other respects. */
static uint64_t message_of(const banyan_plan *plan, uint64_t about)
{
    uint64_t unit = banyan_plan_describe(plan).message_parts * 4;
    return unit == 0 ? 0 : (about / unit + 1) * unit;
}

static void check_algorithm(const char *name, int ranks, const banyan_topology *topology)
{
    banyan_plan *plan;
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    params.ranks = ranks;
    params.ranks_per_node = strstr(name, "hierarchical") ? 2 : 0;
    params.shift = 1;
    if (banyan_algorithm_compile(name, &params, &plan) != BANYAN_OK)
        return;
    for (uint64_t bytes = 100; bytes <= 10000000; bytes *= 100) {
        uint64_t message = message_of(plan, bytes);
        banyan_simulation *simulation = star_run(plan, topology, message);
        check_path(simulation);
        /* Multicast has fewer flows than point-to-point puts. */
        if (!strstr(name, "switch"))
            check_bytes(plan, simulation, message);
        banyan_simulation_destroy(simulation);
    }
    banyan_plan_destroy(plan);
}

static void all_algorithms_end_and_carry_their_bytes(void **state)
{
    (void)state;
    banyan_topology *topology = star_make(&usual);
    banyan_algorithm_info info;
    for (size_t i = 0; banyan_algorithm_at(i, &info) == BANYAN_OK; i++) {
        static const int ranks[] = {2, 3, 4, 8};
        for (size_t k = 0; k < sizeof ranks / sizeof ranks[0]; k++)
            check_algorithm(info.name, ranks[k], topology);
    }
    banyan_topology_destroy(topology);
}

static void check_plan_ends(const char *path, const banyan_topology *topology)
{
    banyan_plan *plan;
    CHECK_OK(banyan_plan_read(path, &plan));
    banyan_simulate_options options = BANYAN_SIMULATE_OPTIONS_INIT;
    banyan_simulation *simulation;
    options.message_bytes = message_of(plan, 100000);
    banyan_status status = banyan_plan_simulate(plan, topology, &options, &simulation);
    /* Single operations wait for signals that no rank gives; whole collectives do not. */
    if (strstr(path, "/unit_") && status == BANYAN_ERR_MISMATCH) {
        CHECK(strstr(banyan_last_error(), " hangs: rank "), "%s", banyan_last_error());
    } else {
        CHECK(status == BANYAN_OK, "%s: %s", path, banyan_last_error());
        CHECK(banyan_simulation_seconds(simulation) > 2e-6);
        banyan_simulation_destroy(simulation);
    }
    banyan_plan_destroy(plan);
}

static void whole_plans_of_mscclpp_end(void **state)
{
    (void)state;
    DIR *listing = opendir(plans_dir());
    CHECK(listing, "%s", plans_dir());
    banyan_topology *topology = star_make(&usual);
    for (struct dirent *entry; (entry = readdir(listing));) {
        char path[512];
        if (!strstr(entry->d_name, ".json"))
            continue;
        snprintf(path, sizeof path, "%s/%s", plans_dir(), entry->d_name);
        check_plan_ends(path, topology);
    }
    closedir(listing);
    banyan_topology_destroy(topology);
}

static void the_same_plan_takes_the_same_time(void **state)
{
    (void)state;
    static const char *const names[] = {"alltoall_allpairs", "allreduce_pipelined",
                                        "allreduce_hierarchical"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        banyan_plan *plan;
        banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
        params.ranks = 8;
        params.ranks_per_node = 4;
        CHECK_OK(banyan_algorithm_compile(names[i], &params, &plan));
        uint64_t message = message_of(plan, 1000000);
        double first = star_seconds(plan, &usual, message);
        for (int n = 0; n < 3; n++)
            CHECK(star_seconds(plan, &usual, message) == first);
        banyan_plan_destroy(plan);
    }
}

/* Faster links never slow a plan with a fixed order down. */
static void a_faster_link_takes_less_time(void **state)
{
    (void)state;
    banyan_plan *plan = star_algorithm("allreduce_ring", 8);
    star links = usual;
    double before = INFINITY;
    for (links.bytes_per_s = 1e8; links.bytes_per_s < 1e11; links.bytes_per_s *= 3) {
        double seconds = star_seconds(plan, &links, 8 << 20);
        CHECK(seconds <= before);
        before = seconds;
    }
    banyan_plan_destroy(plan);
}

#define RANK(id, peer, ops)                                                                        \
    "{\"id\": " #id ", \"input_chunks\": 1, \"output_chunks\": 1, \"scratch_chunks\": 0,"          \
    " \"threadblocks\": [{\"id\": 0, \"ops\": [" ops "],"                                          \
    "  \"channels\": [{\"channel_type\": \"memory\", \"channel_ids\": [0]}]}],"                    \
    " \"channels\": [{\"channel_type\": \"memory\", \"connected_to\": [" #peer "]}]}"
#define OP(name) "{\"name\": \"" name "\", \"channel_ids\": [0], \"channel_type\": \"memory\"}"
#define PLAN(name, ranks)                                                                          \
    "{\"name\": \"" name "\", \"collective\": \"test\", \"protocol\": \"Simple\","                 \
    " \"inplace\": false, \"gpus\": [" ranks "]}"

static void check_hangs(const char *text, const char *message)
{
    banyan_plan *plan;
    banyan_simulation *simulation;
    CHECK_OK(banyan_plan_parse(text, strlen(text), "text", &plan));
    banyan_topology *topology = star_make(&usual);
    banyan_simulate_options options = BANYAN_SIMULATE_OPTIONS_INIT;
    options.message_bytes = 64;
    CHECK_FAILS(banyan_plan_simulate(plan, topology, &options, &simulation), BANYAN_ERR_MISMATCH,
                message);
    options.size = 0;
    CHECK_FAILS(banyan_plan_simulate(plan, topology, &options, &simulation), BANYAN_ERR_INVALID,
                "BANYAN_SIMULATE_OPTIONS_INIT sets it");
    banyan_topology_destroy(topology);
    banyan_plan_destroy(plan);
}

static void a_hang_names_the_wait_of_each_block(void **state)
{
    (void)state;
    check_hangs(PLAN("stuck", RANK(0, 1, OP("wait") "," OP("signal")) "," RANK(
                                  1, 0, OP("wait") "," OP("signal"))),
                "plan stuck hangs: rank 0, thread block 0, operation 0 (wait) waits for a signal "
                "of rank 1 on memory channel 0; rank 1, thread block 0, operation 0 (wait) waits "
                "for a signal of rank 0 on memory channel 0: a circle");
    check_hangs(PLAN("left", RANK(0, 1, OP("wait") "," OP("wait")) "," RANK(1, 0, OP("signal"))),
                "plan left hangs: rank 0, thread block 0, operation 1 (wait) waits for a signal of "
                "rank 1 on memory channel 0, which nobody does any more");
}

#define BARRIER "{\"name\": \"barrier\", \"barrier_id\": 0, \"num_threadblocks\": 3}"
#define BLOCK(id, ops)                                                                             \
    "{\"id\": " #id ", \"ops\": [" ops "],"                                                        \
    " \"channels\": [{\"channel_type\": \"memory\", \"channel_ids\": [0]}]}"

/* Two thread blocks have arrived at the barrier; the third waits for a signal before it arrives. */
static void a_hang_does_not_name_blocks_that_arrived_at_the_barrier(void **state)
{
    (void)state;
    check_hangs(
        PLAN("late", "{\"id\": 0, \"input_chunks\": 1, \"output_chunks\": 1, \"scratch_chunks\": 0,"
                     " \"threadblocks\": [" BLOCK(0, BARRIER) "," BLOCK(1, BARRIER) "," BLOCK(
                         2, OP("wait") "," BARRIER) "],"
                                                    " \"channels\": [{\"channel_type\": "
                                                    "\"memory\", \"connected_to\": [1]}]}," RANK(
                                                        1, 0, "{\"name\": \"nop\"}")),
        "plan late hangs: rank 0, thread block 0, operation 0 (barrier) waits for the others at "
        "barrier 0; rank 0, thread block 2, operation 0 (wait) waits for a signal of rank 1 on "
        "memory channel 0, which nobody does any more");
}

static void plans_that_cannot_be_simulated_are_refused(void **state)
{
    (void)state;
    banyan_simulation *simulation;
    banyan_simulate_options options = BANYAN_SIMULATE_OPTIONS_INIT;
    star few = usual;
    few.processors = 4;
    few.multicast = false;
    banyan_topology *topology = star_make(&few);
    banyan_plan *plan = star_algorithm("allreduce_ring", 5);
    CHECK_FAILS(banyan_plan_simulate(plan, topology, &options, &simulation), BANYAN_ERR_INVALID,
                "plan allreduce_ring has 5 ranks, and topology star has 4 processors");
    banyan_plan_destroy(plan);
    plan = star_algorithm("allreduce_switch", 4);
    CHECK_FAILS(banyan_plan_simulate(plan, topology, &options, &simulation), BANYAN_ERR_UNSUPPORTED,
                "no switch with multicast is reached by all of them");
    banyan_plan_destroy(plan);
    plan = star_algorithm("allreduce_ring", 4);
    options.message_bytes = 7;
    CHECK_FAILS(banyan_plan_simulate(plan, topology, &options, &simulation), BANYAN_ERR_INVALID,
                "7");
    options.message_bytes = 1024;
    CHECK_OK(banyan_plan_simulate(plan, topology, &options, &simulation));
    banyan_simulation_step step;
    CHECK(!banyan_simulation_path(simulation, 0, &step));
    CHECK_FAILS(banyan_simulation_write_trace(simulation, "/nowhere"), BANYAN_ERR_UNSUPPORTED,
                "not asked to keep its steps");
    banyan_simulation_destroy(simulation);
    banyan_plan_destroy(plan);
    banyan_topology_destroy(topology);
}

static void loops_of_too_many_steps_are_refused_with_numbers(void **state)
{
    (void)state;
    static const char text[] = PLAN(
        "tiny", "{\"id\": 0, \"input_chunks\": 1, \"output_chunks\": 1, \"scratch_chunks\": 0, "
                "\"threadblocks\": [{\"id\": 0, \"channels\": [], \"ops\": [{\"name\": "
                "\"pipeline\", \"iter_context\": {\"unit_size\": 3, \"num_chunks\": 1}, "
                "\"ops\": [{\"name\": \"copy\", \"src_buff\": [{\"type\": \"i\", \"index\": 0, "
                "\"size\": 1}], \"dst_buff\": [{\"type\": \"o\", \"index\": 0, \"size\": 1}]}, "
                "{\"name\": \"nop\"}]}]}], \"channels\": [], \"remote_buffers\": []}");
    banyan_plan *plan;
    banyan_simulation *simulation;
    CHECK_OK(banyan_plan_parse(text, sizeof text - 1, "text", &plan));
    banyan_topology *topology = star_make(&usual);
    banyan_simulate_options options = BANYAN_SIMULATE_OPTIONS_INIT;
    options.message_bytes = UINT64_C(64) << 20;
    uint64_t start = time_now_ns();
    CHECK_FAILS(banyan_plan_simulate(plan, topology, &options, &simulation), BANYAN_ERR_UNSUPPORTED,
                "plan tiny makes 111848110 steps in its loops, in units of 3 bytes, with a message "
                "of 67108864 bytes: at most 33554432 are simulated");
    CHECK(time_now_ns() - start < NS_PER_S);
    /* 342 iterations of a copy with two operands, a nop and the loop itself. */
    options.message_bytes = 1024;
    options.max_steps = 342 * 5;
    CHECK_OK(banyan_plan_simulate(plan, topology, &options, &simulation));
    banyan_simulation_destroy(simulation);
    options.max_steps--;
    CHECK_FAILS(banyan_plan_simulate(plan, topology, &options, &simulation), BANYAN_ERR_UNSUPPORTED,
                "makes 1710 steps in its loops");
    banyan_plan_destroy(plan);
    banyan_topology_destroy(topology);
}

/* Operations of a thread block follow each other; the last one ends with the simulation. */
static void check_events(json_t *events, double seconds)
{
    double ends[4] = {0}, last = 0;
    size_t i;
    json_t *event;
    json_array_foreach(events, i, event)
    {
        int rank;
        const char *phase;
        double begin = 0, length = 0;
        CHECK(json_unpack(event, "{s:s, s:i, s?F, s?F}", "ph", &phase, "pid", &rank, "ts", &begin,
                          "dur", &length) == 0);
        if (strcmp(phase, "X") != 0)
            continue;
        CHECK(rank >= 0 && rank < 4 && begin >= ends[rank] - 1e-5, "event %zu", i);
        ends[rank] = begin + length;
        last = ends[rank] > last ? ends[rank] : last;
    }
    CHECK(fabs(last / 1e6 - seconds) < 1e-6, "%.9g µs, not %.9g", last, seconds * 1e6);
}

static void a_trace_has_every_operation_in_order(void **state)
{
    char *path = folder_path(*state, "trace.json"), *text;
    size_t bytes;
    json_t *root;
    CHECK(path);
    banyan_topology *topology = star_make(&usual);
    banyan_plan *plan = star_algorithm("allreduce_ring", 4);
    banyan_simulation *simulation = star_run(plan, topology, 1 << 20);
    CHECK_OK(banyan_simulation_write_trace(simulation, path));
    CHECK_OK(file_read(path, 1 << 24, &text, &bytes));
    CHECK_OK(json_parse(path, text, bytes, &root));
    json_t *events = json_object_get(root, "traceEvents");
    /* Names of the ranks, launches, and operations. */
    CHECK(json_array_size(events) >= 4 + 4 + banyan_plan_describe(plan).operations);
    check_events(events, banyan_simulation_seconds(simulation));
    json_decref(root);
    free(text);
    banyan_simulation_destroy(simulation);
    banyan_plan_destroy(plan);
    banyan_topology_destroy(topology);
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_algorithms_end_and_carry_their_bytes),
        cmocka_unit_test(whole_plans_of_mscclpp_end),
        cmocka_unit_test(the_same_plan_takes_the_same_time),
        cmocka_unit_test(a_faster_link_takes_less_time),
        cmocka_unit_test(a_hang_names_the_wait_of_each_block),
        cmocka_unit_test(a_hang_does_not_name_blocks_that_arrived_at_the_barrier),
        cmocka_unit_test(plans_that_cannot_be_simulated_are_refused),
        cmocka_unit_test(loops_of_too_many_steps_are_refused_with_numbers),
        cmocka_unit_test_setup_teardown(a_trace_has_every_operation_in_order, folder_setup,
                                        folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
