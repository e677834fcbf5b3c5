/* Thousands of connections that do not belong to the job, at the rendezvous and at every rank,
 * from its begin to its end: it opens, runs and closes as fast as without them. */
#include "support/flood.h"
#include "support/test.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/deadline.h"
#include "world/world.h"

#define SKIPPED 77
#define SECRET "00112233445566778899aabbccddeeff"

enum {
    RANKS = 4,
    NODES = 2,
    LISTENERS = RANKS + 1,
    HELD = 3000,
    HELD_TALKING = 1000,
    BARRIERS = 200
};

/* Slack for a busy machine; these connections hold a newcomer's place for 5 s. */
#define TIMES_SLOWER 10
#define SLACK_NS (2 * NS_PER_S)

/* In memory that the ranks share. */
struct play {
    struct flood flood;
    bool flooded;
    bool by_id; /* the ranks join by a unique id */
    int descriptors;
    banyan_unique_id id;
    _Atomic bool has_id;
    _Atomic int working;
    _Atomic uint64_t open_ns, work_ns, close_ns; /* of the slowest rank */
    _Atomic int lines;                           /* in the logs of all ranks */
};

static struct play *play;

static void count_line(banyan_log_level level, const char *message, void *context)
{
    (void)context;
    play->lines++;
    if (level <= BANYAN_LOG_WARN && play->lines < 4)
        fprintf(stderr, "  %s\n", message);
}

static void note_slowest(_Atomic uint64_t *slowest, uint64_t took_ns)
{
    uint64_t before = *slowest;
    while (took_ns > before && !atomic_compare_exchange_weak(slowest, &before, took_ns))
        ;
}

static void wait_for_flood(int ports)
{
    uint64_t deadline_ns = deadline_after(20 * NS_PER_S);
    while (play->flooded && play->flood.full_ports < ports) {
        CHECK(deadline_left_ns(deadline_ns) > 0, "%d ports are flooded, not %d",
              play->flood.full_ports, ports);
        usleep(1000);
    }
}

static void open_world(int rank, banyan_world **world)
{
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    options.rank = rank;
    options.world_size = RANKS;
    options.node = rank < RANKS / NODES ? "here" : "there";
    options.timeout_ns = 30 * NS_PER_S;
    if (play->by_id) {
        options.unique_id = &play->id;
    } else {
        options.address = "127.0.0.1";
        options.port = 29500;
        options.secret = SECRET;
    }
    CHECK_OK(banyan_world_open(&options, world));
    CHECK(banyan_world_node_count(*world) == NODES);
}

/* A program's work: talk, get memory that others reach, and open its own files. */
static void work(banyan_world *world)
{
    int rank = banyan_world_rank(world), first = rank / NODES * NODES;
    int near[] = {first, first + 1}, all[RANKS];
    banyan_world *node;
    banyan_memory *memory;
    for (int i = 0; i < BARRIERS; i++)
        CHECK_OK(banyan_world_barrier(world));
    CHECK_OK(banyan_world_allgather(world, &rank, sizeof rank, all));
    for (int i = 0; i < RANKS; i++)
        CHECK(all[i] == i);
    CHECK_OK(banyan_world_split(world, near, 2, &node));
    CHECK_OK(banyan_memory_alloc(node, 1 << 20, &memory));
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0, "the application cannot open a file");
    close(fd);
    banyan_memory_free(memory);
    CHECK_OK(banyan_world_close(node));
}

static void be_rank(int rank)
{
    struct rlimit limit = {(rlim_t)play->descriptors, (rlim_t)play->descriptors};
    banyan_world *world;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    banyan_log_set(count_line, NULL);
    uint64_t began = time_now_ns();
    open_world(rank, &world);
    if (rank > 0) /* rank 0 also waits for the flood at the rendezvous */
        note_slowest(&play->open_ns, time_now_ns() - began);
    /* The rendezvous has ended. */
    wait_for_flood(LISTENERS);
    CHECK_OK(banyan_world_barrier(world));
    began = time_now_ns();
    work(world);
    note_slowest(&play->work_ns, time_now_ns() - began);
    began = time_now_ns();
    CHECK_OK(banyan_world_close(world));
    note_slowest(&play->close_ns, time_now_ns() - began);
}

static pid_t start_child(void (*child)(int), int rank)
{
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        ranks_become_child();
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        child(rank);
        fflush(NULL);
        _exit(0);
    }
    return pid;
}

