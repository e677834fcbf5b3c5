/* The fused modes' programs, proved for every grid. */
#include "mixed/fused/fused.h"
#include "mixed/grids.h"
#include "plan/plan.h"
#include "support/proof.h"

static int no_node(void *context, int rank)
{
    (void)context;
    (void)rank;
    return 0;
}

static banyan_mixed_grid resolve(const grid_sizes *sizes, int ranks)
{
    banyan_mixed_grid grid;
    banyan_mixed_options options = options_of(sizes, BANYAN_F32);
    CHECK_OK(grid_resolve(&options, 0, ranks, no_node, NULL, &grid));
    return grid;
}

#define RANKS_MOST 8

/* Gathered, a rank's output has a block of each data-parallel rank, summed over its
 * tensor-parallel group. Scattered, it is the sum of all ranks' blocks of its own data-parallel
 * index. */
static void check_promise(const banyan_mixed_grid *grid, bool gathers, const banyan_plan *plan,
                          int dp_index, int rank)
{
    plan_contribution room[RANKS_MOST];
    plan_expected expected;
    banyan_reduce_op op;
    uint64_t chunks = plan->ranks[rank].chunks[PLAN_OUTPUT], dp = (uint64_t)grid->dp;
    uint64_t each = gathers ? chunks / dp : chunks;
    for (uint64_t chunk = 0; chunk < chunks; chunk++) {
        uint64_t block = gathers ? chunk / each : (uint64_t)dp_index;
        uint64_t from = gathers ? chunk % each : block * each + chunk, found = 0;
        CHECK(plan_expected_of(plan, rank, chunk, room, &expected, &op));
        for (int d = 0; d < grid->dp; d++) {
            for (int t = 0; t < grid->tp && (!gathers || (uint64_t)d == block); t++, found++)
                CHECK(found < expected.count && expected.contributions[found].chunk == from &&
                          expected.contributions[found].rank == grid_rank_at(grid, t, d),
                      "chunk %d of rank %d", (int)chunk, rank);
        }
        CHECK(found == expected.count, "chunk %d of rank %d", (int)chunk, rank);
    }
}

static void check_promises(const banyan_mixed_grid *grid, const fused_kind *kind,
                           const banyan_plan *plan)
{
    bool gathers = kind->op == BANYAN_MIXED_ALLREDUCE || kind->op == BANYAN_MIXED_ALLGATHER ||
                   kind->op == BANYAN_MIXED_ALLREDUCE_ALLGATHER;
    for (int d = 0; d < grid->dp; d++) {
        for (int t = 0; t < grid->tp; t++)
            check_promise(grid, gathers, plan, d, grid_rank_at(grid, t, d));
    }
}

static void demand(const banyan_mixed_grid *grid, const fused_kind *kind, const banyan_plan *plan)
{
    char name[200];
    snprintf(name, sizeof name, "%s, %s, %s%s, tp %d × %d, dp %d × %d",
             banyan_mixed_op_name(kind->op), banyan_mixed_mode_name(kind->mode),
             kind->packets ? "packets" : "units", kind->in_place ? " in place" : "", grid->local_tp,
             grid->inter_tp, grid->local_dp, grid->inter_dp);
    proof_demand(plan, name);
}

static void prove(const banyan_mixed_grid *grid, fused_kind kind)
{
    banyan_plan *plan;
    bool there = (kind.mode != BANYAN_MIXED_TWO_SHOT || grid->local_tp > 1) &&
                 (kind.mode != BANYAN_MIXED_TWO_SHOT_NODES || grid->inter_tp > 1);
    if (!there) {
        CHECK_FAILS(fused_compile(grid, &kind, &plan), BANYAN_ERR_INVALID, "there is no program");
        return;
    }
    CHECK_OK(fused_compile(grid, &kind, &plan));
    if (!kind.in_place)
        check_promises(grid, &kind, plan);
    demand(grid, &kind, plan);
    banyan_plan_destroy(plan);
}

static void prove_grid(const grid_sizes *sizes, int ranks)
{
    banyan_mixed_grid grid = resolve(sizes, ranks);
    for (int op = 0; op < BANYAN_MIXED_OPS; op++) {
        if (!grid_allows(&grid, (banyan_mixed_op)op))
            continue;
        for (int mode = BANYAN_MIXED_ONE_SHOT; mode <= BANYAN_MIXED_TWO_SHOT_NODES; mode++) {
            for (int form = 0; form < 4; form++) {
                fused_kind kind = {(banyan_mixed_op)op, (banyan_mixed_mode)mode, form & 1,
                                   form & 2};
                if (!kind.in_place || op == BANYAN_MIXED_ALLREDUCE)
                    prove(&grid, kind);
            }
        }
    }
}

static void prove_all(int ranks)
{
    grid_sizes grids[32];
    int count = grids_of(ranks, grids, 32);
    for (int i = 0; i < count; i++)
        prove_grid(&grids[i], ranks);
}

static void programs_of_up_to_four_ranks_are_sound(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks++)
        prove_all(ranks);
}

static void programs_of_six_ranks_are_sound(void **state)
{
    (void)state;
    prove_all(6);
}

static void programs_of_eight_ranks_are_sound(void **state)
{
    (void)state;
    prove_all(8);
}

static void more_ranks_than_tables_have_room_for_are_refused(void **state)
{
    (void)state;
    banyan_plan *plan;
    fused_kind kind = {BANYAN_MIXED_ALLREDUCE, BANYAN_MIXED_ONE_SHOT, true, false};
    grid_sizes sizes = {1, 1025, 1, 1, 1};
    banyan_mixed_grid grid = resolve(&sizes, 1025);
    CHECK_FAILS(fused_compile(&grid, &kind, &plan), BANYAN_ERR_INVALID,
                "up to 1024 ranks, not 1025");
}

/* Units are shorter with many ranks. */
static void programs_of_thirty_two_ranks_compile(void **state)
{
    (void)state;
    static const grid_sizes grids[] = {{1, 4, 8, 1, 1}, {4, 2, 4, 2, 2}, {32, 1, 1, 2, 16}};
    for (size_t i = 0; i < sizeof grids / sizeof *grids; i++) {
        banyan_mixed_grid grid = resolve(&grids[i], 32);
        for (int op = BANYAN_MIXED_ALLREDUCE_ALLGATHER; op < BANYAN_MIXED_OPS; op++) {
            fused_kind kind = {(banyan_mixed_op)op, BANYAN_MIXED_ONE_SHOT, false, false};
            banyan_plan *plan;
            uint64_t input, output;
            CHECK_OK(fused_compile(&grid, &kind, &plan));
            uint64_t message = (uint64_t)grid.dp * 1000000;
            CHECK_OK(banyan_plan_sizes(plan, 31, message, &input, &output));
            banyan_plan_destroy(plan);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(programs_of_up_to_four_ranks_are_sound),
        cmocka_unit_test(programs_of_six_ranks_are_sound),
        cmocka_unit_test(programs_of_eight_ranks_are_sound),
        cmocka_unit_test(programs_of_thirty_two_ranks_compile),
        cmocka_unit_test(more_ranks_than_tables_have_room_for_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
