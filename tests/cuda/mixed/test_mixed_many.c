/* Mixed collectives of more GPUs than a machine has: 9 to 16 emulated ones, in one node and in
 * several, every operation and fused mode, by unicast and by multicast. */
#include "cuda/mixed_multicast.h"

/* Check that every mode that the grid permits is valid, with many ranks too. */
static void check_modes(const mixed_case *c, banyan_mixed_op op)
{
    bool local = c->grid.local_tp > 1, multicast = c->grid.local_size > 1;
    bool nodes = c->grid.nodes > 1;
    CHECK(case_has_mode(c, op, BANYAN_MIXED_ONE_SHOT));
    CHECK(case_has_mode(c, op, BANYAN_MIXED_TWO_SHOT) == local);
    CHECK(case_has_mode(c, op, BANYAN_MIXED_TWO_SHOT_NODES) == (nodes && c->grid.inter_tp > 1));
    for (int m = BANYAN_MIXED_ONE_SHOT; m <= BANYAN_MIXED_TWO_SHOT_NODES; m++)
        CHECK(case_has_mode(c, op, by_multicast((banyan_mixed_mode)m)) ==
                  (multicast && case_has_mode(c, op, (banyan_mixed_mode)m)),
              "%s", banyan_mixed_mode_name((banyan_mixed_mode)m));
}

static void run_op(mixed_case *c, random_state *random, banyan_mixed_op op)
{
    check_modes(c, op);
    for (int m = BANYAN_MIXED_ONE_SHOT; m <= BANYAN_MIXED_TWO_SHOT_NODES; m++) {
        mixed_one call = {.op = op, .mode = (banyan_mixed_mode)m, .kind = DATA_RANDOM};
        draw_size(random, ELEMS_MOST / 4, &call);
        if (case_has_mode(c, op, by_multicast(call.mode)))
            compare(c, call);
        else if (case_has_mode(c, op, call.mode))
            case_run(c, &call);
    }
}

static void run_grid(banyan_world *world, void *context)
{
    begin(&all_have_it);
    run_each_op(world, context, run_op);
}

static void run_grids(const grid_sizes *grids, size_t count)
{
    series of = {.seed = random_seed(), .block_size = 32};
    for (size_t i = 0; i < count; i++) {
        of.sizes = grids[i];
        of.seed++;
        ranks_run(grids[i].nodes * grids[i].local_tp * grids[i].local_dp, run_grid, &of);
    }
}

static void nodes_of_up_to_16_ranks_in_all(void **state)
{
    static const grid_sizes grids[] = {{4, 4, 1, 4, 1}, {4, 2, 2, 2, 2},  {2, 8, 1, 1, 2},
                                       {2, 2, 4, 2, 1}, {8, 2, 1, 4, 2},  {8, 1, 2, 8, 1},
                                       {3, 2, 2, 3, 1}, {3, 3, 1, 1, 3},  {2, 5, 1, 2, 1},
                                       {5, 1, 3, 1, 5}, {16, 1, 1, 4, 4}, {16, 1, 1, 16, 1}};
    (void)state;
    run_grids(grids, sizeof grids / sizeof *grids);
}

static void puts_of_the_host_reach_all_nodes(void **state)
{
    static const grid_sizes grids[] = {{4, 2, 2, 2, 2}, {3, 3, 1, 3, 1}};
    (void)state;
    setenv("BANYAN_MIXED_NVSHMEM", "proxy", 1);
    run_grids(grids, sizeof grids / sizeof *grids);
    unsetenv("BANYAN_MIXED_NVSHMEM");
}

static void one_node_of_up_to_16_ranks(void **state)
{
    static const grid_sizes grids[] = {
        {1, 16, 1, 1, 1}, {1, 4, 4, 1, 1}, {1, 1, 12, 1, 1}, {1, 3, 3, 1, 1}};
    (void)state;
    run_grids(grids, sizeof grids / sizeof *grids);
}

int main(void)
{
    nodes_tests_begin("16");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes_of_up_to_16_ranks_in_all),
        cmocka_unit_test(puts_of_the_host_reach_all_nodes),
        cmocka_unit_test(one_node_of_up_to_16_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
