/* Runs with errors: every rank gets the error; a failed run leaves all destinations torn, and can
 * be run again. */
#include <unistd.h>

#include "reshard/sides.h"

#include "core/deadline.h"

static void fail_and_run_again(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world);
    lane on = lane_make(world, "mailbox", NULL);
    CHECK_OK(lane_run(&on, world, 1));
    lane_check(&on, 1, 1);
    mailbox_trouble.fail_in_run = rank == 1 ? 2 : 0;
    CHECK_FAILS(lane_run(&on, world, 2), BANYAN_ERR_SYSTEM, "the mailbox is full");
    CHECK(rank == 1 || strstr(banyan_last_error(), "rank 1"), "%s", banyan_last_error());
    CHECK(banyan_tensors_get_state(on.mine.destination) == BANYAN_TENSORS_TORN);
    CHECK(banyan_tensors_version(on.mine.destination) == 1);
    filled_poison(on.mine.destination);
    CHECK_OK(lane_run(&on, world, 3));
    lane_check(&on, 3, 2);
    lane_free(&on);
}

static void a_failed_run_leaves_all_torn_and_can_be_run_again(void **state)
{
    (void)state;
    ranks_run(3, fail_and_run_again, NULL);
}

static void versions_agree(banyan_world *world, void *context)
{
    (void)context;
    lane on = lane_make(world, "direct", NULL);
    CHECK_OK(lane_run(&on, world, 1));
    lane_check(&on, 1, 1);
    CHECK_OK(lane_run(&on, world, 2));
    /* A rank with a new set, of version 0, gets the others' number. */
    if (banyan_world_rank(world) == 0) {
        banyan_tensors_destroy(on.mine.destination);
        CHECK_OK(banyan_tensors_alloc(on.mine.destination_layout, NULL, &on.mine.destination));
        CHECK(banyan_tensors_get_state(on.mine.destination) == BANYAN_TENSORS_EMPTY);
    }
    filled_poison(on.mine.destination);
    CHECK_OK(lane_run(&on, world, 3));
    lane_check(&on, 3, 3);
    lane_free(&on);
}

static void all_ranks_agree_on_a_version(void **state)
{
    (void)state;
    ranks_run(3, versions_agree, NULL);
}

static void bad_arguments(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world);
    lane on = lane_make(world, "direct", NULL);
    banyan_tensors *wrong = rank == 2 ? on.mine.source : on.mine.destination;
    filled_make(on.mine.source_layout, on.mine.source, 1);
    banyan_layout *other;
    CHECK_OK(banyan_layout_create(&other));
    banyan_layout_add_tensor(other, "local.0", BANYAN_BF16, 1, (int64_t[]){7});
    banyan_tensors *seven = NULL;
    CHECK_OK(banyan_tensors_alloc(other, NULL, &seven));
    if (rank == 2)
        wrong = seven;
    CHECK_FAILS(
        banyan_reshard_execute(on.plan, on.mine.source, wrong, on.service, world, NULL, NULL),
        BANYAN_ERR_INVALID, "local.");
    CHECK(rank == 2 || strstr(banyan_last_error(), "rank 2"), "%s", banyan_last_error());
    CHECK_FAILS(
        banyan_reshard_execute(on.plan, on.mine.source, NULL, on.service, world, NULL, NULL),
        BANYAN_ERR_INVALID, "the destination has 0 tensors, its plan 1");
    CHECK_FAILS(banyan_reshard_execute(on.plan, NULL, NULL, NULL, world, NULL, NULL),
                BANYAN_ERR_INVALID, "without a copy service");
    CHECK_OK(lane_run(&on, world, 2));
    lane_check(&on, 2, 1);
    banyan_tensors_destroy(seven);
    banyan_layout_destroy(other);
    lane_free(&on);
}

static void arguments_that_do_not_fit_the_plan_stop_every_rank(void **state)
{
    (void)state;
    ranks_run(3, bad_arguments, NULL);
}

static void other_options(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world);
    random_case *of = shift_case(banyan_world_size(world), 4, 4);
    sides mine = sides_make(of, world, MEMORY_ORDINARY);
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    options.max_staging_bytes = rank == 1 ? 4096 : 8192;
    banyan_reshard_plan *plan = NULL;
    CHECK_FAILS(banyan_reshard_plan_create(mine.source_layout, mine.destination_layout, world,
                                           &options, &plan),
                BANYAN_ERR_MISMATCH, "max_staging_bytes 4096");
    CHECK(!plan);
    /* A layout with an error of its own. */
    if (rank == 1)
        banyan_layout_add_tensor(mine.source_layout, "bad", BANYAN_BF16, 1, (int64_t[]){-4});
    CHECK_FAILS(
        banyan_reshard_plan_create(mine.source_layout, mine.destination_layout, world, NULL, &plan),
        BANYAN_ERR_INVALID, "\"bad\"");
    /* A tensor that no rank has. */
    if (rank == 1) {
        banyan_layout_destroy(mine.source_layout);
        mine.source_layout = NULL;
    }
    CHECK_FAILS(
        banyan_reshard_plan_create(mine.source_layout, mine.destination_layout, world, NULL, &plan),
        BANYAN_ERR_INVALID, "no rank holds [4:8, 0:4]");
    sides_free(&mine);
    free(of);
}

