/* Moves: transfers without a plan. Times with known formulas, and properties of every set of
 * moves. */
#include "simulate/star.h"

#include <math.h>

#define LATENCY 2e-6 /* of both links of a way */
#define RATE 1e10
#define MOST_MOVES 400

static const star plain = {.processors = 8, .latency_ns = 1000, .bytes_per_s = RATE};

static banyan_move move(int rank, int peer, int lane, uint64_t bytes)
{
    return (banyan_move){.rank = rank,
                         .peer = peer,
                         .lane = lane,
                         .by = BANYAN_MOVE_BY_PROXY,
                         .what = "move",
                         .bytes = bytes,
                         .after = {BANYAN_NO_MOVE, BANYAN_NO_MOVE}};
}

static banyan_simulation *run(const banyan_topology *topology, const banyan_move *moves,
                              size_t count, double grain)
{
    banyan_moves_options options = BANYAN_MOVES_OPTIONS_INIT;
    banyan_simulation *simulation;
    int ranks = banyan_topology_describe(topology).processors;
    options.steps = true;
    options.grain = grain;
    CHECK_OK(banyan_moves_simulate(moves, count, ranks, topology, &options, &simulation));
    return simulation;
}

static double seconds_with(const star *of, const banyan_move *moves, size_t count, double grain)
{
    banyan_topology *topology = star_make(of);
    banyan_simulation *simulation = run(topology, moves, count, grain);
    double found = banyan_simulation_seconds(simulation);
    banyan_simulation_destroy(simulation);
    banyan_topology_destroy(topology);
    return found;
}

static double seconds(const star *of, const banyan_move *moves, size_t count)
{
    return seconds_with(of, moves, count, 0);
}

static void check_near(double found, double expected)
{
    CHECK(fabs(found - expected) <= 1e-9 * expected + 2e-12, "%.12g s, not %.12g s", found,
          expected);
}

static void a_move_takes_its_request_its_bytes_and_the_latency(void **state)
{
    (void)state;
    star slow = plain;
    slow.request_ns = 3000;
    banyan_move one = move(0, 1, 0, 1 << 20);
    check_near(seconds(&plain, &one, 1), (1 << 20) / RATE + LATENCY);
    check_near(seconds(&slow, &one, 1), 3e-6 + (1 << 20) / RATE + LATENCY);
    one.bytes = 0;
    check_near(seconds(&slow, &one, 1), 0);
    one.bytes = 1;
    slow.bytes_per_s = 1e3;
    check_near(seconds(&slow, &one, 1), 3e-6 + 1e-3 + LATENCY);
}

static void a_kernel_takes_its_launch_and_its_blocks_time(void **state)
{
    (void)state;
    star slow = plain;
    slow.launch_ns = 5000;
    slow.blocks_at_once = 4;
    slow.local = 8e9;
    slow.store = 1e9;
    banyan_move copy = move(3, 3, 0, 1 << 20), put = move(3, 4, 0, 1 << 20);
    copy.by = put.by = BANYAN_MOVE_BY_BLOCKS;
    check_near(seconds(&slow, &copy, 1), 5e-6 + 2 * (1 << 20) / (4 * 8e9));
    check_near(seconds(&slow, &put, 1), 5e-6 + (1 << 20) / (4 * 1e9) + LATENCY);
}

static void lanes_share_a_link_and_a_lane_keeps_its_order(void **state)
{
    (void)state;
    banyan_move at_once[] = {move(0, 1, 0, 1 << 20), move(0, 2, 1, 1 << 20),
                             move(0, 3, 2, 2 << 20)};
    check_near(seconds(&plain, at_once, 3), (4 << 20) / RATE + LATENCY);
    banyan_move in_turn[] = {move(0, 1, 0, 1 << 20), move(0, 2, 0, 1 << 20)};
    banyan_topology *topology = star_make(&plain);
    banyan_simulation *simulation = run(topology, in_turn, 2, 0);
    check_near(banyan_simulation_seconds(simulation), (2 << 20) / RATE + LATENCY);
    check_near(banyan_simulation_rank_seconds(simulation, 1), (1 << 20) / RATE + LATENCY);
    check_near(banyan_simulation_rank_seconds(simulation, 2), (2 << 20) / RATE + LATENCY);
    check_near(banyan_simulation_rank_seconds(simulation, 5), 0);
    banyan_simulation_destroy(simulation);
    banyan_topology_destroy(topology);
}

static void the_end_of_a_peers_move_is_known_one_latency_later(void **state)
{
    (void)state;
    banyan_move chain[] = {move(2, 3, 0, 1 << 20), move(1, 2, 0, 1 << 20), move(0, 1, 0, 1 << 20)};
    chain[0].after[0] = 1; /* listed in reverse: the order of the list matters only for lanes */
    chain[1].after[1] = 2;
    banyan_topology *topology = star_make(&plain);
    banyan_simulation *simulation = run(topology, chain, 3, 0);
    check_near(banyan_simulation_seconds(simulation), 3 * ((1 << 20) / RATE + LATENCY));
    banyan_simulation_step step;
    for (int i = 0; i < 3; i++) {
        CHECK(banyan_simulation_path(simulation, (size_t)i, &step) && step.rank == i);
        CHECK(strcmp(step.what, "move") == 0 && step.operation == 0);
    }
    CHECK(!banyan_simulation_path(simulation, 3, &step));
    banyan_simulation_destroy(simulation);
    banyan_topology_destroy(topology);
}

