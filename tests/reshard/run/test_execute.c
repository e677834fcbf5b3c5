/* Runs over real worlds: every element arrives at its place, repeatedly, and nothing else is
 * touched, with every layout, service and kind of run. */
#include <sys/mman.h>
#include <unistd.h>

#include "reshard/sides.h"

struct many {
    uint64_t seed;
    const char *backend;
    int cases;
};

static void run_case(banyan_world *world, uint64_t seed, banyan_copy_service *service)
{
    lane on = lane_random(world, seed, service);
    CHECK(banyan_tensors_get_state(on.mine.destination) == BANYAN_TENSORS_EMPTY);
    for (int pass = 1; pass <= 3; pass++) {
        CHECK_OK(lane_run(&on, world, pass));
        lane_check(&on, pass, (uint64_t)pass);
    }
    lane_end(&on);
}

static void run_many(banyan_world *world, void *context)
{
    const struct many *many = context;
    random_state random = random_from(many->seed);
    banyan_copy_service *service = open_service(world, many->backend);
    for (int i = 0; i < many->cases; i++)
        run_case(world, random_next(&random), service);
    banyan_copy_service_close(service);
}

static void every_element_lands_over(const char *backend, int cases)
{
    random_state random = random_from(random_seed());
    for (int ranks = 1; ranks <= 5; ranks += 2) {
        struct many many = {random_next(&random), backend, cases};
        ranks_run(ranks, run_many, &many);
    }
}

static void every_element_lands_over_a_service_of_four_functions(void **state)
{
    (void)state;
    every_element_lands_over("mailbox", 12);
}

static void every_element_lands_over_direct(void **state)
{
    (void)state;
    every_element_lands_over("direct", 12);
}

static void every_element_lands_over_the_pipeline(void **state)
{
    (void)state;
    const banyan_copy_backend *backend;
    if (banyan_copy_backend_find("pipeline", &backend) != BANYAN_OK) {
        printf("skipped: %s\n", banyan_last_error());
        skip();
    }
    every_element_lands_over("pipeline", 12);
}

static void every_element_lands_between_threads(void **state)
{
    (void)state;
    struct many many = {random_seed(), "direct", 4};
    ranks_run_threads(3, run_many, &many);
    many.backend = "mailbox";
    ranks_run_threads(3, run_many, &many);
}

/* The source stays unchanged, so that only a move can restore the destination. */
static void run_poisoned(banyan_world *world, void *context)
{
    lane on = lane_make(world, context, NULL);
    CHECK_OK(lane_run(&on, world, 1));
    for (uint64_t version = 1; version <= 4; version++) {
        lane_check(&on, 1, version);
        filled_poison(on.mine.destination);
        CHECK_OK(banyan_world_barrier(world));
        CHECK_OK(banyan_reshard_execute(on.plan, on.mine.source, on.mine.destination, on.service,
                                        world, NULL, NULL));
    }
    lane_check(&on, 1, 5);
    lane_free(&on);
}

static void every_run_of_a_kept_schedule_moves_all(void **state)
{
    (void)state;
    char backends[][16] = {"direct", "pipeline", "mailbox"};
    for (int i = 0; i < 3; i++)
        ranks_run(3, run_poisoned, backends[i]);
}

/* The last rank starts after rank 0 has polled its run, which therefore cannot be over before. */
static void wait_for_look(_Atomic int *looked_in, int pass)
{
    for (int ms = 0; *looked_in < pass; ms++) {
        CHECK(ms < 20000);
        usleep(1000);
    }
}

static void start_and_wait(banyan_world *world, void *context)
{
    _Atomic int *looked_in = context;
    int rank = banyan_world_rank(world);
    lane on = lane_make(world, "direct", NULL);
    for (int pass = 1; pass <= 2; pass++) {
        filled_make(on.mine.source_layout, on.mine.source, pass);
        if (rank == banyan_world_size(world) - 1)
            wait_for_look(looked_in, pass);
        banyan_request *request;
        CHECK_OK(banyan_reshard_start(on.plan, on.mine.source, on.mine.destination, on.service,
                                      world, NULL, &request));
        if (rank == 0) {
            CHECK(banyan_tensors_get_state(on.mine.destination) == BANYAN_TENSORS_TORN);
            *looked_in = pass;
        }
        bool done = false;
        while (!done)
            CHECK_OK(banyan_request_test(request, &done));
        CHECK_OK(banyan_request_wait(request));
        lane_check(&on, pass, (uint64_t)pass);
        CHECK_OK(banyan_world_barrier(world));
    }
    banyan_request *request;
    CHECK_OK(
        banyan_reshard_start(on.plan, on.mine.source, NULL, on.service, world, NULL, &request));
    CHECK_FAILS(banyan_request_wait(request), BANYAN_ERR_INVALID, "the destination has 0 tensors");
    lane_free(&on);
}

