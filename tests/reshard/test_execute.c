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
} sides;

static sides sides_make(const random_case *of, int rank, banyan_world *symmetric)
{
    sides made = {case_layout(of, rank, false), case_layout(of, rank, true), NULL, NULL};
    CHECK_OK(banyan_tensors_alloc(made.source_layout, symmetric, &made.source));
    CHECK_OK(banyan_tensors_alloc(made.destination_layout, symmetric, &made.destination));
    filled_poison(made.destination);
    return made;
}

static void sides_free(sides *of)
{
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
    bool symmetric = random_next(&random) % 2;
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    options.min_split_bytes = (uint64_t)random_between(&random, 1, 500);
    options.checksums = random_next(&random) % 2;
    if (random_next(&random) % 2)
        options.max_staging_bytes = (uint64_t)random_between(&random, 1024, 8192);
    int rank = banyan_world_rank(world);
    sides mine = sides_make(of, rank, symmetric ? world : NULL);
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
        filled_check(mine.destination_layout, mine.destination, pass);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_lands_over_a_service_of_four_functions),
        cmocka_unit_test(every_element_lands_over_direct),
        cmocka_unit_test(every_element_lands_over_the_pipeline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
