/* A death, an abort, a silence: all ranks get the error in time, with the rank's name. */
#include "support/test.h"

#include <dirent.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/deadline.h"
#include "core/error.h"
#include "world/control.h"

enum { RANKS = 5 };

enum operation {
    BARRIER,
    BROADCAST,
    ALLGATHER,
    ALLGATHERV,
    RECEIVE,
    EXCHANGE,
    AGREE,
    MAX,
    SHARE_FD,
    LOOK, /* a loop of an upper layer that calls control_check */
    CLOSE,
    OPERATIONS
};

enum end { KILLED, KILLED_WITH_CHILD, KILLED_WITH_RAW_CHILD, EXITED, ABORTED, STOPPED, LEFT };

/* In memory that all processes share. */
struct play {
    enum operation operation;
    enum end end;
    int victim;
    int nodes; /* 1, or 2: even and odd ranks */
    _Atomic uint64_t ended_ns;
};

static struct play *play;
/* Time until the last of all ranks in all plays got the error; shared as well. */
static _Atomic uint64_t *longest_ns;

static banyan_status wait_in(banyan_world *world, enum operation operation)
{
    uint64_t value = 0;
    uint64_t all[RANKS];
    size_t sizes[RANKS], count;
    int fds[RANKS];
    void *data;
    control_message *received;
    switch (operation) {
    case BARRIER:
        return banyan_world_barrier(world);
    case BROADCAST:
        return banyan_world_broadcast(world, &value, sizeof value, play->victim);
    case ALLGATHER:
        return banyan_world_allgather(world, &value, sizeof value, all);
    case ALLGATHERV:
        return banyan_world_allgatherv(world, &value, sizeof value, &data, sizes);
    case RECEIVE:
        return control_receive(world, play->victim, 1, "a test", &data, &count);
    case EXCHANGE:
        return control_exchange(world, NULL, 0, "a test", &received, &count);
    case AGREE:
        return control_agree(world, BANYAN_OK);
    case MAX:
        return control_max(world, 1, &value);
    case SHARE_FD:
        return control_share_fd(world, STDERR_FILENO, fds);
    case LOOK:
        for (;;) {
            banyan_status status = control_check(world);
            if (status != BANYAN_OK)
                return status;
            usleep(10000);
        }
    default:
        return banyan_world_close(world);
    }
}