static void a_run_can_be_started_and_waited_for(void **state)
{
    (void)state;
    _Atomic int *looked_in =
        mmap(NULL, sizeof *looked_in, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(looked_in != MAP_FAILED);
    ranks_run(3, start_and_wait, looked_in);
    munmap(looked_in, sizeof *looked_in);
}

static void change_services(banyan_world *world, void *context)
{
    (void)context;
    lane on = lane_make(world, "direct", NULL);
    CHECK_OK(lane_run(&on, world, 1));
    lane_check(&on, 1, 1);
    banyan_copy_service *first = on.service;
    on.service = open_service(world, "mailbox");
    CHECK_OK(lane_run(&on, world, 2));
    lane_check(&on, 2, 2);
    banyan_reshard_plan_release(on.plan);
    banyan_copy_service_close(on.service);
    on.service = first;
    CHECK_OK(lane_run(&on, world, 3));
    lane_check(&on, 3, 3);
    lane_free(&on);
}

static void a_plan_runs_over_one_service_after_another(void **state)
{
    (void)state;
    ranks_run(3, change_services, NULL);
}

/* Ranks 0 and 1 train; 2 and 3 prefill with halves of columns, 4 and 5 decode with all of it. */
static banyan_layout *pool_layout(int rank, const banyan_mesh *mesh, banyan_placement placement)
{
    banyan_layout *layout;
    CHECK_OK(banyan_layout_create(&layout));
    banyan_layout_add_sharded(layout, "w", BANYAN_F32, 2, (int64_t[]){24, 10}, mesh, &placement,
                              rank);
    banyan_layout_add_sharded(layout, "v", BANYAN_BF16, 1, (int64_t[]){11}, mesh,
                              &(banyan_placement){BANYAN_REPLICATE, 0}, rank);
    CHECK_OK(banyan_layout_check(layout));
    return layout;
}

static void feed_two_pools(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world);
    const banyan_mesh trainer = {1, {2}, {1}, 0}, prefill = {1, {2}, {1}, 2},
                      decode = {1, {2}, {1}, 4};
    banyan_layout *source_layout = pool_layout(rank, &trainer, (banyan_placement){BANYAN_SHARD, 0});
    banyan_layout *pools[2] = {
        pool_layout(rank, &prefill, (banyan_placement){BANYAN_SHARD, 1}),
        pool_layout(rank, &decode, (banyan_placement){BANYAN_REPLICATE, 0}),
    };
    banyan_tensors *source, *sets[2];
    CHECK_OK(banyan_tensors_alloc(source_layout, world, &source));
    banyan_copy_service *service = open_service(world, "direct");
    banyan_reshard_plan *plans[2];
    for (int pool = 0; pool < 2; pool++) {
        bool in_pool = rank / 2 == pool + 1;
        CHECK((banyan_layout_piece_count(pools[pool]) == 2) == in_pool);
        CHECK_OK(banyan_tensors_alloc(pools[pool], world, &sets[pool]));
        filled_poison(sets[pool]);
        CHECK_OK(banyan_reshard_plan_create(rank < 2 ? source_layout : NULL,
                                            in_pool ? pools[pool] : NULL, world, NULL,
                                            &plans[pool]));
    }
    for (int pass = 1; pass <= 3; pass++) {
        filled_make(source_layout, source, pass);
        CHECK_OK(banyan_world_barrier(world));
        for (int pool = 0; pool < 2; pool++) {
            bool in_pool = rank / 2 == pool + 1;
            CHECK_OK(banyan_reshard_execute(plans[pool], rank < 2 ? source : NULL,
                                            in_pool ? sets[pool] : NULL, service, world, NULL,
                                            NULL));
            filled_check(pools[pool], sets[pool], pass, false);
            CHECK(banyan_tensors_version(sets[pool]) == (in_pool ? (uint64_t)pass : 0));
        }
    }
    for (int pool = 0; pool < 2; pool++) {
        banyan_reshard_plan_destroy(plans[pool]);
        banyan_tensors_destroy(sets[pool]);
        banyan_layout_destroy(pools[pool]);
    }
    banyan_copy_service_close(service);
    banyan_tensors_destroy(source);
    banyan_layout_destroy(source_layout);
}

static void one_source_feeds_two_disjoint_pools(void **state)
{
    (void)state;
    ranks_run(6, feed_two_pools, NULL);
}

