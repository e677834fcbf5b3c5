/* Engines follow the versions of a publication: they join early and late, skip versions, take them
 * back, refuse what is damaged or too large, and survive the deaths of trainers and of each other.
 * Every element tells its version. */
#ifndef TESTS_PUBLISH_VERSIONS_H
#define TESTS_PUBLISH_VERSIONS_H

#include "publish/following.h"

enum { TRAINERS = 2, ENGINES = 2 };

/* ---- versions ---- */

enum { VERSIONS = 9, LATE = 4 };

static void publish_all(banyan_world *world, struct apart *shared)
{
    int rank = banyan_world_rank(world);
    struct following mine = following_open(shared->seed, TRAINERS, rank, false);
    banyan_publication *publication = publish_open(world, shared, &mine, NULL);
    for (int version = 1; version <= VERSIONS; version++) {
        banyan_publish_report report = publish_version(publication, &mine, version);
        CHECK(version > 1 ? report.changed <= report.elems / 4 || report.elems < 100
                          : report.changed == report.elems);
        if (rank == 0)
            atomic_store(&shared->marks[MARK_PUBLISHED], version);
        /* Some versions follow at once, so that engines skip some. */
        if (version % 3 != 0)
            apart_wait(&shared->marks[MARK_COMMITTED], version);
    }
    apart_wait(&shared->marks[MARK_END], 2 * ENGINES);
    banyan_publication_status status = banyan_publication_get_status(publication);
    CHECK(status.version == VERSIONS && status.joined == 2 && status.dropped == 0);
    banyan_publication_close(publication);
    following_close(&mine);
}

static void follow_all(banyan_world *world, struct apart *shared)
{
    int rank = banyan_world_rank(world), version = 0;
    struct following mine = following_open(shared->seed, TRAINERS, rank, true);
    banyan_subscription *subscription = subscribe(world, shared, &mine, NULL);
    while (version < VERSIONS) {
        version = take_above(subscription, &mine, version);
        if (rank == 0)
            atomic_store(&shared->marks[MARK_COMMITTED], version);
    }
    banyan_subscription_status status = banyan_subscription_get_status(subscription);
    CHECK(status.whole_fetches == 1 && status.delta_fetches > 0 && status.staged_bytes == 0);
    atomic_fetch_add(&shared->marks[MARK_END], 1);
    banyan_subscription_close(subscription);
    following_check(&mine, version);
    following_close(&mine);
}

static void follow_late(banyan_world *world, struct apart *shared)
{
    banyan_subscription_options options = BANYAN_SUBSCRIPTION_OPTIONS_INIT;
    options.verify = true;
    apart_wait(&shared->marks[MARK_PUBLISHED], LATE);
    int version = 0;
    struct following mine = following_open(shared->seed, TRAINERS, banyan_world_rank(world), true);
    banyan_subscription *subscription = subscribe(world, shared, &mine, &options);
    while (version < VERSIONS)
        version = take_above(subscription, &mine, version);
    CHECK_OK(banyan_subscription_check(subscription));
    atomic_fetch_add(&shared->marks[MARK_END], 1);
    banyan_subscription_close(subscription);
    following_close(&mine);
}

static void play_versions(struct apart *shared)
{
    struct apart_job trainer = apart_start(shared, TRAINERS, 0, publish_all);
    struct apart_job early = apart_start(shared, ENGINES, 1, follow_all);
    struct apart_job late = apart_start(shared, ENGINES, 2, follow_late);
    apart_end_well(&early);
    apart_end_well(&late);
    apart_end_well(&trainer);
}

static void engines_follow_every_version_early_and_late(void **state)
{
    (void)state;
    apart_test(play_versions);
}

/* ---- taking back ---- */

static void publish_in_steps(banyan_world *world, struct apart *shared)
{
    struct following mine = following_open(shared->seed, TRAINERS, banyan_world_rank(world), false);
    banyan_publication *publication = publish_open(world, shared, &mine, NULL);
    publish_steps(world, shared, publication, &mine);
    banyan_publication_close(publication);
    following_close(&mine);
}

