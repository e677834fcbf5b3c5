/* Calls that a publication and a subscription refuse, and engines that are slow, full or damaged.
 */
#ifndef TESTS_PUBLISH_ERRORS_H
#define TESTS_PUBLISH_ERRORS_H

#include <dlfcn.h>

#include <xxhash.h>

#include "publish/following.h"

/* ---- arguments ---- */

static void publish_wrongly(banyan_world *world, struct apart *shared)
{
    int rank = banyan_world_rank(world);
    struct following mine = following_open_matrix(rank, false, NULL);
    struct following other = following_open_matrix(rank, true, NULL);
    banyan_publication *publication;
    banyan_publication_options options = {0};
    CHECK_FAILS(
        banyan_publication_open(world, mine.layout, NULL, APART_SECRET, &options, &publication),
        BANYAN_ERR_INVALID, "BANYAN_PUBLICATION_OPTIONS_INIT");
    CHECK_FAILS(banyan_publication_open(world, mine.layout, NULL, "short", NULL, &publication),
                BANYAN_ERR_INVALID, "secret");
    publication = publish_open(world, shared, &mine, NULL);
    following_write(&mine, 1);
    CHECK_OK(banyan_publication_publish(publication, mine.set, 7, NULL));
    CHECK_FAILS(banyan_publication_publish(publication, mine.set, 7, NULL), BANYAN_ERR_INVALID,
                "version 7 is published after version 7");
    CHECK_FAILS(banyan_publication_publish(publication, mine.set, (uint64_t)(8 + rank), NULL),
                BANYAN_ERR_INVALID, "ranks publish different versions: 8 to 9");
    CHECK_FAILS(banyan_publication_publish(publication, rank == 1 ? other.set : mine.set, 8, NULL),
                BANYAN_ERR_INVALID, rank == 1 ? "\"matrix\" has shape" : "rank 1: ");
    CHECK_OK(banyan_publication_publish(publication, mine.set, 8, NULL));
    CHECK(banyan_publication_get_status(publication).version == 8);
    banyan_publication_close(publication);
    following_close(&mine);
    following_close(&other);
}

static void play_wrong_calls(struct apart *shared)
{
    struct apart_job publishing = apart_start(shared, 2, 0, publish_wrongly);
    apart_end_well(&publishing);
}

static void wrong_calls_are_refused_on_all_ranks(void **state)
{
    (void)state;
    apart_test(play_wrong_calls);
}

/* ---- two publications ---- */

/* Another job cannot publish at the same address; the first one goes on. */
static void publish_at_a_taken_address(banyan_world *world, struct apart *shared)
{
    struct following mine = following_open_matrix(banyan_world_rank(world), false, NULL);
    banyan_publication *publication;
    char address[300];
    apart_wait(&shared->listens, 1);
    snprintf(address, sizeof address, "%s", shared->address);
    CHECK_FAILS(
        banyan_publication_open(world, mine.layout, address, APART_SECRET, NULL, &publication),
        BANYAN_ERR_SYSTEM, "in use");
    CHECK_OK(banyan_world_barrier(world));
    if (banyan_world_rank(world) == 0)
        atomic_store(&shared->marks[MARK_OTHERS], 1);
    following_close(&mine);
}

static void follow_the_first(banyan_world *world, struct apart *shared)
{
    struct following mine = following_open_matrix(banyan_world_rank(world), true, NULL);
    banyan_subscription *subscription = subscribe(world, shared, &mine, NULL);
    atomic_store(&shared->marks[MARK_STEP], 1);
    CHECK(take_above(subscription, &mine, 0) == 1);
    apart_wait(&shared->marks[MARK_OTHERS], 1);
    atomic_store(&shared->marks[MARK_STEP], 2);
    CHECK(take_above(subscription, &mine, 1) == 2);
    end_engine(shared, subscription, &mine);
}

static void play_two_publications(struct apart *shared)
{
    struct apart_job first = apart_start(shared, 2, 0, publish_matrix);
    struct apart_job second = apart_start(shared, 2, 0, publish_at_a_taken_address);
    struct apart_job engine = apart_start(shared, FOLLOWING_ENGINES, 1, follow_the_first);
    apart_end_well(&second);
    apart_end_well(&engine);
    apart_end_well(&first);
}

static void a_second_publication_at_an_address_is_refused(void **state)
{
    (void)state;
    apart_test(play_two_publications);
}

/* ---- layouts that change ---- */