static void a_plan_is_refused_on_every_rank(void **state)
{
    (void)state;
    ranks_run(3, other_options, NULL);
}

/* Rank 0 names rank 1 as a replica, although it holds nothing: only the receiver can detect
 * that. */
static void name_a_stranger(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world);
    banyan_layout *layout;
    CHECK_OK(banyan_layout_create(&layout));
    banyan_piece piece = {
        .name = "w", .ndim = 1, .shape = {512}, .box = {1, {0}, {512}}, .dim_map = {0}};
    piece.tensor = banyan_layout_add_tensor(layout, "local", BANYAN_U8, 1, piece.shape);
    if (rank == 0) {
        piece.replicas = banyan_rank_set_one(0);
        piece.replicas.count[BANYAN_RANK_SET_LEVELS - 1] = 2;
        piece.replicas.stride[BANYAN_RANK_SET_LEVELS - 1] = 1;
    }
    banyan_layout_add_piece(layout, &piece);
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    options.min_split_bytes = 1;
    banyan_reshard_plan *plan = NULL;
    CHECK_FAILS(banyan_reshard_plan_create(rank == 0 ? layout : NULL, rank == 2 ? layout : NULL,
                                           world, &options, &plan),
                BANYAN_ERR_MISMATCH,
                "rank 2 expects 1 transfers of 256 bytes from rank 1, which would send 0 of 0");
    CHECK(!plan);
    banyan_layout_destroy(layout);
}

static void a_replica_that_holds_nothing_is_found_before_anything_moves(void **state)
{
    (void)state;
    ranks_run(3, name_a_stranger, NULL);
}

static void flip_a_bit(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world);
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    options.checksums = true;
    lane on = lane_make(world, "mailbox", &options);
    CHECK_OK(lane_run(&on, world, 1));
    lane_check(&on, 1, 1);
    mailbox_trouble.flip_bit_in_run = rank == 1 ? 2 : 0;
    CHECK_FAILS(lane_run(&on, world, 2), BANYAN_ERR_CORRUPT,
                "[80:120, 0:30] of \"w\" that rank 2 sent arrived changed at rank 1");
    CHECK(banyan_tensors_get_state(on.mine.destination) == BANYAN_TENSORS_TORN);
    filled_poison(on.mine.destination);
    CHECK_OK(lane_run(&on, world, 3));
    lane_check(&on, 3, 2);
    lane_free(&on);
}

static void a_bit_that_flips_on_the_way_is_found(void **state)
{
    (void)state;
    ranks_run(3, flip_a_bit, NULL);
}

static void die_in_a_run(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    options.rank = rank;
    options.world_size = count;
    options.unique_id = id;
    banyan_world *world;
    CHECK_OK(banyan_world_open(&options, &world));
    lane on = lane_make(world, "mailbox", NULL);
    CHECK_OK(lane_run(&on, world, 1));
    lane_check(&on, 1, 1);
    mailbox_trouble.end_in_run = rank == 1 ? 2 : 0;
    filled_make(on.mine.source_layout, on.mine.source, 2);
    CHECK_OK(banyan_world_barrier(world));
    uint64_t started_ns = time_now_ns();
    CHECK_FAILS(banyan_reshard_execute(on.plan, on.mine.source, on.mine.destination, on.service,
                                       world, NULL, NULL),
                BANYAN_ERR_PEER_LOST, "rank 1");
    CHECK(time_now_ns() - started_ns < 2 * NS_PER_S);
    CHECK(banyan_tensors_get_state(on.mine.destination) == BANYAN_TENSORS_TORN);
    lane_free(&on);
    banyan_world_close(world);
}

static void a_rank_that_dies_in_a_run_ends_it(void **state)
{
    (void)state;
    int statuses[4];
    ranks_fork(4, die_in_a_run, NULL, statuses);
    for (int rank = 0; rank < 4; rank++)
        assert_int_equal(statuses[rank], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failed_run_leaves_all_torn_and_can_be_run_again),
        cmocka_unit_test(all_ranks_agree_on_a_version),
        cmocka_unit_test(arguments_that_do_not_fit_the_plan_stop_every_rank),
        cmocka_unit_test(a_plan_is_refused_on_every_rank),
        cmocka_unit_test(a_replica_that_holds_nothing_is_found_before_anything_moves),
        cmocka_unit_test(a_bit_that_flips_on_the_way_is_found),
        cmocka_unit_test(a_rank_that_dies_in_a_run_ends_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