static void take_back(banyan_world *world, struct apart *shared)
{
    banyan_subscription_options options = BANYAN_SUBSCRIPTION_OPTIONS_INIT;
    options.keep_previous = true;
    uint64_t version;
    struct following mine = following_open(shared->seed, TRAINERS, banyan_world_rank(world), true);
    banyan_subscription *subscription = subscribe(world, shared, &mine, &options);
    atomic_store(&shared->marks[MARK_STEP], 1);
    take_above(subscription, &mine, 0);
    CHECK_FAILS(banyan_subscription_rollback(subscription, &version), BANYAN_ERR_NOT_FOUND,
                "nothing is kept of the version before 1");
    atomic_store(&shared->marks[MARK_STEP], 2);
    take_above(subscription, &mine, 1);
    CHECK_OK(banyan_subscription_rollback(subscription, &version));
    CHECK(version == 1);
    following_check(&mine, 1);
    CHECK_FAILS(banyan_subscription_rollback(subscription, &version), BANYAN_ERR_NOT_FOUND,
                "nothing is kept");
    usleep(100000);
    CHECK_OK(banyan_subscription_commit(subscription, &version));
    CHECK(version == 1, "version %lu was taken back, and comes again", (unsigned long)version);
    CHECK_OK(banyan_world_barrier(world));
    atomic_store(&shared->marks[MARK_STEP], 3);
    CHECK(take_above(subscription, &mine, 1) == 3);
    CHECK_OK(banyan_subscription_rollback(subscription, &version));
    following_check(&mine, 1);
    atomic_fetch_add(&shared->marks[MARK_END], 1);
    banyan_subscription_close(subscription);
    following_close(&mine);
}

static void play_taking_back(struct apart *shared)
{
    struct apart_job trainer = apart_start(shared, TRAINERS, 0, publish_in_steps);
    struct apart_job engine = apart_start(shared, ENGINES, 1, take_back);
    apart_end_well(&engine);
    apart_end_well(&trainer);
}

static void a_version_can_be_taken_back(void **state)
{
    (void)state;
    apart_test(play_taking_back);
}

/* ---- options ---- */

static void publish_with_other_options(banyan_world *world, struct apart *shared)
{
    int rank = banyan_world_rank(world);
    struct following mine = following_open_matrix(rank, false, NULL);
    banyan_publication_options options = BANYAN_PUBLICATION_OPTIONS_INIT;
    options.kept_versions = rank == 0 ? 4 : 1;
    banyan_publication *publication = publish_open(world, shared, &mine, &options);
    publish_steps(world, shared, publication, &mine);
    banyan_publication_close(publication);
    following_close(&mine);
}

/* It fetches nothing while it has something to commit, since it verifies. */
static void skip_versions(banyan_world *world, struct apart *shared)
{
    int rank = banyan_world_rank(world);
    struct following mine = following_open_matrix(rank, true, NULL);
    banyan_subscription_options options = BANYAN_SUBSCRIPTION_OPTIONS_INIT;
    uint64_t version;
    options.verify = true;
    options.keep_previous = rank == 0;
    banyan_subscription *subscription = subscribe(world, shared, &mine, &options);
    atomic_store(&shared->marks[MARK_STEP], 1);
    take_above(subscription, &mine, 0);
    CHECK_OK(banyan_world_barrier(world));
    atomic_store(&shared->marks[MARK_STEP], 2);
    CHECK_OK(banyan_subscription_wait(subscription, 1, 60 * NS_PER_S, &version));
    CHECK_OK(banyan_world_barrier(world));
    atomic_store(&shared->marks[MARK_STEP], 5);
    apart_wait(&shared->marks[MARK_PUBLISHED], 5);
    CHECK(take_above(subscription, &mine, 1) == 2);
    CHECK(take_above(subscription, &mine, 2) == 5);
    CHECK(banyan_subscription_get_status(subscription).whole_fetches == 1);
    CHECK_OK(banyan_subscription_rollback(subscription, &version));
    following_check(&mine, 2);
    atomic_fetch_add(&shared->marks[MARK_END], 1);
    banyan_subscription_close(subscription);
    following_close(&mine);
}