/* Without libc, and so without its handlers: the child keeps every descriptor. */
static pid_t raw_fork(void)
{
    return (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
}

static void outlive(void)
{
    for (int fd = 0; fd < 3; fd++)
        close(fd);
    sleep(3);
    _exit(0);
}

static void end_here(banyan_world *world)
{
    if (play->end == KILLED_WITH_CHILD && fork() == 0)
        outlive();
    if (play->end == KILLED_WITH_RAW_CHILD && raw_fork() == 0)
        outlive();
    usleep(50000); /* the others wait by now */
    play->ended_ns = time_now_ns();
    switch (play->end) {
    case EXITED:
        syscall(SYS_exit_group, 7); /* at once, before a sanitizer's own exit work */
        break;
    case ABORTED:
        CHECK_OK(banyan_world_abort(world, "the loss is NaN"));
        CHECK_FAILS(banyan_world_check(world), BANYAN_ERR_ABORTED, "the loss is NaN");
        CHECK_FAILS(banyan_world_close(world), BANYAN_ERR_ABORTED, "the loss is NaN");
        break;
    case LEFT: {
        void *data;
        size_t bytes;
        CHECK_OK(banyan_world_set_timeout(world, 200 * NS_PER_MS));
        CHECK_FAILS(
            control_receive(world, (play->victim + 1) % RANKS, 99, "nothing", &data, &bytes),
            BANYAN_ERR_TIMEOUT, "nothing");
        play->ended_ns = time_now_ns();
        CHECK_FAILS(banyan_world_close(world), BANYAN_ERR_TIMEOUT, "nothing");
        break;
    }
    default:
        kill(getpid(), play->end == STOPPED ? SIGSTOP : SIGKILL);
    }
}

static void open_world(int rank, int count, const banyan_unique_id *id, uint64_t timeout_ns,
                       banyan_world **world)
{
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    options.rank = rank;
    options.world_size = count;
    options.unique_id = id;
    options.timeout_ns = timeout_ns;
    if (play->nodes == 2)
        options.node = rank % 2 ? "odd" : "even";
    CHECK_OK(banyan_world_open(&options, world));
}

static void play_rank(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    banyan_world *world;
    open_world(rank, count, id, 0, &world);
    if (rank == play->victim) {
        end_here(world);
        return;
    }
    char name[32];
    banyan_status expected = play->end == ABORTED ? BANYAN_ERR_ABORTED
                             : play->end == LEFT  ? BANYAN_ERR_TIMEOUT
                                                  : BANYAN_ERR_PEER_LOST;
    snprintf(name, sizeof name, "rank %d", play->victim);
    CHECK_FAILS(wait_in(world, play->operation), expected, name);
    uint64_t now = time_now_ns();
    CHECK(now - play->ended_ns < NS_PER_S, "rank %d learns of it after %.2f s: %s", rank,
          (double)(now - play->ended_ns) / 1e9, banyan_last_error());
    uint64_t longest = *longest_ns, took_ns = now - play->ended_ns;
    while (took_ns > longest && !atomic_compare_exchange_weak(longest_ns, &longest, took_ns))
        ;
    if (play->operation == CLOSE)
        return;
    for (enum operation later = 0; later < OPERATIONS; later++)
        CHECK_FAILS(wait_in(world, later), expected, name);
    CHECK(time_now_ns() - now < NS_PER_S / 2, "later waits take long");
}

static void run_play(enum operation operation, enum end end, int victim, int nodes)
{
    *play = (struct play){.operation = operation, .end = end, .victim = victim, .nodes = nodes};
    int statuses[RANKS];
    ranks_fork(RANKS, play_rank, NULL, statuses);
    for (int rank = 0; rank < RANKS; rank++) {
        bool died = WIFSIGNALED(statuses[rank]) && WTERMSIG(statuses[rank]) == SIGKILL;
        bool exited = WIFEXITED(statuses[rank]) && WEXITSTATUS(statuses[rank]) == 7;
        bool fine = rank != victim || end == ABORTED || end == LEFT ? statuses[rank] == 0
                    : end == EXITED                                 ? exited
                                                                    : died;
        if (!fine)
            fail_msg("operation %d, end %d, victim %d, %d nodes: rank %d ends with %#x",
                     (int)operation, (int)end, victim, nodes, rank, (unsigned)statuses[rank]);
    }
}

static void a_killed_rank_is_seen_in_every_wait(void **state)
{
    (void)state;
    for (enum operation operation = 0; operation < OPERATIONS; operation++) {
        for (int victim = 0; victim < RANKS; victim += 2)
            run_play(operation, KILLED, victim, 1);
    }
}

static void a_killed_rank_of_another_node_is_seen(void **state)
{
    (void)state;
    for (int victim = 0; victim < RANKS; victim++)
        run_play(victim % 2 ? BARRIER : LOOK, KILLED, victim, 2);
}

static void children_do_not_hide_a_death(void **state)
{
    (void)state;
    for (int victim = 0; victim < RANKS; victim += 3) {
        run_play(BARRIER, KILLED_WITH_CHILD, victim, 1);
        run_play(LOOK, KILLED_WITH_CHILD, victim, 2);
        run_play(BARRIER, KILLED_WITH_RAW_CHILD, victim, 1);
        run_play(LOOK, KILLED_WITH_RAW_CHILD, victim, 1);
    }
}

static void an_exit_without_a_close_is_a_loss(void **state)
{
    (void)state;
    run_play(BARRIER, EXITED, 1, 1);
    run_play(LOOK, EXITED, 0, 1);
    run_play(EXCHANGE, EXITED, 3, 2);
}

static void an_abort_ends_every_wait(void **state)
{
    (void)state;
    for (enum operation operation = 0; operation < OPERATIONS; operation++)
        run_play(operation, ABORTED, (int)operation % RANKS, 1 + (int)operation % 2);
}

static void a_rank_that_gives_up_is_named_by_the_others(void **state)
{
    (void)state;
    run_play(BARRIER, LEFT, 2, 1);
    run_play(LOOK, LEFT, 0, 1);
    run_play(LOOK, LEFT, 1, 2);
}

static int print_longest(void **state)
{
    (void)state;
    printf("every end was known after %.1f ms at most\n", (double)*longest_ns / 1e6);
    return 0;
}

/* Opening, a few collectives and closing, with a death at a random time: a rank that fails names
 * the dead one, soon after its end, or after the deadline if it had not joined. */
static void live_with_a_bomb(int rank, int count, const banyan_unique_id *id, void *context)
{
    uint64_t fuse_us = *(uint64_t *)context;
    if (rank == play->victim) {
        struct itimerval fuse = {.it_value.tv_usec = (suseconds_t)fuse_us};
        setitimer(ITIMER_REAL, &fuse, NULL); /* there is no handler for SIGALRM */
    }
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    options.rank = rank;
    options.world_size = count;
    options.unique_id = id;
    options.timeout_ns = NS_PER_S / 2;
    if (play->nodes == 2)
        options.node = rank % 2 ? "odd" : "even";
    banyan_world *world = NULL;
    uint64_t start = time_now_ns();
    banyan_status status = banyan_world_open(&options, &world);
    for (int i = 0; i < 5 && status == BANYAN_OK; i++)
        status = banyan_world_barrier(world);
    char name[32], message[1024];
    snprintf(name, sizeof name, "rank %d", play->victim);
    snprintf(message, sizeof message, "%s", banyan_last_error());
    banyan_status closed = banyan_world_close(world);
    if (status == BANYAN_OK && closed != BANYAN_OK)
        snprintf(message, sizeof message, "%s", banyan_last_error());
    status = status != BANYAN_OK ? status : closed;
    uint64_t took = time_now_ns() - start;
    CHECK(status == BANYAN_OK || status == BANYAN_ERR_PEER_LOST || status == BANYAN_ERR_TIMEOUT,
          "rank %d: %s: %s", rank, banyan_status_name(status), message);
    /* Before all are connected, the loss of a rank that left because of it may be reported
     * first. */
    bool named = strstr(message, name) || (!world && status == BANYAN_ERR_PEER_LOST);
    CHECK(status == BANYAN_OK || named, "rank %d, %" PRIu64 " us: %s", rank, fuse_us, message);
    CHECK(took < (status == BANYAN_ERR_TIMEOUT ? 3 : 2) * NS_PER_S, "it took %.2f s: %s",
          (double)took / 1e9, message);
}

static void a_death_at_any_moment_is_named(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int round = 0; round < 40; round++) {
        uint64_t fuse_us = (uint64_t)random_between(&random, 500, 8000);
        int statuses[RANKS];
        *play = (struct play){.victim = (int)random_between(&random, 0, RANKS - 1),
                              .nodes = 1 + round % 2};
        ranks_fork(RANKS, live_with_a_bomb, &fuse_us, statuses);
        for (int rank = 0; rank < RANKS; rank++)
            assert_true(rank == play->victim || statuses[rank] == 0);
    }
}