/* Publish one version, and end when the engine has it. Rank `rank` of a trainer holds that half. */
static void publish_once(banyan_world *world, struct apart *shared, int rank, int version)
{
    struct following mine = following_open_matrix(rank, false, NULL);
    banyan_publication *publication = publish_open(world, shared, &mine, NULL);
    publish_version(publication, &mine, version);
    apart_wait(&shared->marks[MARK_COMMITTED], version);
    CHECK_OK(banyan_world_barrier(world));
    banyan_publication_close(publication);
    following_close(&mine);
}

static void publish_first(banyan_world *world, struct apart *shared)
{
    publish_once(world, shared, banyan_world_rank(world), 1);
}

static void publish_exchanged(banyan_world *world, struct apart *shared)
{
    publish_once(world, shared, 1 - banyan_world_rank(world), 2);
}

static void follow_both(banyan_world *world, struct apart *shared)
{
    struct following mine = following_open_matrix(banyan_world_rank(world), true, NULL);
    banyan_subscription *subscription = subscribe(world, shared, &mine, NULL);
    for (int version = 1; version <= 2; version++) {
        CHECK(take_above(subscription, &mine, version - 1) == version);
        CHECK_OK(banyan_world_barrier(world));
        atomic_store(&shared->marks[MARK_COMMITTED], version);
    }
    banyan_subscription_status status = banyan_subscription_get_status(subscription);
    CHECK(status.whole_fetches == 2 && status.delta_fetches == 0);
    end_engine(shared, subscription, &mine);
}

static void play_changed_layout(struct apart *shared)
{
    struct apart_job first = apart_start(shared, 2, 0, publish_first);
    struct apart_job engine = apart_start(shared, FOLLOWING_ENGINES, 1, follow_both);
    apart_end_well(&first);
    struct apart_job second = apart_start(shared, 2, 0, publish_exchanged);
    apart_end_well(&engine);
    apart_end_well(&second);
}

static void a_trainer_may_come_back_with_another_layout(void **state)
{
    (void)state;
    apart_test(play_changed_layout);
}

/* ---- engines that do not fit ---- */

static void follow_what_is_not_there(banyan_world *world, struct apart *shared)
{
    struct following mine = following_open_matrix(banyan_world_rank(world), true, "bias");
    banyan_subscription *subscription = subscribe(world, shared, &mine, NULL);
    uint64_t version;
    atomic_store(&shared->marks[MARK_STEP], 1);
    expect_error(subscription, BANYAN_ERR_NOT_FOUND, "bias");
    CHECK_FAILS(banyan_subscription_wait(subscription, 0, 0, &version), BANYAN_ERR_TIMEOUT, "bias");
    CHECK_OK(banyan_subscription_commit(subscription, &version));
    CHECK(version == 0 && banyan_tensors_get_state(mine.set) == BANYAN_TENSORS_TORN);
    end_engine(shared, subscription, &mine);
}

static void play_what_is_not_there(struct apart *shared)
{
    play_with(shared, publish_matrix, follow_what_is_not_there);
}

static void layouts_that_do_not_fit_are_named(void **state)
{
    (void)state;
    apart_test(play_what_is_not_there);
}

static void follow_with_another_secret(banyan_world *world, struct apart *shared)
{
    struct following mine = following_open_matrix(banyan_world_rank(world), true, NULL);
    banyan_subscription_options options = BANYAN_SUBSCRIPTION_OPTIONS_INIT;
    banyan_subscription *subscription;
    apart_wait(&shared->listens, 1);
    CHECK_OK(banyan_subscription_open(world, mine.layout, mine.set, shared->address,
                                      "ffffffffffffffffffffffffffffffff", NULL, &subscription));
    expect_error(subscription, BANYAN_ERR_REFUSED, "secret");
    banyan_subscription_close(subscription);
    options.name = "another publication";
    CHECK_OK(banyan_subscription_open(world, mine.layout, mine.set, shared->address, APART_SECRET,
                                      &options, &subscription));
    expect_error(subscription, BANYAN_ERR_MISMATCH, "another publication");
    end_engine(shared, subscription, &mine);
}

static void play_another_secret(struct apart *shared)
{
    play_with(shared, publish_matrix, follow_with_another_secret);
}

static void another_secret_and_another_name_are_refused(void **state)
{
    (void)state;
    apart_test(play_another_secret);
}

/* ---- no room ---- */

