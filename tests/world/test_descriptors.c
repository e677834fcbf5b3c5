/* Few descriptors (RLIMIT_NOFILE): a world opens and works, or all ranks get an error at once with
 * the number that is needed. */
#include "support/test.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/deadline.h"
#include "core/status.h"
#include "world/control.h"

#define SECRET "00112233445566778899aabbccddeeff"
#define AT_ONCE_NS (2 * NS_PER_S)

enum { RANKS_MOST = 4, LEAST = 3, MOST = 64 };

/* The kinds of rendezvous. */
enum way { ON_ONE_NODE, ON_TWO_NODES, BY_ID, WAYS };

static const char *const names[WAYS] = {"one node", "two nodes", "unique id"};

struct outcome {
    banyan_status status;
    uint64_t took_ns;
    char message[512];
};

/* In memory that the ranks share. */
struct play {
    enum way way;
    int ranks, limit;
    int short_rank, short_limit; /* rank with its own limit; -1: none */
    int round;
    struct outcome outcomes[RANKS_MOST];
    /* For the process that makes the unique id. */
    _Atomic bool hosted;
    banyan_status hosting;
    banyan_unique_id id;
    char message[512];
};

static struct play *play;

static void set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

static void limit_descriptors(int most)
{
    struct rlimit limit = {(rlim_t)most, (rlim_t)most};
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

static banyan_status open_world(int rank, const banyan_unique_id *id, banyan_world **world)
{
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    options.timeout_ns = 20 * NS_PER_S;
    if (play->way == ON_ONE_NODE) {
        char job[64];
        snprintf(job, sizeof job, "descriptors %d %d", (int)getppid(), play->round);
        setenv("BANYAN_JOB", job, 1);
        setenv("BANYAN_SECRET", SECRET, 1);
        set_number("BANYAN_RANK", rank);
        set_number("BANYAN_LOCAL_RANK", rank);
        set_number("BANYAN_WORLD_SIZE", play->ranks);
        set_number("BANYAN_LOCAL_SIZE", play->ranks);
        return banyan_world_open(&options, world);
    }
    options.rank = rank;
    options.world_size = play->ranks;
    options.node = play->way == BY_ID ? NULL : rank < play->ranks / 2 ? "here" : "there";
    options.unique_id = play->way == BY_ID ? id : NULL;
    options.address = "127.0.0.1";
    options.port = 20000 + (int)(getppid() + 64 * play->round) % 10000;
    options.secret = SECRET;
    return banyan_world_open(&options, world);
}

/* All ranks communicate with all. */
static banyan_status work(banyan_world *world)
{
    int rank = banyan_world_rank(world), all[RANKS_MOST];
    for (int i = 0; i < 3; i++)
        RETURN_IF_FAILED(banyan_world_barrier(world));
    RETURN_IF_FAILED(banyan_world_allgather(world, &rank, sizeof rank, all));
    for (int peer = 0; peer < play->ranks; peer++) {
        if (peer != rank)
            RETURN_IF_FAILED(control_send(world, peer, 7, &rank, sizeof rank));
    }
    for (int peer = 0; peer < play->ranks; peer++) {
        void *data;
        size_t bytes;
        if (peer == rank)
            continue;
        RETURN_IF_FAILED(control_receive(world, peer, 7, "a word", &data, &bytes));
        CHECK(bytes == sizeof rank && *(int *)data == peer);
        free(data);
    }
    return banyan_world_barrier(world);
}

static void be_rank(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)count;
    (void)context;
    struct outcome *outcome = &play->outcomes[rank];
    limit_descriptors(rank == play->short_rank ? play->short_limit : play->limit);
    banyan_world *world;
    uint64_t began = time_now_ns();
    outcome->status = open_world(rank, id, &world);
    outcome->took_ns = time_now_ns() - began;
    if (outcome->status == BANYAN_OK) {
        CHECK_OK(work(world));
        CHECK_OK(banyan_world_close(world));
    } else {
        snprintf(outcome->message, sizeof outcome->message, "%s", banyan_last_error());
    }
}

static void run_ranks(void)
{
    int statuses[RANKS_MOST];
    memset(play->outcomes, 0, sizeof play->outcomes);
    play->round++;
    ranks_fork(play->ranks, be_rank, NULL, statuses);
    for (int rank = 0; rank < play->ranks; rank++) {
        if (statuses[rank] != 0)
            printf("%s, limit %d: rank %d of %d ended with %#x\n", names[play->way], play->limit,
                   rank, play->ranks, statuses[rank]);
        assert_int_equal(statuses[rank], 0);
    }
}

/* Return the number after `ulimit -n ` in the message. */
static int number_named(const char *message)
{
    const char *at = strstr(message, "ulimit -n ");
    return at ? atoi(at + strlen("ulimit -n ")) : 0;
}

