/* Processors that share a memory: data written by one and touched by another go from cache to
 * cache, and no other data do. */
#include "simulate/star.h"

#include <math.h>

#include <banyan/program.h>

#define BYTES UINT64_C(1000000)
#define OWN 1e9
#define OTHERS 1e8
#define SUMS 2.5e7
#define SIGNAL 1e-3

/* Local and remote memory have different rates, and signals with data a cost of their own. */
static const star plain = {.processors = 3,
                           .shared_memory = true,
                           .local = OWN,
                           .load = OTHERS,
                           .store = OTHERS,
                           .reduce_store = SUMS,
                           .signal_ns = SIGNAL * 1e9};

static banyan_program *begin(int ranks, uint64_t chunks)
{
    const banyan_collective collective = {
        .kind = BANYAN_CUSTOM, .input_chunks = chunks, .output_chunks = chunks};
    banyan_program *program;
    CHECK_OK(banyan_program_create("caches", &collective, ranks, NULL, &program));
    return program;
}

static void check_takes(banyan_program *program, uint64_t bytes, double seconds)
{
    banyan_plan *plan;
    CHECK_OK(banyan_program_compile(program, &plan));
    banyan_program_destroy(program);
    double took = star_seconds(plan, &plain, bytes);
    CHECK(fabs(took / seconds - 1) < 1e-6, "%.9g s, not %.9g", took, seconds);
    banyan_plan_destroy(plan);
}

static void bytes_that_only_a_peer_has_are_as_near_as_own_ones(void **state)
{
    (void)state;
    /* Its input, which no rank writes, and its output, which it does not touch. */
    banyan_program *program = begin(2, 1);
    banyan_program_memory_channel *to = banyan_program_memory_channel_create(program, 1, 0);
    banyan_program_memory_get(to, banyan_program_output(program, 0, 0, 1),
                              banyan_program_input(program, 1, 0, 1), BANYAN_TB(0));
    banyan_program_memory_put(to, banyan_program_output(program, 1, 0, 1),
                              banyan_program_input(program, 0, 0, 1), BANYAN_TB(0));
    check_takes(program, BYTES, 4 * BYTES / OWN);
}

static void bytes_written_by_one_and_read_by_another_move_twice(void **state)
{
    (void)state;
    banyan_program *program = begin(2, 1);
    banyan_program_memory_channel *to = banyan_program_memory_channel_create(program, 1, 0);
    banyan_program_memory_channel *from = banyan_program_memory_channel_create(program, 0, 1);
    banyan_program_copy(program, 0, banyan_program_output(program, 0, 0, 1),
                        banyan_program_input(program, 0, 0, 1), BANYAN_TB(0));
    banyan_program_memory_signal(to, 0, BANYAN_SYNC_BOTH);
    banyan_program_memory_wait(from, 0, BANYAN_SYNC_BOTH);
    banyan_program_memory_get(from, banyan_program_output(program, 1, 0, 1),
                              banyan_program_output(program, 0, 0, 1), BANYAN_TB(0));
    check_takes(program, BYTES, 2 * BYTES / OWN + 2 * BYTES / OTHERS + SIGNAL);
}

/* Nothing was written since the first signal. */
static void a_signal_without_data_costs_nothing(void **state)
{
    (void)state;
    banyan_program *program = begin(2, 1);
    banyan_program_memory_channel *to = banyan_program_memory_channel_create(program, 1, 0);
    banyan_program_memory_channel *from = banyan_program_memory_channel_create(program, 0, 1);
    banyan_program_memory_put(to, banyan_program_output(program, 1, 0, 1),
                              banyan_program_input(program, 0, 0, 1), BANYAN_TB(0));
    banyan_program_memory_signal(to, 0, BANYAN_SYNC_BOTH);
    banyan_program_memory_signal(to, 0, BANYAN_SYNC_BOTH);
    banyan_program_memory_wait(from, 0, BANYAN_SYNC_BOTH);
    banyan_program_memory_wait(from, 0, BANYAN_SYNC_BOTH);
    check_takes(program, BYTES, 2 * BYTES / OWN);
}

