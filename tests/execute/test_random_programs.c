/* Random programs leave the sequential result in every rank's memory, chunk by chunk. */
#include "core/threads/sanitizer.h"
#include "execute/compared.h"
#include "program/random_program.h"

#define PROGRAMS 12

/* The thread sanitizer does not see that another process orders threads of one process. */
#ifdef SANITIZER_THREAD
#define ONE_PROCESS_A_RANK false
#else
#define ONE_PROCESS_A_RANK true
#endif

struct random_case {
    uint64_t seed;
    int workers;
};

static void run_random(banyan_world *world, void *context)
{
    const struct random_case *random = context;
    for (uint64_t i = 0; i < PROGRAMS; i++) {
        uint64_t seed = random->seed + i;
        random_state sizes = random_from(seed);
        banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
        options.fuse = seed % 3 != 0;
        options.fuse_more = seed % 2;
        options.instances = seed % 5 == 0 ? 2 : 1;
        banyan_plan *plan = compile_random(seed, options.instances > 1 ? 1 : 2, &options);
        compared_case c = {.plan = plan,
                           .chunk_elems = (uint64_t)random_between(&sizes, 1, 40),
                           .workers = random->workers,
                           .runs = 1,
                           .seed = seed};
        compared_run(world, &c);
        banyan_plan_destroy(plan);
    }
}

static void run_with_workers(int workers, uint64_t more)
{
    struct random_case random = {random_seed() + more, workers};
    if (ONE_PROCESS_A_RANK)
        ranks_run(RANKS, run_random, &random);
    ranks_run_threads(RANKS, run_random, &random);
}

static void the_calling_thread_runs_them_right(void **state)
{
    (void)state;
    run_with_workers(1, 0);
}

static void several_workers_run_them_right(void **state)
{
    (void)state;
    run_with_workers(2, 1000);
    run_with_workers(3, 2000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_calling_thread_runs_them_right),
        cmocka_unit_test(several_workers_run_them_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
