/* Mixed collectives by multicast in grids of several nodes, between emulated GPUs: bitwise equal
 * to the unicast modes; among other calls, in graphs, with late or dead peers; and the behaviour
 * if a node has no multicast. */
#include <sys/wait.h>

#include "cuda/mixed_multicast.h"

#define GRIDS_MOST 32

static const char nvshmem_way[] = "BANYAN_MIXED_NVSHMEM";

/* Compare the modes that are useful in the grid, at sizes of less than a unit, one unit, and
 * several launches. */
static void compare_op(mixed_case *c, random_state *random, banyan_mixed_op op)
{
    check_defaults(c, op);
    for (int i = 0; i < 3 * KINDS; i++) {
        banyan_mixed_mode mode = (banyan_mixed_mode)(BANYAN_MIXED_ONE_SHOT + i % 3);
        mixed_one call = {.op = op, .mode = mode, .kind = kinds[i / 3]};
        draw_size(random, ELEMS_MOST, &call);
        CHECK(case_has_mode(c, op, by_multicast(mode)) == case_has_mode(c, op, mode), "%s",
              banyan_mixed_mode_name(mode));
        if (case_has_mode(c, op, mode))
            compare(c, call);
    }
}

static void compare_grid(banyan_world *world, const series *of)
{
    run_each_op(world, of, compare_op);
}

/* Try some of many ranks' grids, in `calls` of 8. */
static void compare_grids(banyan_world *world, void *context)
{
    series of = *(const series *)context;
    random_state random = random_from(of.seed);
    grid_sizes grids[GRIDS_MOST];
    int ranks = banyan_world_size(world), count = grids_of(ranks, grids, GRIDS_MOST);
    begin(&all_have_it);
    for (int i = 0; i < count; i++) {
        bool drawn = random_between(&random, 1, 8) <= of.calls;
        of.sizes = grids[i];
        of.seed++;
        if (grids[i].nodes > 1 && grids[i].nodes < ranks && drawn)
            compare_grid(world, &of);
    }
    CHECK(logged[0] == '\0', "%s", logged);
}

static void grids_of_several_nodes_have_the_bits_of_unicast(void **state)
{
    (void)state;
    series of = {.seed = random_seed(), .calls = 8, .block_size = 64};
    setenv(nvshmem_way, "", 1);
    ranks_run(4, compare_grids, &of);
    ranks_run(8, compare_grids, &of);
    setenv(nvshmem_way, "device", 1);
    ranks_run(4, compare_grids, &of);
    setenv(nvshmem_way, "proxy", 1);
    of.seed++;
    ranks_run(4, compare_grids, &of);
    of.calls = 2;
    ranks_run(8, compare_grids, &of);
}

static void a_thousand_calls_change_operation_mode_and_size(void **state)
{
    (void)state;
    series of = {.seed = random_seed(),
                 .sizes = {2, 2, 1, 2, 1},
                 .calls = 1000,
                 .elems_most = 2000,
                 .max_bytes = 2048,
                 .block_size = 32};
    setenv(nvshmem_way, "", 1);
    ranks_run(4, run_series, &of);
    of.sizes = (grid_sizes){2, 2, 2, 1, 2};
    of.calls = 60;
    ranks_run(8, run_series, &of);
}

static void autotuning_measures_its_modes(void **state)
{
    (void)state;
    series of = {.sizes = {2, 2, 1, 2, 1}, .max_bytes = 2048, .block_size = 32};
    setenv(nvshmem_way, "", 1);
    ranks_run(4, run_autotuned, &of);
}

#define GRAPHS 3

static void run_graphs(banyan_world *world, void *context)
{
    const series *of = context;
    random_state random = random_from(of->seed);
    mixed_one calls[GRAPHS];
    void *graphs[GRAPHS];
    mixed_case c;
    begin(&all_have_it);
    enter(&c, world, of, BANYAN_F16);
    for (int i = 0; i < GRAPHS; i++) {
        calls[i] = (mixed_one){.op = BANYAN_MIXED_ALLREDUCE,
                               .mode = by_multicast(BANYAN_MIXED_ONE_SHOT + i),
                               .kind = DATA_RANDOM};
        draw_size(&random, ELEMS_MOST, &calls[i]);
    }
    gpu_case_capture_all(&c, calls, graphs, GRAPHS);
    gpu_case_play(&c, &random, calls, graphs, GRAPHS, of->calls, ELEMS_MOST);
    gpu_case_forget_all(&c, graphs, GRAPHS);
    gpu_case_close(&c);
}

