/* A machine that vanishes: messages of its rank, and to it, no longer arrive, without any error. */
#include "support/test.h"

#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/deadline.h"
#include "world/control.h"

#define SKIPPED 77
#define SECRET "00112233445566778899aabbccddeeff"
/* As in docs/limits.md, plus slack for a busy machine. */
#define LOST_NS (6 * NS_PER_S)
#define SLACK_NS (2 * NS_PER_S)

/* The rank's activity while the other machine vanishes. */
enum doing { WAITS, SENDS };

/* In memory that the ranks share. */
struct play {
    enum doing doing;
    _Atomic int working;
    _Atomic uint64_t pulled_ns;
};

static void wait_for(_Atomic int *count, int wanted)
{
    uint64_t deadline_ns = deadline_after(20 * NS_PER_S);
    while (*count < wanted) {
        CHECK(deadline_left_ns(deadline_ns) > 0, "the other rank does not come");
        usleep(1000);
    }
}

/* The cable: all traffic between the ranks' nodes uses this network's loopback device. */
static bool set_cable(bool up)
{
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = (short)(up ? IFF_UP : 0)};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool done = fd >= 0 && ioctl(fd, SIOCSIFFLAGS, &request) == 0;
    if (fd >= 0)
        close(fd);
    return done;
}

/* A network of its own, which ends with its last process. */
static bool enter_own_network(void)
{
    return (unshare(CLONE_NEWNET) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0) &&
           set_cable(true);
}

static void open_world(int rank, banyan_world **world)
{
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    options.rank = rank;
    options.world_size = 2;
    options.address = "127.0.0.1";
    options.port = 29500;
    options.secret = SECRET;
    options.node = rank == 0 ? "here" : "there";
    CHECK_OK(banyan_world_open(&options, world));
    CHECK(banyan_world_node_count(*world) == 2);
}

static void lose_the_other(struct play *play, int rank)
{
    banyan_world *world;
    void *data;
    size_t bytes;
    char name[32], words[1000] = "are you there?";
    open_world(rank, &world);
    CHECK_OK(banyan_world_barrier(world));
    if (rank == 1) {
        CHECK(set_cable(false));
        play->pulled_ns = time_now_ns();
    }
    play->working++;
    wait_for(&play->working, 2);
    if (play->doing == SENDS)
        CHECK_OK(control_send(world, 1 - rank, 1, words, sizeof words));
    snprintf(name, sizeof name, "rank %d", 1 - rank);
    CHECK_FAILS(control_receive(world, 1 - rank, 2, "an answer", &data, &bytes),
                BANYAN_ERR_PEER_LOST, name);
    uint64_t took_ns = time_now_ns() - play->pulled_ns;
    printf("%s: rank %d says after %.1f s: %s\n", play->doing == SENDS ? "sending" : "silent", rank,
           (double)took_ns / 1e9, banyan_last_error());
    CHECK(took_ns < LOST_NS + SLACK_NS, "%.1f s", (double)took_ns / 1e9);
    CHECK_FAILS(banyan_world_close(world), BANYAN_ERR_PEER_LOST, name);
}

static pid_t start(struct play *play, int rank)
{
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        ranks_become_child();
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        lose_the_other(play, rank);
        fflush(NULL);
        _exit(0);
    }
    return pid;
}

static int wait_for_end(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static pid_t start_in_own_network(struct play *play)
{
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        ranks_become_child();
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        CHECK(enter_own_network());
        pid_t ranks[2] = {start(play, 0), start(play, 1)};
        _exit((wait_for_end(ranks[0]) != 0) + (wait_for_end(ranks[1]) != 0));
    }
    return pid;
}

/* Both at once: each takes as long as the kernel's timeout. */
static void a_machine_that_vanishes_is_a_lost_rank(void **state)
{
    struct play *plays = *state;
    plays[0].doing = WAITS;
    plays[1].doing = SENDS;
    pid_t silent = start_in_own_network(&plays[0]), sending = start_in_own_network(&plays[1]);
    int statuses[2] = {wait_for_end(silent), wait_for_end(sending)};
    assert_int_equal(statuses[0], 0);
    assert_int_equal(statuses[1], 0);
}

/* Try it in a child process. */
static bool can_make_networks(void)
{
    int status;
    pid_t pid = fork();
    if (pid == 0)
        _exit(enter_own_network() ? 0 : 1);
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

int main(void)
{
    if (!can_make_networks()) {
        printf("skipped: this user may make no network namespaces\n");
        return SKIPPED;
    }
    void *plays = mmap(NULL, 2 * sizeof(struct play), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (plays == MAP_FAILED)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(a_machine_that_vanishes_is_a_lost_rank, plays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
