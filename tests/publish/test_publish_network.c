/* The trainer's machine is cut off from its engines, and comes back. */
#include "publish/following.h"

#include "support/nodes.h"
#include "support/ucx.h"

enum { TRAINERS = 1, NODES = 3 };

static void publish_apart(banyan_world *world, struct apart *shared)
{
    struct following mine = following_open(shared->seed, TRAINERS, banyan_world_rank(world), false);
    banyan_publication *publication = publish_open(world, shared, &mine, NULL);
    publish_steps(world, shared, publication, &mine);
    banyan_publication_status status = banyan_publication_get_status(publication);
    CHECK(status.joined == 2 && status.dropped == 1, "%lu joined, %lu dropped",
          (unsigned long)status.joined, (unsigned long)status.dropped);
    banyan_publication_close(publication);
    following_close(&mine);
}

static void follow_apart(banyan_world *world, struct apart *shared)
{
    int rank = banyan_world_rank(world);
    uint64_t version, until_ns;
    struct following mine = following_open(shared->seed, TRAINERS, rank, true);
    banyan_subscription *subscription = subscribe(world, shared, &mine, NULL);
    CHECK(take_above(subscription, &mine, 0) == 1);
    CHECK_OK(banyan_world_barrier(world));
    atomic_fetch_add(&shared->marks[MARK_COMMITTED], 1);
    until_ns = deadline_after(60 * NS_PER_S);
    while (banyan_subscription_get_status(subscription).connected) {
        CHECK(deadline_left_ns(until_ns) > 0, "the subscription does not miss its publication");
        usleep(1000);
    }
    CHECK_OK(banyan_subscription_commit(subscription, &version));
    CHECK(version == 1);
    following_check(&mine, 1);
    atomic_fetch_add(&shared->marks[MARK_OTHERS], 1);
    CHECK(take_above(subscription, &mine, 1) == 3); /* the one between is skipped */
    banyan_subscription_status status = banyan_subscription_get_status(subscription);
    CHECK(status.whole_fetches == 1 && status.delta_fetches == 1);
    atomic_fetch_add(&shared->marks[MARK_END], 1);
    banyan_subscription_close(subscription);
    following_close(&mine);
}

static void play_cut(struct apart *shared)
{
    struct apart_job trainer = apart_start(shared, TRAINERS, 0, publish_apart);
    struct apart_job engine = apart_start(shared, FOLLOWING_ENGINES, 1, follow_apart);
    atomic_store(&shared->marks[MARK_STEP], 1);
    apart_wait(&shared->marks[MARK_COMMITTED], FOLLOWING_ENGINES);
    nodes_connect(0, false);
    atomic_store(&shared->marks[MARK_STEP], 3);
    apart_wait(&shared->marks[MARK_PUBLISHED], 3);
    apart_wait(&shared->marks[MARK_OTHERS], FOLLOWING_ENGINES);
    nodes_connect(0, true);
    apart_end_well(&engine);
    apart_end_well(&trainer);
}

static void a_link_that_is_cut_costs_no_version(void **state)
{
    (void)state;
    apart_test(play_cut);
}

int main(void)
{
    char nodes[16];
    if (!ucx_is_there())
        return 77;
    snprintf(nodes, sizeof nodes, "%d", NODES);
    setenv("BANYAN_TEST_NETWORK", nodes, 1);
    setenv("UCX_TLS", "tcp", 1); /* shared memory would reach across the namespaces */
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_link_that_is_cut_costs_no_version)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
