/* The others wait for a late rank, name it in the log and in errors, and accept it even after they
 * gave up. */
#include "support/test.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/deadline.h"
#include "world/control.h"

enum { RANKS = 5 };
#define LOG_PERIOD "0.1"

/* In memory that all processes share. */
struct play {
    int victim;
    _Atomic int waiting, lines, others;
    _Atomic uint64_t ended_ns;
    _Atomic int pid;
};

static struct play *play;
static char lines[16][1024];
static int line_count;

static void keep_line(banyan_log_level level, const char *message, void *context)
{
    (void)context;
    if (level == BANYAN_LOG_WARN && strstr(message, " has waited ") && line_count < 16)
        snprintf(lines[line_count++], sizeof lines[0], "%s", message);
}

static banyan_world *open_late(int rank, int count, const banyan_unique_id *id, uint64_t timeout_ns)
{
    banyan_log_set(keep_line, NULL);
    /* Opening may take longer on a busy machine than the calls of a test may. */
    bool bounded = timeout_ns != 0 && timeout_ns != BANYAN_FOREVER_NS;
    banyan_world *world = ranks_open_world(rank, count, id, bounded ? 0 : timeout_ns);
    if (bounded)
        CHECK_OK(banyan_world_set_timeout(world, timeout_ns));
    line_count = 0;
    return world;
}

static void sleep_ms(unsigned ms)
{
    usleep(ms * 1000);
}

/* Count lines with `part`. There are only few others, about delays of a busy machine. */
static int count_lines(const char *part)
{
    int count = 0;
    for (int i = 0; i < line_count; i++)
        count += strstr(lines[i], part) != NULL;
    play->others += line_count - count;
    return count;
}

enum operation {
    BARRIER,
    BROADCAST,
    ALLGATHER,
    ALLGATHERV,
    AGREE,
    MAX,
    EXCHANGE,
    DIRECTORY,
    OPERATIONS
};

static banyan_status call(banyan_world *world, enum operation operation)
{
    uint64_t value = 7, all[RANKS];
    size_t sizes[RANKS], count;
    void *data = NULL;
    control_message *received;
    banyan_directory *directory = NULL;
    banyan_status status;
    switch (operation) {
    case BARRIER:
        return banyan_world_barrier(world);
    case BROADCAST:
        return banyan_world_broadcast(world, &value, sizeof value, 1);
    case ALLGATHER:
        return banyan_world_allgather(world, &value, sizeof value, all);
    case ALLGATHERV:
        status = banyan_world_allgatherv(world, &value, sizeof value, &data, sizes);
        free(data);
        return status;
    case AGREE:
        return control_agree(world, BANYAN_OK);
    case MAX:
        return control_max(world, 1, &value);
    case EXCHANGE:
        return control_exchange(world, NULL, 0, "a test", &received, &count);
    default:
        status = banyan_directory_open(world, &directory);
        banyan_directory_close(directory);
        return status;
    }
}

static void wait_for_the_late(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    banyan_world *world = open_late(rank, count, id, 0);
    char name[32];
    snprintf(name, sizeof name, "rank %d (pid ", play->victim);
    for (enum operation operation = 0; operation < OPERATIONS; operation++) {
        line_count = 0;
        CHECK_OK(banyan_world_barrier(world));
        line_count = 0;
        if (rank == play->victim)
            sleep_ms(350);
        CHECK_OK(call(world, operation));
        play->lines += count_lines(name);
    }
    CHECK_OK(banyan_world_close(world));
}

/* Each of the operations is logged by ranks that wait directly for the victim, among others. */
static void a_late_rank_is_waited_for_and_named_in_the_log(void **state)
{
    (void)state;
    for (int victim = 0; victim < RANKS; victim += 3) {
        int statuses[RANKS];
        *play = (struct play){.victim = victim};
        ranks_fork(RANKS, wait_for_the_late, NULL, statuses);
        for (int rank = 0; rank < RANKS; rank++)
            assert_int_equal(statuses[rank], 0);
        assert_true(play->lines >= 2 * OPERATIONS);
        assert_true(play->others <= play->lines / 3);
    }
}

/* Wait 0.4 s for the victim, which takes more than twice as long, in a world and a sub-world with
 * other rank numbers. */
