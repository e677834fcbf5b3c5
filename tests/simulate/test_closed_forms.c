/* Times with known formulas: a way has latency α and carries a byte in β seconds. */
#include "simulate/star.h"

#include <math.h>

#include <banyan/program.h>

#define LATENCY 2e-6 /* α: of both links of a way */
#define RATE 1e10    /* 1/β */

static const star plain = {.processors = 16, .latency_ns = 1000, .bytes_per_s = RATE};

static void check_near(const char *what, int ranks, double seconds, double expected)
{
    CHECK(fabs(seconds - expected) <= 0.01 * expected, "%s of %d ranks: %.9g s, not %.9g s", what,
          ranks, seconds, expected);
}

typedef double (*closed_form)(double ranks, double message_seconds);

static void check_form(const char *name, const int *ranks, size_t count, closed_form form)
{
    for (size_t i = 0; i < count; i++) {
        banyan_plan *plan = star_algorithm(name, ranks[i]);
        for (uint64_t bytes = 1 << 14; bytes <= 1 << 26; bytes *= 16) {
            uint64_t message = bytes / (uint64_t)(64 * ranks[i]) * (uint64_t)(64 * ranks[i]);
            check_near(name, ranks[i], star_seconds(plan, &plain, message),
                       form(ranks[i], (double)message / RATE));
        }
        banyan_plan_destroy(plan);
    }
}

static const int any[] = {2, 3, 4, 5, 8, 13, 16}, powers[] = {2, 4, 8, 16};

/* A step: a signal, and a block that is fetched: the request goes, the data comes. */
static double ring(double n, double message)
{
    return 2 * (n - 1) * (3 * LATENCY + message / n);
}

static void a_ring_takes_a_block_and_three_latencies_a_step(void **state)
{
    (void)state;
    check_form("allreduce_ring", any, sizeof any / sizeof any[0], ring);
}

static double doubling(double n, double message)
{
    return log2(n) * (LATENCY + message);
}

static void recursive_doubling_takes_a_message_and_a_latency_a_step(void **state)
{
    (void)state;
    check_form("allreduce_doubling", powers, sizeof powers / sizeof powers[0], doubling);
}

static double halving_doubling(double n, double message)
{
    return 2 * log2(n) * LATENCY + 2 * (n - 1) / n * message;
}

static void halving_and_doubling_takes_each_byte_twice(void **state)
{
    (void)state;
    check_form("allreduce_halving_doubling", powers, sizeof powers / sizeof powers[0],
               halving_doubling);
}

static double one_shot(double n, double message)
{
    return LATENCY + (n - 1) * message;
}

static void one_shot_sends_the_message_to_all(void **state)
{
    (void)state;
    check_form("allreduce_oneshot", any, sizeof any / sizeof any[0], one_shot);
}

/* Blocks are put, with a signal; then fetched, after another one. (Two ranks put twice.) */
static double two_shot(double n, double message)
{
    return 4 * LATENCY + 2 * (n - 1) / n * message;
}

static void two_shot_sends_all_blocks_but_the_own_twice(void **state)
{
    (void)state;
    check_form("allreduce_twoshot", any + 1, sizeof any / sizeof any[0] - 1, two_shot);
}

static banyan_program *begin_with(int ranks, bool fuse)
{
    const banyan_collective collective = {
        .kind = BANYAN_CUSTOM, .input_chunks = 4, .output_chunks = 4};
    banyan_program *program;
    banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
    options.fuse = fuse;
    CHECK_OK(banyan_program_create("small", &collective, ranks, &options, &program));
    return program;
}

static banyan_program *begin(int ranks)
{
    return begin_with(ranks, true);
}

static banyan_plan *end(banyan_program *program)
{
    banyan_plan *plan;
    CHECK_OK(banyan_program_compile(program, &plan));
    banyan_program_destroy(program);
    return plan;
}

/* Chunks from one rank to another, and a signal that the receiver waits for. */
static void send(banyan_program *program, int from, int to, uint64_t chunks, int block)
{
    banyan_program_memory_channel *forth = banyan_program_memory_channel_create(program, to, from);
    banyan_program_memory_channel *back = banyan_program_memory_channel_create(program, from, to);
    banyan_program_memory_put(forth, banyan_program_output(program, to, 0, chunks),
                              banyan_program_input(program, from, 0, chunks), BANYAN_TB(block));
    banyan_program_memory_signal(forth, block, BANYAN_SYNC_NONE);
    banyan_program_memory_wait(back, block + 1, BANYAN_SYNC_NONE);
}

#define CHUNK 1000000

