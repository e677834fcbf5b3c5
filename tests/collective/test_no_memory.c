/* Out of memory on one rank fails on all ranks. */
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "execute/lacking_plans.h"

static void one_rank_without_memory_fails_on_all(void **state)
{
    static lacking_plans tests[] = {{false, "allreduce_packets"}, {false, "allreduce_ports"}};
    (void)state;
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        ranks_run(3, lack_for_plans, &tests[i]);
}

#define NONE_LACKED 3 /* exit status */

typedef struct lacking_run {
    int n;           /* number of the allocation that fails */
    atomic_int left; /* ranks that have left the barrier */
} lacking_run;

/* Ranks in that run would wait for it in vain, and then end the world. */
static void lack_in_a_run(int rank, int count, const banyan_unique_id *id, void *context)
{
    lacking_run *of = context;
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    rig r = {.world = ranks_open_world(rank, count, id, 60 * NS_PER_S), .device = BANYAN_HOST};
    params.ranks = count;
    CHECK_OK(banyan_algorithm_compile("allreduce_packets", &params, &r.plan));
    CHECK_OK(take_memory(&r));
    CHECK_OK(open_executor(&r));
    CHECK_OK(load(&r));
    fill(&r);
    atomic_fetch_add(&of->left, 1);
    while (rank == LACKING && atomic_load(&of->left) < count)
        usleep(1000);
    float *input = banyan_memory_local(r.memory), *output = input + ELEMS;
    lack_least_bytes = 0;
    lack_begin(r.world, LACK_ANY, of->n);
    banyan_status status =
        banyan_loaded_plan_run(r.loaded, input, output, ELEMS * sizeof(float), BANYAN_F32, NULL);
    lack.is_looking = false;
    if (status == BANYAN_OK) {
        check_sums(&r, "the plan");
        exit(NONE_LACKED);
    }
    CHECK(status == (rank == LACKING ? BANYAN_ERR_NO_MEMORY : BANYAN_ERR_ABORTED), "%s",
          banyan_last_error());
    CHECK(strstr(banyan_last_error(), "could not begin a run of plan"), "%s", banyan_last_error());
    CHECK(strstr(banyan_last_error(), "rank 1"), "%s", banyan_last_error());
    CHECK(time_now_ns() - lack.began_ns < 5 * NS_PER_S, "the others waited");
}

static void a_run_without_memory_ends_the_world_for_all(void **state)
{
    int statuses[3] = {0};
    (void)state;
    lacking_run *of =
        mmap(NULL, sizeof *of, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(of != MAP_FAILED);
    for (; statuses[0] == 0; of->n++) {
        atomic_store(&of->left, 0);
        ranks_fork(3, lack_in_a_run, of, statuses);
        assert_true(statuses[1] == statuses[0] && statuses[2] == statuses[0] && of->n < TRIES);
    }
    assert_int_equal(statuses[0], NONE_LACKED << 8);
    assert_true(of->n > 1);
    munmap(of, sizeof *of);
}

int main(void)
{
    if (!lack_is_possible())
        return 77;
    lack_least_bytes = 1024; /* agreement messages are shorter, and cannot fail */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_without_memory_fails_on_all),
        cmocka_unit_test(a_run_without_memory_ends_the_world_for_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
