/* Trainers and engines are killed at random times. No engine ever has a mixture of versions, an
 * engine that lives keeps the version that it has, and follows the next trainer. */
#ifndef TESTS_PUBLISH_DEATHS_H
#define TESTS_PUBLISH_DEATHS_H

#include "publish/following.h"

enum { KILLED_TRAINERS = 2, DEATHS = 10 };

/* BANYAN_TEST_DEATHS, else a number that suits a run of all tests. */
static int death_count(void)
{
    const char *text = getenv("BANYAN_TEST_DEATHS");
    return text ? atoi(text) : DEATHS;
}

/* A rank of this world was killed: nothing may hang here. */
static void end_after_a_death(banyan_world *world)
{
    (void)banyan_world_close(world);
    _exit(1);
}

/* Publish one version after the other, until the test ends or a rank dies. */
static void publish_until_the_end(banyan_world *world, struct apart *shared)
{
    int rank = banyan_world_rank(world), words[2];
    struct following mine = following_open(shared->seed, KILLED_TRAINERS, rank, false);
    banyan_publication *publication = NULL;
    banyan_publication_options options = BANYAN_PUBLICATION_OPTIONS_INIT;
    /* With little patience fetches pause, and some are dropped. */
    options.patience_ns = shared->seed % 2 ? 2 * NS_PER_S : 40 * NS_PER_MS;
    options.stream = mine.stream;
    options.keep_on_host = following_keeps_on_host;
    atomic_fetch_add(&shared->marks[MARK_TRAINERS_OPEN], 1);
    banyan_status status =
        banyan_publication_open(world, mine.layout, shared->listen_at[0] ? shared->listen_at : NULL,
                                APART_SECRET, &options, &publication);
    if (status == BANYAN_OK && rank == 0 && !shared->listen_at[0]) {
        const char *address = banyan_publication_address(publication);
        snprintf(shared->address, sizeof shared->address, "%s", address);
        snprintf(shared->listen_at, sizeof shared->listen_at, "%s", strrchr(address, ':'));
        atomic_fetch_add(&shared->listens, 1);
    }
    while (status == BANYAN_OK) {
        words[0] = atomic_load(&shared->marks[MARK_PUBLISHED]) + 1;
        words[1] = atomic_load(&shared->marks[MARK_END]);
        status = banyan_world_broadcast(world, words, sizeof words, 0);
        if (status != BANYAN_OK || words[1])
            break;
        following_write(&mine, words[0]);
        status = banyan_publication_publish(publication, mine.set, (uint64_t)words[0], NULL);
        following_poison(&mine);
        if (status == BANYAN_OK && rank == 0)
            atomic_store(&shared->marks[MARK_PUBLISHED], words[0]);
        usleep(3000);
    }
    CHECK(status == BANYAN_OK || status == BANYAN_ERR_PEER_LOST || status == BANYAN_ERR_ABORTED,
          "%s: %s", banyan_status_name(status), banyan_last_error());
    banyan_publication_close(publication);
    following_close(&mine);
    if (status != BANYAN_OK)
        end_after_a_death(world);
}

/* Serve whatever version there is, until the test ends or a rank dies. */
static void follow_until_the_end(banyan_world *world, struct apart *shared, bool verify,
                                 _Atomic int *mark)
{
    int rank = banyan_world_rank(world);
    struct following mine = following_open(shared->seed, KILLED_TRAINERS, rank, true);
    banyan_subscription_options options = BANYAN_SUBSCRIPTION_OPTIONS_INIT;
    options.verify = verify;
    banyan_subscription *subscription = subscribe(world, shared, &mine, &options);
    banyan_status status = BANYAN_OK;
    uint64_t version = 0;
    for (int end = 0; status == BANYAN_OK && !end;) {
        end = atomic_load(&shared->marks[MARK_END]);
        status = banyan_world_broadcast(world, &end, sizeof end, 0);
        if (status == BANYAN_OK)
            status = banyan_subscription_commit(subscription, &version);
        if (version > 0)
            following_check(&mine, (int)version);
        if (status == BANYAN_OK && rank == 0)
            atomic_store(mark, (int)version);
        usleep(1000);
    }
    CHECK(status == BANYAN_OK || status == BANYAN_ERR_PEER_LOST || status == BANYAN_ERR_ABORTED,
          "%s: %s", banyan_status_name(status), banyan_last_error());
    banyan_subscription_close(subscription);
    if (version > 0)
        following_check(&mine, (int)version);
    following_close(&mine);
    if (status != BANYAN_OK)
        end_after_a_death(world);
}

static void follow_and_live(banyan_world *world, struct apart *shared)
{
    follow_until_the_end(world, shared, false, &shared->marks[MARK_COMMITTED]);
}

static void follow_and_die(banyan_world *world, struct apart *shared)
{
    atomic_fetch_add(&shared->marks[MARK_OTHERS_OPEN], 1);
    follow_until_the_end(world, shared, true, &shared->marks[MARK_OTHERS]);
}

/* Kill one rank of a world that is open, and start its world again. */
static void kill_one(random_state *random, struct apart *shared, struct apart_job *job,
                     _Atomic int *open, int node, apart_rank run)
{
    int rank = (int)random_between(random, 0, job->size - 1);
    apart_wait(open, job->size); /* before that, the others wait for another process */
    apart_kill(job, rank, rank);
    for (int i = 0; i < job->size; i++) {
        int status;
        CHECK(waitpid(job->ranks[i], &status, 0) == job->ranks[i]);
        CHECK(i == rank ? WIFSIGNALED(status) : status == 0x100, "rank %d ends with %#x", i,
              (unsigned)status);
    }
    atomic_store(open, 0);
    *job = apart_start(shared, job->size, node, run);
}

static void play_deaths(struct apart *shared)
{
    random_state random = random_from(shared->seed);
    struct apart_job trainer = apart_start(shared, KILLED_TRAINERS, 0, publish_until_the_end);
    struct apart_job lives = apart_start(shared, FOLLOWING_ENGINES, 1, follow_and_live);
    struct apart_job dies = apart_start(shared, FOLLOWING_ENGINES, 2, follow_and_die);
    apart_wait(&shared->marks[MARK_COMMITTED], 1);
    int count = death_count();
    for (int round = 0; round < count; round++) {
        usleep((useconds_t)random_between(&random, 0, 80000));
        if (random_next(&random) % 2) {
            kill_one(&random, shared, &trainer, &shared->marks[MARK_TRAINERS_OPEN], 0,
                     publish_until_the_end);
        } else {
            atomic_store(&shared->marks[MARK_OTHERS], 0);
            kill_one(&random, shared, &dies, &shared->marks[MARK_OTHERS_OPEN], 2, follow_and_die);
        }
        if (round % 4 == 0) /* everybody finds everybody again */
            apart_wait(&shared->marks[MARK_COMMITTED],
                       atomic_load(&shared->marks[MARK_PUBLISHED]) + 1);
    }
    int last = atomic_load(&shared->marks[MARK_PUBLISHED]) + 2;
    apart_wait(&shared->marks[MARK_COMMITTED], last);
    apart_wait(&shared->marks[MARK_OTHERS], last);
    atomic_store(&shared->marks[MARK_END], 1);
    apart_end_well(&lives);
    apart_end_well(&dies);
    apart_end_well(&trainer);
}

static void random_deaths_leave_no_mixture(void **state)
{
    (void)state;
    apart_test(play_deaths);
}

/* All tests, for a list. */
#define DEATHS_TESTS cmocka_unit_test(random_deaths_leave_no_mixture),

#endif
