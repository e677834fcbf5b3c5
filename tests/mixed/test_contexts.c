/* Several contexts at once: in one world, in worlds of several threads, and after failures of
 * others. */
#include <pthread.h>

#include "mixed/mixed_check.h"

#define ELEMS_MOST 2000

static void open_drawn(mixed_case *c, banyan_world *world, const grid_sizes *sizes,
                       DLDataType dtype)
{
    banyan_mixed_options options = options_of(sizes, dtype);
    *c = (mixed_case){.world = world};
    case_open(c, &options, ELEMS_MOST);
}

static void run_drawn(mixed_case *c, random_state *random)
{
    mixed_one call = draw_call(c, random, ELEMS_MOST);
    case_run(c, &call);
}

#define CONTEXTS 4

static void take_turns(banyan_world *world, void *context)
{
    static const grid_sizes sizes[CONTEXTS] = {
        {1, 2, 2, 1, 1}, {1, 2, 2, 1, 1}, {2, 1, 2, 2, 1}, {4, 1, 1, 1, 4}};
    random_state random = random_from(*(const uint64_t *)context);
    mixed_case cases[CONTEXTS];
    for (int i = 0; i < CONTEXTS; i++)
        open_drawn(&cases[i], world, &sizes[i], draw_dtype(&random));
    for (int i = 0; i < 200; i++)
        run_drawn(&cases[random_between(&random, 0, CONTEXTS - 1)], &random);
    case_close(&cases[2]);
    open_drawn(&cases[2], world, &sizes[0], draw_dtype(&random));
    for (int i = 0; i < 50; i++)
        run_drawn(&cases[random_between(&random, 0, CONTEXTS - 1)], &random);
    static const int order[CONTEXTS] = {1, 3, 0, 2};
    for (int i = 0; i < CONTEXTS; i++)
        case_close(&cases[order[i]]);
}

static void contexts_of_one_world_are_used_in_turn(void **state)
{
    (void)state;
    uint64_t seed = random_seed();
    ranks_run(4, take_turns, &seed);
}

/* A thread's world, and the source of its random calls. */
typedef struct driver {
    int rank, count;
    banyan_unique_id id;
    uint64_t seed;
    grid_sizes sizes;
} driver;

static void *drive(void *context)
{
    driver *of = context;
    banyan_world *world = ranks_open_world(of->rank, of->count, &of->id, 0);
    random_state random = random_from(of->seed);
    mixed_case c;
    open_drawn(&c, world, &of->sizes, draw_dtype(&random));
    for (int i = 0; i < 200; i++)
        run_drawn(&c, &random);
    case_close(&c);
    CHECK_OK(banyan_world_close(world));
    return NULL;
}

/* In the second, ranks are numbered in reverse. */
static void drive_two(banyan_world *world, void *context)
{
    uint64_t seed = *(const uint64_t *)context;
    int rank = banyan_world_rank(world), count = banyan_world_size(world);
    driver drivers[2] = {{rank, count, .seed = seed, .sizes = {1, 2, 2, 1, 1}},
                         {count - 1 - rank, count, .seed = seed + 1, .sizes = {2, 2, 1, 1, 2}}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        if (rank == 0)
            CHECK_OK(banyan_unique_id_create(&drivers[i].id));
        CHECK_OK(banyan_world_broadcast(world, &drivers[i].id, sizeof drivers[i].id, 0));
    }
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, drive, &drivers[i]) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
}

static void contexts_of_two_worlds_are_driven_by_two_threads(void **state)
{
    (void)state;
    uint64_t seed = random_seed();
    ranks_run(4, drive_two, &seed);
}

/* Failed steps do not disturb a context that is opened next, or is open already. */
static void open_again(banyan_world *world, void *context)
{
    static const grid_sizes sizes = {1, 2, 1, 1, 1};
    random_state random = random_from(*(const uint64_t *)context);
    banyan_mixed_options options = options_of(&sizes, BANYAN_F32);
    bool odd = banyan_world_rank(world) == 1;
    banyan_mixed *mixed = NULL;
    mixed_case before, after;
    open_drawn(&before, world, &sizes, BANYAN_F16);
    for (int i = 0; i < 3; i++) {
        options.autotune = "/nowhere/table.json";
        CHECK_FAILS(banyan_mixed_open(world, &options, &mixed), BANYAN_ERR_NOT_FOUND, "/nowhere");
        options.autotune = NULL;
        options.local_tp = odd ? 1 : 2;
        CHECK_FAILS(banyan_mixed_open(world, &options, &mixed), BANYAN_ERR_MISMATCH, "local_tp");
        options.local_tp = 3;
        CHECK_FAILS(banyan_mixed_open_empty(world, &options, &mixed), BANYAN_ERR_INVALID,
                    "local_tp 3");
        options.local_tp = 2;
        options.min_num_steps = odd ? -1 : 4;
        CHECK_FAILS(banyan_mixed_open_empty(world, &options, &mixed), BANYAN_ERR_INVALID,
                    "rank 1: mixed collectives with a min_num_steps of -1");
        options.min_num_steps = 4;
        CHECK(!mixed);
        run_drawn(&before, &random);
        open_drawn(&after, world, &sizes, BANYAN_BF16);
        run_drawn(&after, &random);
        run_drawn(&before, &random);
        case_close(&after);
    }
    case_close(&before);
}

static void a_context_opens_after_others_failed_to(void **state)
{
    (void)state;
    uint64_t seed = random_seed();
    ranks_run(2, open_again, &seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contexts_of_one_world_are_used_in_turn),
        cmocka_unit_test(contexts_of_two_worlds_are_driven_by_two_threads),
        cmocka_unit_test(a_context_opens_after_others_failed_to),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
