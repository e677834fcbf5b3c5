/* A program's function ends waits: of calls of the control plane, of runs and of joining. */
#include "support/test.h"

#include <signal.h>
#include <unistd.h>

#include "core/deadline.h"

enum { RANKS = 3, INTERRUPTED = 1, ELEMS = 64 };
/* The world's timeout, which no wait may reach; and until the signal comes. */
#define TIMEOUT_NS (60 * NS_PER_S)
#define AFTER_US 200000

enum wait { BARRIER, ALLREDUCE, CREATE, WAITS };

static volatile sig_atomic_t signalled;

static void note_signal(int number)
{
    (void)number;
    signalled = 1;
}

static bool ask(void *context)
{
    ++*(int *)context;
    return signalled;
}

/* Let a signal arrive while this thread waits. */
static void expect_signal(int *asked)
{
    struct sigaction action = {.sa_handler = note_signal};
    sigaction(SIGALRM, &action, NULL);
    *asked = 0;
    banyan_interrupt_set(ask, asked);
    ualarm(AFTER_US, 0);
}

static banyan_status call(enum wait wait, banyan_world *world, banyan_comm *comm)
{
    float input[ELEMS] = {0}, output[ELEMS];
    banyan_memory *memory;
    if (wait == BARRIER)
        return banyan_world_barrier(world);
    if (wait == ALLREDUCE)
        return banyan_comm_allreduce(comm, input, output, ELEMS, BANYAN_F32, BANYAN_SUM, NULL);
    return banyan_memory_alloc(world, sizeof input, &memory);
}

/* Rank 2 never comes; rank 1 is interrupted while it waits, and rank 0 learns of that. */
static void interrupt_one(int rank, int count, const banyan_unique_id *id, void *context)
{
    enum wait wait = *(enum wait *)context;
    banyan_world *world = ranks_open_world(rank, count, id, TIMEOUT_NS);
    banyan_comm *comm;
    int asked = 0;
    CHECK_OK(banyan_comm_create(world, NULL, &comm));
    /* The first call loads the plan, which is a call of the control plane. */
    float input[ELEMS] = {0}, output[ELEMS];
    CHECK_OK(banyan_comm_allreduce(comm, input, output, ELEMS, BANYAN_F32, BANYAN_SUM, NULL));
    uint64_t began_ns = time_now_ns();
    if (rank == INTERRUPTED)
        expect_signal(&asked);
    if (rank < 2)
        CHECK_FAILS(call(wait, world, comm), BANYAN_ERR_ABORTED,
                    "the program interrupted the wait");
    else
        while (banyan_world_check(world) == BANYAN_OK)
            usleep(1000);
    CHECK(strstr(banyan_last_error(), "rank 1"), "%s", banyan_last_error());
    uint64_t took_ns = time_now_ns() - began_ns;
    CHECK(took_ns < TIMEOUT_NS / 4, "%.1f s", (double)took_ns / 1e9);
    if (rank == INTERRUPTED)
        CHECK(asked > 0 && asked < 200, "asked %d times", asked);
    banyan_comm_destroy(comm);
    banyan_world_close(world);
}

static void ends_waits_of_all_ranks(void **state)
{
    (void)state;
    for (enum wait wait = 0; wait < WAITS; wait++) {
        int statuses[RANKS];
        ranks_fork(RANKS, interrupt_one, &wait, statuses);
        for (int i = 0; i < RANKS; i++)
            assert_int_equal(statuses[i], 0);
    }
}

/* The other rank never opens the world. */
static void interrupt_joining(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    int asked = 0;
    if (rank != 0)
        return;
    expect_signal(&asked);
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    options.rank = rank;
    options.world_size = count;
    options.unique_id = id;
    options.timeout_ns = TIMEOUT_NS;
    banyan_world *world;
    CHECK_FAILS(banyan_world_open(&options, &world), BANYAN_ERR_ABORTED,
                "the program interrupted the wait");
}

static void ends_joining(void **state)
{
    (void)state;
    int statuses[2];
    ranks_fork(2, interrupt_joining, NULL, statuses);
    assert_int_equal(statuses[0], 0);
    assert_int_equal(statuses[1], 0);
}

/* A function that refuses leaves calls as they are. */
static void wait_with_refusal(banyan_world *world, void *context)
{
    (void)context;
    int asked = 0;
    banyan_interrupt_set(ask, &asked);
    if (banyan_world_rank(world) == 0)
        usleep(300000);
    CHECK_OK(banyan_world_barrier(world));
    CHECK(banyan_world_rank(world) == 0 || asked > 0, "never asked");
    banyan_interrupt_set(NULL, NULL);
}

static void continues_when_refused(void **state)
{
    (void)state;
    ranks_run(RANKS, wait_with_refusal, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ends_waits_of_all_ranks),
        cmocka_unit_test(ends_joining),
        cmocka_unit_test(continues_when_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
