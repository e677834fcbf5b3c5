/* Out of memory on one rank. */
#include "support/lacking.h"
#include "world/net/endpoint.h"
#include "world/world.h"

static const int all[] = {0, 1};

static size_t contexts_of(const banyan_world *world)
{
    pthread_mutex_lock(&world->endpoint->reactor.lock);
    size_t count = world->endpoint->contexts.count;
    pthread_mutex_unlock(&world->endpoint->reactor.lock);
    return count;
}

static void split_and_close(banyan_world *world)
{
    banyan_world *sub;
    CHECK_OK(banyan_world_split(world, all, 2, &sub));
    CHECK_OK(banyan_world_barrier(sub));
    CHECK_OK(banyan_world_close(sub));
}

/* True if the allocation failed here. The others' world has ended. */
static bool split_without(banyan_world *world, int n)
{
    banyan_world *sub = NULL;
    int failed, any = 0;
    size_t before = contexts_of(world);
    lack_begin(world, LACK_ANY, n);
    banyan_status status = banyan_world_split(world, all, 2, &sub);
    lack.is_looking = false;
    CHECK(status == (lack.has_lacked ? BANYAN_ERR_NO_MEMORY : BANYAN_OK), "%s",
          banyan_last_error());
    if (lack.has_lacked) /* an ended world, without any objects */
        CHECK(contexts_of(world) == before + 1, "%zu contexts before, then %zu", before,
              contexts_of(world));
    failed = status != BANYAN_OK;
    for (int rank = 0; rank < 2; rank++) {
        int its = failed;
        CHECK_OK(banyan_world_broadcast(world, &its, sizeof its, rank));
        any |= its;
    }
    if (any && sub)
        CHECK_FAILS(banyan_world_barrier(sub), BANYAN_ERR_NO_MEMORY, "rank 1: out of memory");
    if (sub)
        CHECK(banyan_world_close(sub) == (any ? BANYAN_ERR_NO_MEMORY : BANYAN_OK), "%s",
              banyan_last_error());
    return any;
}

static void split_again(banyan_world *world, void *context)
{
    bool failed = true;
    (void)context;
    split_and_close(world);
    for (int n = 0; failed; n++) {
        failed = split_without(world, n);
        CHECK(failed || n > 0);
        split_and_close(world);
    }
}

static void a_split_that_one_rank_has_no_memory_for_leaves_nothing_behind(void **state)
{
    (void)state;
    ranks_run(2, split_again, NULL);
}

int main(void)
{
    if (!lack_is_possible())
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_split_that_one_rank_has_no_memory_for_leaves_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
