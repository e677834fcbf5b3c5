/* Positions of ranks: the formulas of the header, for every grid. */
#include "mixed/grids.h"

static int on_machines_of_three(void *context, int rank)
{
    (void)context;
    return rank / 3;
}

static int scattered(void *context, int rank)
{
    (void)context;
    return rank % 2;
}

static void check_place(const banyan_mixed_grid *g, int rank)
{
    CHECK(g->local_tp_rank >= 0 && g->local_tp_rank < g->local_tp);
    CHECK(g->local_dp_rank >= 0 && g->local_dp_rank < g->local_dp);
    CHECK(g->inter_tp_rank >= 0 && g->inter_tp_rank < g->inter_tp);
    CHECK(g->inter_dp_rank >= 0 && g->inter_dp_rank < g->inter_dp);
    CHECK(g->local_rank == g->local_tp_rank + g->local_dp_rank * g->local_tp);
    CHECK(g->node == g->inter_tp_rank + g->inter_dp_rank * g->inter_tp);
    CHECK(rank == g->local_rank + g->node * g->local_size);
    CHECK(g->tp_index == g->local_tp_rank + g->inter_tp_rank * g->local_tp);
    CHECK(g->dp_index == g->local_dp_rank + g->inter_dp_rank * g->local_dp);
    CHECK(grid_rank_at(g, g->tp_index, g->dp_index) == rank);
}

static void check_grid(const grid_sizes *sizes, int ranks)
{
    banyan_mixed_options options = options_of(sizes, BANYAN_F32);
    bool taken[64] = {false};
    for (int rank = 0; rank < ranks; rank++) {
        banyan_mixed_grid grid;
        CHECK_OK(grid_resolve(&options, rank, ranks, scattered, NULL, &grid));
        CHECK(grid.nodes == sizes->nodes && grid.local_size * grid.nodes == ranks);
        CHECK(grid.tp == sizes->local_tp * sizes->inter_tp && grid.tp * grid.dp == ranks);
        check_place(&grid, rank);
        int index = grid.tp_index + grid.dp_index * grid.tp;
        CHECK(index < ranks && !taken[index], "two ranks have the indices of rank %d", rank);
        taken[index] = true;
        for (int other = 0; other < ranks; other++) {
            banyan_mixed_grid its = grid_of_rank(&grid, other);
            check_place(&its, other);
        }
    }
}

static void every_rank_has_the_place_that_the_formulas_say(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 12; ranks++) {
        grid_sizes grids[64];
        int count = grids_of(ranks, grids, 64);
        for (int i = 0; i < count; i++)
            check_grid(&grids[i], ranks);
    }
}

static banyan_mixed_grid resolve(int nodes, int local_tp, int local_dp, int inter_tp, int inter_dp)
{
    grid_sizes sizes = {nodes, local_tp, local_dp, inter_tp, inter_dp};
    banyan_mixed_options options = options_of(&sizes, BANYAN_F32);
    banyan_mixed_grid grid;
    CHECK_OK(grid_resolve(&options, 0, 12, on_machines_of_three, NULL, &grid));
    return grid;
}

static void missing_sizes_take_the_remaining_ranks(void **state)
{
    (void)state;
    banyan_mixed_grid grid = resolve(0, 0, 0, 0, 0);
    CHECK(grid.nodes == 4 && grid.local_size == 3);
    CHECK(grid.local_tp == 3 && grid.local_dp == 1 && grid.inter_tp == 4 && grid.inter_dp == 1);
    grid = resolve(0, 1, 0, 2, 0);
    CHECK(grid.local_tp == 1 && grid.local_dp == 3 && grid.inter_tp == 2 && grid.inter_dp == 2);
    grid = resolve(2, 0, 2, 0, 2);
    CHECK(grid.nodes == 2 && grid.local_tp == 3 && grid.local_dp == 2);
    CHECK(grid.inter_tp == 1 && grid.inter_dp == 2);
}

static void machines_must_hold_equally_many_ranks_in_order(void **state)
{
    (void)state;
    banyan_mixed_options options = BANYAN_MIXED_OPTIONS_INIT;
    banyan_mixed_grid grid;
    CHECK_FAILS(grid_resolve(&options, 0, 4, on_machines_of_three, NULL, &grid), BANYAN_ERR_INVALID,
                "4 ranks are on 2 nodes, and rank 2 is on node 0");
    CHECK_FAILS(grid_resolve(&options, 0, 4, scattered, NULL, &grid), BANYAN_ERR_INVALID,
                "rank 1 is on node 1");
    options.nodes = 4;
    CHECK_OK(grid_resolve(&options, 0, 4, scattered, NULL, &grid));
    CHECK(grid.local_size == 1);
}

static void names_are_parsed_as_they_are_printed(void **state)
{
    (void)state;
    for (int i = 0; i < BANYAN_MIXED_OPS; i++) {
        banyan_mixed_op op;
        CHECK_OK(banyan_mixed_op_parse(banyan_mixed_op_name((banyan_mixed_op)i), &op));
        CHECK(op == (banyan_mixed_op)i);
    }
    for (int i = 0; i < BANYAN_MIXED_MODES; i++) {
        banyan_mixed_mode mode;
        CHECK_OK(banyan_mixed_mode_parse(banyan_mixed_mode_name((banyan_mixed_mode)i), &mode));
        CHECK(mode == (banyan_mixed_mode)i);
    }
    banyan_mixed_op op;
    banyan_mixed_mode mode;
    static const struct {
        const char *name;
        banyan_mixed_mode mode;
    } old[] = {{"fewest_waits", BANYAN_MIXED_ONE_SHOT},
               {"fewest_bytes_multicast", BANYAN_MIXED_TWO_SHOT_NODES_MULTICAST},
               {"two_nccl", BANYAN_MIXED_SEPARATE_NCCL}};
    for (size_t i = 0; i < sizeof old / sizeof old[0]; i++) {
        CHECK_OK(banyan_mixed_mode_parse(old[i].name, &mode));
        CHECK(mode == old[i].mode);
    }
    CHECK_FAILS(banyan_mixed_op_parse("allreduce_", &op), BANYAN_ERR_NOT_FOUND, "\"allreduce_\"");
    CHECK_FAILS(banyan_mixed_mode_parse(NULL, &mode), BANYAN_ERR_NOT_FOUND, "\"\"");
    CHECK(strcmp(banyan_mixed_op_name(BANYAN_MIXED_OPS), "?") == 0);
    CHECK(strcmp(banyan_mixed_mode_name(BANYAN_MIXED_MODES), "?") == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_has_the_place_that_the_formulas_say),
        cmocka_unit_test(missing_sizes_take_the_remaining_ranks),
        cmocka_unit_test(machines_must_hold_equally_many_ranks_in_order),
        cmocka_unit_test(names_are_parsed_as_they_are_printed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
