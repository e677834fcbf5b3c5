/* Every operation in every mode of every grid, against float64. */
#include "mixed/mixed_check.h"

#define ELEMS_MOST 2500

static void run_modes(mixed_case *c, random_state *random, banyan_mixed_op op)
{
    banyan_mixed_mode modes[BANYAN_MIXED_MODES];
    size_t count;
    CHECK_OK(banyan_mixed_valid_modes(c->mixed, op, modes, BANYAN_MIXED_MODES, &count));
    CHECK(count > 0);
    for (size_t i = 0; i <= count; i++) {
        mixed_one call = {.op = op, .mode = i < count ? modes[i] : BANYAN_MIXED_AUTO};
        for (int kind = DATA_WHOLE; kind <= DATA_SPECIAL; kind++) {
            call.kind = (data_kind)kind;
            call.in_place = op == BANYAN_MIXED_ALLREDUCE && random_between(random, 0, 1);
            draw_size(random, ELEMS_MOST, &call);
            case_run(c, &call);
            case_check_bits(c, &call);
        }
    }
}

/* The grid determines the modes. */
static void check_modes(const mixed_case *c, banyan_mixed_op op)
{
    bool pair =
        op == BANYAN_MIXED_ALLREDUCE_ALLGATHER || op == BANYAN_MIXED_REDUCESCATTER_ALLREDUCE;
    CHECK(case_has_mode(c, op, BANYAN_MIXED_ONE_SHOT));
    CHECK(case_has_mode(c, op, BANYAN_MIXED_TWO_SHOT) == (c->grid.local_tp > 1));
    CHECK(case_has_mode(c, op, BANYAN_MIXED_TWO_SHOT_NODES) == (c->grid.inter_tp > 1));
    CHECK(case_has_mode(c, op, BANYAN_MIXED_SINGLE));
    CHECK(case_has_mode(c, op, BANYAN_MIXED_SEPARATE) == pair);
    CHECK(!case_has_mode(c, op, BANYAN_MIXED_SEPARATE_NCCL));
}

static void check_ops(const mixed_case *c, const banyan_mixed_op *ops, size_t count)
{
    if (c->grid.tp > 1 && c->grid.dp > 1)
        CHECK(count == 2 && ops[0] == BANYAN_MIXED_ALLREDUCE_ALLGATHER &&
              ops[1] == BANYAN_MIXED_REDUCESCATTER_ALLREDUCE);
    else if (c->grid.dp > 1)
        CHECK(count == 2 && ops[0] == BANYAN_MIXED_ALLGATHER &&
              ops[1] == BANYAN_MIXED_REDUCESCATTER);
    else
        CHECK(count == 1 && ops[0] == BANYAN_MIXED_ALLREDUCE);
}

static void run_grid(banyan_world *world, const grid_sizes *sizes, uint64_t seed)
{
    random_state random = random_from(seed);
    banyan_mixed_options options = options_of(sizes, draw_dtype(&random));
    mixed_case c = {.world = world};
    banyan_mixed_op ops[BANYAN_MIXED_OPS];
    size_t count;
    case_open(&c, &options, ELEMS_MOST);
    CHECK_OK(banyan_mixed_valid_ops(c.mixed, ops, BANYAN_MIXED_OPS, &count));
    check_ops(&c, ops, count);
    for (size_t i = 0; i < count; i++) {
        check_modes(&c, ops[i]);
        run_modes(&c, &random, ops[i]);
    }
    case_close(&c);
}

static void run_grids(banyan_world *world, void *context)
{
    uint64_t seed = *(const uint64_t *)context;
    grid_sizes grids[32];
    int count = grids_of(banyan_world_size(world), grids, 32);
    for (int i = 0; i < count; i++)
        run_grid(world, &grids[i], seed + (uint64_t)i);
}

static void test_grids(int ranks)
{
    uint64_t seed = random_seed();
    ranks_run(ranks, run_grids, &seed);
}

static void all_grids_of_one_rank_and_of_two(void **state)
{
    (void)state;
    test_grids(1);
    test_grids(2);
}

static void all_grids_of_four_ranks(void **state)
{
    (void)state;
    test_grids(4);
}

static void all_grids_of_six_ranks(void **state)
{
    (void)state;
    test_grids(6);
}

static void all_grids_of_eight_ranks(void **state)
{
    (void)state;
    test_grids(8);
}

static void all_grids_between_threads(void **state)
{
    (void)state;
    uint64_t seed = random_seed() + 1000;
    ranks_run_threads(4, run_grids, &seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_grids_of_one_rank_and_of_two),
        cmocka_unit_test(all_grids_of_four_ranks),
        cmocka_unit_test(all_grids_of_six_ranks),
        cmocka_unit_test(all_grids_of_eight_ranks),
        cmocka_unit_test(all_grids_between_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
