/* Work between four nodes of two ranks, each node with a network of its own: tensors, by either
 * copy backend, sums, mixed collectives and held plans. Every survivor names a node or rank that is
 * lost, the state of its work is as documented, and it goes on in a new world. */
#include "support/nodes.h"
#include "support/ucx.h"
#include "ucx/network/work.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/deadline.h"

#define NODES 4
#define RANKS (WORK_NODE_RANKS * NODES)
#define SURVIVORS (RANKS - WORK_NODE_RANKS)
/* Worlds that do other work at the same time. */
#define WORKS 2
#define PORT 29600
#define SECRET "00112233445566778899aabbccddeeff"
/* As in docs/limits.md, plus slack for a busy machine. */
#define TIMEOUT_NS (4 * NS_PER_S)
#define LOST_NS (6 * NS_PER_S + 4 * NS_PER_S)
/* For ranks that another check has ended. */
#define ABSENT_NS (60 * NS_PER_S)

enum fault { NO_FAULT, CUT_OFF, KILLED, STOPPED };

/* In memory that all processes share. */
struct job {
    const work *works[WORKS];
    enum fault fault;
    _Atomic int working; /* ranks of all works that have done every kind of step */
    _Atomic bool is_hit;
    _Atomic uint64_t hit_ns;
};

/* Ranks 0 and 1 are on node 0, 2 and 3 on node 1, and so on. */
static void network_open(int rank, int size, uint16_t port, uint64_t timeout_ns,
                         banyan_world **world)
{
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    char address[NODES_ADDRESS_BYTES];
    nodes_address(0, address);
    options.rank = rank;
    options.world_size = size;
    options.address = address;
    options.port = port;
    options.secret = SECRET;
    options.timeout_ns = timeout_ns;
    CHECK_OK(banyan_world_open(&options, world));
    CHECK(banyan_world_node_count(*world) == size / WORK_NODE_RANKS, "%d nodes",
          banyan_world_node_count(*world));
}

/* Return the status of the first step that fails, with at most `steps` steps. */
static banyan_status repeat(struct job *job, const work *of, void *state, uint64_t steps)
{
    banyan_status status = BANYAN_OK;
    for (uint64_t step = 0; step < steps && status == BANYAN_OK; step++) {
        status = of->step(state, (int)(step % WORK_STEPS));
        if (step + 1 == WORK_CYCLE)
            atomic_fetch_add(&job->working, 1);
    }
    return status;
}

/* The cut-off ranks lose some other rank. */
static void check_message(const struct job *job, int rank)
{
    const char *message = banyan_last_error();
    bool is_named =
        strstr(message, "rank 7") || (job->fault == CUT_OFF && strstr(message, "rank 6"));
    CHECK(is_named || rank >= SURVIVORS, "%s", message);
}

static void lose_some(struct job *job, const work *of, int rank, uint16_t port)
{
    banyan_world *world;
    /* A stopped process may go on again: the deadline of the wait decides. */
    bool stops = job->fault == STOPPED;
    banyan_status expected = stops ? BANYAN_ERR_TIMEOUT : BANYAN_ERR_PEER_LOST;
    network_open(rank, RANKS, port, stops ? TIMEOUT_NS : 0, &world);
    void *state = of->open(world, of->backend);
    banyan_status status = repeat(job, of, state, UINT64_MAX);
    double took = (double)(time_now_ns() - job->hit_ns) / 1e9;
    CHECK(job->is_hit && status == expected, "%s: %s", banyan_status_name(status),
          banyan_last_error());
    printf("%s: rank %d after %.1f s: %s\n", of->name, rank, took, banyan_last_error());
    check_message(job, rank);
    CHECK(took < LOST_NS / 1e9, "%.1f s", took);
    of->close(state, status);
    (void)banyan_world_close(world);
}

/* All ranks of the world, or those that survive in a new one. */
static void lose_none(struct job *job, const work *of, int rank, int size, uint16_t port)
{
    banyan_world *world;
    network_open(rank, size, port, ABSENT_NS, &world);
    void *state = of->open(world, of->backend);
    CHECK_OK(repeat(job, of, state, WORK_CYCLE));
    of->close(state, BANYAN_OK);
    CHECK_OK(banyan_world_close(world));
}