static void adopt_a_type(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world);
    banyan_layout *layouts[2];
    for (int side = 0; side < 2; side++) {
        CHECK_OK(banyan_layout_create(&layouts[side]));
        banyan_piece bias = {.name = "expert_bias",
                             .ndim = 1,
                             .shape = {9},
                             .box = {1, {0}, {9}},
                             .dim_map = {0},
                             .flags = BANYAN_PIECE_PERSISTENT_BUFFER};
        bias.tensor = banyan_layout_add_tensor(layouts[side], "bias",
                                               side == 0 ? BANYAN_F32 : BANYAN_BF16, 1, bias.shape);
        banyan_layout_add_piece(layouts[side], &bias);
    }
    const banyan_layout *source_layout = rank == 0 ? layouts[0] : NULL;
    const banyan_layout *destination_layout = rank == 1 ? layouts[1] : NULL;
    banyan_reshard_plan *plan;
    CHECK_OK(banyan_reshard_plan_create(source_layout, destination_layout, world, NULL, &plan));
    CHECK(banyan_reshard_plan_tensor_count(plan) == (rank == 1));
    CHECK(rank == 0 || banyan_dtype_equal(banyan_reshard_plan_tensor(plan, 0)->dtype, BANYAN_F32));
    CHECK(!banyan_reshard_plan_tensor(plan, 1));
    banyan_tensors *source, *declared, *planned;
    CHECK_OK(banyan_tensors_alloc(source_layout, world, &source));
    CHECK_OK(banyan_tensors_alloc(destination_layout, world, &declared));
    CHECK_OK(banyan_tensors_alloc_planned(plan, world, &planned));
    if (rank == 0)
        filled_make(source_layout, source, 1);
    filled_poison(planned);
    banyan_copy_service *service = open_service(world, "direct");
    CHECK_FAILS(banyan_reshard_execute(plan, source, declared, service, world, NULL, NULL),
                BANYAN_ERR_INVALID, "\"bias\" has type BF16, its layout says F32");
    CHECK_OK(banyan_reshard_execute(plan, source, planned, service, world, NULL, NULL));
    if (rank == 1)
        filled_check(destination_layout, planned, 1, false);
    banyan_reshard_plan_destroy(plan);
    banyan_copy_service_close(service);
    banyan_tensors_destroy(source);
    banyan_tensors_destroy(declared);
    banyan_tensors_destroy(planned);
    banyan_layout_destroy(layouts[0]);
    banyan_layout_destroy(layouts[1]);
}

static void a_persistent_buffer_lands_in_the_type_of_its_source(void **state)
{
    (void)state;
    ranks_run(2, adopt_a_type, NULL);
}

static void share_memory(banyan_world *world, void *context)
{
    (void)context;
    banyan_layout *layout;
    CHECK_OK(banyan_layout_create(&layout));
    banyan_layout_add_sharded(layout, "w", BANYAN_F32, 2, (int64_t[]){6, 5},
                              &(banyan_mesh){1, {1}, {1}, 0},
                              &(banyan_placement){BANYAN_REPLICATE, 0}, 0);
    banyan_tensors *source, *destination;
    CHECK_OK(banyan_tensors_alloc(layout, NULL, &source));
    CHECK_OK(banyan_tensors_create(layout, banyan_tensors_get(source, 0), 1, &destination));
    banyan_reshard_plan *plan;
    CHECK_OK(banyan_reshard_plan_create(layout, layout, world, NULL, &plan));
    banyan_copy_service *service = open_service(world, "direct");
    filled_make(layout, source, 1);
    CHECK_OK(banyan_reshard_execute(plan, source, destination, service, world, NULL, NULL));
    filled_check(layout, destination, 1, false);
    banyan_reshard_plan_destroy(plan);
    banyan_copy_service_close(service);
    banyan_tensors_destroy(destination);
    banyan_tensors_destroy(source);
    banyan_layout_destroy(layout);
}

static void a_tensor_that_both_sides_share_is_there_already(void **state)
{
    (void)state;
    ranks_run(1, share_memory, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_lands_over_a_service_of_four_functions),
        cmocka_unit_test(every_element_lands_over_direct),
        cmocka_unit_test(every_element_lands_over_the_pipeline),
        cmocka_unit_test(every_element_lands_between_threads),
        cmocka_unit_test(every_run_of_a_kept_schedule_moves_all),
        cmocka_unit_test(a_run_can_be_started_and_waited_for),
        cmocka_unit_test(a_plan_runs_over_one_service_after_another),
        cmocka_unit_test(one_source_feeds_two_disjoint_pools),
        cmocka_unit_test(a_persistent_buffer_lands_in_the_type_of_its_source),
        cmocka_unit_test(a_tensor_that_both_sides_share_is_there_already),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
