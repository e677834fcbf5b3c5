/* The memory that runs use stays within its bound. */
#include "reshard/sides.h"

#include "reshard/run/memory.h"

static void run_bounded(banyan_world *world, void *context)
{
    random_state random = random_from(*(const uint64_t *)context);
    banyan_copy_service *service = open_service(world, "mailbox");
    /* Elements have one byte, so that single ones need no staging. */
    const uint64_t bounds[] = {1, 256, 600, 1024, 5000, 65536};
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
            CHECK_OK(banyan_reshard_execute(plan, mine.source, mine.destination, service, world,
                                            NULL, NULL));
            filled_check(mine.destination_layout, mine.destination, pass, false);
        }
        CHECK(run_memory_peak() <= bounds[i], "%llu of %llu", (unsigned long long)run_memory_peak(),
              (unsigned long long)bounds[i]);
        banyan_reshard_plan_destroy(plan);
        sides_free(&mine);
        free(of);
        /* All memory is returned. */
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
    CHECK_FAILS(
        banyan_reshard_execute(plan, mine.source, mine.destination, service, world, NULL, NULL),
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(staging_stays_within_its_bound),
        cmocka_unit_test(a_bound_that_nothing_fits_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