static void play_other_options(struct apart *shared)
{
    struct apart_job trainer = apart_start(shared, TRAINERS, 0, publish_with_other_options);
    struct apart_job engine = apart_start(shared, ENGINES, 1, skip_versions);
    apart_end_well(&engine);
    apart_end_well(&trainer);
}

static void options_of_rank_0_count(void **state)
{
    (void)state;
    apart_test(play_other_options);
}

/* ---- ranks that hold nothing ---- */

/* The second rank of either side takes part without tensors. */
static void publish_from_one_rank(banyan_world *world, struct apart *shared)
{
    int rank = banyan_world_rank(world);
    struct following mine = following_open_matrix(0, false, NULL), none = {0};
    banyan_publication *publication = publish_open(world, shared, rank == 0 ? &mine : &none, NULL);
    for (int version = 1; version <= 2; version++) {
        apart_wait(&shared->marks[MARK_STEP], version);
        following_write(&mine, version);
        CHECK_OK(banyan_publication_publish(publication, rank == 0 ? mine.set : NULL,
                                            (uint64_t)version, NULL));
    }
    apart_wait(&shared->marks[MARK_END], ENGINES);
    banyan_publication_close(publication);
    following_close(&mine);
}

static void follow_with_one_rank(banyan_world *world, struct apart *shared)
{
    int rank = banyan_world_rank(world);
    struct following mine = following_open_matrix(0, false, NULL), none = {0};
    banyan_subscription *subscription = subscribe(world, shared, rank == 0 ? &mine : &none, NULL);
    for (uint64_t version = 1, staged, committed = 0; version <= 2; version++) {
        atomic_store(&shared->marks[MARK_STEP], (int)version);
        while (committed < version) {
            CHECK_OK(banyan_subscription_wait(subscription, version - 1, 60 * NS_PER_S, &staged));
            CHECK_OK(banyan_subscription_commit(subscription, &committed));
        }
        if (rank == 0)
            following_check(&mine, (int)version);
    }
    atomic_fetch_add(&shared->marks[MARK_END], 1);
    banyan_subscription_close(subscription);
    following_close(&mine);
}

static void play_empty_ranks(struct apart *shared)
{
    struct apart_job trainer = apart_start(shared, TRAINERS, 0, publish_from_one_rank);
    struct apart_job engine = apart_start(shared, ENGINES, 1, follow_with_one_rank);
    apart_end_well(&engine);
    apart_end_well(&trainer);
}

static void ranks_may_hold_nothing(void **state)
{
    (void)state;
    apart_test(play_empty_ranks);
}

/* ---- passing on ---- */

enum { PASSED_ON = 4 };

static void publish_halves(banyan_world *world, struct apart *shared)
{
    struct following mine = following_open_matrix(banyan_world_rank(world), false, NULL);
    banyan_publication *publication = publish_open(world, shared, &mine, NULL);
    publish_steps(world, shared, publication, &mine);
    CHECK(banyan_publication_get_status(publication).joined == 1);
    banyan_publication_close(publication);
    following_close(&mine);
}

