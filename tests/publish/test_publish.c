/* Engines follow a publication, with tensors in host memory. */
#include "publish/pauses.h"
#include "publish/versions.h"

static void engines_follow_compressed_versions(void **state)
{
    following_compression = BANYAN_COMPRESSION_ALWAYS;
    engines_follow_every_version_early_and_late(state);
    a_version_can_be_taken_back(state);
}

/* The first attempt is a reshard, which a publish ends, since a rank of the engine stands still.
 * The second one comes in waves. */
static void publish_during_a_reshard(banyan_world *world, struct apart *shared)
{
    struct following mine = following_open_pausing(banyan_world_rank(world), false);
    banyan_publication_options options = BANYAN_PUBLICATION_OPTIONS_INIT;
    following_compression = BANYAN_COMPRESSION_OFF;
    options.patience_ns = 3 * NS_PER_S;
    banyan_publication *publication = publish_open(world, shared, &mine, &options);
    apart_wait(&shared->marks[MARK_STEP], 1);
    publish_version(publication, &mine, 1);
    publish_version(publication, &mine, 2);
    CHECK_OK(banyan_world_barrier(world));
    atomic_store(&shared->marks[MARK_STEP], 2);
    apart_wait(&shared->marks[MARK_END], FOLLOWING_ENGINES);
    banyan_publication_status status = banyan_publication_get_status(publication);
    CHECK(status.joined == 2 && status.dropped == 1);
    banyan_publication_close(publication);
    following_close(&mine);
}

static void follow_after_a_reshard(banyan_world *world, struct apart *shared)
{
    struct following mine = following_open_pausing(banyan_world_rank(world), true);
    banyan_subscription *subscription = subscribe(world, shared, &mine, NULL);
    stand_still(world, shared, subscription);
    CHECK(take_above(subscription, &mine, 0) == 2);
    banyan_subscription_status status = banyan_subscription_get_status(subscription);
    CHECK(status.whole_fetches == 1);
    CHECK(status.received_bytes > following_bytes(&mine, 0), "it came by a reshard again");
    end_engine(shared, subscription, &mine);
}

static void play_reshard(struct apart *shared)
{
    play_with_a_stop(shared, publish_during_a_reshard, follow_after_a_reshard);
}

static void a_reshard_that_a_publish_ends_is_followed_by_waves(void **state)
{
    banyan_publication_compression before = following_compression;
    (void)state;
    apart_test(play_reshard);
    following_compression = before;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        VERSIONS_TESTS PAUSES_TESTS cmocka_unit_test(engines_follow_compressed_versions),
        cmocka_unit_test(a_reshard_that_a_publish_ends_is_followed_by_waves)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