/* One of two chunks belongs to another rank. */
static void a_part_may_be_anothers(void **state)
{
    (void)state;
    banyan_program *program = begin(3, 2);
    banyan_program_memory_channel *to = banyan_program_memory_channel_create(program, 1, 0);
    banyan_program_memory_channel *from = banyan_program_memory_channel_create(program, 0, 1);
    banyan_program_copy(program, 0, banyan_program_output(program, 0, 0, 2),
                        banyan_program_input(program, 0, 0, 2), BANYAN_TB(0));
    banyan_program_memory_signal(to, 0, BANYAN_SYNC_BOTH);
    banyan_program_memory_wait(from, 0, BANYAN_SYNC_BOTH);
    banyan_program_memory_get(from, banyan_program_output(program, 1, 0, 1),
                              banyan_program_output(program, 0, 1, 2), BANYAN_TB(0));
    check_takes(program, 2 * BYTES,
                3 * BYTES / OWN + BYTES / OTHERS + SIGNAL + BYTES / OWN + BYTES / OTHERS);
}

/* A line that was just read need not be fetched again for a write. */
static void bytes_that_were_read_are_cached_for_the_write(void **state)
{
    (void)state;
    banyan_program *program = begin(2, 1);
    banyan_program_memory_channel *to = banyan_program_memory_channel_create(program, 1, 0);
    banyan_program_memory_channel *from = banyan_program_memory_channel_create(program, 0, 1);
    banyan_chunk sum = banyan_program_output(program, 1, 0, 1),
                 own = banyan_program_input(program, 1, 0, 1);
    banyan_program_memory_put(to, sum, banyan_program_input(program, 0, 0, 1), BANYAN_TB(0));
    banyan_program_memory_signal(to, 0, BANYAN_SYNC_BOTH);
    banyan_program_memory_wait(from, 0, BANYAN_SYNC_BOTH);
    banyan_program_reduce(program, 1, sum, &own, 1, sum, BANYAN_SUM, BANYAN_TB(0));
    check_takes(program, BYTES,
                BYTES / OWN + BYTES / OTHERS + SIGNAL + 2 * BYTES / OWN + BYTES / OTHERS);
}

/* In the place of the reduction. A put to the peer in the same operation is an ordinary copy. */
static void sums_wait_for_lines_that_others_hold(void **state)
{
    (void)state;
    banyan_program *program = begin(2, 2);
    banyan_program_memory_channel *to = banyan_program_memory_channel_create(program, 1, 0);
    banyan_program_memory_channel *from = banyan_program_memory_channel_create(program, 0, 1);
    banyan_chunk first = banyan_program_input(program, 0, 0, 1),
                 second = banyan_program_input(program, 0, 1, 2);
    banyan_chunk shared = banyan_program_output(program, 0, 0, 1),
                 alone = banyan_program_output(program, 0, 1, 2);
    banyan_program_reduce(program, 0, first, &second, 1, alone, BANYAN_SUM, BANYAN_TB(0));
    banyan_program_reduce(program, 0, first, &second, 1, shared, BANYAN_SUM, BANYAN_TB(0));
    banyan_program_memory_put(to, banyan_program_output(program, 1, 1, 2), shared, BANYAN_TB(0));
    banyan_program_memory_signal(to, 0, BANYAN_SYNC_BOTH);
    banyan_program_memory_wait(from, 0, BANYAN_SYNC_BOTH);
    banyan_program_memory_get(from, banyan_program_output(program, 1, 0, 1), shared, BANYAN_TB(0));
    banyan_program_copy(program, 1, banyan_program_input(program, 1, 0, 1),
                        banyan_program_output(program, 1, 1, 2), BANYAN_TB(0));
    check_takes(program, 2 * BYTES,
                3 * BYTES / OWN + 2 * BYTES / OWN + BYTES / SUMS + BYTES / OTHERS + SIGNAL +
                    2 * (BYTES / OTHERS + BYTES / OWN));
}