/* A rank that gets the error ends at once, without a close; the others still get it. */
static void agree_and_exit(int rank, int count, const banyan_unique_id *id, void *context)
{
    const unsigned *delays_us = context;
    banyan_world *world;
    open_world(rank, count, id, 0, &world);
    usleep(delays_us[rank]);
    banyan_status mine = BANYAN_OK;
    if (rank == play->victim)
        mine = banyan_error_set(BANYAN_ERR_MISMATCH, "the shapes differ");
    CHECK_FAILS(control_agree(world, mine), BANYAN_ERR_MISMATCH, "the shapes differ");
    syscall(SYS_exit_group, 0);
}

static void an_agreed_error_outlives_those_that_exit_at_once(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int round = 0; round < 60; round++) {
        enum { MANY = 9 };
        unsigned delays_us[MANY];
        int statuses[MANY], ranks = 2 + round % (MANY - 1);
        *play = (struct play){.victim = (int)random_between(&random, 0, ranks - 1),
                              .nodes = 1 + round / 8 % 2};
        for (int rank = 0; rank < ranks; rank++)
            delays_us[rank] = (unsigned)random_between(&random, 0, round % 3 ? 100 : 3000);
        ranks_fork(ranks, agree_and_exit, delays_us, statuses);
        for (int rank = 0; rank < ranks; rank++)
            assert_int_equal(statuses[rank], 0);
    }
}

static void wait_for_stopped(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    banyan_world *world;
    open_world(rank, count, id, NS_PER_S / 2, &world);
    if (rank == play->victim) {
        usleep(50000); /* the others have opened it too */
        play->ended_ns = (uint64_t)getpid();
        kill(getpid(), SIGSTOP);
        _exit(0);
    }
    void *data;
    size_t bytes;
    uint64_t start = time_now_ns();
    CHECK_FAILS(control_receive(world, 2, 5, "the plan", &data, &bytes), BANYAN_ERR_TIMEOUT,
                ", which does not answer (the plan); BANYAN_TIMEOUT");
    uint64_t took = time_now_ns() - start;
    CHECK(took > 4 * NS_PER_S / 10 && took < 2 * NS_PER_S);
    CHECK_FAILS(banyan_world_barrier(world), BANYAN_ERR_TIMEOUT, "rank 2");
    CHECK_FAILS(banyan_world_close(world), BANYAN_ERR_TIMEOUT, "rank 2");
    if (rank == 0) {
        usleep(100000);
        kill((pid_t)play->ended_ns, SIGKILL);
    }
}

