/* Fetches that take longer than the time between two versions: they pause while the trainer
 * publishes, and go on. */
#ifndef TESTS_PUBLISH_PAUSES_H
#define TESTS_PUBLISH_PAUSES_H

#include <signal.h>

#include "publish/following.h"

/* ---- the first version ---- */

/* A matrix that needs several waves. */
static struct following following_open_pausing(int rank, bool is_engine)
{
    return following_open_rows(rank, is_engine, 512, 4096, NULL);
}

/* An engine whose rank 1 stands still from the moment at which it is connected until some time
 * after the trainer sets MARK_STEP to 2. */
static void play_with_a_stop(struct apart *shared, apart_rank trainer, apart_rank engine)
{
    struct apart_job publishing = apart_start(shared, 2, 0, trainer);
    struct apart_job following = apart_start(shared, FOLLOWING_ENGINES, 1, engine);
    apart_wait(&shared->marks[MARK_STANDING], 1);
    CHECK(kill(following.ranks[1], SIGSTOP) == 0);
    atomic_store(&shared->marks[MARK_STEP], 1);
    apart_wait(&shared->marks[MARK_STEP], 2);
    /* Emulated GPUs are slow. */
    usleep(following_trainers_on_gpu || following_engines_on_gpu ? 3000000 : 1000000);
    CHECK(kill(following.ranks[1], SIGCONT) == 0);
    apart_end_well(&following);
    apart_end_well(&publishing);
}

static void stand_still(banyan_world *world, struct apart *shared,
                        const banyan_subscription *subscription)
{
    uint64_t until_ns = deadline_after(60 * NS_PER_S);
    while (!banyan_subscription_get_status(subscription).connected)
        CHECK(deadline_left_ns(until_ns) > 0, "the engine is not connected");
    CHECK_OK(banyan_world_barrier(world));
    atomic_store(&shared->marks[MARK_STANDING], 1);
    apart_wait(&shared->marks[MARK_STEP], 2);
}

/* The second version is published when the first wave of the first one has begun, and more follow
 * as soon as they can. */
static void publish_in_a_first_fetch(banyan_world *world, struct apart *shared)
{
    struct following mine = following_open_pausing(banyan_world_rank(world), false);
    banyan_publication_options options = BANYAN_PUBLICATION_OPTIONS_INIT;
    options.kept_versions = 1;
    options.patience_ns = 30 * NS_PER_S;
    banyan_publication *publication = publish_open(world, shared, &mine, &options);
    apart_wait(&shared->marks[MARK_STEP], 1);
    publish_version(publication, &mine, 1);
    following_write(&mine, 2);
    CHECK_OK(banyan_world_barrier(world));
    atomic_store(&shared->marks[MARK_STEP], 2);
    CHECK_OK(banyan_publication_publish(publication, mine.set, 2, NULL));
    for (int version = 3; version <= 5; version++)
        publish_version(publication, &mine, version);
    apart_wait(&shared->marks[MARK_END], FOLLOWING_ENGINES);
    banyan_publication_status status = banyan_publication_get_status(publication);
    CHECK(status.joined == 1 && status.dropped == 0);
    banyan_publication_close(publication);
    following_close(&mine);
}

static void follow_from_a_paused_fetch(banyan_world *world, struct apart *shared)
{
    struct following mine = following_open_pausing(banyan_world_rank(world), true);
    banyan_subscription_options options = BANYAN_SUBSCRIPTION_OPTIONS_INIT;
    options.verify = shared->seed % 2;
    banyan_subscription *subscription = subscribe(world, shared, &mine, &options);
    stand_still(world, shared, subscription);
    int version = take_above(subscription, &mine, 1);
    banyan_subscription_status status = banyan_subscription_get_status(subscription);
    CHECK(status.whole_fetches == 1 && status.paused_fetches >= 1,
          "version %d came after %lu whole fetches, %lu of changes and %lu with pauses", version,
          (unsigned long)status.whole_fetches, (unsigned long)status.delta_fetches,
          (unsigned long)status.paused_fetches);
    while (version < 5)
        version = take_above(subscription, &mine, version);
    CHECK(banyan_subscription_get_status(subscription).whole_fetches == 1);
    CHECK_OK(banyan_subscription_check(subscription));
    end_engine(shared, subscription, &mine);
}

