/* Planning an imagined world: its refusals and its counts. */
#include "support/test.h"

#define RANKS 6

struct imagined {
    bool source_is_short, layout_is_wrong;
    uint64_t done, total;
};

/* A matrix by rows on the even ranks, by columns on the odd ones. */
static banyan_status rows_to_columns(void *context, int rank, banyan_layout *source,
                                     banyan_layout *destination)
{
    const struct imagined *imagined = context;
    const int64_t shape[] = {12, 300};
    banyan_mesh mesh = {.ndim = 1, .extent = {RANKS / 2}, .stride = {2}, .first_rank = rank % 2};
    banyan_placement placement = {BANYAN_SHARD, rank % 2};
    if (imagined->source_is_short && rank == 4)
        return BANYAN_OK;
    banyan_layout_add_sharded(rank % 2 ? destination : source, "weight", BANYAN_BF16, 2, shape,
                              &mesh, &placement, rank);
    if (imagined->layout_is_wrong && rank == 3)
        banyan_layout_add_tensor(destination, "weight", BANYAN_BF16, 2, shape);
    return BANYAN_OK;
}

static void note_progress(void *context, uint64_t done, uint64_t total)
{
    struct imagined *imagined = context;
    imagined->total = total;
    CHECK(done == ++imagined->done, "%d steps", (int)done);
}

static banyan_status sample(struct imagined *imagined, const int *ranks, int count,
                            banyan_reshard_plan_cost *costs)
{
    banyan_reshard_sample_world world = {.world_size = RANKS,
                                         .layouts = rows_to_columns,
                                         .progress = note_progress,
                                         .context = imagined};
    return banyan_reshard_plan_sample(&world, NULL, ranks, count, costs);
}

static void sampled_ranks_count_their_own_transfers(void **state)
{
    (void)state;
    struct imagined imagined = {0};
    banyan_reshard_plan_cost costs[3];
    CHECK_OK(sample(&imagined, (const int[]){5, 0, 1}, 3, costs));
    for (int i = 0; i < 3; i++) {
        static const int ranks[] = {5, 0, 1};
        assert_int_equal(costs[i].rank, ranks[i]);
        assert_int_equal(costs[i].transfers, 3);
        assert_int_equal(costs[i].transfer_bytes, ranks[i] % 2 ? 12 * 100 * 2 : 0);
        assert_true(costs[i].seconds > costs[i].owner_seconds);
        assert_true(costs[i].prove_seconds > 0);
    }
    assert_int_equal(imagined.total, 2 * RANKS);
    assert_int_equal(imagined.done, imagined.total);
}

static void a_plan_that_fails_at_a_sampled_rank_fails(void **state)
{
    (void)state;
    struct imagined imagined = {.source_is_short = true};
    banyan_reshard_plan_cost costs[1] = {{.rank = -7}};
    CHECK_FAILS(sample(&imagined, (const int[]){1}, 1, costs), BANYAN_ERR_INVALID, "weight");
    assert_int_equal(costs[0].rank, -7);
}

static void a_layout_that_is_wrong_is_refused(void **state)
{
    (void)state;
    struct imagined imagined = {.layout_is_wrong = true};
    banyan_reshard_plan_cost costs[1];
    CHECK_FAILS(sample(&imagined, (const int[]){1}, 1, costs), BANYAN_ERR_INVALID, "weight");
}

static void ranks_that_cannot_be_sampled_are_refused(void **state)
{
    (void)state;
    struct imagined imagined = {0};
    banyan_reshard_plan_cost costs[2];
    CHECK_FAILS(sample(&imagined, (const int[]){RANKS}, 1, costs), BANYAN_ERR_INVALID, "rank 6");
    CHECK_FAILS(sample(&imagined, (const int[]){-1}, 1, costs), BANYAN_ERR_INVALID, "rank -1");
    CHECK_FAILS(sample(&imagined, (const int[]){2, 2}, 2, costs), BANYAN_ERR_INVALID, "rank 2");
    CHECK_OK(sample(&imagined, NULL, 0, NULL));
}

static void a_world_larger_than_any_is_refused(void **state)
{
    (void)state;
    banyan_reshard_sample_world world = {.world_size = BANYAN_MAX_RANKS + 1,
                                         .layouts = rows_to_columns};
    CHECK_FAILS(banyan_reshard_plan_sample(&world, NULL, NULL, 0, NULL), BANYAN_ERR_INVALID,
                "1048577 ranks are more than the 1048576");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sampled_ranks_count_their_own_transfers),
        cmocka_unit_test(a_plan_that_fails_at_a_sampled_rank_fails),
        cmocka_unit_test(a_layout_that_is_wrong_is_refused),
        cmocka_unit_test(ranks_that_cannot_be_sampled_are_refused),
        cmocka_unit_test(a_world_larger_than_any_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
