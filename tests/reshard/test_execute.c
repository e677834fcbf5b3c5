/* Runs over real worlds: every element lands at its place, again and again, and nothing else is
 * touched; what a run promises of versions, memory and failures holds. */
#include <unistd.h>

#include "support/test.h"

#include "reshard/filled.h"
#include "reshard/mailbox.h"
#include "reshard/random_case.h"

#include "core/deadline.h"
#include "reshard/execute_memory.h"

/* One rank's two sides of a random case. */
typedef struct sides {
    banyan_layout *source_layout, *destination_layout;
    banyan_tensors *source, *destination;
    void *memory[2]; /* that is bound to them; NULL: their own */
} sides;

typedef enum memory_kind { MEMORY_SYMMETRIC, MEMORY_ORDINARY, MEMORY_STRIDED } memory_kind;

/* A set over memory of the caller's, with gaps between all elements and the dimensions in the
 * opposite order. */
static banyan_tensors *bind_strided(const banyan_layout *layout, void **memory)
{
    size_t count = banyan_layout_tensor_count(layout), bytes = 1;
    for (size_t i = 0; i < count; i++) {
        const banyan_local_tensor *tensor = banyan_layout_tensor(layout, i);
        size_t taken = 2 * banyan_dtype_bytes(tensor->dtype);
        for (int d = 0; d < tensor->ndim; d++)
            taken *= (size_t)tensor->shape[d];
        bytes += taken;
    }
    DLTensor *tensors = calloc(count + 1, sizeof *tensors);
    int64_t(*strides)[BANYAN_MAX_DIMS] = calloc(count + 1, sizeof *strides);
    char *at = *memory = malloc(bytes);
    for (size_t i = 0; i < count; i++) {
        const banyan_local_tensor *tensor = banyan_layout_tensor(layout, i);
        int64_t stride = 2;
        for (int d = 0; d < tensor->ndim; d++) {
            strides[i][d] = stride;
            stride *= tensor->shape[d];
        }
        tensors[i] = (DLTensor){.data = at,
                                .device = {kDLCPU, 0},
                                .ndim = tensor->ndim,
                                .dtype = tensor->dtype,
                                .shape = (int64_t *)tensor->shape,
                                .strides = strides[i]};
        at += (size_t)stride * banyan_dtype_bytes(tensor->dtype);
    }
    banyan_tensors *set;
    CHECK_OK(banyan_tensors_create(layout, tensors, count, &set));
    free(strides);
    free(tensors);
    return set;
}

static sides sides_make(const random_case *of, banyan_world *world, memory_kind kind)
{
    int rank = banyan_world_rank(world);
    sides made = {case_layout(of, rank, false), case_layout(of, rank, true), NULL, NULL, {0}};
    banyan_world *symmetric = kind == MEMORY_SYMMETRIC ? world : NULL;
    if (kind == MEMORY_STRIDED) {
        made.source = bind_strided(made.source_layout, &made.memory[0]);
        made.destination = bind_strided(made.destination_layout, &made.memory[1]);
    } else {
        CHECK_OK(banyan_tensors_alloc(made.source_layout, symmetric, &made.source));
        CHECK_OK(banyan_tensors_alloc(made.destination_layout, symmetric, &made.destination));
    }
    filled_poison(made.destination);
    return made;
}

static void sides_free(sides *of)
{
    free(of->memory[0]);
    free(of->memory[1]);
    banyan_tensors_destroy(of->source);
    banyan_tensors_destroy(of->destination);
    banyan_layout_destroy(of->source_layout);
    banyan_layout_destroy(of->destination_layout);
}

static banyan_copy_service *open_service(banyan_world *world, const char *backend)
{
    banyan_copy_service *service;
    if (strcmp(backend, "mailbox") == 0)
        CHECK_OK(banyan_copy_service_open_backend(world, &mailbox_backend, NULL, &service));
    else
        CHECK_OK(banyan_copy_service_open(world, backend, NULL, &service));
    return service;
}

static random_case *any_case(banyan_world *world, uint64_t seed, int64_t max_elems)
{
    random_state random = random_from(seed);
    case_options options = {.world_size = banyan_world_size(world), .max_elems = max_elems};
    if (options.world_size > 1 && random_next(&random) % 2)
        options.first_destination_rank = (int)random_between(&random, 1, options.world_size - 1);
    return case_make(random_next(&random), &options);
}

/* ---- random layouts ---- */

struct many {
    uint64_t seed;
    const char *backend;
    int cases;
};