static void follow_without_room(banyan_world *world, struct apart *shared)
{
    struct following mine = following_open_matrix(banyan_world_rank(world), true, NULL);
    banyan_subscription_options options = BANYAN_SUBSCRIPTION_OPTIONS_INIT;
    uint64_t version;
    options.max_staging_bytes = 100;
    banyan_subscription *subscription = subscribe(world, shared, &mine, &options);
    atomic_store(&shared->marks[MARK_STEP], 1);
    take_above(subscription, &mine, 0); /* the first version needs none */
    atomic_store(&shared->marks[MARK_STEP], 2);
    expect_error(subscription, BANYAN_ERR_INVALID, "max_staging_bytes");
    CHECK_OK(banyan_subscription_commit(subscription, &version));
    CHECK(version == 1);
    following_check(&mine, 1);
    CHECK_OK(banyan_world_barrier(world));
    end_engine(shared, subscription, &mine);
}

static void play_without_room(struct apart *shared)
{
    play_with(shared, publish_matrix, follow_without_room);
}

static void a_version_that_needs_too_much_memory_is_not_fetched(void **state)
{
    (void)state;
    apart_test(play_without_room);
}

/* ---- damage ---- */

static void follow_and_damage(banyan_world *world, struct apart *shared)
{
    int rank = banyan_world_rank(world);
    struct following mine = following_open_matrix(rank, true, NULL);
    banyan_subscription_options options = BANYAN_SUBSCRIPTION_OPTIONS_INIT;
    options.verify = true;
    banyan_log_set(apart_log_line, shared);
    banyan_subscription *subscription = subscribe(world, shared, &mine, &options);
    atomic_store(&shared->marks[MARK_STEP], 1);
    take_above(subscription, &mine, 0);
    CHECK_OK(banyan_world_barrier(world));
    if (rank == 1) { /* something else writes there */
        char *element = (char *)following_at(mine.set, 0) + 1000, kept;
        CHECK_OK(banyan_memory_copy(&kept, element, 1));
        kept ^= 1;
        CHECK_OK(banyan_memory_copy(element, &kept, 1));
    }
    CHECK_OK(banyan_world_barrier(world));
    atomic_store(&shared->marks[MARK_STEP], 2);
    take_above(subscription, &mine, 1);
    if (rank == 1)
        apart_expect_log(shared, "of \"matrix\" from rank 0: it would differ from the trainer's");
    CHECK(banyan_subscription_get_status(subscription).whole_fetches == 2);
    end_engine(shared, subscription, &mine);
}

static void play_damage(struct apart *shared)
{
    play_with(shared, publish_matrix, follow_and_damage);
}

static void a_box_that_would_differ_is_named_and_the_version_comes_whole(void **state)
{
    (void)state;
    apart_test(play_damage);
}

/* Shorter bytes are keys of tables. */
#define FLIPPED_LEAST 64

static atomic_int errors_flips; /* that are due in this process */

/* The library's own use of XXH3: a byte is flipped after its checksum has been computed. */
XXH_PUBLIC_API XXH64_hash_t XXH3_64bits_withSeed(const void *data, size_t bytes, XXH64_hash_t seed)
{
    static XXH64_hash_t (*next)(const void *, size_t, XXH64_hash_t);
    int due = 1;
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "XXH3_64bits_withSeed");
    XXH64_hash_t hash = next(data, bytes, seed);
    if (bytes >= FLIPPED_LEAST && atomic_compare_exchange_strong(&errors_flips, &due, 0))
        ((unsigned char *)(uintptr_t)data)[bytes / 2] ^= 1;
    return hash;
}

/* Rank 0 damages one part of version 2. */
static void publish_and_flip(banyan_world *world, struct apart *shared)
{
    int rank = banyan_world_rank(world);
    struct following mine = following_open_matrix(rank, false, NULL);
    banyan_publication *publication = publish_open(world, shared, &mine, NULL);
    publish_version(publication, &mine, 1);
    apart_wait(&shared->marks[MARK_STEP], 2);
    atomic_store(&errors_flips, rank == 0);
    publish_version(publication, &mine, 2);
    apart_wait(&shared->marks[MARK_END], FOLLOWING_ENGINES);
    CHECK(atomic_load(&errors_flips) == 0, "no byte was flipped");
    banyan_publication_close(publication);
    following_close(&mine);
}

