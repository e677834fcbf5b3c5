/* The other ranks' errors when a rank dies, or does not come. */
#include "support/test.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "copy/traffic.h"
#include "core/deadline.h"

typedef struct loss_case {
    const char *backend;
    uint64_t seed, timeout_ns;

    uint64_t *died_ns; /* shared: when rank 1 was about to die */
} loss_case;

static banyan_world *world_of(int rank, int count, const banyan_unique_id *id, uint64_t timeout_ns)
{
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    options.rank = rank;
    options.world_size = count;
    options.unique_id = id;
    options.timeout_ns = timeout_ns;
    banyan_world *world;
    CHECK_OK(banyan_world_open(&options, &world));
    return world;
}

static void *die_soon(void *context)
{
    _Atomic uint64_t *died_ns = context;
    usleep(30000);
    atomic_store(died_ns, time_now_ns());
    raise(SIGKILL);
    return NULL;
}

/* Runs follow each other until one fails; rank 1 dies in the middle of one. */
static void run_until_loss(int rank, int count, const banyan_unique_id *id, void *context)
{
    const loss_case *test = context;
    banyan_world *world = world_of(rank, count, id, test->timeout_ns);
    banyan_copy_service *service;
    banyan_copy_schedule *schedule;
    CHECK_OK(banyan_copy_service_open(world, test->backend, NULL, &service));
    traffic *all = traffic_make(world, test->seed, 30, TRAFFIC_BY_ID, 2000);
    traffic_fill(all, 0);
    traffic_submit(all, service);
    CHECK_OK(banyan_copy_service_prepare(service, &schedule));
    pthread_t killer;
    if (rank == 1)
        CHECK(pthread_create(&killer, NULL, die_soon, test->died_ns) == 0);
    banyan_status status = BANYAN_OK;
    while (status == BANYAN_OK)
        status = banyan_copy_schedule_run(schedule, NULL);
    uint64_t now = time_now_ns(), died = *(_Atomic uint64_t *)test->died_ns;
    CHECK(rank != 1);
    CHECK(status == BANYAN_ERR_PEER_LOST, "%s", banyan_last_error());
    CHECK(strstr(banyan_last_error(), "rank 1"), "%s", banyan_last_error());
    CHECK(now - died < NS_PER_S, "it took %.3f s", (double)(now - died) / (double)NS_PER_S);
    CHECK(banyan_copy_schedule_run(schedule, NULL) != BANYAN_OK);
    banyan_copy_schedule_destroy(schedule);
    banyan_copy_service_close(service);
    traffic_free(all);
    banyan_world_close(world);
}

static const char *const names[] = {"direct", "pipeline"};

static void a_death_in_a_run_is_named_within_a_second(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        loss_case test = {
            .backend = names[i], .seed = random_seed() + i, .timeout_ns = 60 * NS_PER_S};
        test.died_ns = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        int statuses[4];
        ranks_fork(4, run_until_loss, &test, statuses);
        for (int rank = 0; rank < 4; rank++)
            if (rank == 1)
                assert_true(WIFSIGNALED(statuses[rank]));
            else
                assert_int_equal(statuses[rank], 0);
        munmap(test.died_ns, 4096);
    }
}

/* Rank 1 stays away from a run: the deadline passes, and the message names the awaited rank. */
static void run_without_one(int rank, int count, const banyan_unique_id *id, void *context)
{
    const loss_case *test = context;
    banyan_world *world = world_of(rank, count, id, test->timeout_ns);
    banyan_copy_service *service;
    banyan_copy_schedule *schedule;
    CHECK_OK(banyan_copy_service_open(world, test->backend, NULL, &service));
    int64_t shape[] = {1000};
    char from[1000], to[1000];
    DLTensor tensor = {
        .device = {kDLCPU, 0}, .ndim = 1, .dtype = BANYAN_U8, .shape = shape, .data = from};
    CHECK_OK(banyan_copy_service_submit_send(service, &tensor, 1 - rank, 1));
    tensor.data = to;
    CHECK_OK(banyan_copy_service_submit_recv(service, &tensor, 1 - rank, 1));
    CHECK_OK(banyan_copy_service_prepare(service, &schedule));
    if (rank == 0) {
        uint64_t start = time_now_ns();
        CHECK_FAILS(banyan_copy_schedule_run(schedule, NULL), BANYAN_ERR_TIMEOUT, "rank 1");
        CHECK(time_now_ns() - start < 20 * test->timeout_ns);
    } else {
        usleep(2000000);
    }
    banyan_copy_schedule_destroy(schedule);
    banyan_copy_service_close(service);
    banyan_world_close(world);
}

static void a_rank_that_does_not_come_is_named_after_the_deadline(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        loss_case test = {.backend = names[i], .timeout_ns = NS_PER_S};
        int statuses[2];
        ranks_fork(2, run_without_one, &test, statuses);
        assert_int_equal(statuses[0], 0);
        assert_int_equal(statuses[1], 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_death_in_a_run_is_named_within_a_second),
        cmocka_unit_test(a_rank_that_does_not_come_is_named_after_the_deadline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