/* Returns whether the world opened. */
static bool all_fail_at_once_or_none(void)
{
    const struct outcome *first = &play->outcomes[0];
    for (int rank = 0; rank < play->ranks; rank++) {
        const struct outcome *outcome = &play->outcomes[rank];
        if (outcome->status != first->status || outcome->took_ns > AT_ONCE_NS)
            printf("%s, limit %d: rank %d of %d: %s after %.1f s: %s\n", names[play->way],
                   play->limit, rank, play->ranks, banyan_status_name(outcome->status),
                   (double)outcome->took_ns / 1e9, outcome->message);
        assert_int_equal(outcome->status, first->status);
        assert_true(outcome->took_ns <= AT_ONCE_NS);
        if (outcome->status != BANYAN_OK) {
            assert_int_equal(outcome->status, BANYAN_ERR_SYSTEM);
            assert_true(number_named(outcome->message) > 0);
        }
    }
    return first->status == BANYAN_OK;
}

static void every_limit_works_or_fails_at_once(void **state)
{
    (void)state;
    for (int way = 0; way < WAYS; way++) {
        for (int ranks = 2; ranks <= RANKS_MOST; ranks += 2) {
            int least = 0, named = 0, least_named = INT_MAX;
            for (int limit = LEAST; limit <= MOST; limit++) {
                *play = (struct play){way, ranks, limit, -1, 0, play->round, .hosted = false};
                run_ranks();
                bool opened = all_fail_at_once_or_none();
                char own[32];
                snprintf(own, sizeof own, "limit of %d", limit);
                if (!opened) {
                    assert_non_null(strstr(play->outcomes[1].message, own));
                    named = number_named(play->outcomes[0].message);
                    least_named = named < least_named ? named : least_named;
                    assert_true(named > limit);
                }
                /* Every limit above a sufficient one is sufficient. */
                assert_true(opened || least == 0);
                least = opened && least == 0 ? limit : least;
            }
            printf("%s, %d ranks: %d are enough, and the last message said %d\n", names[way], ranks,
                   least, named);
            /* Every limit was tried, so each number in a message is sufficient. A rank that has
             * * not reached the others names a bound. */
            assert_true(least > 0 && least_named >= least && named <= least + 8);
        }
    }
}

/* The others get the error of the rank that has fewer. */
static void one_rank_that_lacks_descriptors_is_named_by_all(void **state)
{
    (void)state;
    for (int way = 0; way < WAYS; way++) {
        *play = (struct play){way, RANKS_MOST, 256, 2, 14, play->round, .hosted = false};
        run_ranks();
        assert_false(all_fail_at_once_or_none());
        for (int rank = 0; rank < RANKS_MOST; rank++) {
            assert_non_null(strstr(play->outcomes[rank].message, "rank 2"));
            assert_non_null(strstr(play->outcomes[rank].message, "limit of 14"));
        }
        printf("%s: %s\n", names[way], play->outcomes[0].message);
    }
}

static void be_host(int limit)
{
    ranks_become_child();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    limit_descriptors(limit);
    play->hosting = banyan_unique_id_create(&play->id);
    snprintf(play->message, sizeof play->message, "%s", banyan_last_error());
    play->hosted = true;
    for (;;)
        pause();
}

static void join_host(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)id;
    be_rank(rank, count, &play->id, context);
}

/* The process that made the unique id may have few, and needs one for each rank. */
static void the_process_of_the_rendezvous_reports_missing_descriptors(void **state)
{
    (void)state;
    bool opened = false;
    for (int limit = LEAST; limit <= 20; limit++) {
        *play = (struct play){BY_ID, RANKS_MOST, 256, -1, 0, play->round, .hosted = false};
        fflush(NULL);
        pid_t host = fork();
        if (host == 0)
            be_host(limit);
        while (!play->hosted)
            usleep(1000);
        if (play->hosting == BANYAN_OK) {
            int statuses[RANKS_MOST];
            ranks_fork(RANKS_MOST, join_host, NULL, statuses);
            opened = all_fail_at_once_or_none();
            assert_true(opened || strstr(play->outcomes[3].message, "answering 4 ranks"));
        } else {
            assert_int_equal(play->hosting, BANYAN_ERR_SYSTEM);
            assert_non_null(strstr(play->message, "ulimit -n"));
        }
        kill(host, SIGKILL);
        waitpid(host, NULL, 0);
    }
    assert_true(opened);
}

int main(void)
{
    play = mmap(NULL, sizeof *play, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (play == MAP_FAILED)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_limit_works_or_fails_at_once),
        cmocka_unit_test(one_rank_that_lacks_descriptors_is_named_by_all),
        cmocka_unit_test(the_process_of_the_rendezvous_reports_missing_descriptors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