/* A process without a rank, which made the id and answers those who join. */
static void be_host(int nobody)
{
    (void)nobody;
    struct rlimit limit = {(rlim_t)play->descriptors, (rlim_t)play->descriptors};
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    setenv("BANYAN_NODE", "elsewhere", 1);
    CHECK_OK(banyan_unique_id_create(&play->id));
    play->has_id = true;
    for (;;)
        pause();
}

static void start_rendezvous(pid_t *host, pid_t ranks[RANKS])
{
    if (play->by_id) {
        *host = start_child(be_host, 0);
        while (!play->has_id)
            usleep(1000);
    } else {
        ranks[0] = start_child(be_rank, 0);
    }
    if (!play->flooded)
        usleep(100000);
    wait_for_flood(play->by_id ? 1 : 2);
}

/* A job of several machines in its own network, in a process that ends with it. */
static void run_job(int nobody)
{
    (void)nobody;
    CHECK(flood_enter_network());
    pid_t flooder = play->flooded ? flood_start(&play->flood) : -1, host = -1, ranks[RANKS] = {0};
    start_rendezvous(&host, ranks);
    int status;
    for (int rank = 0; rank < RANKS; rank++)
        ranks[rank] = ranks[rank] ? ranks[rank] : start_child(be_rank, rank);
    for (int rank = 0; rank < RANKS; rank++) {
        CHECK(waitpid(ranks[rank], &status, 0) == ranks[rank]);
        CHECK(status == 0, "rank %d ended with %#x", rank, status);
    }
    if (host > 0) {
        kill(host, SIGKILL);
        waitpid(host, &status, 0);
    }
    if (flooder > 0)
        flood_end(&play->flood, flooder);
}

static void run_play(bool flooded, enum flood_kind kind, bool by_id, int descriptors)
{
    memset(play, 0, sizeof *play);
    play->flood.kind = kind;
    play->flooded = flooded;
    play->by_id = by_id;
    play->descriptors = descriptors;
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    int room = (int)(limit.rlim_max > 1000000 ? 1000000 : limit.rlim_max) - 200;
    int held = kind == FLOOD_IDLE ? HELD : HELD_TALKING;
    play->flood.held = room / LISTENERS < held ? room / LISTENERS : held;
    uint64_t began = time_now_ns();
    int status;
    pid_t pid = start_child(run_job, 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    printf("%-24s %s, %4d descriptors: open %4.0f ms, work %4.0f ms, close %4.0f ms, %ld "
           "connections, %d lines logged, %.1f s\n",
           flooded ? flood_name(kind) : "nobody", by_id ? "id " : "job", descriptors,
           (double)play->open_ns / 1e6, (double)play->work_ns / 1e6, (double)play->close_ns / 1e6,
           (long)play->flood.connects, play->lines, (double)(time_now_ns() - began) / 1e9);
    fflush(stdout);
    assert_int_equal(status, 0);
    /* At most one line per second of each of six kinds from each listener. */
    double seconds = (double)(time_now_ns() - began) / 1e9;
    assert_true(play->lines <= (seconds + 1) * 6 * (LISTENERS + 1));
}

static void a_job_is_as_fast_with_strangers_as_without(void **state)
{
    (void)state;
    static const struct {
        enum flood_kind kind;
        bool by_id;
        int descriptors;
    } cases[] = {{FLOOD_IDLE, false, 256},  {FLOOD_IDLE, true, 1024}, {FLOOD_GARBAGE, false, 256},
                 {FLOOD_HALF, false, 1024}, {FLOOD_HALF, true, 256},  {FLOOD_HELLO, false, 256}};
    run_play(false, FLOOD_IDLE, false, 256);
    uint64_t open_ns = play->open_ns, work_ns = play->work_ns, close_ns = play->close_ns;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        run_play(true, cases[i].kind, cases[i].by_id, cases[i].descriptors);
        assert_true(play->open_ns < TIMES_SLOWER * open_ns + SLACK_NS);
        assert_true(play->work_ns < TIMES_SLOWER * work_ns + SLACK_NS);
        assert_true(play->close_ns < TIMES_SLOWER * close_ns + SLACK_NS);
    }
}

/* Try it in a child process. */
static void try_network(int nobody)
{
    (void)nobody;
    _exit(flood_enter_network() ? 0 : 1);
}

int main(void)
{
    int status;
    pid_t pid = start_child(try_network, 0);
    if (waitpid(pid, &status, 0) != pid || status != 0) {
        printf("skipped: this user may make no network namespaces\n");
        return SKIPPED;
    }
    play = mmap(NULL, sizeof *play, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (play == MAP_FAILED)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_is_as_fast_with_strangers_as_without),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