static void run_case(banyan_world *world, uint64_t seed, banyan_copy_service *service)
{
    random_state random = random_from(seed);
    random_case *of = any_case(world, random_next(&random), random_between(&random, 1, 2000));
    memory_kind kind = (memory_kind)random_between(&random, 0, MEMORY_STRIDED);
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    options.min_split_bytes = (uint64_t)random_between(&random, 1, 500);
    options.checksums = random_next(&random) % 2;
    if (random_next(&random) % 2)
        options.max_staging_bytes = (uint64_t)random_between(&random, 1024, 8192);
    sides mine = sides_make(of, world, kind);
    banyan_reshard_plan *plan;
    CHECK_OK(banyan_reshard_plan_create(mine.source_layout, mine.destination_layout, world,
                                        &options, &plan));
    CHECK(banyan_tensors_get_state(mine.destination) == BANYAN_TENSORS_EMPTY);
    for (int pass = 1; pass <= 3; pass++) {
        filled_make(mine.source_layout, mine.source, pass);
        CHECK_OK(banyan_world_barrier(world));
        CHECK_OK(banyan_reshard_execute(plan, mine.source, mine.destination, service, world, NULL));
        CHECK(banyan_tensors_get_state(mine.destination) == BANYAN_TENSORS_WHOLE);
        CHECK(banyan_tensors_version(mine.destination) == (uint64_t)pass);
        filled_check(mine.destination_layout, mine.destination, pass, false);
    }
    banyan_reshard_plan_destroy(plan);
    sides_free(&mine);
    free(of);
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

/* ---- one pass at a time, with care ---- */

/* A case that gives every rank but the first something to receive from another. */
typedef struct lane {
    random_case *of;
    sides mine;
    banyan_copy_service *service;
    banyan_reshard_plan *plan;
} lane;

/* Rows of a tensor move from each rank to the next. */
static random_case *shift_case(int world_size, int64_t rows, int64_t columns)
{
    random_case *made = calloc(1, sizeof *made);
    made->world_size = world_size;
    made->tensor_count = 1;
    made->tensors[0] = (case_tensor){"w", {kDLBfloat, 16, 1}, 2, {rows * world_size, columns}};
    for (int rank = 0; rank < world_size; rank++)
        for (int side = 0; side <= 1; side++)
            made->holdings[made->holding_count++] =
                (case_holding){.is_destination = side,
                               .box = {2, {(rank + side) % world_size * rows, 0}, {rows, columns}},
                               .ranks = banyan_rank_set_one(rank),
                               .seed = (uint64_t)rank};
    return made;
}

static lane lane_make(banyan_world *world, const char *backend,
                      const banyan_reshard_options *options)
{
    lane made = {.of = shift_case(banyan_world_size(world), 40, 30)};
    made.mine = sides_make(made.of, world, MEMORY_ORDINARY);
    made.service = open_service(world, backend);
    CHECK_OK(banyan_reshard_plan_create(made.mine.source_layout, made.mine.destination_layout,
                                        world, options, &made.plan));
    return made;
}

static banyan_status lane_run(lane *on, banyan_world *world, int pass)
{
    filled_make(on->mine.source_layout, on->mine.source, pass);
    CHECK_OK(banyan_world_barrier(world));
    return banyan_reshard_execute(on->plan, on->mine.source, on->mine.destination, on->service,
                                  world, NULL);
}

static void lane_check(const lane *on, int pass, uint64_t version)
{
    CHECK(banyan_tensors_get_state(on->mine.destination) == BANYAN_TENSORS_WHOLE);
    CHECK(banyan_tensors_version(on->mine.destination) == version);
    filled_check(on->mine.destination_layout, on->mine.destination, pass, false);
}

static void lane_free(lane *on)
{
    banyan_reshard_plan_destroy(on->plan);
    banyan_copy_service_close(on->service);
    sides_free(&on->mine);
    free(on->of);
}

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
    /* A rank that comes with a new set, of version 0, gets the number that the others get. */
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
    CHECK_FAILS(banyan_reshard_execute(on.plan, on.mine.source, wrong, on.service, world, NULL),
                BANYAN_ERR_INVALID, "local.");
    CHECK(rank == 2 || strstr(banyan_last_error(), "rank 2"), "%s", banyan_last_error());
    CHECK_FAILS(banyan_reshard_execute(on.plan, on.mine.source, NULL, on.service, world, NULL),
                BANYAN_ERR_INVALID, "the destination has 0 tensors, its plan 1");
    CHECK_FAILS(banyan_reshard_execute(on.plan, NULL, NULL, NULL, world, NULL), BANYAN_ERR_INVALID,
                "without a copy service");
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
    /* A tensor that nobody has. */
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

static void a_plan_is_refused_on_every_rank_alike(void **state)
{
    (void)state;
    ranks_run(3, other_options, NULL);
}

/* Rank 0 takes rank 1 for a replica, which holds nothing: only who should receive can tell. */
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

/* ---- staging memory ---- */

static void run_bounded(banyan_world *world, void *context)
{
    random_state random = random_from(*(const uint64_t *)context);
    banyan_copy_service *service = open_service(world, "mailbox");
    const uint64_t bounds[] = {256, 600, 1024, 5000, 65536};
    for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++) {
        random_case *of = any_case(world, random_next(&random), 3000);
        sides mine = sides_make(of, world, MEMORY_STRIDED);
        banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
        options.max_staging_bytes = bounds[i];
        options.checksums = i % 2;
        banyan_reshard_plan *plan;
        CHECK_OK(banyan_reshard_plan_create(mine.source_layout, mine.destination_layout, world,
                                            &options, &plan));
        run_memory_restart();
        for (int pass = 1; pass <= 2; pass++) {
            filled_make(mine.source_layout, mine.source, pass);
            CHECK_OK(banyan_world_barrier(world));
            CHECK_OK(
                banyan_reshard_execute(plan, mine.source, mine.destination, service, world, NULL));
            filled_check(mine.destination_layout, mine.destination, pass, false);
        }
        CHECK(run_memory_peak() <= bounds[i], "%llu of %llu", (unsigned long long)run_memory_peak(),
              (unsigned long long)bounds[i]);
        banyan_reshard_plan_destroy(plan);
        sides_free(&mine);
        free(of);
        /* All of it is given back. */
        run_memory_restart();
        CHECK(run_memory_peak() == 0);
    }
    banyan_copy_service_close(service);
}