static void follow_flipped(banyan_world *world, struct apart *shared)
{
    struct following mine = following_open_matrix(banyan_world_rank(world), true, NULL);
    banyan_log_set(apart_log_line, shared);
    banyan_subscription *subscription = subscribe(world, shared, &mine, NULL);
    take_above(subscription, &mine, 0);
    CHECK_OK(banyan_world_barrier(world));
    atomic_store(&shared->marks[MARK_STEP], 2);
    CHECK(take_above(subscription, &mine, 1) == 2);
    apart_expect_log(shared, "of \"matrix\" from rank 0: the checksum of what arrived is wrong");
    banyan_subscription_status status = banyan_subscription_get_status(subscription);
    CHECK(status.whole_fetches == 2 && status.delta_fetches == 0, "%llu whole, %llu changes",
          (unsigned long long)status.whole_fetches, (unsigned long long)status.delta_fetches);
    end_engine(shared, subscription, &mine);
}

static void play_flipped(struct apart *shared)
{
    play_with(shared, publish_and_flip, follow_flipped);
}

static void a_byte_that_flips_on_the_way_is_named_and_the_version_comes_whole(void **state)
{
    (void)state;
    apart_test(play_flipped);
}

/* ---- slow engines ---- */

static void publish_without_patience(banyan_world *world, struct apart *shared)
{
    struct following mine = following_open_matrix(banyan_world_rank(world), false, NULL);
    banyan_publication_options options = BANYAN_PUBLICATION_OPTIONS_INIT;
    options.patience_ns = 300 * NS_PER_MS;
    banyan_publication *publication = publish_open(world, shared, &mine, &options);
    publish_version(publication, &mine, 1);
    apart_wait(&shared->marks[MARK_COMMITTED], 1);
    publish_version(publication, &mine, 2);
    uint64_t until_ns = deadline_after(30 * NS_PER_S);
    while (banyan_publication_get_status(publication).fetching == 0 &&
           deadline_left_ns(until_ns) > 0)
        usleep(1000);
    CHECK_OK(banyan_world_barrier(world));
    banyan_publish_report report = publish_version(publication, &mine, 3);
    CHECK(banyan_world_rank(world) > 0 || report.waited_ns >= 300 * NS_PER_MS);
    CHECK(report.waited_ns < 10 * NS_PER_S, "publish waited %.1f s",
          (double)report.waited_ns / 1e9);
    until_ns = deadline_after(30 * NS_PER_S);
    while (banyan_publication_get_status(publication).dropped == 0)
        CHECK(deadline_left_ns(until_ns) > 0, "nobody is dropped");
    atomic_fetch_add(&shared->marks[MARK_PUBLISHED], 1);
    apart_wait(&shared->marks[MARK_END], FOLLOWING_ENGINES);
    banyan_publication_close(publication);
    following_close(&mine);
}

static void follow_slowly(banyan_world *world, struct apart *shared)
{
    struct following mine = following_open_matrix(banyan_world_rank(world), true, NULL);
    banyan_subscription_options options = BANYAN_SUBSCRIPTION_OPTIONS_INIT;
    options.bytes_per_s = 500;
    uint64_t version;
    banyan_subscription *subscription = subscribe(world, shared, &mine, &options);
    take_above(subscription, &mine, 0);
    if (banyan_world_rank(world) == 0)
        atomic_store(&shared->marks[MARK_COMMITTED], 1);
    apart_wait(&shared->marks[MARK_PUBLISHED], 2);
    expect_error(subscription, BANYAN_ERR_ABORTED,
                 "to fetch version 2, and publishes the next one");
    CHECK_OK(banyan_subscription_commit(subscription, &version));
    CHECK(version == 1);
    following_check(&mine, 1);
    end_engine(shared, subscription, &mine);
}

static void play_slow_engines(struct apart *shared)
{
    play_with(shared, publish_without_patience, follow_slowly);
}

static void a_slow_engine_is_dropped_and_does_not_hold_the_trainer(void **state)
{
    (void)state;
    apart_test(play_slow_engines);
}

/* All tests, for a list. */
#define ERRORS_TESTS                                                                               \
    cmocka_unit_test(wrong_calls_are_refused_on_all_ranks),                                        \
        cmocka_unit_test(a_second_publication_at_an_address_is_refused),                           \
        cmocka_unit_test(a_trainer_may_come_back_with_another_layout),                             \
        cmocka_unit_test(layouts_that_do_not_fit_are_named),                                       \
        cmocka_unit_test(another_secret_and_another_name_are_refused),                             \
        cmocka_unit_test(a_version_that_needs_too_much_memory_is_not_fetched),                     \
        cmocka_unit_test(a_box_that_would_differ_is_named_and_the_version_comes_whole),            \
        cmocka_unit_test(a_byte_that_flips_on_the_way_is_named_and_the_version_comes_whole),       \
        cmocka_unit_test(a_slow_engine_is_dropped_and_does_not_hold_the_trainer),

#endif