static void two_into_one_link_share_it_fairly(void **state)
{
    (void)state;
    banyan_program *program = begin(3);
    send(program, 1, 0, 1, 0);
    send(program, 2, 0, 3, 2);
    banyan_plan *plan = end(program);
    /* Rank 1 has half the link for its chunk; of rank 2's three, two are left for all of it. */
    check_near("sharing", 3, star_seconds(plan, &plain, 4 * CHUNK), LATENCY + 4 * CHUNK / RATE);
    star slow = plain;
    slow.store = RATE / 4;
    check_near("no sharing", 3, star_seconds(plan, &slow, 4 * CHUNK),
               LATENCY + 3 * CHUNK / (RATE / 4));
    banyan_plan_destroy(plan);
}

static void fixed_costs_add_up(void **state)
{
    (void)state;
    banyan_program *program = begin(2);
    send(program, 0, 1, 1, 0);
    banyan_plan *plan = end(program);
    star costs = plain;
    costs.launch_ns = 5000;
    costs.operation_ns = 700;
    costs.signal_ns = 300;
    /* Put, signal, then the wait, which costs as much as any operation. */
    check_near("costs", 2, star_seconds(plan, &costs, 4 * CHUNK),
               5e-6 + 2 * 700e-9 + 300e-9 + CHUNK / RATE + LATENCY + 700e-9);
    banyan_plan_destroy(plan);
}

static void a_thread_block_has_its_rates(void **state)
{
    (void)state;
    banyan_program *program = begin(1);
    banyan_chunk sources[3];
    for (uint64_t i = 0; i < 3; i++)
        sources[i] = banyan_program_input(program, 0, i, i + 1);
    banyan_program_reduce(program, 0, sources[0], sources + 1, 2,
                          banyan_program_output(program, 0, 0, 1), BANYAN_SUM, BANYAN_TB(0));
    banyan_plan *plan = end(program);
    star rates = plain;
    rates.local = 1e9;
    check_near("local", 1, star_seconds(plan, &rates, 4 * CHUNK), 4 * CHUNK / 1e9);
    rates.reduce = 0.5e9;
    check_near("reduce", 1, star_seconds(plan, &rates, 4 * CHUNK), 3 * CHUNK / 0.5e9);
    rates.memory = 0.25e9;
    check_near("memory", 1, star_seconds(plan, &rates, 4 * CHUNK), 4 * CHUNK / 0.25e9);
    banyan_plan_destroy(plan);
}

static void a_reduction_reads_its_sources_one_by_one(void **state)
{
    (void)state;
    banyan_program *program = begin(2);
    banyan_program_memory_channel *to = banyan_program_memory_channel_create(program, 1, 0);
    banyan_chunk peers = banyan_program_input(program, 1, 0, 1);
    banyan_program_memory_reduce(to, banyan_program_input(program, 0, 0, 1), &peers, 1,
                                 banyan_program_output(program, 0, 0, 1), BANYAN_SUM, BANYAN_TB(0));
    banyan_plan *plan = end(program);
    star rates = plain;
    rates.reduce = 2e9;
    rates.reduce_load = 1e9;
    rates.load = 5e9;
    check_near("sources", 2, star_seconds(plan, &rates, 4 * CHUNK),
               2 * LATENCY + CHUNK / 2e9 + CHUNK / 1e9);
    banyan_plan_destroy(plan);
}

/* They take space on links, but do not count as bytes, nor where the proxy sends. */
static void headers_take_room_on_links(void **state)
{
    (void)state;
    banyan_program *program = begin(2);
    send(program, 0, 1, 1, 0);
    banyan_plan *plan = end(program);
    star framed = plain;
    framed.store_overhead = 1.25;
    framed.load_overhead = 3;
    check_near("stores", 2, star_seconds(plan, &framed, 4 * CHUNK), 1.25 * CHUNK / RATE + LATENCY);
    banyan_topology *topology = star_make(&framed);
    banyan_simulation *simulation = star_run(plan, topology, 4 * CHUNK);
    CHECK(star_bytes(simulation, 0, true) == CHUNK);
    banyan_simulation_destroy(simulation);
    banyan_topology_destroy(topology);
    banyan_plan_destroy(plan);
    plan = star_algorithm("sendrecv_port", 2);
    star bare = plain;
    CHECK(star_seconds(plan, &framed, CHUNK) == star_seconds(plan, &bare, CHUNK));
    banyan_plan_destroy(plan);
}