static void play(struct job *job, int number, int rank)
{
    const work *of = job->works[number];
    uint16_t port = (uint16_t)(PORT + 2 * number);
    if (job->fault == NO_FAULT) {
        lose_none(job, of, rank, RANKS, port);
        return;
    }
    lose_some(job, of, rank, port);
    if (rank < SURVIVORS)
        lose_none(job, of, rank, SURVIVORS, port + 1);
}

static pid_t rank_start(struct job *job, int number, int rank)
{
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        nodes_enter(rank / WORK_NODE_RANKS);
        play(job, number, rank);
        fflush(NULL);
        _exit(0);
    }
    return pid;
}

/* Lose the last node, or the last rank of every work. */
static void hit(struct job *job, pid_t ranks[WORKS][RANKS])
{
    uint64_t deadline_ns = deadline_after(3 * ABSENT_NS); /* sanitizers are slow */
    while (job->working < WORKS * RANKS) {
        CHECK(deadline_left_ns(deadline_ns) > 0, "%d ranks of %d work", job->working,
              WORKS * RANKS);
        usleep(1000);
    }
    job->hit_ns = time_now_ns();
    job->is_hit = true;
    if (job->fault == CUT_OFF)
        nodes_connect(NODES - 1, false);
    for (int i = 0; i < WORKS && job->fault != CUT_OFF; i++)
        kill(ranks[i][RANKS - 1], job->fault == KILLED ? SIGKILL : SIGSTOP);
}

static void run_job(void *context)
{
    struct job *job = context;
    pid_t ranks[WORKS][RANKS];
    int status, failures = 0;
    for (int i = 0; i < WORKS * RANKS; i++)
        ranks[i / RANKS][i % RANKS] = rank_start(job, i / RANKS, i % RANKS);
    if (job->fault != NO_FAULT)
        hit(job, ranks);
    for (int i = 0; i < WORKS * RANKS; i++) {
        pid_t pid = ranks[i / RANKS][i % RANKS];
        bool is_last = i % RANKS == RANKS - 1;
        if (job->fault == STOPPED && is_last)
            kill(pid, SIGKILL);
        CHECK(waitpid(pid, &status, 0) == pid);
        bool was_killed = is_last && (job->fault == KILLED || job->fault == STOPPED);
        failures += was_killed ? !WIFSIGNALED(status) : status != 0;
    }
    CHECK(failures == 0, "%d ranks failed", failures);
}

static void run_with(enum fault fault)
{
    static const work *const works[][WORKS] = {{&work_weights_direct, &work_mixed},
                                               {&work_weights_pipeline, &work_plans}};
    struct job *job =
        mmap(NULL, sizeof *job, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(job != MAP_FAILED);
    for (size_t i = 0; i < sizeof works / sizeof *works; i++) {
        *job = (struct job){.works = {works[i][0], works[i][1]}, .fault = fault};
        ranks_in_networks(NODES, run_job, job);
    }
    munmap(job, sizeof *job);
}

static void all_work_is_right_between_machines(void **state)
{
    (void)state;
    run_with(NO_FAULT);
}

static void a_machine_that_is_cut_off_is_named(void **state)
{
    (void)state;
    run_with(CUT_OFF);
}

static void a_killed_rank_is_named_on_all_machines(void **state)
{
    (void)state;
    run_with(KILLED);
}

static void a_stopped_rank_is_named_on_all_machines(void **state)
{
    (void)state;
    run_with(STOPPED);
}

int main(void)
{
    if (!ucx_is_there())
        return 77;
    /* Shared memory would reach across the namespaces. */
    setenv("UCX_TLS", "tcp", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_work_is_right_between_machines),
        cmocka_unit_test(a_machine_that_is_cut_off_is_named),
        cmocka_unit_test(a_killed_rank_is_named_on_all_machines),
        cmocka_unit_test(a_stopped_rank_is_named_on_all_machines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