static void a_stopped_rank_is_a_timeout_that_names_it(void **state)
{
    (void)state;
    int statuses[3];
    *play = (struct play){.victim = 2, .nodes = 1};
    ranks_fork(3, wait_for_stopped, NULL, statuses);
    assert_int_equal(statuses[0], 0);
    assert_int_equal(statuses[1], 0);
}

static void wait_in_exchange(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    banyan_world *world;
    open_world(rank, count, id, NS_PER_S / 2, &world);
    if (rank == play->victim) {
        usleep(50000);
        play->ended_ns = (uint64_t)getpid();
        kill(getpid(), SIGSTOP);
        _exit(0);
    }
    while (play->ended_ns == 0)
        usleep(1000);
    usleep(50000);
    char byte = 1;
    control_message message = {play->victim, &byte, 1}, *received;
    size_t got;
    CHECK_FAILS(control_exchange(world, &message, 1, "routing", &received, &got),
                BANYAN_ERR_TIMEOUT, "has not taken a message (routing)");
    kill((pid_t)play->ended_ns, SIGKILL);
}

static void an_exchange_names_the_rank_that_takes_nothing(void **state)
{
    (void)state;
    int statuses[2];
    *play = (struct play){.victim = 1, .nodes = 1};
    ranks_fork(2, wait_in_exchange, NULL, statuses);
    assert_int_equal(statuses[0], 0);
}

static void lose_in_sub_worlds(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    banyan_world *world, *low = NULL, *high = NULL;
    open_world(rank, count, id, 0, &world);
    static const int low_ranks[] = {2, 1, 0}, high_ranks[] = {3, 4};
    if (rank < 3)
        CHECK_OK(banyan_world_split(world, low_ranks, 3, &low));
    else
        CHECK_OK(banyan_world_split(world, high_ranks, 2, &high));
    CHECK_OK(banyan_world_barrier(low ? low : high));
    if (rank == play->victim) {
        usleep(20000);
        kill(getpid(), SIGKILL);
    }
    if (low) {
        CHECK_FAILS(banyan_world_barrier(low), BANYAN_ERR_PEER_LOST, "rank 2 (rank 0 of the job");
        CHECK_FAILS(banyan_world_close(low), BANYAN_ERR_PEER_LOST, "rank 2");
    }
    CHECK_FAILS(banyan_world_barrier(world), BANYAN_ERR_PEER_LOST, "rank 0 (pid");
    if (high) { /* all its members live */
        for (int i = 0; i < 20; i++)
            CHECK_OK(banyan_world_barrier(high));
        play->ended_ns = 1;
        if (rank == 4) {
            usleep(20000);
            kill(getpid(), SIGKILL);
        }
        CHECK_FAILS(wait_in(high, LOOK), BANYAN_ERR_PEER_LOST, "rank 1 (rank 4 of the job");
        CHECK_FAILS(banyan_world_close(high), BANYAN_ERR_PEER_LOST, "rank 1");
    }
    CHECK_FAILS(banyan_world_close(world), BANYAN_ERR_PEER_LOST, "rank 0");
}

static void a_sub_world_lives_as_long_as_its_members(void **state)
{
    (void)state;
    int statuses[RANKS];
    *play = (struct play){.victim = 0, .nodes = 1};
    ranks_fork(RANKS, lose_in_sub_worlds, NULL, statuses);
    for (int rank = 1; rank < 4; rank++)
        assert_int_equal(statuses[rank], 0);
    assert_true(play->ended_ns == 1);
}

static void abort_a_sub_world(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    banyan_world *world, *sub, *nested;
    static const int members[] = {1, 2, 4}, nested_members[] = {2, 0};
    open_world(rank, count, id, 0, &world);
    if (rank == 2 || rank == 1 || rank == 4) {
        if (rank == 4)
            usleep(100000); /* it receives the abort before it splits */
        CHECK_OK(banyan_world_split(world, members, 3, &sub));
        if (rank == 1) {
            CHECK_OK(banyan_world_split(sub, nested_members, 2, &nested));
            usleep(20000);
            CHECK_OK(banyan_world_abort(sub, "enough"));
            CHECK_FAILS(banyan_world_barrier(nested), BANYAN_ERR_ABORTED,
                        "rank 0 (rank 1 of the job) aborted: enough");
            CHECK_FAILS(banyan_world_close(nested), BANYAN_ERR_ABORTED, "enough");
        }
        CHECK_FAILS(banyan_world_barrier(sub), BANYAN_ERR_ABORTED,
                    "rank 0 (rank 1 of the job) aborted: enough");
        CHECK_FAILS(banyan_world_close(sub), BANYAN_ERR_ABORTED, "enough");
    }
    CHECK_OK(banyan_world_barrier(world));
    CHECK_OK(banyan_world_close(world));
}