static void moves_that_cannot_be_are_refused(void **state)
{
    (void)state;
    banyan_topology *topology = star_make(&plain);
    banyan_simulation *simulation;
    banyan_moves_options options = BANYAN_MOVES_OPTIONS_INIT;
    banyan_move two[] = {move(0, 1, 0, 10), move(1, 0, 0, 10)};
    two[0].after[0] = 1;
    two[1].after[0] = 0;
    CHECK_FAILS(banyan_moves_simulate(two, 2, 8, topology, NULL, &simulation), BANYAN_ERR_MISMATCH,
                "move 0, in lane 0 of rank 0, cannot begin");
    CHECK_FAILS(banyan_moves_simulate(two, 1, 8, topology, NULL, &simulation), BANYAN_ERR_INVALID,
                "move 0 is after move 1, and there are 1");
    two[0] = move(0, 8, 0, 10);
    CHECK_FAILS(banyan_moves_simulate(two, 1, 8, topology, NULL, &simulation), BANYAN_ERR_INVALID,
                "from rank 0 to rank 8 of 8");
    two[0] = move(0, 1, 1, 10);
    CHECK_FAILS(banyan_moves_simulate(two, 1, 8, topology, NULL, &simulation), BANYAN_ERR_INVALID,
                "in lane 1, and there are 1 moves");
    CHECK_FAILS(banyan_moves_simulate(two, 0, 9, topology, NULL, &simulation), BANYAN_ERR_INVALID,
                "9 ranks, and topology star has 8 processors");
    options.grain = NAN;
    CHECK_FAILS(banyan_moves_simulate(two, 0, 8, topology, &options, &simulation),
                BANYAN_ERR_INVALID, "a grain of nan");
    banyan_topology_destroy(topology);
}

typedef struct loads {
    uint64_t up[8], down[8], most;
} loads;

static size_t random_moves(random_state *random, banyan_move *moves, loads *of)
{
    size_t count = (size_t)random_between(random, 1, MOST_MOVES);
    *of = (loads){0};
    for (size_t i = 0; i < count; i++) {
        int rank = (int)random_between(random, 0, 7), peer = (int)random_between(random, 0, 7);
        uint64_t bytes = (uint64_t)random_between(random, 0, 1 << 16);
        int lanes = count < 20 ? (int)count : 20;
        moves[i] = move(rank, peer, (int)random_between(random, 0, lanes - 1), bytes);
        for (int a = 0; a < 2; a++)
            if (i > 0 && random_between(random, 0, 3) == 0)
                moves[i].after[a] = (size_t)random_between(random, 0, (int64_t)i - 1);
        if (rank == peer)
            continue;
        of->up[rank] += bytes;
        of->down[peer] += bytes;
        of->most = of->up[rank] > of->most ? of->up[rank] : of->most;
        of->most = of->down[peer] > of->most ? of->down[peer] : of->most;
    }
    return count;
}

static void bytes_are_conserved_and_no_link_is_faster_than_it_is(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    static banyan_move moves[MOST_MOVES];
    banyan_topology *topology = star_make(&plain);
    for (int turn = 0; turn < 60; turn++) {
        loads of;
        size_t count = random_moves(&random, moves, &of);
        banyan_simulation *once, *again;
        CHECK_OK(banyan_moves_simulate(moves, count, 8, topology, NULL, &once));
        CHECK_OK(banyan_moves_simulate(moves, count, 8, topology, NULL, &again));
        double found = banyan_simulation_seconds(once);
        CHECK(found == banyan_simulation_seconds(again));
        CHECK(found >= (double)of.most / RATE, "%g s for %llu bytes over one link", found,
              (unsigned long long)of.most);
        for (int r = 0; r < 8; r++) {
            CHECK(star_bytes(once, r, true) == of.up[r]);
            CHECK(star_bytes(once, r, false) == of.down[r]);
        }
        banyan_simulation_destroy(once);
        banyan_simulation_destroy(again);
    }
    banyan_topology_destroy(topology);
}

/* Independent moves: the time with a grain is the exact one, or later by the grain at most. */
static void a_grain_costs_no_more_than_it_says(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    static banyan_move moves[MOST_MOVES];
    for (int turn = 0; turn < 40; turn++) {
        loads of;
        size_t count = random_moves(&random, moves, &of);
        int lanes[8] = {0};
        for (size_t i = 0; i < count; i++) {
            moves[i].lane = lanes[moves[i].rank]++;
            moves[i].after[0] = moves[i].after[1] = BANYAN_NO_MOVE;
        }
        double from = seconds(&plain, moves, count);
        double to = seconds_with(&plain, moves, count, 0.01);
        CHECK(to >= from * (1 - 1e-6) && to <= from * 1.02, "%g s, not %g s", to, from);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_move_takes_its_request_its_bytes_and_the_latency),
        cmocka_unit_test(a_kernel_takes_its_launch_and_its_blocks_time),
        cmocka_unit_test(lanes_share_a_link_and_a_lane_keeps_its_order),
        cmocka_unit_test(the_end_of_a_peers_move_is_known_one_latency_later),
        cmocka_unit_test(moves_that_cannot_be_are_refused),
        cmocka_unit_test(bytes_are_conserved_and_no_link_is_faster_than_it_is),
        cmocka_unit_test(a_grain_costs_no_more_than_it_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