/* Copies within two rings are ten times as fast as those of more than twice that size. */
#define RING UINT64_C(65536)
static const char cached[] =
    "{\"name\": \"cached\", \"kinds\": {\"core\": {\"shared_memory\": true,"
    " \"memory_bytes_per_s\": 1e18, \"blocks_at_once\": 1, \"launch_ns\": 0,"
    " \"operation_ns\": 0, \"sync_ns\": 0, \"signal_ns\": 0, \"block\": ["
    "{\"working_set_bytes\": 131072, \"local_bytes_per_s\": 1e10, \"load_bytes_per_s\": 1e10,"
    " \"store_bytes_per_s\": 1e10, \"packet_bytes_per_s\": 1e10, \"reduce_bytes_per_s\": 1e10},"
    "{\"working_set_bytes\": 262144, \"local_bytes_per_s\": 1e9, \"load_bytes_per_s\": 1e9,"
    " \"store_bytes_per_s\": 1e9, \"packet_bytes_per_s\": 1e9, \"reduce_bytes_per_s\": 1e9}],"
    " \"proxy\": {\"request_ns\": 0, \"bytes_per_s\": 1e18}}},"
    " \"processors\": [{\"name\": \"p0\", \"kind\": \"core\"}], \"links\": []}";

static double copied_through_scratch(uint64_t bytes, uint64_t scratch_bytes)
{
    const banyan_collective collective = {
        .kind = BANYAN_CUSTOM, .input_chunks = 1, .output_chunks = 1};
    banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
    banyan_program *program;
    banyan_topology *topology;
    banyan_plan *plan;
    options.reuse_resources = true;
    options.reused_scratch_bytes = scratch_bytes;
    CHECK_OK(banyan_program_create("through", &collective, 1, &options, &program));
    banyan_chunk scratch = banyan_program_scratch(program, 0, 1);
    banyan_program_loop_begin(program, 4096, 1);
    banyan_program_copy(program, 0, scratch, banyan_program_input(program, 0, 0, 1), BANYAN_TB(0));
    banyan_program_copy(program, 0, banyan_program_output(program, 0, 0, 1), scratch, BANYAN_TB(0));
    banyan_program_loop_end(program);
    CHECK_OK(banyan_program_compile(program, &plan));
    banyan_program_destroy(program);
    CHECK_OK(banyan_topology_parse(cached, sizeof cached - 1, "cached", &topology));
    banyan_simulation *simulation = star_run(plan, topology, bytes);
    double seconds = banyan_simulation_seconds(simulation);
    banyan_simulation_destroy(simulation);
    banyan_topology_destroy(topology);
    banyan_plan_destroy(plan);
    return seconds;
}

static void check_through_scratch(uint64_t bytes, uint64_t scratch_bytes, double seconds)
{
    double took = copied_through_scratch(bytes, scratch_bytes);
    CHECK(fabs(took / seconds - 1) < 1e-3, "%llu bytes through %llu: %.9g s, not %.9g",
          (unsigned long long)bytes, (unsigned long long)scratch_bytes, took, seconds);
}

/* Input and output are read and written once, scratch is written and read: with a ring, at the
 * rate for twice its bytes; when it holds everything, at the rate of the rest. */
static void scratch_that_is_gone_round_in_stays_in_caches(void **state)
{
    (void)state;
    const uint64_t bytes = 64 * RING;
    double moved = 2 * (double)bytes;
    check_through_scratch(bytes, RING, moved / 1e9 + moved / 1e10);
    check_through_scratch(bytes, 2 * RING, moved / 1e9 + moved / 1e9);
    check_through_scratch(bytes, bytes, moved / 1e9 + moved / 1e9);
    check_through_scratch(RING / 2, RING, 2 * (double)RING / 1e10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_that_only_a_peer_has_are_as_near_as_own_ones),
        cmocka_unit_test(bytes_written_by_one_and_read_by_another_move_twice),
        cmocka_unit_test(a_signal_without_data_costs_nothing),
        cmocka_unit_test(a_part_may_be_anothers),
        cmocka_unit_test(bytes_that_were_read_are_cached_for_the_write),
        cmocka_unit_test(sums_wait_for_lines_that_others_hold),
        cmocka_unit_test(scratch_that_is_gone_round_in_stays_in_caches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