static void call_until_it_comes(banyan_world *world, bool late, const char *name,
                                enum operation operation)
{
    int timeouts = 0;
    if (late)
        sleep_ms(1000);
    for (;;) {
        uint64_t began_ns = time_now_ns();
        banyan_status status = call(world, operation);
        uint64_t took_ns = time_now_ns() - began_ns;
        if (status == BANYAN_OK)
            break;
        CHECK(status == BANYAN_ERR_TIMEOUT && !late, "%s: %s", banyan_status_name(status),
              banyan_last_error());
        CHECK(strstr(banyan_last_error(), name), "%s is not in: %s", name, banyan_last_error());
        CHECK(strstr(banyan_last_error(), "BANYAN_TIMEOUT"), "%s", banyan_last_error());
        CHECK(strstr(banyan_last_error(), "waited 0.") && strstr(banyan_last_error(), " s in "));
        CHECK(took_ns > 350 * NS_PER_MS && took_ns < 900 * NS_PER_MS, "%.3f s",
              (double)took_ns / 1e9);
        CHECK_OK(banyan_world_check(world));
        timeouts++;
    }
    CHECK(late || timeouts >= 1, "no call timed out");
}

static bool can_be_called_again(enum operation operation)
{
    return operation <= ALLGATHERV || operation == DIRECTORY;
}

static void call_again(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    banyan_world *world = open_late(rank, count, id, 0), *sub;
    static const int members[] = {4, 3, 1, 0};
    char name[64];
    for (enum operation operation = 0; operation < OPERATIONS; operation++) {
        if (!can_be_called_again(operation))
            continue;
        CHECK_OK(banyan_world_set_timeout(world, 10 * NS_PER_S));
        CHECK_OK(banyan_world_barrier(world));
        CHECK_OK(banyan_world_set_timeout(world, 400 * NS_PER_MS));
        snprintf(name, sizeof name, "for rank %d (pid ", play->victim);
        call_until_it_comes(world, rank == play->victim, name, operation);
    }
    CHECK_OK(banyan_world_set_timeout(world, 10 * NS_PER_S));
    CHECK_OK(banyan_world_barrier(world));
    if (rank != 2) {
        CHECK_OK(banyan_world_split(world, members, 4, &sub));
        CHECK_OK(banyan_world_barrier(sub));
        CHECK_OK(banyan_world_set_timeout(sub, 400 * NS_PER_MS));
        call_until_it_comes(sub, rank == 1, "for rank 2 (rank 1 of the job, pid ", ALLGATHER);
        CHECK_OK(banyan_world_set_timeout(sub, 0));
        CHECK_OK(banyan_world_close(sub));
    }
    CHECK_OK(banyan_world_close(world));
}

static void a_call_that_timed_out_can_be_called_again(void **state)
{
    (void)state;
    for (int victim = 0; victim < RANKS; victim += 3) {
        int statuses[RANKS];
        *play = (struct play){.victim = victim};
        ranks_fork(RANKS, call_again, NULL, statuses);
        for (int rank = 0; rank < RANKS; rank++)
            assert_int_equal(statuses[rank], 0);
    }
}

/* A late rank that has not even split off the sub-world in which the others wait. */
static void split_late(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    banyan_world *world = open_late(rank, count, id, 10 * NS_PER_S), *sub;
    static const int members[] = {2, 1, 0};
    if (rank < 3) {
        if (rank == 0)
            sleep_ms(1000);
        CHECK_OK(banyan_world_split(world, members, 3, &sub));
        CHECK_OK(banyan_world_set_timeout(sub, 400 * NS_PER_MS));
        banyan_status status;
        int timeouts = 0;
        while ((status = banyan_world_barrier(sub)) == BANYAN_ERR_TIMEOUT) {
            CHECK(strstr(banyan_last_error(), "for rank 2 (rank 0 of the job, pid "), "%s",
                  banyan_last_error());
            timeouts++;
        }
        CHECK_OK(status);
        CHECK(rank == 0 || timeouts > 0);
        CHECK_OK(banyan_world_set_timeout(sub, 0));
        CHECK_OK(banyan_world_close(sub));
    }
    CHECK_OK(banyan_world_close(world));
}

static void a_rank_may_be_late_to_split(void **state)
{
    (void)state;
    int statuses[RANKS];
    ranks_fork(RANKS, split_late, NULL, statuses);
    for (int rank = 0; rank < RANKS; rank++)
        assert_int_equal(statuses[rank], 0);
}

enum { ROUNDS = 25 };

/* Ranks with different deadlines come at different times, and call until it works: the gathered
 * values show that all are in one round. */