/* An engine that publishes its own tensors after each commit. */
static void pass_on(banyan_world *world, struct apart *shared)
{
    struct following mine = following_open_matrix(banyan_world_rank(world), true, NULL);
    banyan_subscription *subscription = subscribe(world, shared, &mine, NULL);
    banyan_publication *publication;
    CHECK_OK(banyan_publication_open(world, mine.layout, NULL, APART_SECRET, NULL, &publication));
    if (banyan_world_rank(world) == 0) {
        snprintf(shared->passes_on, sizeof shared->passes_on, "%s",
                 banyan_publication_address(publication));
        atomic_store(&shared->marks[MARK_OTHERS_OPEN], 1);
    }
    for (int version = 0; version < PASSED_ON;) {
        version = take_above(subscription, &mine, version);
        CHECK_OK(banyan_publication_publish(publication, mine.set, (uint64_t)version, NULL));
    }
    apart_wait(&shared->marks[MARK_OTHERS], ENGINES);
    CHECK_OK(banyan_world_barrier(world));
    atomic_fetch_add(&shared->marks[MARK_END], 1);
    banyan_publication_close(publication);
    banyan_subscription_close(subscription);
    following_close(&mine);
}

/* An engine with another layout that follows the first engine. */
static void follow_the_engine(banyan_world *world, struct apart *shared)
{
    struct following mine = following_open_matrix(banyan_world_rank(world), false, NULL);
    banyan_subscription *subscription;
    apart_wait(&shared->marks[MARK_OTHERS_OPEN], 1);
    CHECK_OK(banyan_subscription_open(world, mine.layout, mine.set, shared->passes_on, APART_SECRET,
                                      NULL, &subscription));
    for (int version = 0; version < PASSED_ON;) {
        CHECK_OK(banyan_world_barrier(world));
        atomic_store(&shared->marks[MARK_STEP], version + 1);
        version = take_above(subscription, &mine, version);
    }
    banyan_subscription_status status = banyan_subscription_get_status(subscription);
    CHECK(status.whole_fetches == 1 && status.delta_fetches == PASSED_ON - 1);
    CHECK_OK(banyan_world_barrier(world));
    atomic_fetch_add(&shared->marks[MARK_OTHERS], 1);
    banyan_subscription_close(subscription);
    following_close(&mine);
}

static void play_passing_on(struct apart *shared)
{
    struct apart_job trainer = apart_start(shared, TRAINERS, 0, publish_halves);
    struct apart_job first = apart_start(shared, ENGINES, 1, pass_on);
    struct apart_job second = apart_start(shared, ENGINES, 2, follow_the_engine);
    apart_end_well(&second);
    apart_end_well(&first);
    apart_end_well(&trainer);
}

static void an_engine_passes_versions_on(void **state)
{
    (void)state;
    apart_test(play_passing_on);
}

/* ---- commits that take long ---- */

enum { LONG_VERSIONS = 12 };

/* Emulated GPUs are slow. */
static int64_t long_elems(void)
{
    return following_trainers_on_gpu || following_engines_on_gpu ? 1 << 20 : 12 << 20;
}

static struct following following_open_long(bool is_engine)
{
    struct following made = {0};
    int64_t shape[] = {long_elems()};
    banyan_piece piece = {.name = "long",
                          .ndim = 1,
                          .shape = {long_elems()},
                          .box = {.ndim = 1, .extent = {long_elems()}}};
    CHECK_OK(banyan_layout_create(&made.layout));
    piece.tensor =
        banyan_layout_add_tensor(made.layout, "long", (DLDataType){kDLBfloat, 16, 1}, 1, shape);
    banyan_layout_add_piece(made.layout, &piece);
    following_alloc(&made, 0, is_engine);
    return made;
}

static void publish_long(banyan_world *world, struct apart *shared)
{
    struct following mine = following_open_long(false);
    following_compression = BANYAN_COMPRESSION_OFF; /* bytes are counted */
    banyan_publication *publication = publish_open(world, shared, &mine, NULL);
    for (int version = 1; version <= LONG_VERSIONS; version++) {
        apart_wait(&shared->marks[MARK_STEP], version);
        memset(following_at(mine.tensors, 0), version, 2 * (size_t)long_elems());
        following_send(&mine);
        CHECK_OK(banyan_publication_publish(publication, mine.set, (uint64_t)version, NULL));
    }
    apart_wait(&shared->marks[MARK_END], 1);
    banyan_publication_close(publication);
    following_close(&mine);
}