static void staging_stays_within_its_bound(void **state)
{
    (void)state;
    uint64_t seed = random_seed();
    ranks_run(4, run_bounded, &seed);
}

static void bound_too_small(banyan_world *world, void *context)
{
    (void)context;
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    options.max_staging_bytes = 32;
    random_case *of = shift_case(banyan_world_size(world), 4, 40);
    sides mine = sides_make(of, world, MEMORY_STRIDED);
    banyan_copy_service *service = open_service(world, "mailbox");
    banyan_reshard_plan *plan;
    CHECK_OK(banyan_reshard_plan_create(mine.source_layout, mine.destination_layout, world,
                                        &options, &plan));
    CHECK_FAILS(banyan_reshard_execute(plan, mine.source, mine.destination, service, world, NULL),
                BANYAN_ERR_INVALID, "max_staging_bytes is 32");
    banyan_reshard_plan_destroy(plan);
    banyan_copy_service_close(service);
    sides_free(&mine);
    free(of);
}

static void a_bound_that_nothing_fits_is_refused(void **state)
{
    (void)state;
    ranks_run(2, bound_too_small, NULL);
}

/* ---- checksums ---- */

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

/* ---- other ways to run ---- */

static void start_and_wait(banyan_world *world, void *context)
{
    (void)context;
    lane on = lane_make(world, "direct", NULL);
    for (int pass = 1; pass <= 2; pass++) {
        filled_make(on.mine.source_layout, on.mine.source, pass);
        banyan_request *request;
        CHECK_OK(banyan_reshard_start(on.plan, on.mine.source, on.mine.destination, on.service,
                                      world, NULL, &request));
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
    ranks_run(3, start_and_wait, NULL);
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
                                            in_pool ? sets[pool] : NULL, service, world, NULL));
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
    CHECK_FAILS(banyan_reshard_execute(plan, source, declared, service, world, NULL),
                BANYAN_ERR_INVALID, "\"bias\" has type BF16, its layout says F32");
    CHECK_OK(banyan_reshard_execute(plan, source, planned, service, world, NULL));
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
    CHECK_OK(banyan_reshard_execute(plan, source, destination, service, world, NULL));
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

/* ---- death ---- */

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
                                       world, NULL),
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
        cmocka_unit_test(every_element_lands_over_a_service_of_four_functions),
        cmocka_unit_test(every_element_lands_over_direct),
        cmocka_unit_test(every_element_lands_over_the_pipeline),
        cmocka_unit_test(every_element_lands_between_threads),
        cmocka_unit_test(a_failed_run_leaves_all_torn_and_can_be_run_again),
        cmocka_unit_test(all_ranks_agree_on_a_version),
        cmocka_unit_test(arguments_that_do_not_fit_the_plan_stop_every_rank),
        cmocka_unit_test(a_plan_is_refused_on_every_rank_alike),
        cmocka_unit_test(a_replica_that_holds_nothing_is_found_before_anything_moves),
        cmocka_unit_test(staging_stays_within_its_bound),
        cmocka_unit_test(a_bound_that_nothing_fits_is_refused),
        cmocka_unit_test(a_bit_that_flips_on_the_way_is_found),
        cmocka_unit_test(a_run_can_be_started_and_waited_for),
        cmocka_unit_test(a_plan_runs_over_one_service_after_another),
        cmocka_unit_test(one_source_feeds_two_disjoint_pools),
        cmocka_unit_test(a_persistent_buffer_lands_in_the_type_of_its_source),
        cmocka_unit_test(a_tensor_that_both_sides_share_is_there_already),
        cmocka_unit_test(a_rank_that_dies_in_a_run_ends_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