static void come_at_random(int rank, int count, const banyan_unique_id *id, void *context)
{
    uint64_t seed = *(uint64_t *)context;
    banyan_world *world = open_late(rank, count, id, 10 * NS_PER_S);
    random_state random = random_from(seed + (uint64_t)rank * 7919);
    int timeouts = 0;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        uint64_t all[2 * RANKS];
        CHECK_OK(
            banyan_world_set_timeout(world, (uint64_t)random_between(&random, 5, 60) * NS_PER_MS));
        usleep((unsigned)random_between(&random, 0, 60000));
        banyan_status status;
        while ((status = banyan_world_allgather(world, &round, sizeof round, all)) ==
               BANYAN_ERR_TIMEOUT)
            CHECK(timeouts++ < 1000 && banyan_world_check(world) == BANYAN_OK, "%s",
                  banyan_last_error());
        CHECK_OK(status);
        for (int i = 0; i < count; i++)
            CHECK(all[i] == round, "rank %d is in round %d, this one in %d", i, (int)all[i],
                  (int)round);
    }
    play->waiting += timeouts;
    CHECK_OK(banyan_world_set_timeout(world, 10 * NS_PER_S));
    CHECK_OK(banyan_world_close(world));
}

static void ranks_that_call_again_meet_in_the_same_call(void **state)
{
    (void)state;
    uint64_t seed = random_seed();
    for (int ranks = 2; ranks <= 2 * RANKS; ranks += 4) {
        int statuses[2 * RANKS];
        *play = (struct play){.victim = -1};
        ranks_fork(ranks, come_at_random, &seed, statuses);
        for (int rank = 0; rank < ranks; rank++)
            assert_int_equal(statuses[rank], 0);
        assert_true(play->waiting > 0);
    }
}

/* An agreement has no gate: the others end its world, and stay; then the late rank comes. */
static void agree_late(int rank, int count, const banyan_unique_id *id, void *context)
{
    const int *late = context;
    banyan_world *world = open_late(rank, count, id, 20 * NS_PER_S);
    char name[64];
    snprintf(name, sizeof name, "for rank %d (pid ", *late);
    CHECK_OK(banyan_world_barrier(world));
    if (rank != *late)
        CHECK_OK(banyan_world_set_timeout(world, 400 * NS_PER_MS));
    while (rank == *late && play->waiting < count - 1)
        sleep_ms(1);
    sleep_ms(rank == *late ? 300 : 0);
    uint64_t began_ns = time_now_ns();
    CHECK_FAILS(control_agree(world, BANYAN_OK), BANYAN_ERR_TIMEOUT, name);
    uint64_t took_ns = time_now_ns() - began_ns;
    CHECK(strstr(banyan_last_error(), "BANYAN_TIMEOUT"), "%s", banyan_last_error());
    CHECK(rank != *late || took_ns < 250 * NS_PER_MS, "it took %.2f s", (double)took_ns / 1e9);
    play->waiting++;
    while (play->waiting < count)
        sleep_ms(1);
    CHECK_FAILS(banyan_world_close(world), BANYAN_ERR_TIMEOUT, name);
}

static void a_rank_that_is_late_in_the_middle_of_a_call_is_told(void **state)
{
    (void)state;
    for (int late = 0; late < RANKS; late += 2) {
        int statuses[RANKS];
        *play = (struct play){.victim = late};
        ranks_fork(RANKS, agree_late, &late, statuses);
        for (int rank = 0; rank < RANKS; rank++)
            assert_int_equal(statuses[rank], 0);
    }
}

/* Rank 0 agrees on a wait that has failed, and the others come more than a second later. */
static void agree_on_a_timeout(int rank, int count, const banyan_unique_id *id, void *context)
{
    const bool *is_of_other_world = context;
    banyan_world *world = open_late(rank, count, id, 20 * NS_PER_S);
    CHECK_OK(banyan_world_barrier(world));
    sleep_ms(rank == 0 ? 0 : 1500);
    banyan_status mine =
        rank == 0 ? banyan_error_set(BANYAN_ERR_TIMEOUT, "nobody came") : BANYAN_OK;
    CHECK_FAILS(*is_of_other_world ? control_agree_on_other_world(world, mine)
                                   : control_agree(world, mine),
                BANYAN_ERR_TIMEOUT, "nobody came");
    banyan_status status = banyan_world_barrier(world);
    CHECK(status == (*is_of_other_world ? BANYAN_OK : BANYAN_ERR_TIMEOUT), "%s",
          banyan_last_error());
    (void)banyan_world_close(world);
}