/* The thread looks for versions while a commit exchanges elements. */
static void follow_long(banyan_world *world, struct apart *shared)
{
    struct following mine = following_open_long(true);
    banyan_subscription *subscription = subscribe(world, shared, &mine, NULL);
    uint64_t version, staged;
    for (int wanted = 1; wanted <= LONG_VERSIONS; wanted++) {
        atomic_store(&shared->marks[MARK_STEP], wanted);
        CHECK_OK(
            banyan_subscription_wait(subscription, (uint64_t)wanted - 1, 60 * NS_PER_S, &staged));
        usleep((useconds_t)(470 + 5 * wanted) * 1000); /* to the end of a beat, or nearly */
        CHECK_OK(banyan_subscription_commit(subscription, &version));
        CHECK(version == (uint64_t)wanted);
    }
    usleep(300000);
    banyan_subscription_status status = banyan_subscription_get_status(subscription);
    uint64_t bytes = 2 * (uint64_t)long_elems();
    CHECK(status.received_bytes / bytes == LONG_VERSIONS,
          "%d versions of %lu bytes came as %lu bytes", LONG_VERSIONS, (unsigned long)bytes,
          (unsigned long)status.received_bytes);
    atomic_fetch_add(&shared->marks[MARK_END], 1);
    banyan_subscription_close(subscription);
    following_close(&mine);
}

static void play_long(struct apart *shared)
{
    struct apart_job trainer = apart_start(shared, 1, 0, publish_long);
    struct apart_job engine = apart_start(shared, 1, 1, follow_long);
    apart_end_well(&engine);
    apart_end_well(&trainer);
}

static void a_version_that_is_being_committed_is_not_fetched_again(void **state)
{
    (void)state;
    apart_test(play_long);
}

/* ---- the wait for the next version ---- */

enum { PROMPT_VERSIONS = 5 };

/* An engine that takes a version only when the one before is committed, since it verifies, gets the
 * next one without a pause. */
static void follow_promptly(banyan_world *world, struct apart *shared)
{
    banyan_subscription_options options = BANYAN_SUBSCRIPTION_OPTIONS_INIT;
    options.verify = true;
    uint64_t least_ns = UINT64_MAX;
    struct following mine = following_open_matrix(banyan_world_rank(world), true, NULL);
    banyan_subscription *subscription = subscribe(world, shared, &mine, &options);
    for (int version = 1; version <= PROMPT_VERSIONS; version++) {
        uint64_t began_ns = time_now_ns(), took_ns;
        atomic_store(&shared->marks[MARK_STEP], version);
        take_above(subscription, &mine, version - 1);
        took_ns = time_now_ns() - began_ns;
        least_ns = version > 1 && took_ns < least_ns ? took_ns : least_ns;
        CHECK_OK(banyan_world_barrier(world));
    }
    CHECK(least_ns < 300 * NS_PER_MS, "the next version took %.3f s at least",
          (double)least_ns / 1e9);
    end_engine(shared, subscription, &mine);
}

static void play_promptly(struct apart *shared)
{
    play_with(shared, publish_matrix, follow_promptly);
}

static void the_next_version_follows_a_commit_at_once(void **state)
{
    (void)state;
    apart_test(play_promptly);
}

/* All tests, for a list. */
#define VERSIONS_TESTS                                                                             \
    cmocka_unit_test(engines_follow_every_version_early_and_late),                                 \
        cmocka_unit_test(a_version_can_be_taken_back), cmocka_unit_test(options_of_rank_0_count),  \
        cmocka_unit_test(an_engine_passes_versions_on), cmocka_unit_test(ranks_may_hold_nothing),  \
        cmocka_unit_test(a_version_that_is_being_committed_is_not_fetched_again),                  \
        cmocka_unit_test(the_next_version_follows_a_commit_at_once),

#endif
