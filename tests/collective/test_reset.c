/* A communicator after a reset, on the host: its calls are as correct as before, and a late or
 * dead peer is an error. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/deadline.h"
#include "support/test.h"

#define COUNT 3000

static void check_sum(banyan_comm *comm, int rank, int ranks, int round, size_t count)
{
    float input[COUNT], output[COUNT];
    for (size_t i = 0; i < count; i++) {
        input[i] = (float)(rank + 1) * (float)(i % 100) + (float)round;
        output[i] = -1;
    }
    CHECK_OK(banyan_comm_allreduce(comm, input, output, count, BANYAN_F32, BANYAN_SUM, NULL));
    for (size_t i = 0; i < count; i++) {
        float sum = (float)(ranks * (ranks + 1) / 2) * (float)(i % 100) + (float)(ranks * round);
        CHECK(output[i] == sum, "round %d, element %zu: %g, not %g", round, i, (double)output[i],
              (double)sum);
    }
}

/* Makes an odd number of calls in between, which would swap the halves of scratch. */
static void begin_anew(banyan_world *world, void *context)
{
    (void)context;
    banyan_comm *comm;
    int rank = banyan_world_rank(world), ranks = banyan_world_size(world), round = 0;
    CHECK_OK(banyan_comm_create(world, NULL, &comm));
    CHECK_OK(banyan_comm_reset(comm));
    for (int time = 0; time < 3; time++) {
        for (int i = 0; i < 3; i++) {
            check_sum(comm, rank, ranks, round++, 5);
            check_sum(comm, rank, ranks, round++, COUNT);
        }
        CHECK_OK(banyan_comm_reset(comm));
        check_sum(comm, rank, ranks, round++, 5);
    }
    CHECK_OK(banyan_comm_destroy(comm));
}

static void calls_are_right_after_a_reset(void **state)
{
    (void)state;
    ranks_run(3, begin_anew, NULL);
    ranks_run_threads(2, begin_anew, NULL);
}

/* On the host, a timeout ends the world. */
static void be_late(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    float values[4] = {1, 2, 3, 4};
    banyan_comm *comm;
    banyan_world *world = ranks_open_world(rank, count, id, NS_PER_S / 2);
    CHECK_OK(banyan_comm_create(world, NULL, &comm));
    CHECK_OK(banyan_comm_allreduce(comm, values, values, 4, BANYAN_F32, BANYAN_SUM, NULL));
    if (rank == 0)
        CHECK_FAILS(banyan_comm_allreduce(comm, values, values, 4, BANYAN_F32, BANYAN_SUM, NULL),
                    BANYAN_ERR_TIMEOUT, "for rank 1");
    else
        usleep(1000000);
    CHECK(banyan_comm_reset(comm) != BANYAN_OK, "a world that has ended was reset");
    banyan_comm_destroy(comm);
    banyan_world_close(world);
}

static void a_late_peer_on_the_host_is_not_mended(void **state)
{
    (void)state;
    int statuses[2];
    ranks_fork(2, be_late, NULL, statuses);
    for (int r = 0; r < 2; r++)
        assert_int_equal(statuses[r], 0);
}

static void die(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    banyan_comm *comm;
    banyan_world *world = ranks_open_world(rank, count, id, 30 * NS_PER_S);
    CHECK_OK(banyan_comm_create(world, NULL, &comm));
    check_sum(comm, rank, count, 0, 4);
    CHECK_OK(banyan_world_barrier(world));
    if (rank == 1)
        raise(SIGKILL);
    CHECK_FAILS(banyan_comm_reset(comm), BANYAN_ERR_PEER_LOST, "rank 1");
    banyan_comm_destroy(comm);
    banyan_world_close(world);
}

static void a_reset_without_a_peer_names_the_lost_rank(void **state)
{
    (void)state;
    ranks_fork_and_lose_one(die, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_are_right_after_a_reset),
        cmocka_unit_test(a_late_peer_on_the_host_is_not_mended),
        cmocka_unit_test(a_reset_without_a_peer_names_the_lost_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