static void thread_blocks_share_their_processor(void **state)
{
    (void)state;
    banyan_program *program = begin(1);
    for (int block = 0; block < 3; block++)
        banyan_program_copy(program, 0,
                            banyan_program_output(program, 0, (uint64_t)block, (uint64_t)block + 1),
                            banyan_program_input(program, 0, (uint64_t)block, (uint64_t)block + 1),
                            BANYAN_TB(block));
    banyan_plan *plan = end(program);
    star rates = plain;
    for (rates.local = 1e9; rates.local < 1e12; rates.local *= 10) {
        for (rates.blocks_at_once = 1; rates.blocks_at_once <= 3; rates.blocks_at_once++)
            check_near("blocks", 1, star_seconds(plan, &rates, 4 * CHUNK),
                       3 / rates.blocks_at_once * 2 * CHUNK / rates.local);
    }
    banyan_plan_destroy(plan);
}

/* Between barriers, the thread block with the most chunks decides. */
static void a_barrier_opens_when_its_last_thread_block_has_come(void **state)
{
    (void)state;
    enum { BLOCKS = 3, PHASES = 3 };
    static const uint64_t chunks[PHASES][BLOCKS] = {{1, 3, 0}, {2, 0, 1}, {0, 1, 1}};
    static const int all[BLOCKS] = {0, 1, 2};
    for (int members = 2; members <= BLOCKS; members++) {
        banyan_program *program = begin(1);
        uint64_t longest = 0;
        for (int phase = 0; phase < PHASES; phase++) {
            uint64_t most = 0;
            if (phase > 0)
                banyan_program_barrier(program, 0, all, members);
            for (int block = 0; block < members; block++) {
                uint64_t count = chunks[phase][block];
                if (count > 0)
                    banyan_program_copy(program, 0, banyan_program_output(program, 0, 0, count),
                                        banyan_program_input(program, 0, 0, count),
                                        BANYAN_TB(block));
                most = count > most ? count : most;
            }
            longest += most;
        }
        banyan_plan *plan = end(program);
        star rates = plain;
        rates.local = 1e9;
        check_near("barriers", members, star_seconds(plan, &rates, 4 * CHUNK),
                   (double)longest * 2 * CHUNK / rates.local);
        banyan_plan_destroy(plan);
    }
}

/* The proxy takes two requests one after another, and the thread block waits until the arrival of
 * the second one's data is known. */
static void a_port_channel_works_by_itself(void **state)
{
    (void)state;
    banyan_program *program = begin(2);
    banyan_program_port_channel *port = banyan_program_port_channel_create(program, 1, 0);
    for (uint64_t i = 0; i < 3; i += 2)
        banyan_program_port_put(port, banyan_program_output(program, 1, i, i + 1),
                                banyan_program_input(program, 0, i, i + 1), 0);
    banyan_program_port_flush(port, 0, BANYAN_SYNC_NONE);
    banyan_plan *plan = end(program);
    star slow = plain;
    slow.request_ns = 4000;
    check_near("port", 2, star_seconds(plan, &slow, 4 * CHUNK),
               4e-6 + 2 * CHUNK / RATE + 2 * LATENCY);
    slow.port = RATE / 10;
    check_near("slow port", 2, star_seconds(plan, &slow, 4 * CHUNK),
               4e-6 + 2 * CHUNK / (RATE / 10) + 2 * LATENCY);
    banyan_plan_destroy(plan);
}

/* It takes as much of the processor as the thread block that copies at the same time, and is woken
 * once for all requests posted until it is done. */
static void a_proxy_may_share_its_processor(void **state)
{
    (void)state;
    banyan_program *program = begin(2);
    banyan_program_port_channel *port = banyan_program_port_channel_create(program, 1, 0);
    banyan_program_port_put(port, banyan_program_output(program, 1, 0, 1),
                            banyan_program_input(program, 0, 0, 1), 0);
    banyan_program_copy(program, 0, banyan_program_output(program, 0, 1, 2),
                        banyan_program_input(program, 0, 1, 2), BANYAN_TB(0));
    banyan_plan *plan = end(program);
    star slow = {.processors = 2, .blocks_at_once = 1, .port = 1e9, .local = 2e9};
    check_near("apart", 1, star_seconds(plan, &slow, 4 * CHUNK), CHUNK / 1e9);
    slow.port_takes_block = true;
    check_near("together", 1, star_seconds(plan, &slow, 4 * CHUNK), 2 * CHUNK / 1e9);
    banyan_plan_destroy(plan);

    program = begin(2);
    port = banyan_program_port_channel_create(program, 1, 0);
    for (uint64_t i = 0; i < 2; i++)
        banyan_program_port_put(port, banyan_program_output(program, 1, i, i + 1),
                                banyan_program_input(program, 0, i, i + 1), 0);
    plan = end(program);
    slow.request_ns = 3000;
    check_near("in turn", 1, star_seconds(plan, &slow, 4 * CHUNK), 3e-6 + 2 * CHUNK / 1e9);
    banyan_plan_destroy(plan);
}