static void a_timeout_ends_the_world_that_it_was_in(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        bool is_of_other_world = i;
        int statuses[RANKS];
        ranks_fork(RANKS, agree_on_a_timeout, &is_of_other_world, statuses);
        for (int rank = 0; rank < RANKS; rank++)
            assert_int_equal(statuses[rank], 0);
    }
}

static void give_up_and_leave(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    banyan_world *world = open_late(rank, count, id, rank == 1 ? 300 * NS_PER_MS : 0);
    if (rank == 1) {
        CHECK_FAILS(banyan_world_barrier(world), BANYAN_ERR_TIMEOUT, "for rank 0 (pid ");
        uint64_t began_ns = time_now_ns();
        CHECK_FAILS(banyan_world_close(world), BANYAN_ERR_TIMEOUT, "for rank 0 (pid ");
        CHECK(time_now_ns() - began_ns < 200 * NS_PER_MS, "leaving waits");
        return;
    }
    if (rank == 0)
        sleep_ms(800);
    CHECK_FAILS(banyan_world_barrier(world), BANYAN_ERR_TIMEOUT, "rank 1 ");
    CHECK_FAILS(banyan_world_close(world), BANYAN_ERR_TIMEOUT, "rank 1 ");
}

static void a_rank_that_does_not_call_again_leaves_at_once(void **state)
{
    (void)state;
    int statuses[3];
    ranks_fork(3, give_up_and_leave, NULL, statuses);
    for (int rank = 0; rank < 3; rank++)
        assert_int_equal(statuses[rank], 0);
}

/* In a sub-world the same rule holds, and the world around it continues. */
static void leave_a_sub_world(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    static const int members[] = {2, 0, 1};
    banyan_world *world = open_late(rank, count, id, 20 * NS_PER_S), *sub;
    if (rank < 3) {
        CHECK_OK(banyan_world_split(world, members, 3, &sub));
        CHECK_OK(banyan_world_barrier(sub));
        if (rank == 1) {
            CHECK_OK(banyan_world_set_timeout(sub, 300 * NS_PER_MS));
            CHECK_FAILS(banyan_world_barrier(sub), BANYAN_ERR_TIMEOUT, "(rank 0 of the job, pid ");
            play->ended_ns = time_now_ns();
            CHECK_FAILS(banyan_world_close(sub), BANYAN_ERR_TIMEOUT, "(rank 0 of the job, pid ");
        } else {
            if (rank == 0)
                sleep_ms(800);
            CHECK_FAILS(banyan_world_barrier(sub), BANYAN_ERR_TIMEOUT, "rank 2 ");
            CHECK(time_now_ns() - play->ended_ns < 3 * NS_PER_S, "it learned of it late");
            CHECK_FAILS(banyan_world_close(sub), BANYAN_ERR_TIMEOUT, "rank 2 ");
        }
    }
    CHECK_OK(banyan_world_barrier(world));
    CHECK_OK(banyan_world_close(world));
}

static void leaving_a_sub_world_after_a_timeout_tells_its_members(void **state)
{
    (void)state;
    int statuses[RANKS];
    ranks_fork(RANKS, leave_a_sub_world, NULL, statuses);
    for (int rank = 0; rank < RANKS; rank++)
        assert_int_equal(statuses[rank], 0);
}

/* Rank 2 is late in a sub-world with rank 3, which therefore does not come to the world's
 * barrier. */
static void wait_across_worlds(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    static const int members[] = {3, 2};
    banyan_world *world = open_late(rank, count, id, 20 * NS_PER_S), *sub = NULL;
    bool is_member = rank == 2 || rank == 3;
    if (is_member)
        CHECK_OK(banyan_world_split(world, members, 2, &sub));
    CHECK_OK(banyan_world_barrier(world));
    line_count = 0;
    if (rank == 2)
        sleep_ms(1200);
    if (is_member)
        CHECK_OK(banyan_world_barrier(sub));
    int timeouts = 0;
    CHECK_OK(banyan_world_set_timeout(world, is_member ? 20 * NS_PER_S : 400 * NS_PER_MS));
    banyan_status status;
    while ((status = banyan_world_barrier(world)) == BANYAN_ERR_TIMEOUT) {
        CHECK(strstr(banyan_last_error(), " for rank 2 (pid "), "%s", banyan_last_error());
        timeouts++;
    }
    CHECK_OK(status);
    CHECK(is_member || timeouts > 0);
    play->lines += count_lines("; rank 2 (pid ");
    CHECK_OK(banyan_world_set_timeout(world, 20 * NS_PER_S));
    CHECK_OK(banyan_world_close(sub));
    CHECK_OK(banyan_world_close(world));
}