static void graphs_are_played_among_other_calls(void **state)
{
    (void)state;
    series of = {.seed = random_seed(), .sizes = {2, 2, 1, 2, 1}, .calls = 30, .block_size = 64};
    setenv(nvshmem_way, "", 1);
    ranks_run(4, run_graphs, &of);
}

static void a_late_or_dead_peer_is_named(void **state)
{
    int statuses[4];
    late_case late = {{.sizes = {2, 2, 1, 1, 2}},
                      {BANYAN_MIXED_REDUCESCATTER_ALLREDUCE, BANYAN_MIXED_ONE_SHOT_MULTICAST,
                       DATA_WHOLE, 3, 50, false}};
    (void)state;
    setenv(nvshmem_way, "", 1);
    ranks_fork(4, be_late, &late, statuses);
    for (int r = 0; r < 4; r++)
        assert_int_equal(statuses[r], 0);
    late.of.sizes = (grid_sizes){2, 2, 1, 2, 1};
    late.call.op = BANYAN_MIXED_ALLREDUCE;
    late.call.mode = BANYAN_MIXED_TWO_SHOT_NODES_MULTICAST;
    ranks_fork(4, die, &late, statuses);
    for (int r = 0; r < 4; r++)
        assert_true(WIFSIGNALED(statuses[r]) == (r == 1) && (r == 1 || statuses[r] == 0));
}

struct without {
    grid_sizes sizes;
    int lacking;            /* rank without multicast */
    struct setting setting; /* of that rank */
    const char *why[2];     /* by node */
};

static void run_without(banyan_world *world, void *context)
{
    const struct without *of = context;
    int rank = banyan_world_rank(world);
    series of_calls = {.sizes = of->sizes};
    mixed_case c;
    begin(rank == of->lacking ? &of->setting : &all_have_it);
    enter(&c, world, &of_calls, BANYAN_BF16);
    mixed_one call = {.op = BANYAN_MIXED_ALLREDUCE, .rows = 2, .row_elems = 99};
    for (int mode = BANYAN_MIXED_ONE_SHOT; mode <= BANYAN_MIXED_TWO_SHOT_NODES; mode++) {
        call.mode = (banyan_mixed_mode)mode;
        if (!case_has_mode(&c, call.op, call.mode))
            continue;
        case_run(&c, &call);
        call.mode = by_multicast(call.mode);
        CHECK_FAILS(case_call(&c, &call), BANYAN_ERR_INVALID, of->why[c.grid.node]);
    }
    CHECK(accesses(world) == 0);
    gpu_case_close(&c);
}

static void where_a_node_has_none_all_nodes_say_why(void **state)
{
    (void)state;
    static const char none[] = "node 1 has no multicast";
    static const struct without cases[] = {
        {{2, 2, 1, 2, 1}, 2, {NULL, "1"}, {none, "BANYAN_MULTICAST is not 1"}},
        {{2, 2, 1, 2, 1}, 3, {"1", NULL}, {none, "it has no multicast"}},
        {{2, 2, 1, 2, 1},
         1,
         {"1", "unbound"},
         {"cuMulticastBindMem on device 1", "node 0 has no multicast"}},
        {{2, 1, 1, 2, 1}, -1, {NULL, NULL}, {"one rank a node", "one rank a node"}},
    };
    setenv(nvshmem_way, "", 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        ranks_run(2 * cases[i].sizes.local_tp, run_without, (void *)&cases[i]);
}

int main(void)
{
    nodes_tests_begin("8");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grids_of_several_nodes_have_the_bits_of_unicast),
        cmocka_unit_test(a_thousand_calls_change_operation_mode_and_size),
        cmocka_unit_test(autotuning_measures_its_modes),
        cmocka_unit_test(graphs_are_played_among_other_calls),
        cmocka_unit_test(a_late_or_dead_peer_is_named),
        cmocka_unit_test(where_a_node_has_none_all_nodes_say_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