static void an_abort_of_a_sub_world_leaves_the_rest_alone(void **state)
{
    (void)state;
    int statuses[RANKS];
    *play = (struct play){.nodes = 1};
    ranks_fork(RANKS, abort_a_sub_world, NULL, statuses);
    for (int rank = 0; rank < RANKS; rank++)
        assert_int_equal(statuses[rank], 0);
}

static int count_descriptors(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

static void fork_in_between(banyan_world *world, void *context)
{
    int before = *(int *)context;
    CHECK_OK(banyan_world_barrier(world));
    for (int i = 0; i < 3; i++) {
        pid_t child = fork();
        if (child == 0) {
            CHECK(count_descriptors() <= before, "%d descriptors, %d before the world was opened",
                  count_descriptors(), before);
            CHECK_FAILS(banyan_world_barrier(world), BANYAN_ERR_INVALID, "belongs to the parent");
            CHECK_FAILS(banyan_world_close(world), BANYAN_ERR_INVALID, "belongs to the parent");
            _exit(0);
        }
        int status;
        CHECK_OK(banyan_world_barrier(world));
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        CHECK_OK(banyan_world_barrier(world));
    }
}

static void a_forked_child_does_not_disturb(void **state)
{
    (void)state;
    int before = count_descriptors();
    ranks_run(4, fork_in_between, &before);
}

/* Rank 1 ends a world soon after rank 0 has failed for the same reason. */
static void follow_from_an_end(banyan_world *world, void *context)
{
    static const int both[] = {0, 1};
    banyan_world *sub;
    banyan_status status = BANYAN_OK;
    (void)context;
    for (int i = 0; i < 5 && status != BANYAN_ERR_ABORTED; i++) { /* on a busy machine */
        CHECK_OK(banyan_world_split(world, both, 2, &sub));
        CHECK_OK(banyan_world_barrier(sub));
        if (banyan_world_rank(world) == 1) {
            usleep(100000);
            CHECK_OK(banyan_world_abort(sub, "the cause"));
            status = BANYAN_ERR_ABORTED;
        } else {
            status = control_first_cause(sub, error_set(BANYAN_ERR_SYSTEM, "a read failed"));
            CHECK(strstr(banyan_last_error(),
                         status == BANYAN_ERR_ABORTED ? "the cause" : "a read failed"),
                  "%s", banyan_last_error());
        }
        CHECK_OK(banyan_world_broadcast(world, &status, sizeof status, 0));
        (void)banyan_world_close(sub);
    }
    CHECK(status == BANYAN_ERR_ABORTED, "the end of the world was not awaited");
    uint64_t began_ns = time_now_ns();
    status = control_first_cause(world, error_set(BANYAN_ERR_SYSTEM, "a read failed"));
    CHECK(status == BANYAN_ERR_SYSTEM && strstr(banyan_last_error(), "a read failed"), "%s",
          banyan_last_error());
    CHECK(time_now_ns() - began_ns >= NS_PER_S / 2);
}

static void a_failure_that_follows_from_an_end_is_reported_as_the_end(void **state)
{
    (void)state;
    ranks_run(2, follow_from_an_end, NULL);
}

int main(void)
{
    longest_ns =
        mmap(NULL, sizeof *longest_ns, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    play = mmap(NULL, sizeof *play, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_rank_is_seen_in_every_wait),
        cmocka_unit_test(a_killed_rank_of_another_node_is_seen),
        cmocka_unit_test(children_do_not_hide_a_death),
        cmocka_unit_test(an_exit_without_a_close_is_a_loss),
        cmocka_unit_test(an_abort_ends_every_wait),
        cmocka_unit_test(a_rank_that_gives_up_is_named_by_the_others),
        cmocka_unit_test(a_death_at_any_moment_is_named),
        cmocka_unit_test(an_agreed_error_outlives_those_that_exit_at_once),
        cmocka_unit_test(a_failure_that_follows_from_an_end_is_reported_as_the_end),
        cmocka_unit_test(a_stopped_rank_is_a_timeout_that_names_it),
        cmocka_unit_test(an_exchange_names_the_rank_that_takes_nothing),
        cmocka_unit_test(a_sub_world_lives_as_long_as_its_members),
        cmocka_unit_test(an_abort_of_a_sub_world_leaves_the_rest_alone),
        cmocka_unit_test(a_forked_child_does_not_disturb),
    };
    return cmocka_run_group_tests(tests, NULL, print_longest);
}