static void a_rank_that_waits_in_another_world_is_not_the_late_one(void **state)
{
    (void)state;
    int statuses[4];
    *play = (struct play){.victim = 2};
    ranks_fork(4, wait_across_worlds, NULL, statuses);
    for (int rank = 0; rank < 4; rank++)
        assert_int_equal(statuses[rank], 0);
    assert_true(play->lines >= 4);
}

static void wait_for_ever(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    setenv("BANYAN_TIMEOUT", "0", 1);
    banyan_world *world = open_late(rank, count, id, 0);
    CHECK(banyan_world_timeout_ns(world) == BANYAN_FOREVER_NS);
    CHECK_OK(banyan_world_barrier(world));
    if (rank == play->victim) {
        sleep_ms(500);
        play->ended_ns = time_now_ns();
        kill(getpid(), SIGKILL);
    }
    CHECK_FAILS(banyan_world_barrier(world), BANYAN_ERR_PEER_LOST, "rank 1 (pid ");
    CHECK(time_now_ns() - play->ended_ns < NS_PER_S, "%.2f s after the death",
          (double)(time_now_ns() - play->ended_ns) / 1e9);
    CHECK_FAILS(banyan_world_close(world), BANYAN_ERR_PEER_LOST, "rank 1 (pid ");
    play->lines += count_lines("it has no deadline");
}

static void a_death_ends_a_wait_without_a_deadline(void **state)
{
    (void)state;
    int statuses[RANKS];
    *play = (struct play){.victim = 1};
    ranks_fork(RANKS, wait_for_ever, NULL, statuses);
    for (int rank = 0; rank < RANKS; rank++)
        assert_true(rank == 1 || statuses[rank] == 0);
    assert_true(play->lines > 0);
}

/* A stopped rank cannot give up: the world ends, and the message says so. */
static void wait_for_the_stopped(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    banyan_world *world = open_late(rank, count, id, 500 * NS_PER_MS);
    CHECK_OK(banyan_world_barrier(world));
    if (rank == play->victim) {
        play->pid = getpid();
        kill(getpid(), SIGSTOP);
        _exit(0);
    }
    uint64_t began_ns = time_now_ns();
    CHECK_FAILS(banyan_world_barrier(world), BANYAN_ERR_TIMEOUT, "rank 2 (pid ");
    double waited_s = (double)(time_now_ns() - began_ns) / 1e9;
    CHECK(waited_s > 0.5 && waited_s < 4.5, "the world ended after %.1f s, not 2.5", waited_s);
    CHECK(strstr(banyan_last_error(), "does not answer"), "%s", banyan_last_error());
    CHECK_FAILS(banyan_world_check(world), BANYAN_ERR_TIMEOUT, "rank 2 (pid ");
    CHECK_FAILS(banyan_world_close(world), BANYAN_ERR_TIMEOUT, "rank 2 (pid ");
    if (++play->waiting == count - 1)
        kill(play->pid, SIGKILL);
}

static void a_stopped_rank_is_named_at_a_gate(void **state)
{
    (void)state;
    int statuses[RANKS];
    *play = (struct play){.victim = 2};
    ranks_fork(RANKS, wait_for_the_stopped, NULL, statuses);
    for (int rank = 0; rank < RANKS; rank++)
        assert_true(rank == 2 || statuses[rank] == 0);
}

int main(void)
{
    setenv("BANYAN_WAIT_LOG", LOG_PERIOD, 1);
    play = mmap(NULL, sizeof *play, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_late_rank_is_waited_for_and_named_in_the_log),
        cmocka_unit_test(a_call_that_timed_out_can_be_called_again),
        cmocka_unit_test(a_rank_may_be_late_to_split),
        cmocka_unit_test(ranks_that_call_again_meet_in_the_same_call),
        cmocka_unit_test(a_rank_that_is_late_in_the_middle_of_a_call_is_told),
        cmocka_unit_test(a_timeout_ends_the_world_that_it_was_in),
        cmocka_unit_test(a_rank_that_does_not_call_again_leaves_at_once),
        cmocka_unit_test(leaving_a_sub_world_after_a_timeout_tells_its_members),
        cmocka_unit_test(a_rank_that_waits_in_another_world_is_not_the_late_one),
        cmocka_unit_test(a_death_ends_a_wait_without_a_deadline),
        cmocka_unit_test(a_stopped_rank_is_named_at_a_gate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