static void play_first_pauses(struct apart *shared)
{
    play_with_a_stop(shared, publish_in_a_first_fetch, follow_from_a_paused_fetch);
}

/* On the host the first version comes in waves if it is compressed. */
static void the_first_fetch_pauses_for_newer_versions(void **state)
{
    banyan_publication_compression before = following_compression;
    (void)state;
    following_compression = BANYAN_COMPRESSION_ALWAYS;
    apart_test(play_first_pauses);
    following_compression = before;
}

/* ---- later versions ---- */

enum {
    LATER_ROWS = 256,
    LATER_COLUMNS = 2048,
    LATER_PAUSES = 4,
    LATER_BYTES_PER_S = 250000 /* 2 s for all elements */
};

/* Publish `count` versions after `version`, each when rank 0 has sent `step` bytes more. */
static void publish_while_it_sends(banyan_world *world, banyan_publication *publication,
                                   const struct following *mine, int version, int count,
                                   uint64_t step)
{
    uint64_t until_ns = deadline_after(60 * NS_PER_S);
    uint64_t began = banyan_publication_get_status(publication).sent_bytes;
    for (int i = 1; i <= count; i++) {
        following_write(mine, version + i);
        while (banyan_world_rank(world) == 0 &&
               banyan_publication_get_status(publication).sent_bytes < began + step * (uint64_t)i)
            CHECK(deadline_left_ns(until_ns) > 0, "%lu bytes are sent after %d versions",
                  (unsigned long)banyan_publication_get_status(publication).sent_bytes, i - 1);
        CHECK_OK(banyan_publication_publish(publication, mine->set, (uint64_t)(version + i), NULL));
    }
    following_poison(mine);
}

/* The engine falls behind, and needs all elements again. */
static void publish_in_a_later_fetch(banyan_world *world, struct apart *shared)
{
    int rank = banyan_world_rank(world), version = 1;
    struct following mine = following_open_rows(rank, false, LATER_ROWS, LATER_COLUMNS, NULL);
    banyan_publication_options options = BANYAN_PUBLICATION_OPTIONS_INIT;
    following_compression = BANYAN_COMPRESSION_OFF;
    options.kept_versions = 1;
    options.patience_ns = 3 * NS_PER_S;
    banyan_publication *publication = publish_open(world, shared, &mine, &options);
    for (; version <= 5; version++) {
        publish_version(publication, &mine, version);
        if (version <= 2)
            apart_wait(&shared->marks[MARK_COMMITTED], version);
    }
    atomic_fetch_add(&shared->marks[MARK_PUBLISHED], 1);
    /* The last one may come while changes travel. */
    uint64_t whole = (uint64_t)LATER_ROWS * LATER_COLUMNS; /* bytes of a trainer's rank */
    publish_while_it_sends(world, publication, &mine, 5, LATER_PAUSES,
                           (whole + 40000) / LATER_PAUSES);
    apart_wait(&shared->marks[MARK_END], FOLLOWING_ENGINES);
    CHECK(banyan_publication_get_status(publication).dropped == 0);
    banyan_publication_close(publication);
    following_close(&mine);
}

static void follow_from_behind(banyan_world *world, struct apart *shared)
{
    struct following mine =
        following_open_rows(banyan_world_rank(world), true, LATER_ROWS, LATER_COLUMNS, NULL);
    banyan_subscription_options options = BANYAN_SUBSCRIPTION_OPTIONS_INIT;
    uint64_t version = 0;
    options.verify = options.keep_previous = true; /* it fetches nothing before a commit */
    options.bytes_per_s = LATER_BYTES_PER_S;
    banyan_subscription *subscription = subscribe(world, shared, &mine, &options);
    for (int step = 1; step <= 2; step++) {
        if (step == 1)
            take_above(subscription, &mine, 0);
        else
            CHECK_OK(banyan_subscription_wait(subscription, 1, 60 * NS_PER_S, &version));
        CHECK_OK(banyan_world_barrier(world));
        atomic_store(&shared->marks[MARK_COMMITTED], step);
    }
    apart_wait(&shared->marks[MARK_PUBLISHED], 2);
    CHECK(take_above(subscription, &mine, 1) == 2);
    int last = 5 + LATER_PAUSES, reached = take_above(subscription, &mine, 2);
    CHECK(reached >= last - 1, "version %d is not the last one or that before it", reached);
    CHECK_OK(banyan_subscription_rollback(subscription, &version));
    CHECK(version == 2);
    following_check(&mine, 2);
    banyan_subscription_status status = banyan_subscription_get_status(subscription);
    CHECK(status.whole_fetches == 2 && status.paused_fetches >= 1);
    end_engine(shared, subscription, &mine);
}

