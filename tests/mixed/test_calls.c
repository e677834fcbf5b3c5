/* Call after call without barriers: operations, modes, sizes and data change. */
#include <unistd.h>

#include "core/threads/sanitizer.h"
#include "mixed/mixed_check.h"

#ifdef SANITIZER_THREAD
#define CALLS 200
#else
#define CALLS 1000
#endif
#define ELEMS_MOST 3000
#define LONG_ELEMS 700001

typedef struct series {
    uint64_t seed;
    grid_sizes sizes;
    int calls;
} series;

static void run_series(banyan_world *world, void *context)
{
    const series *of = context;
    random_state random = random_from(of->seed), own = random_from(of->seed ^ UINT64_MAX);
    banyan_mixed_options options = options_of(&of->sizes, draw_dtype(&random));
    mixed_case c = {.world = world};
    case_open(&c, &options, ELEMS_MOST);
    for (int i = 0; i < banyan_world_rank(world); i++)
        (void)random_next(&own);
    for (int i = 0; i < of->calls; i++) {
        mixed_one call = draw_call(&c, &random, ELEMS_MOST);
        /* Ranks arrive at random times. */
        if (random_between(&own, 0, 20) == 0)
            usleep((useconds_t)random_between(&own, 0, 300));
        case_run(&c, &call);
    }
    CHECK_OK(banyan_mixed_status(c.mixed));
    /* Also close at random times. */
    usleep((useconds_t)random_between(&own, 0, 3000));
    case_close(&c);
}

static void test_series(int ranks, grid_sizes sizes, int calls, bool threads)
{
    series of = {random_seed(), sizes, calls};
    if (threads)
        ranks_run_threads(ranks, run_series, &of);
    else
        ranks_run(ranks, run_series, &of);
}

static void a_thousand_calls_of_four_ranks_in_a_node(void **state)
{
    (void)state;
    test_series(4, (grid_sizes){1, 2, 2, 1, 1}, CALLS, false);
}

static void a_thousand_calls_of_four_ranks_in_two_nodes(void **state)
{
    (void)state;
    test_series(4, (grid_sizes){2, 1, 2, 2, 1}, CALLS, false);
    test_series(4, (grid_sizes){2, 2, 1, 1, 2}, CALLS, false);
}

static void calls_of_eight_ranks_in_four_nodes(void **state)
{
    (void)state;
    test_series(8, (grid_sizes){4, 2, 1, 2, 2}, CALLS / 4, false);
    test_series(8, (grid_sizes){2, 2, 2, 2, 1}, CALLS / 4, false);
}

static void single_collectives_of_two_ranks(void **state)
{
    (void)state;
    test_series(2, (grid_sizes){1, 2, 1, 1, 1}, CALLS, false);
    test_series(2, (grid_sizes){2, 1, 1, 1, 2}, CALLS, false);
}

static void calls_between_threads(void **state)
{
    (void)state;
    test_series(4, (grid_sizes){2, 1, 2, 2, 1}, CALLS / 2, true);
    test_series(2, (grid_sizes){1, 2, 1, 1, 1}, CALLS / 2, true);
}

/* Units cycle through their ring, and longer calls reload programs. */
static void run_long(banyan_world *world, void *context)
{
    const series *of = context;
    random_state random = random_from(of->seed);
    banyan_mixed_options options = options_of(&of->sizes, BANYAN_BF16);
    mixed_case c = {.world = world};
    case_open(&c, &options, LONG_ELEMS);
    for (int i = 0; i < of->calls; i++) {
        mixed_one call = draw_call(&c, &random, LONG_ELEMS);
        call.kind = DATA_WHOLE;
        call.row_elems = (uint64_t)random_between(&random, LONG_ELEMS / 7, LONG_ELEMS);
        call.rows = (uint64_t)random_between(&random, 1, (int64_t)(LONG_ELEMS / call.row_elems));
        case_run(&c, &call);
    }
    case_close(&c);
}

static void long_messages_in_all_modes(void **state)
{
    (void)state;
    static const grid_sizes grids[] = {
        {1, 2, 2, 1, 1}, {2, 2, 1, 2, 1}, {2, 1, 2, 2, 1}, {4, 2, 1, 2, 2}};
    for (size_t i = 0; i < sizeof grids / sizeof *grids; i++) {
        const grid_sizes *g = &grids[i];
        int ranks = g->nodes * g->local_tp * g->local_dp;
        series of = {random_seed() + i, *g, 32 / ranks};
        ranks_run(ranks, run_long, &of);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thousand_calls_of_four_ranks_in_a_node),
        cmocka_unit_test(a_thousand_calls_of_four_ranks_in_two_nodes),
        cmocka_unit_test(calls_of_eight_ranks_in_four_nodes),
        cmocka_unit_test(single_collectives_of_two_ranks),
        cmocka_unit_test(calls_between_threads),
        cmocka_unit_test(long_messages_in_all_modes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