/* A rank has one proxy for all its channels: it is awake for a request on one while it copies for
 * another, and asleep again after the thread block has waited for all its requests. */
static void a_proxy_is_woken_once_for_all_channels(void **state)
{
    (void)state;
    for (int waits = 0; waits <= 1; waits++) {
        banyan_program *program = begin_with(2, false);
        for (uint64_t i = 0; i < 2; i++) {
            banyan_program_port_channel *port = banyan_program_port_channel_create(program, 1, 0);
            banyan_program_port_put(port, banyan_program_output(program, 1, i, i + 1),
                                    banyan_program_input(program, 0, i, i + 1), 0);
            if (waits)
                banyan_program_port_flush(port, 0, BANYAN_SYNC_NONE);
        }
        banyan_plan *plan = end(program);
        const double operation = 1.9e-3, request = 1e-3, copied = CHUNK / 1e9;
        star slow = {.processors = 2,
                     .blocks_at_once = 1,
                     .operation_ns = operation * 1e9,
                     .request_ns = request * 1e9,
                     .port = 1e9,
                     .port_takes_block = true};
        /* A flush begins while it waits. Without them the second put is posted shortly before the
         * first is copied. */
        double expected =
            waits ? 2 * (operation + request + copied) : operation + request + 2 * copied;
        check_near(waits ? "woken twice" : "woken once", 2, star_seconds(plan, &slow, 4 * CHUNK),
                   expected);
        banyan_plan_destroy(plan);
    }
}

/* Twice the bytes on the wire, and no signal. */
static void packets_come_without_a_signal(void **state)
{
    (void)state;
    banyan_plan *plan = star_algorithm("sendrecv_packets", 2);
    star slow = plain;
    slow.bytes_per_s = RATE;
    check_near("packets", 2, star_seconds(plan, &slow, CHUNK), LATENCY + 2 * CHUNK / RATE);
    slow.packet = RATE / 2;
    /* Written by the one, then read by the other. */
    check_near("slow packets", 2, star_seconds(plan, &slow, CHUNK),
               LATENCY + 2 * (2 * CHUNK / (RATE / 2)));
    banyan_plan_destroy(plan);
}

static void a_switch_stores_to_all_at_once(void **state)
{
    (void)state;
    star with = plain;
    with.multicast = true;
    for (int n = 2; n <= 8; n *= 2) {
        banyan_plan *plan = star_algorithm("allgather_switch_direct", n);
        /* Every rank's link receives all blocks, but sends one. */
        double least = n * (double)CHUNK / RATE;
        double seconds = star_seconds(plan, &with, CHUNK);
        CHECK(seconds >= least && seconds < least + 10 * LATENCY, "%.9g s", seconds);
        banyan_topology *topology = star_make(&with);
        banyan_simulation *simulation = star_run(plan, topology, CHUNK);
        for (int p = 0; p < n; p++) {
            CHECK(star_bytes(simulation, p, true) == CHUNK);
            CHECK(star_bytes(simulation, p, false) == (uint64_t)n * CHUNK);
        }
        banyan_simulation_destroy(simulation);
        banyan_topology_destroy(topology);
        banyan_plan_destroy(plan);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_ring_takes_a_block_and_three_latencies_a_step),
        cmocka_unit_test(recursive_doubling_takes_a_message_and_a_latency_a_step),
        cmocka_unit_test(halving_and_doubling_takes_each_byte_twice),
        cmocka_unit_test(one_shot_sends_the_message_to_all),
        cmocka_unit_test(two_shot_sends_all_blocks_but_the_own_twice),
        cmocka_unit_test(two_into_one_link_share_it_fairly),
        cmocka_unit_test(fixed_costs_add_up),
        cmocka_unit_test(a_thread_block_has_its_rates),
        cmocka_unit_test(a_reduction_reads_its_sources_one_by_one),
        cmocka_unit_test(headers_take_room_on_links),
        cmocka_unit_test(thread_blocks_share_their_processor),
        cmocka_unit_test(a_barrier_opens_when_its_last_thread_block_has_come),
        cmocka_unit_test(a_port_channel_works_by_itself),
        cmocka_unit_test(a_proxy_may_share_its_processor),
        cmocka_unit_test(a_proxy_is_woken_once_for_all_channels),
        cmocka_unit_test(packets_come_without_a_signal),
        cmocka_unit_test(a_switch_stores_to_all_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