static void play_later_pauses(struct apart *shared)
{
    play_with(shared, publish_in_a_later_fetch, follow_from_behind);
}

static void a_later_fetch_pauses_for_newer_versions(void **state)
{
    banyan_publication_compression before = following_compression;
    (void)state;
    apart_test(play_later_pauses);
    following_compression = before;
}

/* ---- rollbacks ---- */

/* The fetch of version 3 builds on version 2, and takes some seconds. Half of the seeds publish
 * version 4 meanwhile, for which it pauses. */
static void roll_back_during_a_fetch(banyan_world *world, struct apart *shared)
{
    int rank = banyan_world_rank(world), last = shared->seed % 2 ? 4 : 3;
    struct following mine = following_open_rows(rank, true, LATER_ROWS, LATER_COLUMNS, NULL);
    banyan_subscription_options options = BANYAN_SUBSCRIPTION_OPTIONS_INIT;
    uint64_t version = 0;
    options.keep_previous = true;
    options.bytes_per_s = LATER_BYTES_PER_S / 20;
    banyan_subscription *subscription = subscribe(world, shared, &mine, &options);
    for (int step = 1; step <= 2; step++) {
        CHECK_OK(banyan_world_barrier(world));
        atomic_store(&shared->marks[MARK_STEP], step);
        CHECK(take_above(subscription, &mine, step - 1) == step);
    }
    CHECK_OK(banyan_world_barrier(world));
    atomic_store(&shared->marks[MARK_STEP], 3);
    apart_wait(&shared->marks[MARK_PUBLISHED], 3);
    usleep(200000);
    CHECK_OK(banyan_world_barrier(world));
    atomic_store(&shared->marks[MARK_STEP], last);
    apart_wait(&shared->marks[MARK_PUBLISHED], last);
    CHECK(banyan_subscription_staged(subscription) == 2, "the fetch has ended already");
    CHECK_OK(banyan_subscription_rollback(subscription, &version));
    CHECK(version == 1);
    following_check(&mine, 1);
    CHECK(take_above(subscription, &mine, 1) == last);
    CHECK(banyan_subscription_get_status(subscription).whole_fetches == 1);
    end_engine(shared, subscription, &mine);
}

static void publish_for_a_rollback(banyan_world *world, struct apart *shared)
{
    int rank = banyan_world_rank(world);
    struct following mine = following_open_rows(rank, false, LATER_ROWS, LATER_COLUMNS, NULL);
    following_compression = BANYAN_COMPRESSION_OFF;
    banyan_publication_options options = BANYAN_PUBLICATION_OPTIONS_INIT;
    options.patience_ns = 400 * NS_PER_MS;
    banyan_publication *publication = publish_open(world, shared, &mine, &options);
    publish_steps(world, shared, publication, &mine);
    banyan_publication_close(publication);
    following_close(&mine);
}

static void play_rollback(struct apart *shared)
{
    play_with(shared, publish_for_a_rollback, roll_back_during_a_fetch);
}

static void a_rollback_discards_a_fetch_that_builds_on_more(void **state)
{
    banyan_publication_compression before = following_compression;
    (void)state;
    apart_test(play_rollback);
    following_compression = before;
}

/* All tests, for a list. */
#define PAUSES_TESTS                                                                               \
    cmocka_unit_test(the_first_fetch_pauses_for_newer_versions),                                   \
        cmocka_unit_test(a_later_fetch_pauses_for_newer_versions),                                 \
        cmocka_unit_test(a_rollback_discards_a_fetch_that_builds_on_more),

#endif
